//! A watch on a folder (inotify): reports writes by other processes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

use crate::path_error::at_path;

/// A watch on one folder, active from its creation. Writes of other machines to a shared file
/// system are not reported.
#[derive(Debug)]
pub struct Watch {
    fd: OwnedFd,
}

impl Watch {
    /// Starts watching a folder.
    ///
    /// # Errors
    ///
    /// The folder does not exist, or the user's limit of watches is reached.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC).map_err(|errno| at_path(folder, errno))?;
        let written =
            WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let replaced = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        add_watch(&fd, folder, written | replaced).map_err(|errno| at_path(folder, errno))?;
        Ok(Self { fd })
    }

    /// Waits until a file was written, created or removed in the folder since the watch started.
    /// Returns `false` if this does not happen within `timeout`.
    ///
    /// # Errors
    ///
    /// A signal arrived (`Interrupted`), or an error of the system.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout))? > 0)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "these tests write without a `Disk`")]
mod tests {
    use super::*;

    #[test]
    fn write_is_reported_and_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "1").unwrap();
        let watch = Watch::new(dir.path()).unwrap();
        std::fs::read(&path).unwrap();
        assert!(!watch.wait(Duration::ZERO).unwrap());
        std::fs::write(&path, "2").unwrap();
        assert!(watch.wait(Duration::from_secs(60)).unwrap());
        // Reported until another watch starts.
        assert!(watch.wait(Duration::ZERO).unwrap());
        assert!(Watch::new(&dir.path().join("nowhere")).is_err());
    }
}
