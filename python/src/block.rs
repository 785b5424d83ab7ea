//! A `with` block around a generator that is safe against exceptions from signal handlers.
//!
//! `contextlib.contextmanager` does the same in Python, but Python runs signal handlers between two
//! of its own instructions. A handler that raised there would leave the generator suspended, with
//! everything it holds, for as long as the exception lives. Here the generator is entered and
//! exited in one native call each.

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;

/// The code of a generator before and after its only `yield`, around a `with` block; created by
/// `plimsoll._block.block`.
#[pyclass(module = "plimsoll._native", frozen)]
pub struct Block {
    steps: Py<PyAny>,
}

#[pymethods]
impl Block {
    #[new]
    fn new(steps: Py<PyAny>) -> Self {
        Self { steps }
    }

    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.steps.bind(py).call_method0(intern!(py, "__next__"))
    }

    /// Returns whether the generator has handled the block's exception.
    fn __exit__<'py>(
        &self,
        py: Python<'py>,
        _kind: &Bound<'py, PyAny>,
        raised: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let steps = self.steps.bind(py);
        let is_raised = !raised.is_none();
        let ended = if is_raised {
            steps.call_method1(intern!(py, "throw"), (raised,))
        } else {
            steps.call_method0(intern!(py, "__next__"))
        };
        match ended {
            Ok(_) => Err(PyRuntimeError::new_err(
                "the generator of a `with` block continued after the block ended",
            )),
            Err(error) if error.value(py).is(raised) => Ok(false),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => Ok(is_raised),
            // If a `StopIteration` leaves a generator, Python raises a `RuntimeError` whose cause
            // is the `StopIteration`.
            Err(error)
                if raised.is_instance_of::<PyStopIteration>()
                    && error.cause(py).is_some_and(|cause| cause.value(py).is(raised)) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
