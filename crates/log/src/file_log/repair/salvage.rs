//! The last resort: keeps the front of a log, cuts the rest, and moves that aside.
//!
//! Laws: nothing is deleted: cut bytes stay in the folder under names that end with `.cut`. No existing file is
//! modified: the last segment that is kept is replaced by a new file, because a backup may share the old one. Files are
//! cut from the back to the front: after a crash in between the log is a shorter front of itself, and salvage can be
//! run again. The epoch rises, and a mark records that.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::Kind;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::env::lock_folder;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::{copy_front, replace_file};
use crate::file_log::options::FileLogOptions;
use crate::file_log::repair::aside::{keep_aside, move_aside};
use crate::file_log::repair::spare_blobs::{NamesVisitor, keep_spare_blobs};
use crate::file_log::segments::walk::{Visitor, walk_past_damage, walk_segment};
use crate::format::align8;
use crate::format::fragment::{FRAGMENT_HEADER_BYTES, FragmentType, seal_fragment};
use crate::format::layout::place_record;
use crate::format::record::{MARK_BYTES, Mark, RecordHeader};
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::segment_seed;
use crate::glsn::{Glsn, Position, StreamId};

/// What salvage kept and what it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// The end of what was kept.
    pub kept: Position,
    /// Names of the files that hold the cut bytes.
    pub aside: Vec<String>,
}

/// Cuts a log: keeps whole records below `cut_at`, as far as they are good. The log must not be open for writing.
///
/// # Errors
/// `Format` if nothing would be left, if the segment of the cut cannot be used at all, or if the log is of a newer
/// format; `Locked`, the disk, the budget.
pub fn salvage(options: &FileLogOptions, cut_at: Glsn) -> Result<Salvaged, LogError> {
    cut(options, cut_at, true)
}

/// As [`salvage`], in a copy that is removed in the end: blob files that only cut records name are not kept.
///
/// # Errors
/// As for [`salvage`].
pub fn salvage_copy(options: &FileLogOptions, cut_at: Glsn) -> Result<Salvaged, LogError> {
    cut(options, cut_at, false)
}

fn cut(options: &FileLogOptions, cut_at: Glsn, keeps_blobs: bool) -> Result<Salvaged, LogError> {
    let _lock = lock_folder(options)?;
    let (disk, dir) = (&*options.disk, &*options.dir);
    let mut segments: Vec<Glsn> = Vec::new();
    for entry in disk.list(dir)? {
        if let Some(FileName::Segment(first)) = FileName::parse(&entry.name) {
            segments.push(first);
        }
    }
    segments.sort_unstable();
    let keep = segments.partition_point(|first| *first < cut_at);
    let Some(last) = keep.checked_sub(1).map(|at| segments[at]) else {
        let first = segments.first().copied().unwrap_or(Glsn::FIRST);
        let message = format!("nothing would be left of the log below GLSN {cut_at}: it begins with {first}");
        return Err(LogError::Format { message });
    };
    let epochs = segments.iter().map(|first| read_epoch(disk, dir, *first)).collect::<Result<Vec<_>, _>>()?;
    let mut aside = Vec::new();
    let epoch = epochs[keep..].iter().copied().max().unwrap_or(0);
    if keeps_blobs {
        keep_blobs_of_cut(options, &segments, keep, cut_at, &mut aside)?;
    }
    for first in segments[keep..].iter().rev() {
        move_aside(disk, dir, FileName::Segment(*first), &mut aside)?;
        move_aside(disk, dir, FileName::Table(*first), &mut aside)?;
    }
    let kept = cut_segment(options, last, cut_at, epoch, &mut aside)?;
    Ok(Salvaged { kept, aside })
}

/// Keeps the blob files that no record below the cut names. Those that only an index names are among them: it may be moved aside.
fn keep_blobs_of_cut(
    options: &FileLogOptions,
    segments: &[Glsn],
    keep: usize,
    cut_at: Glsn,
    aside: &mut Vec<String>,
) -> Result<(), LogError> {
    let (disk, dir) = (&*options.disk, &*options.dir);
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut named = BTreeSet::new();
    let mut is_cut = keep < segments.len();
    for (number, first) in segments[..keep].iter().enumerate() {
        let file = disk.open(&FileName::Segment(*first).path(dir), Open::Read, Caching::Buffered)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let n = file.read_at(&mut bytes, 0)?;
        let Ok(header) = SegmentHeader::decode(&bytes[..n]) else { continue };
        let mut names = NamesVisitor { before: cut_at, named: &mut named, is_beyond: false };
        if number + 1 < keep {
            match walk_past_damage(&*file, &header, &mut staging, &mut names) {
                // A segment that cannot be read is no reason not to cut behind it: more blob files are kept.
                Err(LogError::Io { .. }) => {}
                walked => _ = walked?,
            }
        } else {
            // It is cut at its first damage, whatever follows.
            is_cut |= walk_segment(&*file, &header, u64::MAX, &mut staging, &mut names)?.problem.is_some();
            is_cut |= names.is_beyond;
        }
    }
    if is_cut { keep_spare_blobs(disk, dir, &named, &|_| false, &mut staging, aside) } else { Ok(()) }
}

/// The epoch in a segment's header; 0 if it cannot be read. A log of a newer format is left alone.
fn read_epoch(disk: &dyn Disk, dir: &Path, first: Glsn) -> Result<u32, LogError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let file = disk.open(&FileName::Segment(first).path(dir), Open::Read, Caching::Buffered);
    match file.and_then(|file| file.read_exact_at(&mut bytes, 0)).map(|()| SegmentHeader::decode(&bytes)) {
        Ok(Ok(header)) => Ok(header.epoch),
        Ok(Err(HeaderError::Newer(message))) => Err(LogError::Format { message }),
        Ok(Err(HeaderError::Bad(_))) | Err(_) => Ok(0),
    }
}

/// Cuts the segment that is the last one now. It is replaced by a new file, because the old one may have a second name
/// in a backup.
fn cut_segment(
    options: &FileLogOptions,
    first: Glsn,
    cut_at: Glsn,
    epoch: u32,
    aside: &mut Vec<String>,
) -> Result<Position, LogError> {
    let (disk, dir) = (&*options.disk, &*options.dir);
    let name = FileName::Segment(first);
    let file = disk.open(&name.path(dir), Open::Read, Caching::Buffered)?;
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let n = file.read_at(&mut bytes, 0)?;
    let header = SegmentHeader::decode(&bytes[..n]).map_err(|error| match error {
        HeaderError::Bad(what) => {
            let message = format!("{}: {what}; nothing of it can be kept: cut at {first} or lower", name.name());
            LogError::Format { message }
        }
        HeaderError::Newer(message) => LogError::Format { message },
    })?;
    let mut front = FrontVisitor::new(&header, cut_at);
    let outcome = walk_segment(&*file, &header, u64::MAX, &mut staging, &mut front)?;
    let (end, chain) = match front.cut {
        Some(cut) => cut,
        None => (outcome.end, outcome.chain),
    };
    let kept = Position { glsn: Glsn(front.next.0 - 1), chain };
    if let Some(problem) = outcome.problem.filter(|problem| problem.newer && front.cut.is_none()) {
        let message =
            format!("{}, offset {}: {}: use a newer version of Plimsoll", name.name(), problem.at, problem.what);
        return Err(LogError::Format { message });
    }
    let cuts_here = front.cut.is_some() || outcome.problem.is_some();
    if cuts_here {
        move_aside(disk, dir, FileName::Table(first), aside)?;
        keep_aside(disk, dir, name, &*file, &mut staging, aside)?;
    }
    if cuts_here || epoch > 0 {
        // The mark says that everything before it is durable: both are synced before the file gets its name.
        let mark = Mark { durable: kept.glsn, chain: kept.chain, timestamp_micros: front.timestamp };
        let epoch = epoch.max(outcome.epoch).saturating_add(1);
        replace_file(disk, dir, FileName::Segment(first), &mut |draft| {
            copy_front(&*file, draft, u64::from(end), &mut staging)?;
            write_mark(draft, &header, end, epoch, &mark)?;
            check_front(draft, &header, &kept, &mut staging)
        })?;
    }
    Ok(kept)
}

/// Writes a mark after the kept records: it has the new epoch.
pub(crate) fn write_mark(
    file: &dyn File,
    header: &SegmentHeader,
    end: u32,
    epoch: u32,
    mark: &Mark,
) -> Result<(), LogError> {
    let (start, bound) = place_record(end, 0, MARK_BYTES);
    if bound > u64::from(header.segment_bytes) {
        return Ok(());
    }
    let mut fragment = [0; FRAGMENT_HEADER_BYTES + MARK_BYTES];
    fragment[FRAGMENT_HEADER_BYTES..].copy_from_slice(&mark.encode());
    let seed = segment_seed(header.log_id, header.first);
    seal_fragment(&mut fragment, seed, epoch, start as u32, FragmentType::Mark);
    debug_assert_eq!(align8(fragment.len()), fragment.len());
    Ok(file.write_at(&fragment, start)?)
}

/// The new file must read as the records that were kept.
fn check_front(file: &dyn File, header: &SegmentHeader, kept: &Position, staging: &mut [u8]) -> Result<(), LogError> {
    let mut front = FrontVisitor::new(header, Glsn(u64::MAX));
    let outcome = walk_segment(file, header, u64::MAX, staging, &mut front)?;
    if outcome.problem.is_none() && (front.next, outcome.chain) == (kept.glsn.next(), kept.chain) {
        return Ok(());
    }
    let name = FileName::Segment(header.first).name();
    let message = format!("{name} does not read as it was written: the disk or the memory is failing");
    Err(LogError::Io { kind: std::io::ErrorKind::InvalidData, message, source: None })
}

/// Finds the end of the records below a GLSN.
struct FrontVisitor {
    cut_at: Glsn,
    next: Glsn,
    timestamp: u64,
    /// Start of the first record that is not kept, and the chain hash before it.
    cut: Option<(u32, u64)>,
    /// Offset of the first entry since the last record.
    first_entry: Option<u32>,
}

impl FrontVisitor {
    fn new(header: &SegmentHeader, cut_at: Glsn) -> Self {
        let timestamp = header.timestamp_floor;
        Self { cut_at, next: header.first, timestamp, cut: None, first_entry: None }
    }
}

impl Visitor for FrontVisitor {
    fn entry(&mut self, offset: u32, _: StreamId) -> Result<(), LogError> {
        self.first_entry.get_or_insert(offset);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, _: &[BlobRef]) -> Result<(), LogError> {
        let first_entry = self.first_entry.take().unwrap_or(0);
        if self.cut.is_some() {
            return Ok(());
        }
        if header.last() < self.cut_at {
            self.next = header.last().next();
            self.timestamp = header.timestamp_micros;
        } else {
            // The record's fragment begins before its head.
            let start = first_entry - (header.head_bytes() + FRAGMENT_HEADER_BYTES) as u32;
            self.cut = Some((start, header.previous_chain));
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.first_entry = None;
    }
}
