//! Reads the active segment, cuts a torn tail, and makes the remaining records durable unless they
//! are known to be.

use std::sync::Arc;

use plimsoll_disk::borders::{Border, hit};
use plimsoll_disk::vfs::{Caching, File, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::{open_for_writing, write_again};
use crate::file_log::files::zeros::{has_no_room, write_zeros};
use crate::file_log::open_report::OpenReport;
use crate::file_log::options::FileLogOptions;
use crate::file_log::recovery::decide::decide;
use crate::file_log::recovery::find::LogFiles;
use crate::file_log::segments::create::{NotCreated, create_segment};
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::walk::{Outcome, Visitor, walk_segment};
use crate::file_log::tail::order::entries_max;
use crate::format::BLOCK_BYTES;
use crate::format::offset_table::NamedBlob;
use crate::format::record::RecordHeader;
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::glsn::{Glsn, Position, StreamId};

/// The most memory for the entry offsets of the active segment, unless an option sets another
/// limit.
const NUMBERS_BYTES_MAX: u64 = 4 << 20;

/// The active segment as read by recovery.
pub(crate) struct Active {
    pub(crate) file: Arc<dyn File>,
    pub(crate) header: SegmentHeader,
    pub(crate) outcome: Outcome,
    pub(crate) entry_offsets: EntryOffsets,
    pub(crate) blobs: NamedBlobs,
    /// Whether the entry offsets exceed their memory limit.
    pub(crate) too_many: bool,
    pub(crate) epoch: u32,
    /// Whether the file was left unchanged, because all records are known to be durable. A mark
    /// after them may be only in the page cache, so it must be rewritten before anything after it.
    pub(crate) left_as_found: bool,
}

pub(crate) fn read_active(
    options: &FileLogOptions,
    found: &LogFiles,
    may_cut: bool,
    report: &mut OpenReport,
) -> Result<Active, LogError> {
    let header = *found.headers.last().expect("a log has at least one segment");
    let mut staging = options.budget.take(Kind::Staging)?;
    let path = FileName::Segment(header.first).path(&options.dir);
    let file = match may_cut {
        true => open_for_writing(options, &header, &mut staging)?,
        false => options.disk.open(&path, Open::Read, Caching::Buffered)?,
    };
    let most = if may_cut { most_entries(options) } else { u32::MAX };
    let mut gather = ActiveVisitor::new(&options.budget, most)?;
    let mut outcome = walk_segment(&*file, &header, u64::MAX, &mut staging, &mut gather)?;
    let mut epoch = outcome.epoch;
    let known = options.known.map_or(Glsn::NONE, |known| known.glsn);
    if let Some(cut) = decide(header.first, known, &outcome)? {
        if may_cut {
            write_zeros(&*file, cut.offset, outcome.used)?;
        }
        epoch = epoch.saturating_add(1);
        hit(Border::TailCut);
        report.cut = Some(cut);
    }
    let is_known =
        |known: Position| (known.glsn.next(), known.chain) == (outcome.next, outcome.chain);
    // Rewrite nothing if the store was closed cleanly or the segment has no record after the known
    // one. A segment that ends at a block boundary is excluded, because the buffer does not hold
    // the previous block.
    let left_as_found = may_cut
        && report.cut.is_none()
        && known.next() >= header.first
        && options.known.is_some_and(is_known)
        && !(outcome.end as usize).is_multiple_of(BLOCK_BYTES);
    if left_as_found {
        file.sync()?;
        options.disk.sync_dir(&options.dir)?;
    } else if may_cut {
        let synced = outcome.durable.max(known);
        let last_synced =
            synced.0.checked_sub(header.first.0).and_then(|index| u32::try_from(index).ok());
        let from = last_synced.and_then(|index| gather.entry_offsets.offset(index)).unwrap_or(0);
        make_durable(options, &*file, &outcome, from, &mut staging)?;
    }
    if report.cut.is_some() {
        // Make the close write a mark of the new epoch, which shows that a tail was cut.
        outcome.marked = false;
    }
    report.replayed = outcome.next.0 - header.first.0;
    if let Some(at) = outcome.dirty_padding {
        report.warnings.push(format!(
            "{} has bytes at offset {at} where only padding should be; no entry is affected",
            FileName::Segment(header.first).name()
        ));
    }
    Ok(Active {
        file,
        header,
        outcome,
        entry_offsets: gather.entry_offsets,
        blobs: gather.blobs,
        too_many: gather.too_many,
        epoch,
        left_as_found,
    })
}

/// Makes the records that were read durable. Rewrites them before the sync, because bytes of a
/// killed process may be only in the page cache, and after a failed sync the system may consider
/// them clean, so that another sync would skip them. `from` is the offset of the last entry that is
/// known to be synced, 0 if none is; all entries before it were synced, too. After a mark only the
/// mark itself may be unsynced.
fn make_durable(
    options: &FileLogOptions,
    file: &dyn File,
    outcome: &Outcome,
    from: u32,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let end = u64::from(outcome.end);
    let block = BLOCK_BYTES as u64;
    let from = if outcome.marked { end.saturating_sub(1) } else { u64::from(from) } / block * block;
    write_again(file, from, end, staging)?;
    file.sync()?;
    // The segment's name may not be durable either.
    Ok(options.disk.sync_dir(&options.dir)?)
}

pub(crate) fn most_entries(options: &FileLogOptions) -> u32 {
    entries_max(
        options
            .entry_offsets_bytes
            .unwrap_or((options.budget.limit_bytes() / 32).min(NUMBERS_BYTES_MAX)),
    )
}

/// Collects the entry offsets of the active segment.
pub(crate) struct ActiveVisitor<'a> {
    budget: &'a Budget,
    most: u32,
    pub(crate) entry_offsets: EntryOffsets,
    pub(crate) blobs: NamedBlobs,
    pub(crate) too_many: bool,
    /// The numbers of entries and of blob files of complete records.
    complete: (u32, usize),
}

impl<'a> ActiveVisitor<'a> {
    pub(crate) fn new(budget: &'a Budget, most: u32) -> Result<Self, LogError> {
        let blobs = NamedBlobs::new(budget)?;
        Ok(Self {
            budget,
            most,
            entry_offsets: EntryOffsets::default(),
            blobs,
            too_many: false,
            complete: (0, 0),
        })
    }

    /// Stops collecting offsets and only counts entries. The segment will be sealed, and its table
    /// then finds the entries.
    fn stop_collecting(&mut self) {
        self.too_many = true;
        self.entry_offsets.clear();
        self.blobs.clear();
        self.complete = (0, 0);
    }
}

impl Visitor for ActiveVisitor<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        if self.too_many {
            return Ok(());
        }
        if self.entry_offsets.len() >= self.most {
            self.stop_collecting();
            return Ok(());
        }
        match self.entry_offsets.reserve(1, self.budget) {
            Ok(()) => self.entry_offsets.push(offset, stream),
            Err(_) if self.most < u32::MAX => self.stop_collecting(),
            Err(refusal) => return Err(refusal.into()),
        }
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        if self.too_many {
            return Ok(());
        }
        self.blobs.reserve(blobs.len())?;
        for blob in blobs {
            self.blobs.push(NamedBlob {
                record_first: header.first,
                record_count: header.count,
                blob: *blob,
            });
        }
        self.complete = (self.entry_offsets.len(), self.blobs.list().len());
        Ok(())
    }

    fn abandon(&mut self) {
        self.entry_offsets.truncate(self.complete.0);
        self.blobs.truncate(self.complete.1);
    }
}

/// Recreates an active segment that has no records and is smaller than the options require, because
/// a large record could not roll to a new segment with the same first GLSN.
pub(crate) fn enlarge_if_empty(
    options: &FileLogOptions,
    found: &mut LogFiles,
    active: Active,
) -> Result<Active, LogError> {
    let is_empty = active.outcome.next == active.header.first;
    if !is_empty || active.header.segment_bytes >= options.segment_size() {
        return Ok(active);
    }
    let header = SegmentHeader {
        segment_bytes: options.segment_size(),
        epoch: active.epoch,
        ..active.header
    };
    let file = match create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64) {
        Ok(file) => file,
        // If the disk has no room for the larger segment, keep the small one.
        Err(NotCreated::Cleanly(error)) if has_no_room(&error) => return Ok(active),
        // The name may refer to another file than the open one.
        Err(error) => return Err(error.into()),
    };
    *found.headers.last_mut().expect("the list includes the active segment") = header;
    let outcome = Outcome { end: SEGMENT_HEADER_BYTES as u32, marked: false, ..active.outcome };
    Ok(Active { file, header, outcome, ..active })
}

/// Seals an active segment that has more entries than the memory limit allows, and begins another
/// one.
pub(crate) fn follow_with_new_segment(
    options: &FileLogOptions,
    found: &mut LogFiles,
    full: Active,
    timestamp: u64,
    last_blob_id: u64,
) -> Result<Active, LogError> {
    let mut outcome = full.outcome;
    let header = SegmentHeader {
        log_id: full.header.log_id,
        epoch: full.epoch,
        first: outcome.next,
        previous_chain: outcome.chain,
        timestamp_floor: timestamp,
        last_blob_id,
        segment_bytes: options.segment_size(),
        previous_end: outcome.end,
    };
    let file = create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64)?;
    found.headers.push(header);
    outcome.end = SEGMENT_HEADER_BYTES as u32;
    outcome.first_timestamp = 0;
    outcome.marked = false;
    let entry_offsets = EntryOffsets::default();
    let blobs = NamedBlobs::new(&options.budget)?;
    let epoch = full.epoch;
    Ok(Active {
        file,
        header,
        outcome,
        entry_offsets,
        blobs,
        too_many: false,
        epoch,
        left_as_found: false,
    })
}
