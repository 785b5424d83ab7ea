//! Tags of a store.

use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::moments::to_datetime_if_any;

/// A name for a moment, which stays readable until the tag is deleted.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"a"] = b"1"
/// >>> tag = db.tag("v1")
/// >>> tag, db.at(tag.glsn)[b"a"]
/// (<plimsoll tag "v1" at GLSN 1>, b'1')
#[pyclass(module = "plimsoll", frozen)]
pub struct Tag {
    info: plimsoll::TagInfo,
}

impl Tag {
    pub(crate) fn new(info: plimsoll::TagInfo) -> Self {
        Self { info }
    }
}

#[pymethods]
impl Tag {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// GLSN of its moment.
    #[getter]
    fn glsn(&self) -> u64 {
        self.info.glsn.0
    }

    /// Time of the commit with this GLSN; `None` for the empty store, or if the log no longer held
    /// that commit when the tag was made.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        to_datetime_if_any(py, self.info.time)
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll tag {:?} at GLSN {}>", self.info.name, self.info.glsn)
    }
}
