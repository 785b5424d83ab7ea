//! The retained versions of a key.

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

/// The retained versions of a key, newest first: an iterator, from `LiveMapping.history`. It keeps
/// the moment of its creation readable.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"tea"] = b"3.10"
/// >>> del db[b"tea"]
/// >>> history = db.history(b"tea")
/// >>> next(history).deleted, next(history).value()
/// (True, b'3.10')
#[pyclass(module = "plimsoll", frozen)]
pub struct History {
    place: Place,
    key: Vec<u8>,
    walk: Mutex<ForkSafe<VersionWalk>>,
}

struct VersionWalk {
    history: plimsoll::History,
    /// A moment at which the next version can be read, unless it is newer.
    readable_at: Glsn,
    _moment: plimsoll::Snapshot,
}

impl VersionWalk {
    /// The next version, and the latest known moment at which the key has it.
    fn next(&mut self) -> plimsoll::Result<Option<(VersionInfo, Glsn)>> {
        let Some(info) = self.history.next().transpose()? else { return Ok(None) };
        // The key was written after `_moment` was opened and before `history` was, so its version
        // is newer than `_moment`.
        let readable_at = self.readable_at.max(info.glsn);
        self.readable_at = Glsn(info.glsn.0.saturating_sub(1));
        Ok(Some((info, readable_at)))
    }
}

impl History {
    /// `moment` was opened before `history`.
    pub(crate) fn new(
        place: &Place,
        key: &[u8],
        moment: plimsoll::Snapshot,
        history: plimsoll::History,
    ) -> Self {
        let walk = VersionWalk { history, readable_at: moment.at(), _moment: moment };
        Self { place: place.clone(), key: key.to_vec(), walk: Mutex::new(ForkSafe::new(walk)) }
    }
}

#[pymethods]
impl History {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        py.check_signals()?;
        let mut walk = self.walk.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let walk = walk.get_mut()?;
        let next = py.detach(|| walk.next()).or_raise()?;
        Ok(next.map(|(info, readable_at)| Version::new(&self.place, &self.key, info, readable_at)))
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
    place: Place,
    key: Vec<u8>,
    glsn: Glsn,
    time: Option<SystemTime>,
    bytes: Option<u64>,
    expires: Option<SystemTime>,
    /// A moment at which the key has this version. The moment of its commit may no longer be
    /// retained although the version is.
    readable_at: Glsn,
}

impl Version {
    pub(crate) fn new(place: &Place, key: &[u8], info: VersionInfo, readable_at: Glsn) -> Self {
        let VersionInfo { glsn, time, bytes, expires, .. } = info;
        Self { place: place.clone(), key: key.to_vec(), glsn, time, bytes, expires, readable_at }
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

    /// When the value expires or has expired; `None` if it does not expire.
    #[getter]
    fn expires<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.expires.map(|time| to_datetime(py, time)).transpose()
    }

    /// Length of the value in bytes; `None` if the key was deleted.
    #[getter]
    fn size(&self) -> Option<u64> {
        self.bytes
    }

    /// Whether this version is a deletion.
    #[getter]
    fn deleted(&self) -> bool {
        self.bytes.is_none()
    }

    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key)
    }

    /// The value; `None` if the key was deleted. It is read only on this call, at a moment known to
    /// the iterator or difference. Raises `Trimmed` if the keyspace no longer retains that moment.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> db[b"tea"] = b"3.20"
    /// >>> [version.value() for version in db.history(b"tea")]
    /// [b'3.20', b'3.10']
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if self.bytes.is_none() {
            return Ok(None);
        }
        let snapshot = self.place.at(py, Moment::Glsn(self.readable_at))?;
        let read = || {
            // The keyspace may have been dropped since, and another may have its name.
            let then = snapshot.keyspace(self.place.keyspace.name())?;
            snapshot.get(then.as_ref().unwrap_or(&self.place.keyspace), &self.key)
        };
        let value = py.detach(read).or_raise()?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn __repr__(&self) -> String {
        match self.bytes {
            Some(bytes) => format!("<plimsoll version of GLSN {}, {bytes} bytes>", self.glsn),
            None => format!("<plimsoll version of GLSN {}, deleted>", self.glsn),
        }
    }
}
