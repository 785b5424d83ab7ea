//! State that processes share besides the files of a folder: system locks, and words of memory.
//!
//! Invariants of every implementation:
//! 1. At most one [`LockFile`] of a path is locked at a time. The system unlocks it when its
//!    process ends, for any reason; a child created by other means than `fork` may keep it locked
//!    until the child ends too. So a lock that can be taken proves that its holder is gone, and one
//!    that cannot be taken proves nothing.
//! 2. All [`SharedWords`] of a path are the same words. They outlive the processes but nothing
//!    else, because their values are meaningless after a restart of the machine.
//! 3. Both invariants hold for files of one [identity](LockFile::identity); a file that was removed
//!    and recreated is another file.
//! 4. After their file was truncated, words read as zeros in a process from the first access that
//!    detects it. Such an access never ends the process.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A lock between processes; each handle is a separate holder, even within one process. Unlocked on
/// drop.
pub trait LockFile: Send + Sync + Debug {
    /// Takes the lock if it is free; returns whether it did. A handle that holds the lock must not
    /// call this.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn try_lock(&self) -> io::Result<bool>;

    /// Unlocks it.
    fn unlock(&self);

    /// The inode number of the lock file, which no other file has while this one is open. Locks
    /// with different numbers do not exclude each other.
    fn identity(&self) -> u64;

    /// Fails if the path is missing or refers to another file by now.
    ///
    /// # Errors
    ///
    /// As stated above, or an error of the operating system.
    fn check(&self) -> io::Result<()>;
}

/// Words of memory that processes share.
pub trait SharedWords: Send + Sync + Debug {
    /// The words.
    fn words(&self) -> &[AtomicU64];

    /// Sleeps until [`SharedWords::wake`] is called for the word or `timeout` is over; returns at
    /// once if the lower half of the word differs from that of `seen`. May return early.
    fn wait(&self, at: usize, seen: u64, timeout: Duration);

    /// Wakes up to `most` threads that sleep at a word.
    fn wake(&self, at: usize, most: u32);

    /// Like [`LockFile::identity`].
    fn identity(&self) -> u64;

    /// Like [`LockFile::check`]; also fails if the file no longer has all words.
    ///
    /// # Errors
    ///
    /// As stated above, or an error of the operating system.
    fn check(&self) -> io::Result<()>;

    /// Called between two stores to words that are published together, so that a simulation can
    /// kill the process there.
    #[cfg(any(test, feature = "testing"))]
    fn between_stores(&self) {}
}
