//! Replaces a file of the log: the retained bytes are written to a new file, which is then renamed
//! over the old one.
//!
//! Invariant: a file that may have another name, for example in a backup, is never modified. Only
//! the active segment is written in place, and only while it has a single name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};

use crate::error::LogError;
use crate::file_log::files::names::{FileName, unfinished};
use crate::file_log::options::FileLogOptions;
use crate::format::segment_header::SegmentHeader;

/// Makes sure that the segment's file has no second name, for example in a backup, because later
/// writes must not appear there.
pub(crate) fn make_single_link(
    options: &FileLogOptions,
    header: &SegmentHeader,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let (disk, dir, first) = (&*options.disk, &*options.dir, header.first);
    let path = FileName::Segment(first).path(dir);
    if disk.entry(&path)?.is_none_or(|entry| entry.links <= 1) {
        return Ok(());
    }
    let source = disk.open(&path, Open::Read, Caching::Buffered)?;
    let end = source.len()?.min(u64::from(header.segment_bytes));
    replace_file(disk, dir, FileName::Segment(first), &mut |draft| {
        copy_front(&*source, draft, end, staging)
    })
}

/// Creates a file by `write`, syncs it, and gives it its name. Until the rename the old file is
/// untouched.
pub(crate) fn replace_file(
    disk: &dyn Disk,
    dir: &Path,
    name: FileName,
    write: &mut dyn FnMut(&dyn File) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let path = name.path(dir);
    let draft = unfinished(&path);
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = disk.open(&draft, Open::CreateNew, Caching::Buffered)?;
    let written = write(&*file)
        .and_then(|()| Ok(file.sync()?))
        .and_then(|()| Ok(disk.rename(&draft, &path)?));
    if let Err(error) = written {
        let _ = disk.remove(&draft);
        return Err(error);
    }
    Ok(disk.sync_dir(dir)?)
}

/// Copies the first `end` bytes of a segment. Bytes after the end of the source file read as zeros.
pub(crate) fn copy_front(
    source: &dyn File,
    target: &dyn File,
    end: u64,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let (bytes, again) = staging.split_at_mut(staging.len() / 2);
    let mut at = 0;
    while at < end {
        let piece = (end - at).min(bytes.len() as u64) as usize;
        read_twice(source, &mut bytes[..piece], &mut again[..piece], at)?;
        target.write_at(&bytes[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Reads bytes twice before they are written back, so that a bit that flips during a read does not
/// become permanent.
pub(crate) fn read_twice(
    file: &dyn File,
    bytes: &mut [u8],
    again: &mut [u8],
    at: u64,
) -> Result<(), LogError> {
    read_zero_padded(file, bytes, at)?;
    read_zero_padded(file, again, at)?;
    if bytes == again {
        return Ok(());
    }
    let message =
        format!("two reads at offset {at} of a segment differ: the disk or the memory is failing");
    Err(LogError::Io { kind: io::ErrorKind::InvalidData, message, source: None })
}

/// Writes the bytes of a segment between two offsets again, so that the next sync must write them
/// to the disk. Does not sync.
pub(crate) fn write_again(
    file: &dyn File,
    from: u64,
    end: u64,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let mut at = from;
    let (bytes, again) = staging.split_at_mut(staging.len() / 2);
    while at < end {
        let piece = (end - at).min(bytes.len() as u64) as usize;
        read_twice(file, &mut bytes[..piece], &mut again[..piece], at)?;
        file.write_at(&bytes[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Reads bytes of a segment; after the file's end they are zeros. A file that was truncated within
/// the padding of its last record has lost nothing.
pub(crate) fn read_zero_padded(file: &dyn File, into: &mut [u8], at: u64) -> io::Result<()> {
    let n = file.read_at(into, at)?;
    into[n..].fill(0);
    Ok(())
}

/// Opens the active segment for writing.
pub(crate) fn open_for_writing(
    options: &FileLogOptions,
    header: &SegmentHeader,
    staging: &mut [u8],
) -> Result<Arc<dyn File>, LogError> {
    make_single_link(options, header, staging)?;
    Ok(options.disk.open(
        &FileName::Segment(header.first).path(&options.dir),
        Open::ReadWrite,
        Caching::Buffered,
    )?)
}
