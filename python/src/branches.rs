//! Branches of a store.

use std::sync::Arc;

use plimsoll::Moment;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyTuple};

use crate::branch_log::BranchLog;
use crate::bytes_like::BytesLike;
use crate::errors::OrRaise;
use crate::keyspace::{Keyspace, handle};
use crate::merge::{self, MergeSteps, Revert};
use crate::moments::{When as Given, to_datetime};
use crate::place::{OnBranch, Place, When};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::sync;
use crate::transact::call_in_transaction;
use crate::transaction::Transaction;
use crate::write_mapping::{self, WriteMapping};

/// A keyspace on a branch, as it is now. Each change is a separate commit on the branch.
///
/// >>> db = plimsoll.in_memory()
/// >>> draft = db.create_branch("draft")
/// >>> users = draft.keyspace("users")
/// >>> users[b"ada"] = b"Ada Lovelace"
/// >>> list(users), list(db.keyspace("users"))
/// ([b'ada'], [])
#[pyclass(module = "plimsoll", frozen, subclass, mapping, extends = WriteMapping)]
pub struct BranchMapping;

/// A branch: a sorted mapping (its keyspace "default"), transactions and snapshots, as of `Db`.
/// Returned by `Db.create_branch`, `Db.branch` and `Db.main`.
///
/// A branch begins with the state of its parent, and then changes on its own. Transactions on
/// different branches never conflict. If the branch is deleted, its reads and commits fail with
/// `InvalidInput`. A key that is written on a branch has at most 4,082 bytes, where a zero byte
/// counts twice.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"tea"] = b"3.10"
/// >>> draft = db.create_branch("draft")
/// >>> draft[b"tea"] = b"2.50"
/// >>> with draft.transaction() as tx:
/// ...     tx[b"cocoa"] = b"4.00"
/// >>> dict(draft), dict(db)
/// ({b'cocoa': b'4.00', b'tea': b'2.50'}, {b'tea': b'3.10'})
#[pyclass(module = "plimsoll", frozen, mapping, extends = BranchMapping)]
pub struct Branch {
    store: Arc<Store>,
    on: Arc<OnBranch>,
}

impl Branch {
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        branch: plimsoll::Branch,
    ) -> PyResult<Py<Self>> {
        let on = OnBranch::new(branch);
        let place = place(store, &on, store.default.clone())?;
        let top = Self { store: Arc::clone(store), on };
        Py::new(py, layers(place).add_subclass(top))
    }
}

fn layers(place: Place) -> PyClassInitializer<BranchMapping> {
    write_mapping::layers(place).add_subclass(BranchMapping)
}

fn place(store: &Arc<Store>, on: &Arc<OnBranch>, keyspace: plimsoll::Keyspace) -> PyResult<Place> {
    let when = if on.is_main()? { When::Now } else { When::On(Arc::clone(on)) };
    Ok(Place { store: Arc::clone(store), keyspace, when })
}

impl Branch {
    pub(crate) fn on(&self) -> &OnBranch {
        &self.on
    }
}

#[pymethods]
impl Branch {
    /// Its name when this object was made.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.create_branch("draft").name, db.main.name
    /// ('draft', 'main')
    #[getter]
    fn name(&self) -> PyResult<&str> {
        Ok(self.on.get()?.name())
    }

    /// The name of the branch that it left; `None` for main, and if that branch was deleted.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> second = db.create_branch("second", db.create_branch("draft"))
    /// >>> second.parent, db.main.parent
    /// ('draft', None)
    #[getter]
    fn parent(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.info(py)?.and_then(|info| info.parent))
    }

    /// GLSN of the moment at which it left its parent; `None` for main.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"tea", b"3.10")
    /// >>> db.create_branch("draft").fork == glsn
    /// True
    #[getter]
    fn fork(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.info(py)?.map(|info| info.fork.0))
    }

    /// Time of the commit with this GLSN; `None` for main, for the empty store, or if the log no
    /// longer held that commit when the branch was created.
    #[getter]
    fn fork_time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let time = self.info(py)?.and_then(|info| info.fork_time);
        time.map(|time| to_datetime(py, time)).transpose()
    }

    /// A keyspace on this branch, by its name or by the result of `Db.keyspace`. Keyspaces belong
    /// to the store: one that does not exist is created by a commit, and is then empty on all
    /// branches.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> cats = db.keyspace("cats")
    /// >>> cats[b"tom"] = b"grey"
    /// >>> draft = db.create_branch("draft")
    /// >>> draft.keyspace("cats")[b"tom"] = b"black"
    /// >>> cats[b"tom"], draft.keyspace(cats)[b"tom"]
    /// (b'grey', b'black')
    fn keyspace(&self, py: Python<'_>, keyspace: &Bound<'_, PyAny>) -> PyResult<Py<BranchMapping>> {
        let keyspace = if let Ok(keyspace) = keyspace.cast::<Keyspace>() {
            handle(&keyspace.borrow())
        } else {
            let name: String = keyspace.extract().map_err(|_| {
                PyTypeError::new_err("a keyspace must be a name or the result of Db.keyspace")
            })?;
            let db = self.store.db()?;
            py.detach(|| db.keyspace(&name)).or_raise()?
        };
        Py::new(py, layers(place(&self.store, &self.on, keyspace)?))
    }

    /// Begins a transaction on the branch: see `Db.transaction`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> with draft.transaction(metadata=b"by Ada") as tx:
    /// ...     tx[b"a"] = b"1"
    /// >>> db.log.commit(tx.glsn).metadata
    /// b'by Ada'
    #[pyo3(signature = (*, metadata = None, ordered = false))]
    fn transaction(
        &self,
        py: Python<'_>,
        metadata: Option<BytesLike<'_>>,
        ordered: bool,
    ) -> PyResult<Py<Transaction>> {
        let mut transaction = self.on.begin(py, ordered)?;
        if let Some(metadata) = metadata {
            transaction.set_metadata(metadata.get()).or_raise()?;
        }
        Transaction::new(py, &self.store, transaction)
    }

    /// Calls `function(tx, *args, **kwargs)` in a transaction on the branch and commits it: see
    /// `Db.transact`.
    ///
    /// >>> draft = plimsoll.in_memory().create_branch("draft")
    /// >>> def count(tx, key):
    /// ...     visits = int(tx.get(key, b"0")) + 1
    /// ...     tx[key] = b"%d" % visits
    /// ...     return visits
    /// >>> draft.transact(count, b"visits"), draft.transact(count, b"visits")
    /// (1, 2)
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn transact<'py>(
        &self,
        py: Python<'py>,
        function: Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call_in_transaction(py, &self.store, Some(&self.on), &function, args, kwargs)
    }

    /// The branch as it is now, for reading: see `Db.snapshot`.
    ///
    /// >>> draft = plimsoll.in_memory().create_branch("draft")
    /// >>> with draft.snapshot() as before:
    /// ...     draft[b"a"] = b"1"
    /// ...     b"a" in before
    /// False
    fn snapshot(&self, py: Python<'_>) -> PyResult<Py<Snapshot>> {
        Snapshot::new(py, &self.store, self.on.snapshot(py)?)
    }

    /// The branch as it was at an earlier moment: see `Db.at`. Before its fork, a branch has the
    /// states of its parent.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> before = db.put(b"tea", b"3.10")
    /// >>> draft = db.create_branch("draft")
    /// >>> first = draft.put(b"tea", b"2.50")
    /// >>> draft[b"tea"] = b"2.00"
    /// >>> draft.at(before)[b"tea"], draft.at(first)[b"tea"]
    /// (b'3.10', b'2.50')
    fn at(&self, py: Python<'_>, moment: Given) -> PyResult<Py<Snapshot>> {
        let branch = self.on.get()?;
        let moment: Moment = moment.of(py, self.store.db()?)?;
        let snapshot = py.detach(|| branch.snapshot_at(moment)).or_raise()?;
        Snapshot::new(py, &self.store, snapshot)
    }

    /// Undoes what a commit did, by a new commit on the branch: see `Db.revert`. The commit was
    /// made on this branch, or before the fork on the one that it left.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> inherited = db.put(b"tea", b"3.10")
    /// >>> draft = db.create_branch("draft")
    /// >>> wrong = draft.put(b"tea", b"31")
    /// >>> undone = draft.revert(wrong)
    /// >>> draft[b"tea"]
    /// b'3.10'
    #[pyo3(signature = (glsn, rules = None, *, keyspaces = None, exclude = None, metadata = None))]
    fn revert(
        &self,
        py: Python<'_>,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let branch = self.on.get()?;
        Revert::new(py, &self.store, branch, glsn, rules, [keyspaces, exclude])?.run(py, metadata)
    }

    /// The steps that `revert` would take now, key by key; writes nothing.
    ///
    /// >>> draft = plimsoll.in_memory().create_branch("draft")
    /// >>> wrong = draft.put(b"tea", b"31")
    /// >>> [(step.action, step.key) for step in draft.preview_revert(wrong)]
    /// [('delete', b'tea')]
    #[pyo3(signature = (glsn, rules = None, *, keyspaces = None, exclude = None))]
    fn preview_revert(
        &self,
        py: Python<'_>,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MergeSteps> {
        let branch = self.on.get()?;
        Revert::new(py, &self.store, branch, glsn, rules, [keyspaces, exclude])?.preview(py)
    }

    /// Makes the branch equal to what it was at an earlier moment, by a new commit on it: see
    /// `Db.reset_to`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> before = db.put(b"tea", b"3.10")
    /// >>> draft = db.create_branch("draft")
    /// >>> draft[b"tea"], draft[b"cocoa"] = b"31", b"50"
    /// >>> draft.reset_to(before) == db.newest, dict(draft)
    /// (True, {b'tea': b'3.10'})
    #[pyo3(signature = (moment, keyspaces = None, *, metadata = None))]
    fn reset_to(
        &self,
        py: Python<'_>,
        moment: Given,
        keyspaces: Option<&Bound<'_, PyAny>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let moment = moment.of(py, self.store.db()?)?;
        let reset = merge::reset(py, &self.store, self.on.get()?, moment, keyspaces)?;
        merge::run_reset(py, reset, metadata)
    }

    /// The steps that `reset_to` would take now, key by key; writes nothing.
    ///
    /// >>> draft = plimsoll.in_memory().create_branch("draft")
    /// >>> draft[b"tea"] = b"3.10"
    /// >>> [(step.action, step.key) for step in draft.preview_reset(0)]
    /// [('delete', b'tea')]
    #[pyo3(signature = (moment, keyspaces = None))]
    fn preview_reset(
        &self,
        py: Python<'_>,
        moment: Given,
        keyspaces: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MergeSteps> {
        let moment = moment.of(py, self.store.db()?)?;
        let reset = merge::reset(py, &self.store, self.on.get()?, moment, keyspaces)?;
        merge::preview_reset(py, reset)
    }

    /// The commits that the branch contains, newest first: its own, then those of its ancestors up
    /// to the forks, as far as the log holds them. Commits of the store's own records of keyspaces,
    /// cursors, tags and branches are left out.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first = db.put(b"tea", b"3.10")
    /// >>> draft = db.create_branch("draft")
    /// >>> second = draft.put(b"tea", b"2.50")
    /// >>> [commit.glsn for commit in draft.log()] == [second, first]
    /// True
    fn log(&self, py: Python<'_>) -> PyResult<BranchLog> {
        let branch = self.on.get()?;
        let log = py.detach(|| branch.log()).or_raise()?;
        Ok(BranchLog::new(&self.store, log))
    }

    /// The id of the newest commit that the branch contains, as 64 hexadecimal digits; `None` if
    /// there is none. Two stores with the same commits have the same ids: see `Db.commit_id`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"tea", b"3.10")
    /// >>> draft = db.create_branch("draft")
    /// >>> draft.tip() == db.commit_id(glsn)
    /// True
    fn tip(&self, py: Python<'_>) -> PyResult<Option<String>> {
        sync::tip_of(py, self.on.get()?)
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<plimsoll branch {:?}>", self.on.get()?.name()))
    }
}

impl Branch {
    fn info(&self, py: Python<'_>) -> PyResult<Option<plimsoll::BranchInfo>> {
        let branch = self.on.get()?;
        py.detach(|| branch.info()).or_raise()
    }
}

/// The branch that an argument means: a `Branch`, a name, or main without one.
pub(crate) fn given(
    py: Python<'_>,
    store: &Arc<Store>,
    branch: Option<&Bound<'_, PyAny>>,
) -> PyResult<plimsoll::Branch> {
    let Some(branch) = branch else { return Ok(store.db()?.main()) };
    if let Ok(branch) = branch.cast::<Branch>() {
        return Ok(branch.get().on.get()?.clone());
    }
    let name: String = branch
        .extract()
        .map_err(|_| PyTypeError::new_err("a branch must be a name or the result of Db.branch"))?;
    named(py, store, &name)
}

/// The branch with this name.
pub(crate) fn named(py: Python<'_>, store: &Arc<Store>, name: &str) -> PyResult<plimsoll::Branch> {
    let db = store.db()?;
    py.detach(|| db.branch(name)).or_raise()
}

/// The facts about a branch that `Db.branches` returns.
///
/// >>> db = plimsoll.in_memory()
/// >>> draft = db.create_branch("draft")
/// >>> info, = db.branches()
/// >>> info.name, info.parent, info.fork
/// ('draft', 'main', 0)
#[pyclass(module = "plimsoll", frozen)]
pub struct BranchInfo {
    info: plimsoll::BranchInfo,
}

impl BranchInfo {
    pub(crate) fn new(info: plimsoll::BranchInfo) -> Self {
        Self { info }
    }
}

#[pymethods]
impl BranchInfo {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// The name of the branch that it left; `None` if that was deleted.
    #[getter]
    fn parent(&self) -> Option<&str> {
        self.info.parent.as_deref()
    }

    /// GLSN of the moment at which it left its parent.
    #[getter]
    fn fork(&self) -> u64 {
        self.info.fork.0
    }

    /// Time of the commit with this GLSN; `None` for the empty store, or if the log no longer held
    /// that commit when the branch was created.
    #[getter]
    fn fork_time<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.info.fork_time.map(|time| to_datetime(py, time)).transpose()
    }

    fn __repr__(&self) -> String {
        let parent = self.info.parent.as_deref().unwrap_or("a deleted branch");
        let (name, fork) = (&self.info.name, self.info.fork);
        format!("<plimsoll branch {name:?}, which left {parent} at GLSN {fork}>")
    }
}
