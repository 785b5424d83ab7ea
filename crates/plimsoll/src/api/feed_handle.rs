//! A handle by which other threads end the wait of a feed or read its position.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;

/// A handle to a [`Commits`](crate::Commits) or [`LogFollow`](crate::LogFollow), from its `handle`:
/// ends a wait of the feed from another thread, and returns its position.
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
    /// Whether the current wait, or otherwise the next one, must end.
    ends: AtomicBool,
}

impl FeedHandle {
    pub(crate) fn new(store: &Arc<Engine>, position: Glsn) -> Self {
        let shared = Shared { position: AtomicU64::new(position.0), ends: AtomicBool::new(false) };
        Self { store: Arc::clone(store), shared: Arc::new(shared) }
    }

    /// Ends the wait of the feed: the call of `next_timeout` that is waiting, or otherwise the next
    /// one that would wait, returns `None` at once.
    pub fn end_wait(&self) {
        // SeqCst: either a beginning wait sees this, or that wait is woken.
        self.shared.ends.store(true, Ordering::SeqCst);
        self.store.reader.log.wake_waiters();
    }

    /// The position of the feed when it last found nothing more: see
    /// [`Commits::position`](crate::Commits::position). It is exact while a thread waits in the
    /// feed; entries that the feed has returned count only once its next wait has begun.
    pub fn position(&self) -> Glsn {
        // Relaxed: the number publishes no other data.
        Glsn(self.shared.position.load(Ordering::Relaxed))
    }

    pub(crate) fn waits_at(&self, position: Glsn) {
        self.shared.position.store(position.0, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.shared.ends.load(Ordering::SeqCst)
    }

    /// Whether the wait must end. Resets the flag, so that it ends only one wait.
    pub(crate) fn take_end(&self) -> bool {
        self.shared.ends.swap(false, Ordering::SeqCst)
    }
}

impl fmt::Debug for FeedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FeedHandle(next {})", self.position())
    }
}
