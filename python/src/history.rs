//! The retained versions of a key.

use std::sync::{Mutex, PoisonError};

use plimsoll::VersionInfo;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::moments::to_datetime_if_any;

/// The retained versions of a key, newest first: an iterator, from `LiveMapping.history` and
/// `BranchMapping.history`. It keeps the moment of its creation readable.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"tea"] = b"3.10"
/// >>> del db[b"tea"]
/// >>> history = db.history(b"tea")
/// >>> next(history).deleted, next(history).value()
/// (True, b'3.10')
#[pyclass(module = "plimsoll", frozen)]
pub struct History {
    key: Vec<u8>,
    history: Mutex<ForkSafe<plimsoll::History>>,
}

impl History {
    pub(crate) fn new(key: &[u8], history: plimsoll::History) -> Self {
        Self { key: key.to_vec(), history: Mutex::new(ForkSafe::new(history)) }
    }
}

#[pymethods]
impl History {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        py.check_signals()?;
        let mut history = self.history.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let history = history.get_mut()?;
        let next = py.detach(|| history.next()).transpose().or_raise()?;
        Ok(next.map(|info| Version::new(&self.key, info)))
    }
}

/// One version of a key.
///
/// >>> db = plimsoll.in_memory()
/// >>> glsn = db.put(b"tea", b"3.10")
/// >>> version = next(db.history(b"tea"))
/// >>> version.glsn == glsn, version.key, version.size
/// (True, b'tea', 4)
#[pyclass(module = "plimsoll", frozen)]
pub struct Version {
    key: Vec<u8>,
    info: VersionInfo,
}

impl Version {
    pub(crate) fn new(key: &[u8], info: VersionInfo) -> Self {
        Self { key: key.to_vec(), info }
    }
}

#[pymethods]
impl Version {
    /// The commit that wrote it.
    #[getter]
    fn glsn(&self) -> u64 {
        self.info.glsn.0
    }

    /// Time of that commit; `None` if the log no longer holds it.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        to_datetime_if_any(py, self.info.time)
    }

    /// When the value expires or has expired; `None` if it does not expire.
    #[getter]
    fn expires<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        to_datetime_if_any(py, self.info.expires)
    }

    /// Length of the value in bytes; `None` if the key was deleted.
    #[getter]
    fn size(&self) -> Option<u64> {
        self.info.bytes
    }

    /// Whether this version is a deletion.
    #[getter]
    fn deleted(&self) -> bool {
        self.info.bytes.is_none()
    }

    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key)
    }

    /// The value; `None` if the key was deleted. It is read only on this call. Raises `Trimmed` if
    /// the keyspace no longer retains the version.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> db[b"tea"] = b"3.20"
    /// >>> [version.value() for version in db.history(b"tea")]
    /// [b'3.20', b'3.10']
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if self.info.bytes.is_none() {
            return Ok(None);
        }
        let value = py.detach(|| self.info.value()).or_raise()?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn __repr__(&self) -> String {
        match self.info.bytes {
            Some(bytes) => format!("<plimsoll version of GLSN {}, {bytes} bytes>", self.info.glsn),
            None => format!("<plimsoll version of GLSN {}, deleted>", self.info.glsn),
        }
    }
}
