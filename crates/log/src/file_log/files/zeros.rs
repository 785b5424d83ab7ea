//! Writes zeros ahead of records, and distinguishes a full disk from other errors.

use std::io;

use plimsoll_disk::vfs::File;

/// A buffer of zeros.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Writes zeros from `from` up to `to`.
pub(crate) fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// Whether the system refused for lack of room, so that the same call may succeed later: a full
/// disk, a quota, a file size limit (if the process ignores SIGXFSZ; otherwise the signal ends it).
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
