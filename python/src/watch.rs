//! Watches keys: their changes as they are committed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::Glsn;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyTuple;

use crate::commits::{Change, wait_for};
use crate::errors::closed;
use crate::fork::ForkSafe;
use crate::options::timeout as timeout_of;
use crate::store::Store;

/// The changes of keys with a prefix, as they are committed: an iterator that waits, from `LiveMapping.watch`.
///
/// It ends when it is closed, by `close` (also from another thread) or at the end of a `with` block. Ctrl-C interrupts it.
#[pyclass(module = "plimsoll", frozen)]
pub struct Watch {
    store: Arc<Store>,
    feed: Mutex<Feed>,
    closed: AtomicBool,
}

struct Feed {
    commits: ForkSafe<plimsoll::Commits>,
    /// Changes of the last commit that were not handed out yet, and its GLSN.
    ahead: ForkSafe<VecDeque<plimsoll::Change>>,
    commit: Glsn,
}

impl Feed {
    /// The next change, or what it waits for.
    fn next(&mut self, timeout: std::time::Duration) -> PyResult<plimsoll::Result<Option<plimsoll::Change>>> {
        let ahead = self.ahead.get_mut()?;
        if let Some(change) = ahead.pop_front() {
            return Ok(Ok(Some(change)));
        }
        let commit = match self.commits.get_mut()?.next_timeout(timeout) {
            Ok(Some(commit)) => commit,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        self.commit = commit.glsn();
        Ok(commit.changes().and_then(Iterator::collect::<plimsoll::Result<_>>).map(|changes| {
            *ahead = changes;
            ahead.pop_front()
        }))
    }
}

impl Watch {
    pub(crate) fn new(store: &Arc<Store>, commits: ForkSafe<plimsoll::Commits>) -> Self {
        let feed = Feed { commits, ahead: ForkSafe::new(VecDeque::new()), commit: Glsn::NONE };
        Self { store: Arc::clone(store), feed: Mutex::new(feed), closed: AtomicBool::new(false) }
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Change>> {
        let is_closed = || self.closed.load(Ordering::Relaxed);
        if is_closed() {
            return Err(closed("watch"));
        }
        let found = wait_for(py, timeout_of(timeout)?, |slice| {
            // `Some(None)`: it was closed meanwhile.
            if is_closed() {
                return Ok(Ok(Some(None)));
            }
            let next = self.feed.lock().unwrap_or_else(PoisonError::into_inner).next(slice)?;
            Ok(next.map(|change| change.map(Some)))
        })?;
        Ok(found.flatten().map(|change| Change::new(&self.store, change)))
    }
}

#[pymethods]
impl Watch {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Change>> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.wait(py, None)
    }

    /// The next change, waited for up to `timeout` seconds (`None`: without end); `None` if none came.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Change>> {
        self.wait(py, timeout)
    }

    /// The GLSN from which a new watch misses nothing: a commit counts as passed once all its changes were handed out.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        let feed = self.feed.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let is_within = !feed.ahead.get()?.is_empty();
        Ok(if is_within { feed.commit.0 } else { feed.commits.get()?.position().0 })
    }

    /// Ends the watch, also while another thread waits in it.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}
