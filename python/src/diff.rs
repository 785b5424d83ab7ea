//! The differences between two moments.

use std::sync::{Mutex, PoisonError};

use plimsoll::{Glsn, VersionInfo};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::history::Version;

/// The keys whose values differ between two moments, in key order: an iterator, from
/// `LiveMapping.diff`.
///
/// >>> db = plimsoll.in_memory()
/// >>> before = db.put_many({b"coffee": b"4.50", b"tea": b"3.10"})
/// >>> after = db.put_many({b"cocoa": b"5.00", b"tea": b"3.20"})
/// >>> [difference.key for difference in db.diff(before, after)]
/// [b'cocoa', b'tea']
#[pyclass(module = "plimsoll", frozen)]
pub struct Diff {
    moments: (u64, u64),
    diff: Mutex<ForkSafe<plimsoll::Diff>>,
}

impl Diff {
    pub(crate) fn new(moments: (u64, u64), diff: plimsoll::Diff) -> Self {
        Self { moments, diff: Mutex::new(ForkSafe::new(diff)) }
    }
}

#[pymethods]
impl Diff {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Difference>> {
        py.check_signals()?;
        let mut diff = self.diff.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let diff = diff.get_mut()?;
        let next = py.detach(|| diff.next()).transpose().or_raise()?;
        Ok(next.map(|found| {
            let plimsoll::Difference { key, by, before, after } = found;
            Difference { moments: self.moments, key, by, before, after }
        }))
    }
}

/// A key with different values at two moments.
///
/// >>> db = plimsoll.in_memory()
/// >>> before = db.put(b"tea", b"3.10")
/// >>> after = db.put_many({b"cocoa": b"5.00", b"tea": b"3.20"})
/// >>> cocoa, tea = db.diff(before, after)
/// >>> cocoa.before, tea.before.value(), tea.after.value(), tea.by == after
/// (None, b'3.10', b'3.20', True)
#[pyclass(module = "plimsoll", frozen)]
pub struct Difference {
    moments: (u64, u64),
    key: Vec<u8>,
    by: Glsn,
    before: Option<VersionInfo>,
    after: Option<VersionInfo>,
}

impl Difference {
    fn version(&self, info: &Option<VersionInfo>) -> Option<Version> {
        info.clone().map(|info| Version::new(&self.key, info))
    }
}

#[pymethods]
impl Difference {
    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key)
    }

    /// The last commit between the two moments that wrote or deleted the key.
    #[getter]
    fn by(&self) -> u64 {
        self.by.0
    }

    /// The version at the first moment; `None` if the key had no value.
    #[getter]
    fn before(&self) -> Option<Version> {
        self.version(&self.before)
    }

    /// The version at the second moment; `None` if the key had no value.
    #[getter]
    fn after(&self) -> Option<Version> {
        self.version(&self.after)
    }

    fn __repr__(&self) -> String {
        let what = match (&self.before, &self.after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        let key = String::from_utf8_lossy(&self.key);
        format!(
            "<plimsoll difference: {key:?} {what} between GLSN {} and {}>",
            self.moments.0, self.moments.1
        )
    }
}
