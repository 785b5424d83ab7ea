//! Commits and their changes, read back from the log.

use std::ops::Bound as KeyBound;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::{Glsn, Result as EngineResult};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::feed::Feed;
use crate::fork::ForkSafe;
use crate::moments::{to_datetime, to_datetime_if_any};
use crate::options::timeout as timeout_of;
use crate::store::Store;

/// The commits of the log from a GLSN on, in order: an iterator, from `Log.commits`.
///
/// It ends at the newest commit; iterating again later continues with newer ones. `next` waits for
/// them.
///
/// >>> db = plimsoll.in_memory()
/// >>> first = db.put(b"a", b"1")
/// >>> commits = db.log.commits(first)
/// >>> len(list(commits))
/// 1
/// >>> second = db.put(b"b", b"2")
/// >>> next(commits).glsn == second, commits.position == second + 1
/// (True, True)
#[pyclass(module = "plimsoll", frozen)]
pub struct Commits {
    store: Arc<Store>,
    commits: Arc<Feed<plimsoll::Commits>>,
}

impl Commits {
    pub(crate) fn new(store: &Arc<Store>, commits: plimsoll::Commits) -> Self {
        Self { store: Arc::clone(store), commits: Feed::new(commits) }
    }
}

#[pymethods]
impl Commits {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Commit>> {
        self.next(py, Some(0.0))
    }

    /// The next commit, awaited for up to `timeout` seconds (`None`: for ever); `None` if there was
    /// none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> commits = db.log.commits(glsn)
    /// >>> commits.next().glsn == glsn, commits.next(timeout=0)
    /// (True, None)
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Commit>> {
        Ok(self
            .commits
            .next(py, timeout_of(timeout)?)?
            .map(|commit| Commit::new(&self.store, commit)))
    }

    /// The GLSN from which a new feed continues this one. To process each commit exactly once,
    /// store it in the same transaction as the result.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.commits.position()?.0)
    }
}

/// A commit, read back from the log: an iterable of its changes.
///
/// >>> db = plimsoll.in_memory()
/// >>> with db.transaction(metadata=b"by Ada") as tx:
/// ...     tx[b"a"] = b"1"
/// ...     tx[b"b"] = b"2"
/// >>> commit = db.log.commit(tx.glsn)
/// >>> commit.metadata, [change.key for change in commit]
/// (b'by Ada', [b'a', b'b'])
#[pyclass(module = "plimsoll", frozen)]
pub struct Commit {
    store: Arc<Store>,
    commit: Mutex<ForkSafe<plimsoll::Commit>>,
    glsn: Glsn,
}

impl Commit {
    pub(crate) fn new(store: &Arc<Store>, commit: plimsoll::Commit) -> Self {
        let glsn = commit.glsn();
        Self { store: Arc::clone(store), commit: Mutex::new(ForkSafe::new(commit)), glsn }
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&plimsoll::Commit) -> EngineResult<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| -> PyResult<_> {
            Ok(then(self.commit.lock().unwrap_or_else(PoisonError::into_inner).get()?))
        })?
        .or_raise()
    }
}

#[pymethods]
impl Commit {
    /// Present name of the branch on which it changed keys; `None`: main, or it changed only the
    /// store's own records of keyspaces, cursors, tags and branches. If the branch was deleted
    /// since, a number that identifies it.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.create_branch("draft").put(b"a", b"1")
    /// >>> db.log.commit(glsn).branch, db.log.commit(db.put(b"a", b"1")).branch
    /// ('draft', None)
    #[getter]
    fn branch(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |commit| Ok(commit.branch()?.map(|name| name.to_string())))
    }

    /// Its GLSN.
    #[getter]
    fn glsn(&self) -> u64 {
        self.glsn.0
    }

    /// Its time.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_datetime(py, self.with(py, |commit| Ok(commit.time()))?)
    }

    /// The GLSN of the snapshot that its transaction read.
    #[getter]
    fn read_at(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |commit| Ok(commit.read_at().0))
    }

    /// The metadata of the commit.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let metadata = self.with(py, |commit| commit.metadata().map(<[u8]>::to_vec))?;
        Ok(PyBytes::new(py, &metadata))
    }

    /// Its changes as a list, ordered by keyspace and key, one per key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put_many({b"a": b"1", b"b": b"2"})
    /// >>> [change.key for change in db.log.commit(glsn).changes()]
    /// [b'a', b'b']
    fn changes(&self, py: Python<'_>) -> PyResult<Vec<Change>> {
        let changes =
            self.with(py, |commit| commit.changes()?.collect::<EngineResult<Vec<_>>>())?;
        Ok(changes.into_iter().map(|change| Change::new(&self.store, change)).collect())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        use pyo3::IntoPyObjectExt;
        Ok(self.changes(py)?.into_bound_py_any(py)?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll commit of GLSN {}>", self.glsn)
    }
}

/// A change of a commit: a key with its new value, or its deletion.
///
/// >>> db = plimsoll.in_memory()
/// >>> with db.transaction() as tx:
/// ...     tx[b"a"] = b"1"
/// ...     tx.delete(b"b")
/// >>> [(change.keyspace, change.key, change.deleted) for change in db.log.commit(tx.glsn)]
/// [('default', b'a', False), ('default', b'b', True)]
#[pyclass(module = "plimsoll", frozen)]
pub struct Change {
    _store: Arc<Store>,
    change: ForkSafe<plimsoll::Change>,
}

impl Change {
    pub(crate) fn new(store: &Arc<Store>, change: plimsoll::Change) -> Self {
        Self { _store: Arc::clone(store), change: ForkSafe::new(change) }
    }
}

#[pymethods]
impl Change {
    /// The commit's GLSN; of an expiry, that of the commit that put the value.
    #[getter]
    fn glsn(&self) -> PyResult<u64> {
        Ok(self.change.get()?.glsn().0)
    }

    /// Time of the commit, or of the expiry.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_datetime(py, self.change.get()?.time())
    }

    /// When the value expires, according to the commit; `None` if it does not.
    #[getter]
    fn expires<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        to_datetime_if_any(py, self.change.get()?.expires())
    }

    /// Name of the keyspace; `None` for the store's own records of keyspaces, cursors, tags and
    /// branches.
    #[getter]
    fn keyspace(&self) -> PyResult<Option<&str>> {
        Ok(self.change.get()?.keyspace())
    }

    /// Present name of the branch; `None`: main. If the branch was deleted since, a number that
    /// identifies it.
    #[getter]
    fn branch(&self) -> PyResult<Option<&str>> {
        Ok(self.change.get()?.branch())
    }

    /// The key; of a deleted range, its first key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.change.get()?.key()))
    }

    /// The deleted range, as a slice of keys; `None` if the change is of one key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"%03d" % number: b"" for number in range(500)})
    /// >>> glsn = db.delete_range(b"100", b"400")
    /// >>> [change.range for change in db.log.commit(glsn)]
    /// [slice(b'100', b'400', None)]
    #[getter]
    fn range<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let change = self.change.get()?;
        let Some((_, end)) = change.deleted_range() else { return Ok(None) };
        let stop = match end {
            KeyBound::Excluded(stop) | KeyBound::Included(stop) => Some(PyBytes::new(py, stop)),
            KeyBound::Unbounded => None,
        };
        let slice = py.import("builtins")?.getattr("slice")?;
        slice.call1((PyBytes::new(py, change.key()), stop)).map(Some)
    }

    /// Whether no commit made the change: the value has expired. Only a watch with `expiries` returns
    /// such changes. `glsn` is then the commit that put the value; `time` and `expires` are its
    /// expiry.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.watch(expiries=True) as watch:
    /// ...     glsn = db.put(b"a", b"1", ttl=0.02)
    /// ...     changes = [next(watch), next(watch)]
    /// >>> [(change.expired, change.glsn == glsn, change.value()) for change in changes]
    /// [(False, True, b'1'), (True, True, None)]
    #[getter]
    fn expired(&self) -> PyResult<bool> {
        Ok(self.change.get()?.is_expiry())
    }

    /// Whether the key, or the range, was deleted, or the key's value has expired.
    #[getter]
    fn deleted(&self) -> PyResult<bool> {
        Ok(self.change.get()?.is_delete())
    }

    /// Length of the value in bytes; `None` if the key was deleted.
    #[getter]
    fn size(&self) -> PyResult<Option<u64>> {
        Ok(self.change.get()?.value_len())
    }

    /// The value; `None` if the key was deleted. A value above 1 KiB is read only on this call.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> [change.value() for change in db.log.commit(glsn)]
    /// [b'1']
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let change = self.change.get()?;
        let value = py.detach(|| change.value()).or_raise()?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn __repr__(&self) -> PyResult<String> {
        let change = self.change.get()?;
        let key = String::from_utf8_lossy(change.key());
        let what = match (change.is_expiry(), change.is_delete()) {
            (true, _) => "expired",
            (false, true) => "deleted",
            (false, false) => "put",
        };
        Ok(format!("<plimsoll change of GLSN {}: {key:?} {what}>", change.glsn()))
    }
}
