//! The store: the keyspace "default", and access to everything else.

use std::sync::Arc;

use plimsoll::Moment;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::admin::{BackupReport, VerifyReport, verify_open};
use crate::branches::{self, Branch, BranchInfo};
use crate::bytes_like::BytesLike;
use crate::calls::interruptible;
use crate::cluster;
use crate::dump;
use crate::errors::{self, OrRaise};
use crate::keyspace::{Keyspace, existing};
use crate::live_mapping::{self, LiveMapping, init};
use crate::log::Log;
use crate::members::MemberInfo;
use crate::merge::{self, BranchMerge, CherryPick, MergeSteps, Revert};
use crate::moments::When;
use crate::options::{Compresses, Folder, Keeps, Size, retention_to_python};
use crate::place::Place;
use crate::snapshot::Snapshot;
use crate::stats;
use crate::store::Store;
use crate::sync::{self, Address, Moved, Remote};
use crate::tags::Tag;
use crate::transact::call_in_transaction;
use crate::transaction::Transaction;

/// An open store: a sorted mapping (its keyspace "default"), transactions, snapshots of any
/// retained moment, and the log.
///
/// Created by `plimsoll.open`. Safe to use from many threads. Closed by `close`, at the end of a
/// `with` block, or when the interpreter exits. Commits that have returned are kept even without a
/// close.
///
/// >>> db = plimsoll.in_memory()
/// >>> with db.transaction() as tx:
/// ...     tx[b"ada"] = b"Ada Lovelace"
/// ...     tx[b"alan"] = b"Alan Turing"
/// >>> list(db)
/// [b'ada', b'alan']
/// >>> db.close()
#[pyclass(module = "plimsoll", frozen, mapping, extends = LiveMapping)]
pub struct Db;

impl Db {
    pub(crate) fn new(py: Python<'_>, store: Arc<Store>) -> PyResult<Py<Self>> {
        let place = Place::now(&store, store.default.clone());
        Py::new(py, init(place, Self))
    }
}

pub(crate) fn store<'a>(this: &'a PyRef<'_, Db>) -> &'a Arc<Store> {
    &live_mapping::place(this.as_super()).store
}

#[pymethods]
impl Db {
    /// Closes the store and everything created from it, and releases its folder.
    ///
    /// >>> db = plimsoll.open(path, memory="16MiB")
    /// >>> db[b"a"] = b"1"
    /// >>> db.close()
    /// >>> with plimsoll.open(path, memory="16MiB") as db:
    /// ...     db[b"a"]
    /// b'1'
    fn close(this: PyRef<'_, Self>) -> PyResult<()> {
        store(&this).close(this.py())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(this: PyRef<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        store(&this).close(this.py())
    }

    /// The store's folder as an absolute path, as `os.fsdecode` shows it; empty for a store in
    /// memory.
    ///
    /// >>> import os
    /// >>> plimsoll.open(path, memory="16MiB").path == os.path.abspath(path)
    /// True
    #[getter]
    fn path<'py>(this: PyRef<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        store(&this).path.as_os_str().into_bound_py_any(this.py())
    }

    /// Whether it was opened read-only.
    ///
    /// >>> plimsoll.open(path, memory="16MiB").close()
    /// >>> plimsoll.open(path, memory="16MiB", read_only=True).read_only
    /// True
    #[getter]
    fn read_only(this: PyRef<'_, Self>) -> bool {
        store(&this).read_only
    }

    /// The store's id, assigned at its creation.
    #[getter]
    fn id(this: PyRef<'_, Self>) -> PyResult<u128> {
        Ok(store(&this).db()?.id())
    }

    /// The GLSN of the newest commit.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> db.newest == glsn
    /// True
    #[getter]
    fn newest(this: PyRef<'_, Self>) -> PyResult<u64> {
        Ok(store(&this).newest(this.py(), plimsoll::Db::newest)?.0)
    }

    /// The keyspace with this name; created by a commit if it does not exist. `retention` sets how
    /// much of the past a new keyspace keeps; an existing keyspace must have the same retention.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> sessions = db.keyspace("sessions", retention="latest")
    /// >>> sessions[b"42"] = b"ada"
    /// >>> b"42" in db, b"42" in sessions
    /// (False, True)
    #[pyo3(signature = (name, *, retention = None))]
    fn keyspace(
        this: PyRef<'_, Self>,
        name: &str,
        retention: Option<Keeps>,
    ) -> PyResult<Py<Keyspace>> {
        let (py, store) = (this.py(), store(&this));
        let db = store.db()?;
        let keyspace = py.detach(|| match retention {
            None => db.keyspace(name),
            Some(Keeps(retention)) => db.create_keyspace(name, retention),
        });
        Keyspace::new(py, store, keyspace.or_raise()?)
    }

    /// All keyspaces with their retention.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> sessions = db.keyspace("sessions", retention="latest")
    /// >>> db.keyspaces()
    /// {'default': 'forever', 'sessions': 'latest'}
    fn keyspaces<'py>(this: PyRef<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = this.py();
        let all = PyDict::new(py);
        for info in store(&this).db()?.keyspaces() {
            all.set_item(info.name, retention_to_python(py, info.retention)?)?;
        }
        Ok(all)
    }

    /// Deletes a keyspace with all its keys in one commit; returns the commit's GLSN. Earlier
    /// moments stay readable as far back as its retention allows.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> cats = db.keyspace("cats")
    /// >>> cats[b"tom"] = b"grey"
    /// >>> glsn = db.drop_keyspace("cats")
    /// >>> list(db.keyspaces()), db.at(glsn - 1).keyspace("cats")[b"tom"]
    /// (['default'], b'grey')
    fn drop_keyspace(this: PyRef<'_, Self>, keyspace: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, store) = (this.py(), store(&this));
        let keyspace = existing(py, store, keyspace)?;
        let db = store.db()?;
        Ok(py.detach(|| db.drop_keyspace(&keyspace)).or_raise()?.glsn.0)
    }

    /// Changes the retention of a keyspace, by a commit.
    ///
    /// >>> from datetime import timedelta
    /// >>> db = plimsoll.in_memory()
    /// >>> db.set_retention("default", timedelta(days=30))
    /// >>> db.keyspaces()
    /// {'default': datetime.timedelta(days=30)}
    fn set_retention(
        this: PyRef<'_, Self>,
        keyspace: &Bound<'_, PyAny>,
        retention: Keeps,
    ) -> PyResult<()> {
        let (py, store) = (this.py(), store(&this));
        let keyspace = existing(py, store, keyspace)?;
        let db = store.db()?;
        py.detach(|| db.set_retention(&keyspace, retention.0)).or_raise()
    }

    /// Changes the compression of a keyspace, by a commit: "none", "lz4" or "zstd:LEVEL". It
    /// applies to values that are put afterwards.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.set_compression("default", "lz4")
    /// >>> db.keyspace("default").compression
    /// 'lz4'
    fn set_compression(
        this: PyRef<'_, Self>,
        keyspace: &Bound<'_, PyAny>,
        compression: Compresses,
    ) -> PyResult<()> {
        let (py, store) = (this.py(), store(&this));
        let keyspace = existing(py, store, keyspace)?;
        let db = store.db()?;
        py.detach(|| db.set_compression(&keyspace, compression.0)).or_raise()
    }

    /// Begins a transaction. As a context manager it is committed at the end of the block, and
    /// aborted by an exception.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.transaction(metadata=b"by Ada") as tx:
    /// ...     tx[b"a"] = b"1"
    /// >>> db.log.commit(tx.glsn).metadata
    /// b'by Ada'
    ///
    /// With `ordered=True` it reads at the last ordered commit of any process, even if that is not
    /// durable yet. This is for writers that serialize on their own lock and release it between
    /// `commit_submit` and the ticket's `wait`. Do not pass on the data that it reads before `wait`
    /// has returned.
    #[pyo3(signature = (*, metadata = None, ordered = false))]
    fn transaction(
        this: PyRef<'_, Self>,
        metadata: Option<BytesLike<'_>>,
        ordered: bool,
    ) -> PyResult<Py<Transaction>> {
        let (py, store) = (this.py(), store(&this));
        let mut transaction = if ordered {
            let db = store.db()?;
            py.detach(|| db.begin_ordered())
        } else {
            store.newest(py, plimsoll::Db::begin)?
        };
        if let Some(metadata) = metadata {
            transaction.set_metadata(metadata.get()).or_raise()?;
        }
        Transaction::new(py, store, transaction)
    }

    /// Calls `function(tx, *args, **kwargs)` in a transaction and commits it. On a conflict with
    /// another transaction, the function is called again in a new transaction after a short random
    /// pause. Returns the result of the last call. If the function raises, nothing is written.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> def count(tx, key):
    /// ...     visits = int(tx.get(key, b"0")) + 1
    /// ...     tx[key] = b"%d" % visits
    /// ...     return visits
    /// >>> db.transact(count, b"visits"), db.transact(count, b"visits")
    /// (1, 2)
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn transact<'py>(
        this: PyRef<'py, Self>,
        function: Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call_in_transaction(this.py(), store(&this), None, &function, args, kwargs)
    }

    /// The store as it is now, for reading. A snapshot never changes, waits for no writer and
    /// blocks none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.snapshot() as before:
    /// ...     db[b"a"] = b"1"
    /// ...     b"a" in before
    /// False
    fn snapshot(this: PyRef<'_, Self>) -> PyResult<Py<Snapshot>> {
        let store = store(&this);
        Snapshot::new(this.py(), store, store.newest(this.py(), plimsoll::Db::snapshot)?)
    }

    /// The store as it was at an earlier moment: right after the commit with a GLSN, at a time (a
    /// `datetime`; one without a time zone is local time), or at a tag. A time in the future is the
    /// newest state; a GLSN that no commit has yet raises `NotYet`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first = db.put(b"tea", b"3.10")
    /// >>> second = db.put(b"tea", b"3.20")
    /// >>> db.at(first)[b"tea"]
    /// b'3.10'
    fn at(this: PyRef<'_, Self>, moment: When) -> PyResult<Py<Snapshot>> {
        let (py, store) = (this.py(), store(&this));
        let db = store.db()?;
        let moment = moment.of(py, db)?;
        let snapshot = py.detach(|| db.snapshot_at(moment)).or_raise()?;
        Snapshot::new(py, store, snapshot)
    }

    /// Names a moment (a GLSN, a `datetime` or another tag; the newest if it is left out), which
    /// then stays readable in every keyspace until the tag is deleted, whatever their retention.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> tag = db.tag("before-sale")
    /// >>> db[b"tea"] = b"2.50"
    /// >>> db.at("before-sale")[b"tea"]
    /// b'3.10'
    ///
    /// A name has 1 to 255 bytes and no control characters. Names that commands would read as
    /// another moment are refused: "newest", "now", "yesterday", digits only, and names that begin
    /// like a date, count back from now ("2 hours ago") or contain ":".
    #[pyo3(signature = (name, moment = None))]
    fn tag(this: PyRef<'_, Self>, name: &str, moment: Option<When>) -> PyResult<Tag> {
        let py = this.py();
        let db = store(&this).db()?;
        let moment = moment.map_or(Ok(Moment::Newest), |moment| moment.of(py, db))?;
        Ok(Tag::new(py.detach(|| db.tag(name, moment)).or_raise()?))
    }

    /// All tags, sorted by name.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"tea", b"3.10")
    /// >>> tag = db.tag("v1")
    /// >>> [(tag.name, tag.glsn == glsn) for tag in db.tags()]
    /// [('v1', True)]
    fn tags(this: PyRef<'_, Self>) -> PyResult<Vec<Tag>> {
        let py = this.py();
        let db = store(&this).db()?;
        let tags = py.detach(|| db.tags()).or_raise()?;
        Ok(tags.into_iter().map(Tag::new).collect())
    }

    /// Deletes a tag. Its moment then stays readable only as far as retention keeps it.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tag = db.tag("v1")
    /// >>> db.delete_tag("v1")
    /// >>> db.tags()
    /// []
    fn delete_tag(this: PyRef<'_, Self>, name: &str) -> PyResult<()> {
        let py = this.py();
        let db = store(&this).db()?;
        py.detach(|| db.delete_tag(name)).or_raise()
    }

    /// The branch main: the keys of the store itself.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.main[b"a"] = b"1"
    /// >>> db[b"a"]
    /// b'1'
    #[getter]
    fn main(this: PyRef<'_, Self>) -> PyResult<Py<Branch>> {
        let store = store(&this);
        Branch::new(this.py(), store, store.db()?.main())
    }

    /// Creates a branch, which begins with the state of `parent` (a `Branch` or its name; main if
    /// it is left out), now or at a moment (see `at`). It is one small commit: no data is copied.
    /// The branch retains the state that it began with until it is deleted, whatever the retention.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first = db.put(b"tea", b"3.10")
    /// >>> db[b"tea"] = b"3.20"
    /// >>> draft, past = db.create_branch("draft"), db.create_branch("past", at=first)
    /// >>> draft[b"tea"], past[b"tea"], db.create_branch("next", draft).parent
    /// (b'3.20', b'3.10', 'draft')
    #[pyo3(signature = (name, parent = None, at = None))]
    fn create_branch(
        this: PyRef<'_, Self>,
        name: &str,
        parent: Option<&Bound<'_, PyAny>>,
        at: Option<When>,
    ) -> PyResult<Py<Branch>> {
        let (py, store) = (this.py(), store(&this));
        let (db, parent) = (store.db()?, branches::given(py, store, parent)?);
        let at = at.map_or(Ok(Moment::Newest), |at| at.of(py, db))?;
        Branch::new(py, store, py.detach(|| db.create_branch_at(name, &parent, at)).or_raise()?)
    }

    /// The branch with this name.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.create_branch("draft"), db.branch("draft").name
    /// (<plimsoll branch "draft">, 'draft')
    fn branch(this: PyRef<'_, Self>, name: &str) -> PyResult<Py<Branch>> {
        let (py, store) = (this.py(), store(&this));
        Branch::new(py, store, branches::named(py, store, name)?)
    }

    /// All branches but main, sorted by name.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.create_branch("draft").name, [branch.name for branch in db.branches()]
    /// ('draft', ['draft'])
    fn branches(this: PyRef<'_, Self>) -> PyResult<Vec<BranchInfo>> {
        let db = store(&this).db()?;
        let all = this.py().detach(|| db.branches()).or_raise()?;
        Ok(all.into_iter().map(BranchInfo::new).collect())
    }

    /// Merges a branch (a `Branch` or its name) into main, or into the branch `into`, by one
    /// commit: what changed on it since the newest state that both contain. Returns its GLSN, or
    /// `None` if there was nothing to merge. A key that both changed in different ways is a
    /// conflict: `MergeConflicts` is raised, and nothing is written, unless `rules` has a rule for
    /// its keyspace (see `revert`), where `ours` is the branch that is changed, and `theirs` the
    /// merged one.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> draft[b"tea"], db[b"cocoa"] = b"2.50", b"4.00"
    /// >>> glsn = db.merge(draft)
    /// >>> dict(db), db.merge(draft)
    /// ({b'cocoa': b'4.00', b'tea': b'2.50'}, None)
    #[pyo3(signature = (branch, into = None, rules = None, *, metadata = None))]
    fn merge(
        this: PyRef<'_, Self>,
        branch: &Bound<'_, PyAny>,
        into: Option<&Bound<'_, PyAny>>,
        rules: Option<&Bound<'_, PyDict>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let (py, store) = (this.py(), store(&this));
        let from = branches::given(py, store, Some(branch))?;
        let into = branches::given(py, store, into)?;
        BranchMerge::new(py, store, [&from, &into], rules)?.run(py, metadata)
    }

    /// The steps that `merge` would take now, key by key; writes nothing.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> draft[b"tea"] = b"2.50"
    /// >>> [(step.action, step.key) for step in db.preview_merge("draft")]
    /// [('put', b'tea')]
    #[pyo3(signature = (branch, into = None, rules = None))]
    fn preview_merge(
        this: PyRef<'_, Self>,
        branch: &Bound<'_, PyAny>,
        into: Option<&Bound<'_, PyAny>>,
        rules: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<MergeSteps> {
        let (py, store) = (this.py(), store(&this));
        let from = branches::given(py, store, Some(branch))?;
        let into = branches::given(py, store, into)?;
        BranchMerge::new(py, store, [&from, &into], rules)?.preview(py)
    }

    /// Applies the changes of one commit, of any branch, to main, or to the branch `into` (a
    /// `Branch` or its name), by a new commit. Returns its GLSN, or `None` if there was nothing to
    /// change. A key that has another value there than it had before the commit is a conflict:
    /// `MergeConflicts` is raised, and nothing is written, unless `rules` has a rule for its
    /// keyspace (see `revert`), where `theirs` is the value after the commit. The new commit has
    /// the metadata of the old one with a note of its GLSN.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> draft[b"cocoa"] = b"4.00"
    /// >>> wanted = draft.put(b"tea", b"2.50")
    /// >>> picked = db.cherry_pick(wanted)
    /// >>> dict(db), db.log.commit(picked).metadata == b"cherry-pick of GLSN %d" % wanted
    /// ({b'tea': b'2.50'}, True)
    ///
    /// `keyspaces` limits it to some keyspaces, and `exclude` leaves some out.
    #[pyo3(signature = (
        glsn, into = None, rules = None, *, keyspaces = None, exclude = None, metadata = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "each is an argument of the method")]
    fn cherry_pick(
        this: PyRef<'_, Self>,
        glsn: u64,
        into: Option<&Bound<'_, PyAny>>,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let (py, store) = (this.py(), store(&this));
        let into = branches::given(py, store, into)?;
        CherryPick::new(py, store, &into, glsn, rules, [keyspaces, exclude])?.run(py, metadata)
    }

    /// The steps that `cherry_pick` would take now, key by key; writes nothing.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> wanted = db.create_branch("draft").put(b"tea", b"2.50")
    /// >>> [(step.action, step.key) for step in db.preview_cherry_pick(wanted)]
    /// [('put', b'tea')]
    #[pyo3(signature = (glsn, into = None, rules = None, *, keyspaces = None, exclude = None))]
    fn preview_cherry_pick(
        this: PyRef<'_, Self>,
        glsn: u64,
        into: Option<&Bound<'_, PyAny>>,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MergeSteps> {
        let (py, store) = (this.py(), store(&this));
        let into = branches::given(py, store, into)?;
        CherryPick::new(py, store, &into, glsn, rules, [keyspaces, exclude])?.preview(py)
    }

    /// Gives a branch another name. Objects of it continue.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> db.rename_branch("draft", "proposal")
    fn rename_branch(this: PyRef<'_, Self>, name: &str, new_name: &str) -> PyResult<()> {
        let db = store(&this).db()?;
        this.py().detach(|| db.rename_branch(name, new_name)).or_raise()
    }

    /// Deletes a branch. Branches that descend from it stay as they are.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> db.delete_branch("draft")
    fn delete_branch(this: PyRef<'_, Self>, name: &str) -> PyResult<()> {
        let db = store(&this).db()?;
        this.py().detach(|| db.delete_branch(name)).or_raise()
    }

    /// Remembers the address of another store under a name; `plimsoll.clone` lists the forms of an
    /// address. A relative path is made absolute. A name that exists gets the new address.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.add_remote("hub", "/srv/hub")
    /// >>> [(remote.name, remote.address) for remote in db.remotes()]
    /// [('hub', '/srv/hub')]
    fn add_remote(this: PyRef<'_, Self>, name: &str, address: Address) -> PyResult<()> {
        sync::add_remote(this.py(), store(&this).db()?, name, address)
    }

    /// Forgets an address. The branches that were fetched from there stay.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.add_remote("hub", "/srv/hub")
    /// >>> db.remove_remote("hub")
    /// >>> db.remotes()
    /// []
    fn remove_remote(this: PyRef<'_, Self>, name: &str) -> PyResult<()> {
        let db = store(&this).db()?;
        this.py().detach(|| db.remove_remote(name)).or_raise()
    }

    /// The other stores whose addresses are remembered, sorted by name.
    ///
    /// >>> plimsoll.in_memory().remotes()
    /// []
    fn remotes(this: PyRef<'_, Self>) -> PyResult<Vec<Remote>> {
        let db = store(&this).db()?;
        let all = this.py().detach(|| db.remotes()).or_raise()?;
        Ok(all.into_iter().map(Remote::new).collect())
    }

    /// Transfers the new commits of a branch of another store to the branch `REMOTE/BRANCH` of this
    /// one, which is created if it does not exist, and then ends with the same commit. `remote` is
    /// a name: see `add_remote` and `plimsoll.clone`.
    ///
    /// The other store is opened with a budget of its own, 32 MiB, and shared with other processes.
    /// It must be writable, because the ids of its commits are kept in it.
    ///
    /// >>> with plimsoll.open(path, memory="16MiB") as hub:
    /// ...     hub[b"tea"] = b"3.10"
    /// >>> db = plimsoll.open(path + ".other", memory="16MiB")
    /// >>> db.add_remote("hub", path)
    /// >>> db.fetch("hub").commits, db.branch("hub/main")[b"tea"], b"tea" in db
    /// (1, b'3.10', False)
    #[pyo3(signature = (remote = "origin", branch = "main"))]
    fn fetch(this: PyRef<'_, Self>, remote: &str, branch: &str) -> PyResult<Moved> {
        sync::fetch(this.py(), store(&this).db()?, remote.to_owned(), branch.to_owned())
    }

    /// Fetches a branch of another store (`fetch`), and lets the branch of the same name catch up
    /// with it; it is created if it does not exist. If both have new commits, they are merged by a
    /// commit, whose GLSN is `Moved.glsn`. If both changed the same keys in different ways,
    /// `MergeConflicts` is raised, and nothing is written to the branch; the fetched commits stay
    /// on `REMOTE/BRANCH`, which `merge` merges with `rules`.
    ///
    /// >>> plimsoll.open(path, memory="16MiB").close()
    /// >>> db = plimsoll.clone(path, path + ".copy", memory="16MiB")
    /// >>> with plimsoll.open(path, memory="16MiB") as hub:
    /// ...     hub[b"tea"] = b"3.10"
    /// >>> db.pull().commits, db[b"tea"]
    /// (1, b'3.10')
    #[pyo3(signature = (remote = "origin", branch = "main"))]
    fn pull(this: PyRef<'_, Self>, remote: &str, branch: &str) -> PyResult<Moved> {
        sync::pull(this.py(), store(&this).db()?, remote.to_owned(), branch.to_owned())
    }

    /// Transfers the new commits of a branch to the branch of the same name of another store, which
    /// then ends with the same commit. It is created if it does not exist. `remote` is a name, or
    /// an address with a `/`.
    ///
    /// If the branch there has commits that this one does not contain, `NotFastForward` is raised:
    /// `pull` first. With `force`, the branch there becomes equal to this one, by a new commit; its
    /// own commits stay in its history.
    ///
    /// >>> plimsoll.open(path, memory="16MiB").close()
    /// >>> db = plimsoll.clone(path, path + ".copy", memory="16MiB")
    /// >>> db[b"tea"] = b"3.10"
    /// >>> db.push().commits, db.push(path).is_up_to_date
    /// (1, True)
    #[pyo3(signature = (remote = Address::origin(), branch = "main", *, force = false))]
    #[pyo3(text_signature = "($self, remote='origin', branch='main', *, force=False)")]
    fn push(this: PyRef<'_, Self>, remote: Address, branch: &str, force: bool) -> PyResult<Moved> {
        sync::push(this.py(), store(&this).db()?, remote, branch.to_owned(), force)
    }

    /// The id of a commit, as 64 hexadecimal digits: the same in every store that has the commit.
    /// `None` if the commit changed only the store's own records, or is one of a deleted branch.
    ///
    /// Ids are computed when they are first asked for, of all commits since the last time, which
    /// reads their values once. They are kept in the store, so it must be writable.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first, second = db.put(b"tea", b"3.10"), db.put(b"tea", b"3.10")
    /// >>> len(db.commit_id(first)), db.commit_id(first) == db.commit_id(second)
    /// (64, False)
    fn commit_id(this: PyRef<'_, Self>, glsn: u64) -> PyResult<Option<String>> {
        sync::commit_id(this.py(), store(&this).db()?, glsn)
    }

    /// The GLSN that a commit has in this store, by its id; `None` if the store does not have it.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"tea", b"3.10")
    /// >>> db.find_commit(db.commit_id(glsn)) == glsn, db.find_commit("0" * 64)
    /// (True, None)
    fn find_commit(this: PyRef<'_, Self>, id: &str) -> PyResult<Option<u64>> {
        sync::find_commit(this.py(), store(&this).db()?, id)
    }

    /// The ids of the commits with which the history of a partial clone begins (`plimsoll.clone`
    /// with `depth` or `at`); empty for any other store. The changes of such a commit are its
    /// complete state.
    ///
    /// >>> plimsoll.in_memory().boundary_commits()
    /// []
    fn boundary_commits(this: PyRef<'_, Self>) -> PyResult<Vec<String>> {
        sync::boundary_commits(this.py(), store(&this).db()?)
    }

    /// Undoes what a commit did, by a new commit; the history stays. Returns the new commit's GLSN,
    /// or `None` if there was nothing to change. Each key that the commit changed gets its earlier
    /// value. If a key was changed again since, `MergeConflicts` is raised and nothing is written,
    /// unless `rules` has a rule for the keyspace: "ours" keeps the newest value, "theirs" puts the
    /// earlier one back, "counter" subtracts what the commit added (`add`), "text" undoes the lines
    /// that the commit changed, "json" the fields of JSON objects, "json-set" the elements of JSON
    /// arrays that stand for sets. In `merge` and `cherry_pick`, "newest" takes the value or
    /// deletion that was committed last.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> wrong = db.put_many({b"tea": b"31", b"cocoa": b"50"})
    /// >>> db[b"coffee"] = b"4.50"
    /// >>> undone = db.revert(wrong)
    /// >>> dict(db), db.log.commit(undone).metadata == b"revert of GLSN %d" % wrong
    /// ({b'coffee': b'4.50', b'tea': b'3.10'}, True)
    ///
    /// A rule can also be a function of the key and its values after the commit (`base`), now
    /// (`ours`) and before the commit (`theirs`); `None` means no value. It returns the value to
    /// put, `None` to delete the key, or `NotImplemented` for a conflict. It may be called several
    /// times for a key, and should not use the store.
    ///
    /// >>> _ = db.add(b"visits", 5)
    /// >>> wrong, _ = db.newest, db.add(b"visits", 2)
    /// >>> undone = db.revert(wrong, {"default": "counter"})
    /// >>> db.add(b"visits", 0)
    /// 2
    /// >>> undone = db.revert(undone, {"default": lambda key, base, ours, theirs: theirs})
    ///
    /// `keyspaces` limits it to some keyspaces, and `exclude` leaves some out. Keyspaces themselves
    /// are not created or dropped: to undo `drop_keyspace`, create the keyspace, then revert the
    /// commit that dropped it.
    #[pyo3(signature = (glsn, rules = None, *, keyspaces = None, exclude = None, metadata = None))]
    fn revert(
        this: PyRef<'_, Self>,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let (py, store) = (this.py(), store(&this));
        Revert::new(py, store, &store.db()?.main(), glsn, rules, [keyspaces, exclude])?
            .run(py, metadata)
    }

    /// The steps that `revert` would take now, key by key; writes nothing.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> wrong = db.put(b"tea", b"31")
    /// >>> [(step.action, step.key) for step in db.preview_revert(wrong)]
    /// [('delete', b'tea')]
    #[pyo3(signature = (glsn, rules = None, *, keyspaces = None, exclude = None))]
    fn preview_revert(
        this: PyRef<'_, Self>,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        keyspaces: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MergeSteps> {
        let (py, store) = (this.py(), store(&this));
        Revert::new(py, store, &store.db()?.main(), glsn, rules, [keyspaces, exclude])?.preview(py)
    }

    /// Makes all keys equal to what they were at an earlier moment (a GLSN, a `datetime` or a tag),
    /// by a new commit; the history stays. Returns the new commit's GLSN, or `None` if there was
    /// nothing to change. `keyspaces` limits it to some keyspaces.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> before = db.put(b"tea", b"3.10")
    /// >>> db[b"tea"], db[b"cocoa"] = b"31", b"50"
    /// >>> db.reset_to(before) == db.newest, dict(db)
    /// (True, {b'tea': b'3.10'})
    ///
    /// A keyspace that did not exist then is emptied, but not dropped; one that was dropped since
    /// must be created again first.
    #[pyo3(signature = (moment, keyspaces = None, *, metadata = None))]
    fn reset_to(
        this: PyRef<'_, Self>,
        moment: When,
        keyspaces: Option<&Bound<'_, PyAny>>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let (py, store) = (this.py(), store(&this));
        let moment = moment.of(py, store.db()?)?;
        let reset = merge::reset(py, store, &store.db()?.main(), moment, keyspaces)?;
        merge::run_reset(py, reset, metadata)
    }

    /// The steps that `reset_to` would take now, key by key; writes nothing.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> [(step.action, step.key) for step in db.preview_reset(0)]
    /// [('delete', b'tea')]
    #[pyo3(signature = (moment, keyspaces = None))]
    fn preview_reset(
        this: PyRef<'_, Self>,
        moment: When,
        keyspaces: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MergeSteps> {
        let (py, store) = (this.py(), store(&this));
        let moment = moment.of(py, store.db()?)?;
        let reset = merge::reset(py, store, &store.db()?.main(), moment, keyspaces)?;
        merge::preview_reset(py, reset)
    }

    /// The log: all commits in their order, and user-defined streams.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> [change.key for change in db.log.commit(glsn)]
    /// [b'a']
    #[getter]
    fn log(this: PyRef<'_, Self>) -> PyResult<Log> {
        let store = store(&this);
        store.db()?;
        Ok(Log::new(store))
    }

    /// Statistics as nested dictionaries: memory by purpose, caches, log, index, position.
    ///
    /// >>> db = plimsoll.in_memory(memory="32MiB")
    /// >>> stats = db.stats()
    /// >>> stats["memory"]["limit_bytes"]
    /// 33554432
    /// >>> stats["memory"]["peak_bytes"] <= stats["memory"]["limit_bytes"]
    /// True
    fn stats<'py>(this: PyRef<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = this.py();
        let db = store(&this).db()?;
        let stats = py.detach(|| db.stats());
        stats::to_python(py, &stats)
    }

    /// Findings of the last open, one line each: commits whose time is far ahead of the clock,
    /// bytes behind the end of a segment's contents, an ignored warm image.
    ///
    /// >>> with plimsoll.open(path, memory="16MiB") as db:
    /// ...     db.warnings
    /// []
    #[getter]
    fn warnings(this: PyRef<'_, Self>) -> PyResult<Vec<String>> {
        Ok(store(&this).db()?.warnings())
    }

    /// The processes that have the store open with `shared=True`, the oldest first; empty if this
    /// process has it exclusively.
    ///
    /// >>> with plimsoll.open(path, shared=True, memory_total="64MiB") as db:
    /// ...     [(member.is_here, member.is_keeper, member.memory_bytes) for member in db.members()]
    /// [(True, True, 67108864)]
    fn members(this: PyRef<'_, Self>) -> PyResult<Vec<MemberInfo>> {
        let db = store(&this).db()?;
        let found = this.py().detach(|| db.members()).or_raise()?;
        Ok(found.into_iter().map(MemberInfo::new).collect())
    }

    /// Changes the memory budget while the store is in use.
    ///
    /// >>> db = plimsoll.in_memory(memory="16MiB")
    /// >>> db.set_memory("32MiB")
    /// >>> db.stats()["memory"]["limit_bytes"]
    /// 33554432
    fn set_memory(this: PyRef<'_, Self>, memory: Size) -> PyResult<()> {
        let db = store(&this).db()?;
        this.py().detach(|| db.set_memory(memory.0)).or_raise()
    }

    /// Reads and checks every byte of the store. `progress(done_bytes, total_bytes)` is called
    /// occasionally. Ctrl-C ends the call.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.verify().ok
    /// True
    #[pyo3(signature = (progress = None))]
    fn verify(this: PyRef<'_, Self>, progress: Option<Bound<'_, PyAny>>) -> PyResult<VerifyReport> {
        verify_open(this.py(), store(&this).db()?, progress)
    }

    /// Copies the store, as of one moment, into a new folder while it is in use. Immutable files
    /// are hard-linked if possible; with `copy` all files are copied. A store in memory has no
    /// backup.
    ///
    /// >>> with plimsoll.open(path, memory="16MiB") as db:
    /// ...     db[b"a"] = b"1"
    /// ...     report = db.backup(path + ".backup")
    /// >>> with plimsoll.open(path + ".backup", memory="16MiB") as backup:
    /// ...     backup[b"a"]
    /// b'1'
    #[pyo3(signature = (dest, *, copy = false))]
    fn backup(this: PyRef<'_, Self>, dest: Folder, copy: bool) -> PyResult<BackupReport> {
        let db = store(&this).db()?.clone();
        if store(&this).path.as_os_str().is_empty() {
            return Err(errors::invalid(
                "cannot back up a store in memory, because it has no files; copy its rows to a \
                 store on disk with put_many",
            ));
        }
        let dest = dest.0;
        let report =
            interruptible(
                this.py(),
                move || if copy { db.backup_copy(dest) } else { db.backup(dest) },
            )?;
        Ok(BackupReport::new(&report.or_raise()?))
    }

    /// Writes the store to a portable stream, which `plimsoll.restore` of this or any later version
    /// reads on any machine. The stream holds the newest value of each key, or, with `history`,
    /// every retained commit with its GLSN, time and metadata. `file` is a path, or a binary file
    /// open for writing; `keyspace` dumps one keyspace only. Returns the GLSN of the dump.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"1"
    /// >>> db.dump(path + ".dump") == db.newest
    /// True
    #[pyo3(signature = (file, history = false, *, keyspace = None))]
    fn dump(
        this: PyRef<'_, Self>,
        file: &Bound<'_, PyAny>,
        history: bool,
        keyspace: Option<String>,
    ) -> PyResult<u64> {
        let db = store(&this).db()?.clone();
        dump::dump(this.py(), &db, file, history, keyspace)
    }

    /// Makes earlier commits durable if `durability` is "buffered"; returns the GLSN up to which
    /// everything is durable.
    ///
    /// >>> db = plimsoll.open(path, memory="16MiB", durability="buffered")
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> db.sync() == glsn
    /// True
    fn sync(this: PyRef<'_, Self>) -> PyResult<u64> {
        let db = store(&this).db()?.clone();
        Ok(interruptible(this.py(), move || db.sync())?.or_raise()?.0)
    }

    /// Trims the log of the cluster of which this store is a member, down to `keep` batches: stores
    /// the state of this member in the bucket as a new base, reads it back and verifies it, and then
    /// removes the older batches. Returns how many were removed. Needs free disk space for another
    /// copy of the store.
    ///
    /// >>> bucket = path + ".bucket"
    /// >>> plimsoll.open(path, memory="16MiB").close()
    /// >>> plimsoll.create_cluster(path, bucket, memory="16MiB")
    /// >>> with plimsoll.open(path, memory="16MiB", cluster=bucket) as db:
    /// ...     for number in range(20):
    /// ...         db[b"key"] = b"%d" % number
    /// ...     db.trim_cluster(keep=10) > 0
    /// True
    #[pyo3(signature = (*, keep = 1000))]
    fn trim_cluster(this: PyRef<'_, Self>, keep: u64) -> PyResult<u64> {
        let db = store(&this).db()?.clone();
        let trimmed = interruptible(this.py(), move || plimsoll_replica::trim(&db, keep))?;
        Ok(trimmed.map_err(errors::raised_by_cluster)?.removed)
    }

    /// Moves the cluster of which this store is a member to another, empty bucket, while its
    /// members commit. Stores the state of this member there, verifies it, copies the rest of the
    /// log, and ends the log in the old bucket. Members that are open go on in the new bucket by
    /// themselves, and others when they are opened, as long as the old bucket can be read. Needs
    /// free disk space for another copy of the store. If this is interrupted, repeat it with the
    /// same `url`.
    ///
    /// >>> bucket = path + ".bucket"
    /// >>> plimsoll.open(path, memory="16MiB").close()
    /// >>> plimsoll.create_cluster(path, bucket, memory="16MiB")
    /// >>> with plimsoll.open(path, memory="16MiB", cluster=bucket) as db:
    /// ...     db.move_cluster(path + ".bucket2")
    /// ...     db[b"key"] = b"value"
    fn move_cluster(this: PyRef<'_, Self>, url: Folder) -> PyResult<()> {
        let db = store(&this).db()?.clone();
        let url = cluster::url_of(&url)?;
        let moved = interruptible(this.py(), move || plimsoll_replica::move_cluster(&db, &url))?;
        moved.map_err(errors::raised_by_cluster)?;
        Ok(())
    }

    /// Flushes data that is only in memory and in the log into the index's files. Not needed for
    /// durability.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"1"
    /// >>> db.flush()
    /// >>> db.stats()["index"]["memtable_bytes"]
    /// 0
    fn flush(this: PyRef<'_, Self>) -> PyResult<()> {
        let db = store(&this).db()?.clone();
        interruptible(this.py(), move || db.flush())?.or_raise()
    }

    /// Merges the index's files into as few as possible, and frees the parts of the log that are no
    /// longer needed. `db.log.trim(db.newest + 1)` frees the rest.
    ///
    /// >>> db = plimsoll.in_memory(retention="latest")
    /// >>> for value in (b"1", b"2"):
    /// ...     db[b"a"] = value
    /// ...     db.flush()
    /// >>> db.compact()
    /// >>> len(db.stats()["index"]["runs"])
    /// 1
    fn compact(this: PyRef<'_, Self>) -> PyResult<()> {
        let db = store(&this).db()?.clone();
        interruptible(this.py(), move || db.compact())?.or_raise()
    }

    /// A store cannot be sent to another process.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a store cannot be pickled: open it in the other process, or send its path",
        ))
    }

    fn __repr__(this: PyRef<'_, Self>) -> String {
        let path = &store(&this).path;
        if path.as_os_str().is_empty() {
            return "<plimsoll store in memory>".to_owned();
        }
        format!("<plimsoll store {path:?}>")
    }
}
