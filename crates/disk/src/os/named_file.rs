//! Checks that the name of an open file still refers to it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::{Errno, retry_on_intr};

use crate::os::call;
use crate::path_error::at_path;

/// A file as of its opening.
#[derive(Debug)]
pub(super) struct NamedFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl NamedFile {
    pub(super) fn of(path: &Path, fd: &OwnedFd) -> io::Result<Self> {
        let stat = call(path, || rustix::fs::fstat(fd))?;
        // Absolute, because errors go to other processes and must not depend on the working folder.
        let path = std::path::absolute(path).map_err(|error| at_path(path, error))?;
        Ok(Self { path, device: stat.st_dev, inode: stat.st_ino })
    }

    /// The file's inode number. No other file has it while this one is open.
    pub(super) fn identity(&self) -> u64 {
        self.inode
    }

    /// Fails if the name was removed or refers to another file, or the file is shorter than
    /// `bytes`.
    pub(super) fn check(&self, bytes: u64) -> io::Result<()> {
        let refuse = |kind, what: &str| {
            let what = format!("{what}; close the store in every process, then open it again");
            Err(at_path(&self.path, io::Error::new(kind, what)))
        };
        let stat = match retry_on_intr(|| rustix::fs::stat(&self.path)) {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => {
                return refuse(
                    io::ErrorKind::NotFound,
                    "the file was removed or moved while processes share it",
                );
            }
            Err(errno) => return Err(at_path(&self.path, errno)),
        };
        if (stat.st_dev, stat.st_ino) != (self.device, self.inode) {
            return refuse(io::ErrorKind::Other, "the file was replaced while processes share it");
        }
        if (stat.st_size as u64) < bytes {
            return refuse(
                io::ErrorKind::UnexpectedEof,
                "the file was truncated while processes share it",
            );
        }
        Ok(())
    }
}
