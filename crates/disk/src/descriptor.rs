//! File descriptor numbers.
//!
//! Invariant: no long-lived descriptor has the number 0, 1 or 2. If a process closes its standard
//! streams (a daemon does) and later opens or duplicates other files to these numbers, its output
//! would go into the store.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

/// The lowest number of a long-lived descriptor.
const FIRST: i32 = 3;

/// Duplicates a descriptor to a number above those of the standard streams.
pub(crate) fn above_standard_streams(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { fcntl_dupfd_cloexec(&fd, FIRST) }
}
