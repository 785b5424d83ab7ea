//! The way from a GLSN, or from a stream, to a place in a sealed segment: by its offset table, or, where none can be written, by
//! numbers in memory.
//!
//! A table that is missing or damaged is made again from its segment. That is never needed to know what is true, only to find it fast.

use std::io;
use std::sync::Arc;

use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pool::LoadError;

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::{Core, lock};
use crate::file_log::segments::entry_offsets::Numbers;
use crate::file_log::segments::named_blobs::NamedSides;
use crate::file_log::segments::segment::Segment;
use crate::file_log::segments::table_file::OffsetTable;
use crate::file_log::segments::table_writer::{TableSource, write_table};
use crate::file_log::segments::walk::{NoVisitor, Outcome, Visitor, replay};
use crate::format::offset_table::{NamedSide, TableHeader};
use crate::format::record::RecordHeader;
use crate::format::table_seed;
use crate::glsn::{Glsn, StreamId};
use crate::side::SideRef;

/// Where the entries of a sealed segment are.
#[derive(Debug)]
pub(crate) enum Table {
    /// Read through the pool.
    File(OffsetTable),
    /// Held, because it cannot be written: the log is open to read only, or the disk is full.
    Memory {
        /// Of all entries.
        numbers: Numbers,
        /// Of all records.
        sides: NamedSides,
    },
}

/// A walk over the entries of one stream in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamCursor {
    at: u32,
    end: u32,
}

impl Table {
    /// The offset of an entry.
    pub(crate) fn offset(&self, index: u32) -> Result<u32, LoadError> {
        match self {
            Self::File(table) => table.offset(index),
            Self::Memory { numbers, .. } => numbers.offset(index).ok_or_else(missing),
        }
    }

    /// Fills `into` with the offsets of the entries from `index` on; returns how many, at least one.
    pub(crate) fn offsets(&self, index: u32, into: &mut [u32]) -> Result<usize, LoadError> {
        match self {
            Self::File(table) => table.offsets(index, into),
            Self::Memory { numbers, .. } => {
                for (i, offset) in into.iter_mut().enumerate() {
                    *offset = numbers.offset(index + i as u32).ok_or_else(missing)?;
                }
                Ok(into.len())
            }
        }
    }

    /// The entries of a stream from `index` on.
    pub(crate) fn stream(&self, stream: StreamId, index: u32) -> Result<StreamCursor, LoadError> {
        match self {
            Self::File(table) => Ok(match table.stream(stream)? {
                None => StreamCursor { at: 0, end: 0 },
                Some(item) => StreamCursor { at: table.posting_from(&item, index)?, end: item.start + item.count },
            }),
            Self::Memory { numbers, .. } => Ok(StreamCursor { at: index, end: numbers.len() }),
        }
    }

    /// Fills `into` with the numbers of the next entries of a stream; returns how many, 0 at the end.
    pub(crate) fn next_of_stream(
        &self,
        stream: StreamId,
        cursor: &mut StreamCursor,
        into: &mut [u32],
    ) -> Result<usize, LoadError> {
        let wanted = into.len().min((cursor.end - cursor.at) as usize);
        if wanted == 0 {
            return Ok(0);
        }
        match self {
            Self::File(table) => {
                let n = table.postings(cursor.at, &mut into[..wanted])?;
                cursor.at += n as u32;
                Ok(n)
            }
            Self::Memory { numbers, .. } => {
                let mut n = 0;
                while n < into.len()
                    && let Some(found) = numbers.find(stream, cursor.at, cursor.end)
                {
                    into[n] = found;
                    cursor.at = found + 1;
                    n += 1;
                }
                if n == 0 {
                    cursor.at = cursor.end;
                }
                Ok(n)
            }
        }
    }

    /// Number of side files named in the segment.
    pub(crate) fn side_count(&self) -> u32 {
        match self {
            Self::File(table) => table.header.sides,
            Self::Memory { sides, .. } => sides.list().len() as u32,
        }
    }

    /// Side file number `index`.
    pub(crate) fn side(&self, index: u32) -> Result<NamedSide, LoadError> {
        match self {
            Self::File(table) => table.side(index),
            Self::Memory { sides, .. } => sides.list().get(index as usize).copied().ok_or_else(missing),
        }
    }
}

fn missing() -> LoadError {
    LoadError::Corrupt { message: "an entry that is not in its segment's table".to_owned() }
}

impl Core {
    /// Asks a sealed segment's table; makes it again once if it is missing or damaged.
    pub(crate) fn with_table<T>(
        &self,
        segment: &Arc<Segment>,
        mut ask: impl FnMut(&Table) -> Result<T, LoadError>,
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

    /// An error of the pool, told as one of the log about entry `glsn`.
    pub(crate) fn load_error(&self, error: LoadError, name: FileName, glsn: Glsn, offset: u64) -> LogError {
        if matches!(error, LoadError::Io { kind: io::ErrorKind::NotFound, .. }) {
            self.notice_trim();
        }
        let first = self.segments.first();
        match error {
            LoadError::Io { kind: io::ErrorKind::NotFound, .. } if glsn < first => {
                LogError::Trimmed { asked: glsn, first }
            }
            LoadError::Io { kind: io::ErrorKind::NotFound, message } => LogError::Corrupt {
                glsn,
                file: name.name(),
                offset: 0,
                what: format!("the file is missing: {message}"),
            },
            LoadError::Corrupt { message } => LogError::Corrupt { glsn, file: name.name(), offset, what: message },
            other => other.into(),
        }
    }

    fn open_table(&self, segment: &Arc<Segment>) -> Result<Arc<Table>, LogError> {
        let Some(behind) = segment.behind() else {
            return Err(LogError::NotYet { asked: segment.first(), next: self.next() });
        };
        let options = &self.options;
        match OffsetTable::open(self.id, segment.first(), options.caching, &options.pool, &self.files) {
            Ok(table)
                if table.header.chain == behind.chain
                    && table.header.end == behind.end
                    && u64::from(table.header.count) == behind.next.0 - segment.first().0 =>
            {
                Ok(keep(segment, Table::File(table)))
            }
            Ok(_) => self.rebuild_table(segment, None),
            Err(error) if is_damage(&error) => self.rebuild_table(segment, None),
            Err(error) => Err(self.table_error(segment, error)),
        }
    }

    /// Makes a table again from its segment, unless another thread did since `damaged` was seen.
    fn rebuild_table(&self, segment: &Arc<Segment>, damaged: Option<&Arc<Table>>) -> Result<Arc<Table>, LogError> {
        let mut scratch = lock(&self.rebuilding);
        if let Some(known) = &*segment.table.read().expect("no code under this lock panics")
            && damaged.is_none_or(|damaged| !Arc::ptr_eq(damaged, known))
        {
            return Ok(Arc::clone(known));
        }
        let budget = &self.options.budget;
        let mut reading = budget.take(Kind::Staging)?;
        let mut source = FromSegment { core: self, segment, staging: &mut reading };
        let header = source.check()?;
        if self.writing.is_some() {
            let mut writing = budget.take(Kind::Staging)?;
            let seed = table_seed(self.id, segment.first());
            self.files.forget(FileName::Table(segment.first()));
            let (disk, dir) = (&*self.options.disk, &self.options.dir);
            let written = write_table(disk, dir, header, seed, &mut source, &mut scratch, &mut writing);
            self.files.forget(FileName::Table(segment.first()));
            if written.is_ok() {
                let options = &self.options;
                let table = OffsetTable::open(self.id, segment.first(), options.caching, &options.pool, &self.files)
                    .map_err(|error| self.table_error(segment, error))?;
                return Ok(keep(segment, Table::File(table)));
            }
        }
        Ok(keep(segment, source.hold(budget)?))
    }
}

fn keep(segment: &Segment, table: Table) -> Arc<Table> {
    let table = Arc::new(table);
    *segment.table.write().expect("no code under this lock panics") = Some(Arc::clone(&table));
    table
}

/// Whether making the table again may help.
fn is_damage(error: &LoadError) -> bool {
    matches!(error, LoadError::Corrupt { .. } | LoadError::Io { kind: io::ErrorKind::NotFound, .. })
}

/// A sealed segment's own bytes, read as often as it takes.
struct FromSegment<'a> {
    core: &'a Core,
    segment: &'a Segment,
    staging: &'a mut [u8],
}

impl FromSegment<'_> {
    /// Walks over the whole segment. Each walk is compared with what follows the segment, not only the first: one that met a bad byte
    /// and ended early would leave entries or side files out of the table.
    fn walk(&mut self, visitor: &mut dyn Visitor) -> Result<Outcome, LogError> {
        let name = FileName::Segment(self.segment.first());
        let missing = |error: io::Error| self.core.load_error(error.into(), name, self.segment.first(), 0);
        let file = self.core.files.get(name, plimsoll_disk::vfs::Caching::Buffered).map_err(missing)?;
        let outcome = replay(&*file, &self.segment.header, u64::MAX, self.staging, visitor)?;
        let behind = self.segment.behind().map(|behind| (behind.next, behind.chain, behind.end));
        if behind != Some((outcome.next, outcome.chain, outcome.end)) {
            let problem = outcome.problem.map(|problem| (problem.at, problem.what));
            let (offset, what) = problem.unwrap_or((u64::from(outcome.end), "it does not lead to the next segment"));
            let file = FileName::Segment(self.segment.first()).name();
            return Err(LogError::Corrupt { glsn: outcome.next, file, offset, what: what.to_owned() });
        }
        Ok(outcome)
    }

    /// Reads the segment once: what the table's header says of it.
    fn check(&mut self) -> Result<TableHeader, LogError> {
        let outcome = self.walk(&mut NoVisitor)?;
        Ok(TableHeader {
            log_id: self.core.id,
            first: self.segment.first(),
            count: (outcome.next.0 - self.segment.first().0) as u32,
            chain: outcome.chain,
            first_timestamp: outcome.first_timestamp,
            last_timestamp: outcome.last_timestamp,
            end: outcome.end,
            streams: 0,
            sides: 0,
        })
    }

    /// The numbers in memory.
    fn hold(&mut self, budget: &Budget) -> Result<Table, LogError> {
        let mut held = Held { budget, numbers: Numbers::default(), sides: NamedSides::new(budget)? };
        self.walk(&mut held)?;
        Ok(Table::Memory { numbers: held.numbers, sides: held.sides })
    }
}

impl TableSource for FromSegment<'_> {
    fn offsets(&mut self, each: &mut dyn FnMut(u32) -> Result<(), LogError>) -> Result<(), LogError> {
        self.walk(&mut Entries { each: &mut |offset, _| each(offset) }).map(|_| ())
    }

    fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError> {
        let mut one = |_, stream| {
            each(stream);
            Ok(())
        };
        self.walk(&mut Entries { each: &mut one }).map(|_| ())
    }

    fn sides(&mut self, each: &mut dyn FnMut(NamedSide) -> Result<(), LogError>) -> Result<(), LogError> {
        self.walk(&mut SidesOnly { each }).map(|_| ())
    }
}

struct Entries<'a> {
    each: &'a mut dyn FnMut(u32, StreamId) -> Result<(), LogError>,
}

impl Visitor for Entries<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        (self.each)(offset, stream)
    }

    fn record(&mut self, _: &RecordHeader, _: &[SideRef]) -> Result<(), LogError> {
        Ok(())
    }

    fn abandon(&mut self) {}
}

struct SidesOnly<'a> {
    each: &'a mut dyn FnMut(NamedSide) -> Result<(), LogError>,
}

impl Visitor for SidesOnly<'_> {
    fn entry(&mut self, _: u32, _: StreamId) -> Result<(), LogError> {
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, sides: &[SideRef]) -> Result<(), LogError> {
        let (record_first, record_count) = (header.first, header.count);
        sides.iter().try_for_each(|side| (self.each)(NamedSide { record_first, record_count, side: *side }))
    }

    fn abandon(&mut self) {}
}

struct Held<'a> {
    budget: &'a Budget,
    numbers: Numbers,
    sides: NamedSides,
}

impl Visitor for Held<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        self.numbers.reserve(1, self.budget)?;
        self.numbers.push(offset, stream);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, sides: &[SideRef]) -> Result<(), LogError> {
        self.sides.reserve(sides.len())?;
        let (record_first, record_count) = (header.first, header.count);
        sides.iter().for_each(|side| self.sides.push(NamedSide { record_first, record_count, side: *side }));
        Ok(())
    }

    fn abandon(&mut self) {}
}
