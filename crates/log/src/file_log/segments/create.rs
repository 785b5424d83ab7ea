//! Creates the file of a segment: durable under its name at once, or under a temporary name that a
//! later sync replaces.

use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};

use crate::error::LogError;
use crate::file_log::files::names::{FileName, unfinished};
use crate::file_log::files::zeros::{has_no_room, write_zeros};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::glsn::Glsn;

/// Why a segment was not created.
#[derive(Debug)]
pub(crate) enum NotCreated {
    /// Nothing was changed.
    Cleanly(io::Error),
    /// The file may exist under its name without the name being durable, or its sync failed.
    Possibly(io::Error),
}

impl From<NotCreated> for LogError {
    fn from(cause: NotCreated) -> Self {
        match cause {
            NotCreated::Cleanly(error) | NotCreated::Possibly(error) => error.into(),
        }
    }
}

/// Creates a segment's file with its header and `zeroed` bytes in total, durable under its name. It
/// appears atomically: until the rename it has a temporary name.
pub(crate) fn create_segment(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    zeroed: u64,
) -> Result<Arc<dyn File>, NotCreated> {
    let path = FileName::Segment(header.first).path(dir);
    let draft = unfinished(&path);
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(NotCreated::Cleanly(error));
        }
        _ => {}
    }
    let file = fill_new_segment(disk, &draft, header, zeroed).map_err(|error| {
        let _ = disk.remove(&draft);
        NotCreated::Cleanly(error)
    })?;
    if let Err(error) = file.sync().and_then(|()| disk.rename(&draft, &path)) {
        let _ = disk.remove(&draft);
        // After any error but a lack of room, the rename may have succeeded nevertheless, for
        // example over a network. The file that had this name before may be gone.
        return Err(if has_no_room(&error) {
            NotCreated::Cleanly(error)
        } else {
            NotCreated::Possibly(error)
        });
    }
    drop(file);
    disk.sync_dir(dir)
        .and_then(|()| disk.open(&path, Open::ReadWrite, Caching::Buffered))
        .map_err(NotCreated::Possibly)
}

/// Creates the file of a segment under its temporary name, with its header and `zeroed` bytes in
/// total. Nothing is synced.
pub(crate) fn begin_segment(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    zeroed: u64,
) -> io::Result<Arc<dyn File>> {
    let draft = unfinished(&FileName::Segment(header.first).path(dir));
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fill_new_segment(disk, &draft, header, zeroed).inspect_err(|_| drop(disk.remove(&draft)))
}

/// Gives a segment whose bytes are synced its name, durably.
pub(crate) fn name_segment(disk: &dyn Disk, dir: &Path, first: Glsn) -> io::Result<()> {
    let path = FileName::Segment(first).path(dir);
    disk.rename(&unfinished(&path), &path)?;
    disk.sync_dir(dir)
}

fn fill_new_segment(
    disk: &dyn Disk,
    draft: &Path,
    header: &SegmentHeader,
    zeroed: u64,
) -> io::Result<Arc<dyn File>> {
    let file = disk.open(draft, Open::CreateNew, Caching::Buffered)?;
    file.write_at(&header.encode(), 0)?;
    write_zeros(&*file, SEGMENT_HEADER_BYTES as u64, zeroed)?;
    Ok(file)
}
