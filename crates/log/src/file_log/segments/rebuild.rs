//! Opens the offset tables of sealed segments, and rebuilds those that are missing or damaged from
//! their segments. A table holds no information that is not in the segment; it only makes look-ups
//! fast.

use std::io;
use std::sync::Arc;

use plimsoll_disk::vfs::Caching;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pool::LoadError;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::env::lock;
use crate::file_log::files::names::FileName;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::list::Segments;
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::offset_table::OffsetTable;
use crate::file_log::segments::segment::Segment;
use crate::file_log::segments::table_file::TableFile;
use crate::file_log::segments::table_writer::{TableSource, write_table};
use crate::file_log::segments::walk::{NoVisitor, Outcome, Visitor, walk_segment};
use crate::format::offset_table::{NamedBlob, TableHeader};
use crate::format::record::RecordHeader;
use crate::format::table_seed;
use crate::glsn::StreamId;

impl Segments {
    /// Runs `ask` on a sealed segment's table; rebuilds the table once if it is missing or damaged.
    pub(crate) fn with_table<T>(
        &self,
        segment: &Arc<Segment>,
        mut ask: impl FnMut(&OffsetTable) -> Result<T, LoadError>,
    ) -> Result<T, LogError> {
        let known = segment.table.read().expect("no code under this lock panics").clone();
        let table = match known {
            Some(table) => table,
            None => self.open_table(segment)?,
        };
        match ask(&table) {
            Ok(answer) => Ok(answer),
            Err(error) if is_damage(&error) => {
                let again = self.rebuild_table(segment, Some(&table))?;
                ask(&again).map_err(|error| self.table_error(segment, error))
            }
            Err(error) => Err(self.table_error(segment, error)),
        }
    }

    fn table_error(&self, segment: &Segment, error: LoadError) -> LogError {
        self.load_error(error, FileName::Table(segment.first()), segment.first(), 0)
    }

    fn open_table(&self, segment: &Arc<Segment>) -> Result<Arc<OffsetTable>, LogError> {
        let Some(sealed) = segment.sealed() else {
            return Err(LogError::NotYet { asked: segment.first(), next: segment.first() });
        };
        match TableFile::open(&self.env, segment.first()) {
            Ok(table)
                if table.header.chain == sealed.chain
                    && table.header.end == sealed.end
                    && u64::from(table.header.count) == sealed.next.0 - segment.first().0 =>
            {
                Ok(keep(segment, OffsetTable::File(table)))
            }
            Ok(_) => self.rebuild_table(segment, None),
            Err(error) if is_damage(&error) => self.rebuild_table(segment, None),
            Err(error) => Err(self.table_error(segment, error)),
        }
    }

    /// Rebuilds a table from its segment, unless another thread has done so since `damaged` was
    /// read.
    fn rebuild_table(
        &self,
        segment: &Arc<Segment>,
        damaged: Option<&Arc<OffsetTable>>,
    ) -> Result<Arc<OffsetTable>, LogError> {
        let mut scratch = lock(&self.rebuilding);
        if let Some(known) = &*segment.table.read().expect("no code under this lock panics")
            && damaged.is_none_or(|damaged| !Arc::ptr_eq(damaged, known))
        {
            return Ok(Arc::clone(known));
        }
        let budget = &self.env.options.budget;
        let mut reading = budget.take(Kind::Staging)?;
        let mut source = FromSegment { segments: self, segment, staging: &mut reading };
        let header = source.check()?;
        if !self.env.is_read_only() {
            let mut writing = budget.take(Kind::Staging)?;
            let seed = table_seed(self.env.id, segment.first());
            self.env.files.forget(FileName::Table(segment.first()));
            let (disk, place) = (&*self.env.options.disk, self.env.table_place(header.first));
            let written =
                write_table(disk, &place, header, seed, &mut source, &mut scratch, &mut writing);
            self.env.files.forget(FileName::Table(segment.first()));
            if written.is_ok() {
                let table = TableFile::open(&self.env, segment.first())
                    .map_err(|error| self.table_error(segment, error))?;
                return Ok(keep(segment, OffsetTable::File(table)));
            }
        }
        Ok(keep(segment, source.hold(budget)?))
    }
}

fn keep(segment: &Segment, table: OffsetTable) -> Arc<OffsetTable> {
    let table = Arc::new(table);
    *segment.table.write().expect("no code under this lock panics") = Some(Arc::clone(&table));
    table
}

/// Whether rebuilding the table may help.
fn is_damage(error: &LoadError) -> bool {
    matches!(error, LoadError::Corrupt { .. } | LoadError::Io { kind: io::ErrorKind::NotFound, .. })
}

/// A source that reads a sealed segment itself, as often as needed.
struct FromSegment<'a> {
    segments: &'a Segments,
    segment: &'a Segment,
    staging: &'a mut [u8],
}

impl FromSegment<'_> {
    /// Walks the whole segment. Compares every walk, not only the first, with the segment's end,
    /// because a walk that ended early at a bad byte would omit entries or blob files from the
    /// table.
    fn walk(&mut self, visitor: &mut dyn Visitor) -> Result<Outcome, LogError> {
        let name = FileName::Segment(self.segment.first());
        let missing = |error: io::Error| {
            self.segments.load_error(error.into(), name, self.segment.first(), 0)
        };
        let file = self.segments.env.files.get(name, Caching::Buffered).map_err(missing)?;
        let outcome = walk_segment(&*file, &self.segment.header, u64::MAX, self.staging, visitor)?;
        let sealed = self.segment.sealed().map(|sealed| (sealed.next, sealed.chain, sealed.end));
        if sealed != Some((outcome.next, outcome.chain, outcome.end)) {
            let problem = outcome.problem.map(|problem| (problem.at, problem.what));
            let mismatch = "the segment's end does not match the beginning of the next one";
            let (offset, what) = problem.unwrap_or((u64::from(outcome.end), mismatch));
            let file = FileName::Segment(self.segment.first()).name();
            return Err(LogError::Corrupt {
                glsn: outcome.next,
                file,
                offset,
                what: what.to_owned(),
            });
        }
        Ok(outcome)
    }

    /// Reads the segment once, for the header of its table.
    fn check(&mut self) -> Result<TableHeader, LogError> {
        let outcome = self.walk(&mut NoVisitor)?;
        Ok(TableHeader {
            log_id: self.segments.env.id,
            first: self.segment.first(),
            count: (outcome.next.0 - self.segment.first().0) as u32,
            chain: outcome.chain,
            first_timestamp: outcome.first_timestamp,
            last_timestamp: outcome.last_timestamp,
            end: outcome.end,
            streams: 0,
            blobs: 0,
        })
    }

    /// The table in memory.
    fn hold(&mut self, budget: &Budget) -> Result<OffsetTable, LogError> {
        let mut held = TableVisitor {
            budget,
            entry_offsets: EntryOffsets::default(),
            blobs: NamedBlobs::new(budget)?,
        };
        self.walk(&mut held)?;
        Ok(OffsetTable::Memory { entry_offsets: held.entry_offsets, blobs: held.blobs })
    }
}

impl TableSource for FromSegment<'_> {
    fn offsets(
        &mut self,
        each: &mut dyn FnMut(u32) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.walk(&mut EntriesVisitor { each: &mut |offset, _| each(offset) }).map(|_| ())
    }

    fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError> {
        let mut one = |_, stream| {
            each(stream);
            Ok(())
        };
        self.walk(&mut EntriesVisitor { each: &mut one }).map(|_| ())
    }

    fn blobs(
        &mut self,
        each: &mut dyn FnMut(NamedBlob) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.walk(&mut BlobsVisitor { each }).map(|_| ())
    }
}

struct EntriesVisitor<'a> {
    each: &'a mut dyn FnMut(u32, StreamId) -> Result<(), LogError>,
}

impl Visitor for EntriesVisitor<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        (self.each)(offset, stream)
    }

    fn record(&mut self, _: &RecordHeader, _: &[BlobRef]) -> Result<(), LogError> {
        Ok(())
    }

    fn abandon(&mut self) {}
}

struct BlobsVisitor<'a> {
    each: &'a mut dyn FnMut(NamedBlob) -> Result<(), LogError>,
}

impl Visitor for BlobsVisitor<'_> {
    fn entry(&mut self, _: u32, _: StreamId) -> Result<(), LogError> {
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        let (record_first, record_count) = (header.first, header.count);
        blobs
            .iter()
            .try_for_each(|blob| (self.each)(NamedBlob { record_first, record_count, blob: *blob }))
    }

    fn abandon(&mut self) {}
}

struct TableVisitor<'a> {
    budget: &'a Budget,
    entry_offsets: EntryOffsets,
    blobs: NamedBlobs,
}

impl Visitor for TableVisitor<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        self.entry_offsets.reserve(1, self.budget)?;
        self.entry_offsets.push(offset, stream);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        self.blobs.reserve(blobs.len())?;
        let (record_first, record_count) = (header.first, header.count);
        blobs.iter().for_each(|blob| {
            self.blobs.push(NamedBlob { record_first, record_count, blob: *blob })
        });
        Ok(())
    }

    fn abandon(&mut self) {}
}
