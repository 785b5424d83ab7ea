//! Ends a copy of a log, which is not open, after an earlier record.

use plimsoll_disk::vfs::{Caching, Open};
use plimsoll_memory::budget::Kind;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::FileLogOptions;
use crate::file_log::segments::header_file::read_header;
use crate::file_log::segments::walk::{Visitor, walk_segment};
use crate::format::fragment::FRAGMENT_HEADER_BYTES;
use crate::format::record::RecordHeader;
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::glsn::{Glsn, Position, StreamId};

/// The last record that a copy keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The last one that ends with this GLSN or before it.
    Glsn(Glsn),
    /// The last one whose timestamp, in microseconds since 1970 UTC, is at most this.
    Micros(u64),
}

/// Truncates the last segment of the log in the folder of `options` after the last record of that
/// segment that `until` keeps, and syncs it. Returns the position at the new end. The file must
/// have no other name. A log that already ends there is not changed.
///
/// # Errors
/// `Corrupt` if the folder has no segment, or if the segment is damaged before the new end; an I/O
/// error, or the budget has no room.
pub fn cut_after(options: &FileLogOptions, until: Until) -> Result<Position, LogError> {
    let names = options.disk.names(&options.dir)?;
    let last = names.iter().filter_map(|name| match FileName::parse(name) {
        Some(FileName::Segment(first)) => Some(first),
        _ => None,
    });
    let Some(first) = last.max() else {
        let what = "the copy has no segment".to_owned();
        return Err(LogError::Corrupt { glsn: Glsn::FIRST, file: String::new(), offset: 0, what });
    };
    let name = FileName::Segment(first);
    let file = options.disk.open(&name.path(&options.dir), Open::ReadWrite, Caching::Buffered)?;
    let header = read_header(&*file, first)?;
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut search = Search { until, first_entry: None, found: None };
    let outcome = walk_segment(&*file, &header, u64::MAX, &mut staging, &mut search)?;
    let end = match (search.found, outcome.problem) {
        (Some(end), _) => end,
        (None, Some(problem)) => {
            let (glsn, what) = (outcome.next, problem.what.to_owned());
            return Err(LogError::Corrupt { glsn, file: name.name(), offset: problem.at, what });
        }
        (None, None) => {
            return Ok(Position { glsn: Glsn(outcome.next.0 - 1), chain: outcome.chain });
        }
    };
    file.set_len(u64::from(end.offset.max(SEGMENT_HEADER_BYTES as u32)))?;
    file.sync()?;
    Ok(end.position)
}

/// The offset of the first record that is not kept.
#[derive(Clone, Copy)]
struct CutPlace {
    offset: u32,
    position: Position,
}

struct Search {
    until: Until,
    /// Offset of the first entry of the record that is being read.
    first_entry: Option<u32>,
    found: Option<CutPlace>,
}

impl Visitor for Search {
    fn entry(&mut self, offset: u32, _: StreamId) -> Result<(), LogError> {
        self.first_entry.get_or_insert(offset);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, _: &[BlobRef]) -> Result<(), LogError> {
        let first_entry = self.first_entry.take().unwrap_or(0);
        let is_kept = match self.until {
            Until::Glsn(last) => header.last() <= last,
            Until::Micros(last) => header.timestamp_micros <= last,
        };
        if self.found.is_none() && !is_kept {
            let before = (header.head_bytes() + FRAGMENT_HEADER_BYTES) as u32;
            let position =
                Position { glsn: Glsn(header.first.0 - 1), chain: header.previous_chain };
            self.found = Some(CutPlace { offset: first_entry.saturating_sub(before), position });
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.first_entry = None;
    }
}
