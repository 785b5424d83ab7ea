//! A lock between processes: `flock` on an empty file.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::fork::{self, Kept, Origin};
use crate::os::check_regular;
use crate::os::group::open_or_make;
use crate::os::named_file::NamedFile;
use crate::os::place::Place;
use crate::path_error::at_path;
use crate::sharing::LockFile;

/// An open lock file.
#[derive(Debug)]
pub(super) struct OsLockFile {
    /// Withholds the descriptor from forked children.
    _kept: Kept,
    fd: OwnedFd,
    path: PathBuf,
    named: NamedFile,
    held: AtomicBool,
    /// The process that opened it.
    pid: u32,
    origin: Origin,
}

impl OsLockFile {
    /// Opens the file, creating it if it is missing.
    pub(super) fn open(place: &Place<'_>) -> io::Result<Self> {
        // Opened for writing too, because an overlay file system replaces a file by a copy when it
        // is first opened for writing.
        Self::of(fork::opened(|| open_or_make(place))?, place.path)
    }

    /// Opens the file without write permission; the system can lock it nevertheless.
    pub(super) fn open_to_read(place: &Place<'_>) -> io::Result<Self> {
        Self::of(fork::opened(|| place.open(OFlags::RDONLY | OFlags::NONBLOCK))?, place.path)
    }

    fn of((kept, fd): (Kept, OwnedFd), path: &Path) -> io::Result<Self> {
        check_regular(&fd, path)?;
        let (held, pid) = (AtomicBool::new(false), std::process::id());
        let named = NamedFile::of(path, &fd)?;
        Ok(Self {
            _kept: kept,
            fd,
            path: path.to_owned(),
            named,
            held,
            pid,
            origin: Origin::here(),
        })
    }
}

impl LockFile for OsLockFile {
    fn try_lock(&self) -> io::Result<bool> {
        if self.origin.is_foreign() {
            // The system does not distinguish the child's lock from the parent's, which may be
            // held.
            let what = format!(
                "process {} opened this, and its forked child, process {}, must not write to it; \
                 open it again in the child",
                self.pid,
                std::process::id()
            );
            return Err(at_path(&self.path, io::Error::new(io::ErrorKind::PermissionDenied, what)));
        }
        match retry_on_intr(|| flock(&self.fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {
                self.held.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(at_path(&self.path, errno)),
        }
    }

    fn unlock(&self) {
        // Unlock explicitly, because closing the descriptor would not, while a child has a copy. A
        // child must not release its parent's lock.
        if self.held.swap(false, Ordering::Relaxed) && !self.origin.is_foreign() {
            let _ = flock(&self.fd, FlockOperation::Unlock);
        }
    }

    fn identity(&self) -> u64 {
        self.named.identity()
    }

    fn check(&self) -> io::Result<()> {
        self.named.check(0)
    }
}

impl Drop for OsLockFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_cannot_use_its_parents_lock() {
        let dir = tempfile::tempdir().expect("the machine has a folder for temporary files");
        let path = dir.path().join("turn");
        let lock = OsLockFile::open(&Place::by_path(&path)).expect("a new file");
        assert!(lock.try_lock().expect("a lock"));
        // The state in a forked child: the same open file.
        let child = OsLockFile {
            _kept: Kept::Descriptor(-1),
            fd: rustix::io::dup(&lock.fd).expect("a copy"),
            path: path.clone(),
            named: NamedFile::of(&path, &lock.fd).expect("an open file"),
            held: AtomicBool::new(true),
            pid: lock.pid,
            origin: Origin::parent(),
        };
        assert!(
            child.try_lock().expect_err("it is not its own").to_string().contains("forked child")
        );
        drop(child);
        let other = OsLockFile::open(&Place::by_path(&path)).expect("the same file");
        assert!(!other.try_lock().expect("a lock"));
        lock.unlock();
        assert!(other.try_lock().expect("a lock"));
    }

    #[test]
    fn renamed_lock_file_fails_its_check() {
        let dir = tempfile::tempdir().expect("the machine has a folder for temporary files");
        let path = dir.path().join("turn");
        let lock = OsLockFile::open(&Place::by_path(&path)).expect("a new file");
        let same = OsLockFile::open(&Place::by_path(&path)).expect("the same file");
        assert_eq!(lock.identity(), same.identity());
        lock.check().expect("it has its name");
        rustix::fs::rename(&path, dir.path().join("other")).expect("a rename");
        assert_eq!(lock.check().expect_err("it was moved").kind(), io::ErrorKind::NotFound);
        let replaced = OsLockFile::open(&Place::by_path(&path)).expect("a new file");
        assert_ne!(lock.identity(), replaced.identity());
        assert!(
            lock.check()
                .expect_err("it was replaced")
                .to_string()
                .contains("turn: the file was replaced")
        );
        replaced.check().expect("it has the name");
    }
}
