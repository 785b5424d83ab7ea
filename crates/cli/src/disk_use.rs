//! The space that a store takes on disk, as `du` counts it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::output::Fact;

/// The bytes that the files in a folder occupy; 0 if there is none.
pub(crate) fn bytes_on_disk(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_on_disk(&entry.path()),
        // The system counts blocks of 512 bytes, whatever the file system's own are.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// What a command has freed. Both amounts are taken while the store is closed: an open one holds
/// files that it is about to remove.
pub(crate) fn freed(before: u64, after: u64) -> [Fact; 3] {
    [
        Fact::bytes("bytes before", before),
        Fact::bytes("bytes after", after),
        Fact::bytes("bytes freed", before.saturating_sub(after)),
    ]
}
