//! A named keyspace of an open store.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::{self, OrRaise};
use crate::live_mapping::{self, LiveMapping, init};
use crate::options::{Compresses, Keeps, Lives, retention_to_python};
use crate::place::Place;
use crate::store::Store;

/// A keyspace: a separate sorted mapping within a store, with its own retention.
///
/// >>> db = plimsoll.in_memory()
/// >>> cats, dogs = db.keyspace("cats"), db.keyspace("dogs")
/// >>> cats[b"tom"] = b"grey"
/// >>> list(cats), list(dogs)
/// ([b'tom'], [])
#[pyclass(module = "plimsoll", frozen, mapping, extends = LiveMapping)]
pub struct Keyspace;

impl Keyspace {
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        keyspace: plimsoll::Keyspace,
    ) -> PyResult<Py<Self>> {
        Py::new(py, init(Place::now(store, keyspace), Self))
    }
}

fn place<'a>(this: &'a PyRef<'_, Keyspace>) -> &'a Place {
    live_mapping::place(this.as_super())
}

/// Its settings.
fn info(this: &PyRef<'_, Keyspace>) -> PyResult<plimsoll::KeyspaceInfo> {
    let place = place(this);
    let all = place.store.db()?.keyspaces();
    let info = all.into_iter().find(|info| info.name == place.keyspace.name());
    info.ok_or_else(|| errors::no_keyspace(place.keyspace.name()))
}

/// The engine's handle.
pub(crate) fn handle(this: &PyRef<'_, Keyspace>) -> plimsoll::Keyspace {
    place(this).keyspace.clone()
}

/// An existing keyspace, by its name or handle.
pub(crate) fn existing(
    py: Python<'_>,
    store: &Arc<Store>,
    keyspace: &Bound<'_, PyAny>,
) -> PyResult<plimsoll::Keyspace> {
    if let Ok(keyspace) = keyspace.cast::<Keyspace>() {
        return Ok(handle(&keyspace.borrow()));
    }
    let name: String = keyspace.extract().map_err(|_| {
        PyTypeError::new_err("a keyspace must be a name or the result of Db.keyspace")
    })?;
    let db = store.db()?;
    let found = py.detach(|| db.snapshot().keyspace(&name)).or_raise()?;
    found.ok_or_else(|| errors::no_keyspace(&name))
}

#[pymethods]
impl Keyspace {
    /// Its name.
    #[getter]
    fn name(this: PyRef<'_, Self>) -> String {
        place(&this).keyspace.name().to_owned()
    }

    /// Its retention: "forever", "latest", a `timedelta`, or a number of GLSNs. Assigning to it
    /// makes a commit.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> sessions = db.keyspace("sessions")
    /// >>> sessions.retention = "latest"
    /// >>> sessions.retention
    /// 'latest'
    #[getter]
    fn retention<'py>(this: PyRef<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        retention_to_python(this.py(), info(&this)?.retention)
    }

    #[setter]
    fn set_retention(this: PyRef<'_, Self>, retention: Keeps) -> PyResult<()> {
        let place = place(&this);
        let db = place.store.db()?;
        this.py().detach(|| db.set_retention(&place.keyspace, retention.0)).or_raise()
    }

    /// How its values are compressed: "none", "lz4" or "zstd:LEVEL" (levels 1 to 22). Assigning to
    /// it makes a commit, and applies to values above 1 KiB that are put from then on, and to pages
    /// of the index that are written from then on.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> pages = db.keyspace("pages")
    /// >>> pages.compression = "lz4"
    /// >>> pages[b"index"] = b"<p>" * 10_000
    /// >>> pages.compression, pages.size().stored_bytes < 1000
    /// ('lz4', True)
    #[getter]
    fn compression(this: PyRef<'_, Self>) -> PyResult<String> {
        info(&this).map(|info| info.compression.to_string())
    }

    #[setter]
    fn set_compression(this: PyRef<'_, Self>, compression: Compresses) -> PyResult<()> {
        let place = place(&this);
        let db = place.store.db()?;
        this.py().detach(|| db.set_compression(&place.keyspace, compression.0)).or_raise()
    }

    /// The time to live of values that are put without one; `None`: they do not expire. Assigning
    /// to it (seconds, a `timedelta`, or `None`) makes a commit, and applies to values that are put
    /// from then on.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> sessions = db.keyspace("sessions")
    /// >>> sessions.default_ttl = 3600
    /// >>> sessions[b"ada"] = b"logged in"
    /// >>> sessions.default_ttl, sessions.ttl(b"ada") is None
    /// (datetime.timedelta(seconds=3600), False)
    #[getter]
    fn default_ttl(this: PyRef<'_, Self>) -> PyResult<Option<Duration>> {
        info(&this).map(|info| info.ttl)
    }

    #[setter]
    fn set_default_ttl(this: PyRef<'_, Self>, ttl: Option<Lives>) -> PyResult<()> {
        let place = place(&this);
        let db = place.store.db()?;
        let ttl = ttl.map(|ttl| ttl.0);
        this.py().detach(|| db.set_ttl(&place.keyspace, ttl)).or_raise()
    }

    /// Its current size. Counts up to `keys_max` keys and estimates the rest.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> cats = db.keyspace("cats")
    /// >>> cats[b"tom"] = b"grey"
    /// >>> cats.size().keys, cats.size().exact
    /// (1, True)
    #[pyo3(signature = (keys_max = 100_000))]
    fn size(this: PyRef<'_, Self>, keys_max: u64) -> PyResult<KeyspaceSize> {
        let place = place(&this);
        let db = place.store.db()?;
        let size = this.py().detach(|| db.keyspace_size(&place.keyspace, keys_max)).or_raise()?;
        Ok(KeyspaceSize {
            keys: size.keys,
            bytes: size.bytes,
            stored_bytes: size.stored_bytes,
            exact: size.exact,
            oldest: size.oldest.0,
        })
    }
}

/// The size of a keyspace.
///
/// >>> db = plimsoll.in_memory()
/// >>> cats = db.keyspace("cats")
/// >>> cats[b"tom"] = b"grey"
/// >>> size = cats.size()
/// >>> size.keys, size.bytes, size.exact
/// (1, 7, True)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct KeyspaceSize {
    /// Number of keys.
    keys: u64,
    /// Bytes of keys and values.
    bytes: u64,
    /// Bytes of keys and stored values: fewer than `bytes` if values are compressed.
    stored_bytes: u64,
    /// Whether all keys were counted; otherwise both numbers are estimates.
    exact: bool,
    /// The oldest GLSN at which the keyspace can be read.
    oldest: u64,
}

#[pymethods]
impl KeyspaceSize {
    fn __repr__(&self) -> String {
        let about = if self.exact { "" } else { "about " };
        format!("<plimsoll keyspace size: {about}{} keys, {} bytes>", self.keys, self.bytes)
    }
}
