//! What the processes that have one folder open share beside its files: locks of the system, and
//! words of memory.
//!
//! Laws that every implementation keeps:
//! 1. At most one [`LockFile`] of a path is locked at a time. The system unlocks it when its
//!    process ends, however that happens; a child that was made by other means than `fork` may keep
//!    it locked until it ends too. So a lock that can be taken proves that its holder has gone, and
//!    one that cannot be taken proves nothing.
//! 2. All [`SharedWords`] of a path are the same words. They outlive the processes and nothing
//!    else: what they say after a restart of the machine means nothing.
//! 3. Both laws hold for files of one [identity](LockFile::identity): a file that
//!    was removed and made again is another one.
//! 4. Words whose file was cut are read as zeros from the first access on that finds it, in this
//!    process: an access never ends the process.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A lock between processes; each handle is another holder, also within one process. Unlocked when
/// dropped.
pub trait LockFile: Send + Sync + Debug {
    /// Locks it if it is free; returns whether it did. A handle that holds it already must not ask
    /// again.
    ///
    /// # Errors
    /// The system.
    fn try_lock(&self) -> io::Result<bool>;

    /// Unlocks it.
    fn unlock(&self);

    /// The number of the file that is locked, which no other file has while this one is open. A
    /// lock with another number excludes nobody here.
    fn identity(&self) -> u64;

    /// Fails if the path stands for another file by now, or for none.
    ///
    /// # Errors
    /// As said; the system.
    fn check(&self) -> io::Result<()>;
}

/// Words of memory that processes share.
pub trait SharedWords: Send + Sync + Debug {
    /// The words.
    fn words(&self) -> &[AtomicU64];

    /// Sleeps until [`SharedWords::wake`] is called for the word, or until `patience` is over;
    /// returns at once if the lower half of the word is no longer that of `seen`. May return early.
    fn wait(&self, at: usize, seen: u64, patience: Duration);

    /// Wakes up to `most` that sleep at a word.
    fn wake(&self, at: usize, most: u32);

    /// As [`LockFile::identity`].
    fn identity(&self) -> u64;

    /// As [`LockFile::check`]; fails also if the file does not have all words any more.
    ///
    /// # Errors
    /// As said; the system.
    fn check(&self) -> io::Result<()>;

    /// Called between two stores to words that are published together: a place to kill a process
    /// at.
    #[cfg(any(test, feature = "testing"))]
    fn between_stores(&self) {}
}
