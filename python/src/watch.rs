//! Watches keys: returns their changes as they are committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{FeedHandle, Glsn, Result as EngineResult, WatchEvent};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bytes_like::BytesLike;
use crate::commits::Change;
use crate::errors::{OrRaise, closed};
use crate::feed::{Feed, Follow};
use crate::options::timeout as timeout_of;
use crate::place::Place;
use crate::store::{Store, ended_by_exit};

/// The changes of keys with a prefix, as they are committed: an iterator that waits, from
/// `LiveMapping.watch` and `BranchMapping.watch`.
///
/// It ends when it is closed, by `close` (even from another thread) or at the end of a `with`
/// block. Ctrl-C interrupts it. An unreadable commit is not skipped; each call reads it again.
///
/// >>> db = plimsoll.in_memory()
/// >>> with db.watch(b"user/") as watch:
/// ...     db.update({b"user/ada": b"Ada", b"visits": b"1"})
/// ...     change = next(watch)
/// >>> change.key, change.value()
/// (b'user/ada', b'Ada')
#[pyclass(module = "plimsoll", frozen)]
pub struct Watch {
    store: Arc<Store>,
    changes: Arc<Feed<Changes>>,
}

/// A feed, with expiries or without.
#[allow(clippy::large_enum_variant, reason = "there is one per watch, on the heap")]
enum Source {
    Commits(plimsoll::Commits),
    Events(plimsoll::WatchEvents),
}

impl Source {
    fn next_timeout(&mut self, timeout: Duration) -> EngineResult<Option<WatchEvent>> {
        match self {
            Self::Commits(commits) => Ok(commits.next_timeout(timeout)?.map(WatchEvent::Commit)),
            Self::Events(events) => events.next_timeout(timeout),
        }
    }

    fn position(&self) -> Glsn {
        match self {
            Self::Commits(commits) => commits.position(),
            Self::Events(events) => events.position(),
        }
    }

    fn handle(&self) -> FeedHandle {
        match self {
            Self::Commits(commits) => commits.handle(),
            Self::Events(events) => events.handle(),
        }
    }
}

/// The changes of commits, one at a time.
struct Changes {
    source: Source,
    /// The last commit, until its changes are read.
    unread: Option<plimsoll::Commit>,
    /// Changes of the last commit that were not returned yet, and its GLSN.
    ahead: VecDeque<plimsoll::Change>,
    commit: Glsn,
}

impl Follow for Changes {
    type Found = plimsoll::Change;

    fn next_timeout(&mut self, timeout: Duration) -> EngineResult<Option<plimsoll::Change>> {
        if self.ahead.is_empty() {
            if self.unread.is_none() {
                match self.source.next_timeout(timeout)? {
                    Some(WatchEvent::Commit(commit)) => self.unread = Some(commit),
                    Some(WatchEvent::Expiry(change)) => return Ok(Some(change)),
                    _ => {}
                }
            }
            let Some(commit) = &self.unread else { return Ok(None) };
            self.commit = commit.glsn();
            self.ahead = commit.changes()?.collect::<EngineResult<_>>()?;
            self.unread = None;
        }
        Ok(self.ahead.pop_front())
    }

    fn ahead(&mut self) -> Option<plimsoll::Change> {
        self.ahead.pop_front()
    }

    /// Moves past a commit once all its changes were returned.
    fn position(&self) -> Glsn {
        if self.unread.is_none() && self.ahead.is_empty() {
            self.source.position()
        } else {
            self.commit
        }
    }

    fn handle(&self) -> FeedHandle {
        self.source.handle()
    }
}

impl Watch {
    /// Watches keys of a keyspace on the branch of a place.
    pub(crate) fn of_place(
        py: Python<'_>,
        place: &Place,
        prefix: Option<BytesLike<'_>>,
        start: Option<u64>,
        expiries: bool,
    ) -> PyResult<Self> {
        let branch = place.branch()?;
        let from = match start {
            Some(start) => Glsn(start),
            None => place.store.newest(py, plimsoll::Db::newest)?.next(),
        };
        let prefix = prefix.as_ref().map_or(&b""[..], BytesLike::get);
        let watch = || {
            let commits = branch.watch(&place.keyspace, prefix, from)?;
            Ok(match expiries {
                true => Source::Events(commits.with_expiries()?),
                false => Source::Commits(commits),
            })
        };
        Ok(Self::new(&place.store, py.detach(watch).or_raise()?))
    }

    fn new(store: &Arc<Store>, source: Source) -> Self {
        let changes = Changes { source, unread: None, ahead: VecDeque::new(), commit: Glsn::NONE };
        Self { store: Arc::clone(store), changes: Feed::new(changes) }
    }
}

#[pymethods]
impl Watch {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Change>> {
        if self.changes.is_closed() {
            return Ok(None);
        }
        ended_by_exit(py, self.next(py, None))
    }

    /// Waits up to `timeout` seconds for the next change (`None`: without limit). Returns `None` if
    /// there was none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.watch(b"user/") as watch:
    /// ...     db[b"user/ada"] = b"Ada"
    /// ...     watch.next(timeout=60).key, watch.next(timeout=0)
    /// (b'user/ada', None)
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Change>> {
        if self.changes.is_closed() {
            return Err(closed("watch"));
        }
        Ok(self
            .changes
            .next(py, timeout_of(timeout)?)?
            .map(|change| Change::new(&self.store, change)))
    }

    /// Waits for a change and keeps it for `_ahead`; returns false once closed. For `AsyncWatch`.
    fn _hold(&self, py: Python<'_>) -> PyResult<bool> {
        self.changes.hold_without_end(py)
    }

    /// The next change if it was read already. For `AsyncWatch`.
    fn _ahead(&self) -> PyResult<Option<Change>> {
        Ok(self.changes.ahead()?.map(|change| Change::new(&self.store, change)))
    }

    /// The GLSN from which a new watch continues without a gap. It moves past a commit once all the
    /// commit's changes were returned.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.changes.position()?.0)
    }

    /// Ends the watch, even while another thread waits in it.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> watch = db.watch(b"user/")
    /// >>> watch.close()
    /// >>> list(watch)
    /// []
    fn close(&self) -> PyResult<()> {
        self.changes.close()
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close()
    }
}
