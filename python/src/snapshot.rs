//! The store as of a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::calls::interruptible;
use crate::errors::{OrRaise, no_keyspace};
use crate::moments::to_datetime_if_any;
use crate::place::{OpenSnapshot, Place, When};
use crate::read_mapping::ReadMapping;
use crate::store::Store;

/// The store as of a moment: a readable mapping of the keyspace "default". `keyspace` returns the
/// others.
///
/// While it is open, no version visible to it is dropped; close it, or use it as a context manager.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"a"] = b"1"
/// >>> with db.snapshot() as snapshot:
/// ...     db[b"a"] = b"2"
/// ...     snapshot[b"a"], db[b"a"]
/// (b'1', b'2')
#[pyclass(module = "plimsoll", frozen, mapping, extends = ReadMapping)]
pub struct Snapshot {
    open: Arc<OpenSnapshot>,
}

impl Snapshot {
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        snapshot: plimsoll::Snapshot,
    ) -> PyResult<Py<Self>> {
        let open = OpenSnapshot::new(snapshot);
        let keyspace = store.default.clone();
        let place = Place { store: Arc::clone(store), keyspace, when: When::At(Arc::clone(&open)) };
        Py::new(py, PyClassInitializer::from(ReadMapping { place }).add_subclass(Self { open }))
    }
}

impl Snapshot {
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<plimsoll::Snapshot> {
        self.open.get(py)
    }
}

#[pymethods]
impl Snapshot {
    /// GLSN of its moment.
    #[getter]
    fn glsn(&self) -> u64 {
        self.open.at.0
    }

    /// Time of the last commit in it; `None` for an empty store, or if the log no longer holds that
    /// commit.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let snapshot = self.open.get(py)?;
        let time = py.detach(|| snapshot.time()).or_raise()?;
        to_datetime_if_any(py, time)
    }

    /// The keyspace that had this name at the snapshot's moment, even if it was dropped since.
    /// Raises `NoKeyspace` if there was none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> cats = db.keyspace("cats")
    /// >>> cats[b"tom"] = b"grey"
    /// >>> db.snapshot().keyspace("cats")[b"tom"]
    /// b'grey'
    fn keyspace(this: PyRef<'_, Self>, name: &str) -> PyResult<Py<ReadMapping>> {
        let py = this.py();
        let snapshot = this.open.get(py)?;
        let keyspace =
            py.detach(|| snapshot.keyspace(name)).or_raise()?.ok_or_else(|| no_keyspace(name))?;
        Py::new(py, ReadMapping { place: this.as_super().place.in_keyspace(keyspace) })
    }

    /// A hash of all keys and values of all keyspaces, and when the values expire: 64 hexadecimal
    /// digits. Two states, also of different stores or branches, have the same hash if and only if
    /// these are the same, whatever their histories. Settings of keyspaces, and keyspaces without
    /// keys, do not count. Ctrl-C ends it.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"1"
    /// >>> draft = db.create_branch("draft")
    /// >>> draft.snapshot().state_hash() == db.snapshot().state_hash()
    /// True
    fn state_hash(&self, py: Python<'_>) -> PyResult<String> {
        let snapshot = self.open.get(py)?;
        let flag = Arc::new(AtomicBool::new(false));
        let cancel = Arc::clone(&flag);
        let hash = interruptible(py, move || snapshot.state_hash_unless(cancel));
        // After an exception of a signal handler, the work need not go on.
        flag.store(true, Ordering::Relaxed);
        Ok(hash?.or_raise()?.to_string())
    }

    /// Releases the moment, so that versions visible only to it may be dropped.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> snapshot = db.snapshot()
    /// >>> snapshot.close()
    /// >>> try:
    /// ...     snapshot[b"a"]
    /// ... except plimsoll.Closed as error:
    /// ...     print(error)
    /// this snapshot is closed
    fn close(&self, py: Python<'_>) {
        self.open.close(py);
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.open.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll snapshot at GLSN {}>", self.open.at)
    }
}
