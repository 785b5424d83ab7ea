//! Holds the writers' turn for a `with` block, safe against exceptions from signal handlers.
//!
//! Python runs handlers between two of its own instructions. If Python code took the lock and a
//! handler raised before the code recorded that, the lock would never be released. Here one native
//! call takes and records the lock, and another releases it.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;

use crate::fork::ForkSafe;

/// A turn (`plimsoll._turn.Turn`) for a `with` block, from `Turn.hold`. Entering it waits for the
/// turn and returns whether it was acquired in time; the turn is released at the end of the block,
/// or when the last reference to the hold is dropped.
#[pyclass(module = "plimsoll._native", frozen)]
pub struct Hold {
    turn: Py<PyAny>,
    /// The turn's lock when the hold was created; a forked child gives the turn another lock.
    lock: Py<PyAny>,
    timeout: Option<f64>,
    deadline: Option<f64>,
    is_held: AtomicBool,
    is_kept: AtomicBool,
    /// In a forked child, the turn belongs to the parent.
    process: ForkSafe<()>,
}

#[pymethods]
impl Hold {
    #[new]
    #[pyo3(signature = (turn, lock, timeout, deadline))]
    fn new(turn: Py<PyAny>, lock: Py<PyAny>, timeout: Option<f64>, deadline: Option<f64>) -> Self {
        let (is_held, is_kept) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { turn, lock, timeout, deadline, is_held, is_kept, process: ForkSafe::new(()) }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        let arguments = (true, self.timeout.unwrap_or(-1.0));
        // A handler may raise during the wait. Once the lock is taken, no handler runs before this
        // function returns.
        if !self.lock.bind(py).call_method1(intern!(py, "acquire"), arguments)?.is_truthy()? {
            return Ok(false);
        }
        // Relaxed: one thread at a time uses a hold, and the GIL orders the accesses.
        self.is_held.store(true, Ordering::Relaxed);
        let taken =
            self.turn.bind(py).call_method1(intern!(py, "take_from_processes"), (self.deadline,));
        let taken = taken.and_then(|taken| taken.is_truthy());
        if !matches!(taken, Ok(true)) {
            self.give(py)?;
        }
        taken
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_kept.load(Ordering::Relaxed) { Ok(()) } else { self.give(py) }
    }

    /// Keeps the turn beyond the block, until `give`.
    fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Releases the turn, if it is held.
    fn give(&self, py: Python<'_>) -> PyResult<()> {
        if self.process.is_foreign() || !self.is_held.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let given = self.give_to_processes(py);
        self.lock.bind(py).call_method0(intern!(py, "release"))?;
        given
    }
}

impl Hold {
    fn give_to_processes(&self, py: Python<'_>) -> PyResult<()> {
        let turn = self.turn.bind(py);
        turn.setattr(intern!(py, "thread"), 0)?;
        for unlock in turn.getattr(intern!(py, "unlocks"))?.try_iter()? {
            unlock?.call0()?;
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_held.load(Ordering::Relaxed) || self.process.is_foreign() {
            return;
        }
        // Not attached at interpreter exit, when the process releases everything.
        Python::try_attach(|py| {
            // The hold may be dropped while an exception propagates out of its block.
            let raised = PyErr::take(py);
            if let Err(error) = self.give(py) {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}
