//! What other threads may ask of a feed while one waits in it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;

/// A handle to a [`Commits`](crate::Commits) or [`LogFollow`](crate::LogFollow), from its `handle`:
/// ends a wait of the feed from another thread, and tells where it waits.
///
/// Like the feed, it keeps the store open.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # use plimsoll::*;
/// # let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20))?;
/// use std::time::Duration;
///
/// let mut commits = db.log().commits(db.newest().next())?;
/// let handle = commits.handle();
/// let waiting = std::thread::spawn(move || commits.next_timeout(Duration::MAX));
/// handle.end_wait();
/// assert!(waiting.join().unwrap()?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FeedHandle {
    store: Arc<Engine>,
    shared: Arc<Shared>,
}

struct Shared {
    position: AtomicU64,
    /// Whether the wait that goes on, or else the next one, is to end.
    ends: AtomicBool,
}

impl FeedHandle {
    pub(crate) fn new(store: &Arc<Engine>, position: Glsn) -> Self {
        let shared = Shared { position: AtomicU64::new(position.0), ends: AtomicBool::new(false) };
        Self { store: Arc::clone(store), shared: Arc::new(shared) }
    }

    /// Ends the wait of the feed: the call of `next_timeout` that waits, or else the next one that
    /// would, returns `None` at once.
    pub fn end_wait(&self) {
        // SeqCst: either a wait that begins sees it, or that wait is woken.
        self.shared.ends.store(true, Ordering::SeqCst);
        self.store.reader.log.wake_waiters();
    }

    /// The position of the feed when it last found nothing more: see
    /// [`Commits::position`](crate::Commits::position). While a thread waits in the feed it is
    /// exact; what that thread finds then counts only after the next wait has begun.
    pub fn position(&self) -> Glsn {
        // Relaxed: only the number passes.
        Glsn(self.shared.position.load(Ordering::Relaxed))
    }

    pub(crate) fn waits_at(&self, position: Glsn) {
        self.shared.position.store(position.0, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.shared.ends.load(Ordering::SeqCst)
    }

    /// Whether the wait is to end; asked once, as the next one goes on.
    pub(crate) fn take_end(&self) -> bool {
        self.shared.ends.swap(false, Ordering::SeqCst)
    }
}

impl fmt::Debug for FeedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FeedHandle(next {})", self.position())
    }
}
