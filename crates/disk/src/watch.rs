//! A watch on a folder (inotify): reports writes by other processes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

use crate::path_error::at_path;

/// A watch on one folder, from its creation on. Writes of other machines to a shared file system
/// are not seen.
#[derive(Debug)]
pub struct Watch {
    fd: OwnedFd,
}

impl Watch {
    /// Begins to watch a folder.
    ///
    /// # Errors
    /// The folder does not exist, or the user has as many watches as the system allows.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC).map_err(|errno| at_path(folder, errno))?;
        let written =
            WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let replaced = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        add_watch(&fd, folder, written | replaced).map_err(|errno| at_path(folder, errno))?;
        Ok(Self { fd })
    }

    /// Waits until a file was written, created or removed in the folder since the watch began.
    /// Returns `false` if there was none within `patience`.
    ///
    /// # Errors
    /// A signal came (`Interrupted`), or the system refuses.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let timeout =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout))? > 0)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "these tests write beside the door")]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_told_and_a_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "1").unwrap();
        let watch = Watch::new(dir.path()).unwrap();
        std::fs::read(&path).unwrap();
        assert!(!watch.wait(Duration::ZERO).unwrap());
        std::fs::write(&path, "2").unwrap();
        assert!(watch.wait(Duration::from_secs(60)).unwrap());
        // Reported until another watch begins.
        assert!(watch.wait(Duration::ZERO).unwrap());
        assert!(Watch::new(&dir.path().join("nowhere")).is_err());
    }
}
