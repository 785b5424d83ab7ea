//! Reads the header of a segment's file.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::FileLogOptions;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::glsn::Glsn;

/// Opens a segment in order to read its header.
pub(crate) fn open_header(
    options: &FileLogOptions,
    first: Glsn,
) -> Result<Arc<dyn File>, LogError> {
    let file = options.disk.open(
        &FileName::Segment(first).path(&options.dir),
        Open::Read,
        Caching::Buffered,
    )?;
    file.will_read(0, SEGMENT_HEADER_BYTES as u64);
    Ok(file)
}

/// Reads the header of the segment that begins with `first`.
pub(crate) fn read_header(file: &dyn File, first: Glsn) -> Result<SegmentHeader, LogError> {
    let name = FileName::Segment(first);
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let n = file.read_at(&mut bytes, 0)?;
    let corrupt = |what: &str| LogError::Corrupt {
        glsn: first,
        file: name.name(),
        offset: 0,
        what: what.to_owned(),
    };
    let header = SegmentHeader::decode(&bytes[..n]).map_err(|error| match error {
        HeaderError::Bad(what) => corrupt(what),
        HeaderError::Newer(message) => LogError::Format { message },
    })?;
    if header.first != first || first == Glsn::NONE {
        return Err(corrupt("the segment's header does not match its file name"));
    }
    Ok(header)
}

/// The id of the log in a folder, from the oldest segment whose header can be read; `None` if there
/// is no such segment.
pub fn id_in(disk: &dyn Disk, dir: &Path) -> Option<u128> {
    let names = disk.names(dir).ok()?;
    let segment_of = |name: &String| match FileName::parse(name) {
        Some(FileName::Segment(first)) => Some(first),
        _ => None,
    };
    let mut segments: Vec<Glsn> = names.iter().filter_map(segment_of).collect();
    segments.sort_unstable();
    segments.into_iter().find_map(|first| {
        let file =
            disk.open(&FileName::Segment(first).path(dir), Open::Read, Caching::Buffered).ok()?;
        Some(read_header(&*file, first).ok()?.log_id)
    })
}
