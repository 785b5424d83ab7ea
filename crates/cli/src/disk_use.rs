//! The disk space that a store occupies, as `du` counts it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::output::Fact;

/// The bytes that the files in a folder occupy; 0 if the folder does not exist.
pub(crate) fn bytes_on_disk(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_on_disk(&entry.path()),
        // The system counts blocks of 512 bytes, independently of the file system's block size.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// The space that a command has freed. Both amounts are measured while the store is closed, because
/// an open store still holds files that it is about to remove.
pub(crate) fn freed(before: u64, after: u64) -> [Fact; 3] {
    [
        Fact::bytes("bytes before", before),
        Fact::bytes("bytes after", after),
        Fact::bytes("bytes freed", before.saturating_sub(after)),
    ]
}
