//! The history of a branch: its commits, versions, differences and changes.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::branches::BranchMapping;
use crate::bytes_like::BytesLike;
use crate::commits::Commit;
use crate::diff::{self, Diff};
use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::history::History;
use crate::place::Place;
use crate::read_mapping::ReadMapping;
use crate::store::Store;
use crate::watch::Watch;

/// The number of entries of the log that are visited before signals are checked.
const ENTRIES_AT_ONCE: u64 = 1 << 12;

fn place<'a>(this: &'a PyRef<'_, BranchMapping>) -> &'a Place {
    let read: &ReadMapping = this.as_super().as_super();
    &read.place
}

#[pymethods]
impl BranchMapping {
    /// The retained versions of a key, newest first: those of the branch, then those that its
    /// ancestors had at the forks. See `Db.history`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> draft = db.create_branch("draft")
    /// >>> db[b"tea"] = b"3.20"
    /// >>> draft[b"tea"] = b"2.50"
    /// >>> [version.value() for version in draft.history(b"tea")]
    /// [b'2.50', b'3.10']
    fn history(this: PyRef<'_, Self>, key: BytesLike<'_>) -> PyResult<History> {
        let (py, place) = (this.py(), place(&this));
        let branch = place.branch()?;
        let key = key.get();
        let history = py.detach(|| branch.history(&place.keyspace, key)).or_raise()?;
        Ok(History::new(key, history))
    }

    /// The keys beginning with `prefix` whose values differ between two states, in key order. A
    /// state is a GLSN, which means a moment of this branch, a branch as it is now, or a snapshot.
    /// See `Db.diff`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> before = draft.put(b"tea", b"2.50")
    /// >>> after = draft.put(b"cocoa", b"4.00")
    /// >>> [d.key for d in draft.diff(before, after)], [d.key for d in draft.diff(db.main, after)]
    /// ([b'cocoa'], [b'cocoa', b'tea'])
    #[pyo3(signature = (first, second, prefix = None))]
    fn diff(
        this: PyRef<'_, Self>,
        first: &Bound<'_, PyAny>,
        second: &Bound<'_, PyAny>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<Diff> {
        diff::between(this.py(), place(&this), [first, second], prefix)
    }

    /// Watches the keys that begin with `prefix` on this branch, and not on its ancestors: see
    /// `Db.watch`. Raises `InvalidInput` once the branch is deleted. The drop of the keyspace is a
    /// commit on main and is not returned here, although it removes the keys on all branches.
    /// `expiries` is accepted on branch main only.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> draft = db.create_branch("draft")
    /// >>> with draft.watch(b"user/") as watch:
    /// ...     db[b"user/eve"] = b"Eve"
    /// ...     draft[b"user/ada"] = b"Ada"
    /// ...     change = next(watch)
    /// >>> change.key, change.branch
    /// (b'user/ada', 'draft')
    #[pyo3(signature = (prefix = None, *, start = None, expiries = false))]
    fn watch(
        this: PyRef<'_, Self>,
        prefix: Option<BytesLike<'_>>,
        start: Option<u64>,
        expiries: bool,
    ) -> PyResult<Watch> {
        Watch::of_place(this.py(), place(&this), prefix, start, expiries)
    }

    /// Like `watch`, for asyncio: see `Db.watch_async`.
    ///
    /// >>> import asyncio
    /// >>> async def first_change(draft):
    /// ...     async with draft.watch_async(b"user/") as watch:
    /// ...         draft[b"user/ada"] = b"Ada"
    /// ...         async for change in watch:
    /// ...             return change.key, change.value()
    /// >>> asyncio.run(first_change(plimsoll.in_memory().create_branch("draft")))
    /// (b'user/ada', b'Ada')
    #[pyo3(signature = (prefix = None, *, start = None, expiries = false))]
    fn watch_async<'py>(
        this: PyRef<'py, Self>,
        prefix: Option<BytesLike<'py>>,
        start: Option<u64>,
        expiries: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let watch = Self::watch(this, prefix, start, expiries)?;
        py.import("plimsoll._watch_async")?.getattr("AsyncWatch")?.call1((watch,))
    }
}

/// The commits of a branch, newest first: an iterator, from `Branch.log`.
///
/// >>> db = plimsoll.in_memory()
/// >>> glsn = db.put(b"a", b"1")
/// >>> next(db.main.log()).glsn == glsn
/// True
#[pyclass(module = "plimsoll", frozen)]
pub struct BranchLog {
    store: Arc<Store>,
    log: Mutex<ForkSafe<plimsoll::BranchLog>>,
}

impl BranchLog {
    pub(crate) fn new(store: &Arc<Store>, log: plimsoll::BranchLog) -> Self {
        Self { store: Arc::clone(store), log: Mutex::new(ForkSafe::new(log)) }
    }
}

#[pymethods]
impl BranchLog {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Commit>> {
        let mut log = self.log.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let log = log.get_mut()?;
        loop {
            py.check_signals()?;
            let next = py.detach(|| log.next_within(ENTRIES_AT_ONCE)).or_raise()?;
            if let ControlFlow::Break(commit) = next {
                return Ok(commit.map(|commit| Commit::new(&self.store, commit)));
            }
        }
    }
}
