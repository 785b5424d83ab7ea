//! Numbers of descriptors.
//!
//! Law: no descriptor that is kept has the number 0, 1 or 2. A process that closed its standard
//! streams (a daemon) opens or duplicates other files to these numbers later, and would write to
//! the store.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

/// The lowest number of a descriptor that is kept.
const FIRST: i32 = 3;

/// A descriptor of the same open file with a number above those of the standard streams.
pub(crate) fn above_standard_streams(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { fcntl_dupfd_cloexec(&fd, FIRST) }
}
