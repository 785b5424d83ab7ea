//! Zeros that are written ahead of records, and the errors that say that there is no room for them.

use std::io;

use plimsoll_disk::vfs::File;

/// Zeros to write.
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

/// Whether the system refused for want of room, so that the same may succeed later: a full disk, a quota, a limit to the size of files
/// (where the process ignores SIGXFSZ, which ends it otherwise).
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
