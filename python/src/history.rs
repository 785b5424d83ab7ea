//! Every version of a key that is kept.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use plimsoll::{Glsn, Moment, VersionInfo};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::moments::to_datetime;
use crate::place::Place;

/// The kept versions of a key, newest first: an iterator, from `LiveMapping.history`.
#[pyclass(module = "plimsoll", frozen)]
pub struct History {
    place: Place,
    key: Vec<u8>,
    history: Mutex<ForkSafe<plimsoll::History>>,
}

impl History {
    pub(crate) fn new(place: &Place, key: &[u8], history: plimsoll::History) -> Self {
        Self { place: place.clone(), key: key.to_vec(), history: Mutex::new(ForkSafe::new(history)) }
    }
}

#[pymethods]
impl History {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        let mut history = self.history.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let history = history.get_mut()?;
        let next = py.detach(|| history.next()).transpose().or_raise()?;
        Ok(next.map(|info| Version::new(&self.place, &self.key, info)))
    }
}

/// One version of a key.
#[pyclass(module = "plimsoll", frozen)]
pub struct Version {
    place: Place,
    key: Vec<u8>,
    glsn: Glsn,
    time: Option<SystemTime>,
    bytes: Option<u64>,
}

impl Version {
    pub(crate) fn new(place: &Place, key: &[u8], info: VersionInfo) -> Self {
        let VersionInfo { glsn, time, bytes } = info;
        Self { place: place.clone(), key: key.to_vec(), glsn, time, bytes }
    }
}

#[pymethods]
impl Version {
    /// The commit that wrote it.
    #[getter]
    fn glsn(&self) -> u64 {
        self.glsn.0
    }

    /// Time of that commit; `None` if the log no longer holds it.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.time.map(|time| to_datetime(py, time)).transpose()
    }

    /// Length of the value in bytes; `None` if the key was deleted.
    #[getter]
    fn size(&self) -> Option<u64> {
        self.bytes
    }

    /// Whether it is a deletion.
    #[getter]
    fn deleted(&self) -> bool {
        self.bytes.is_none()
    }

    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key)
    }

    /// The value; `None` if the key was deleted. It is read only now. Raises `Trimmed` if the keyspace no longer keeps it.
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if self.bytes.is_none() {
            return Ok(None);
        }
        let snapshot = self.place.at(py, Moment::Glsn(self.glsn))?;
        let value = py.detach(|| snapshot.get(&self.place.keyspace, &self.key)).or_raise()?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn __repr__(&self) -> String {
        match self.bytes {
            Some(bytes) => format!("<plimsoll version of GLSN {}, {bytes} bytes>", self.glsn),
            None => format!("<plimsoll version of GLSN {}, deleted>", self.glsn),
        }
    }
}
