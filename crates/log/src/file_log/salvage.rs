//! The last resort: keeps the front of a log whose rest is lost, and moves the rest aside.
//!
//! Laws: nothing is deleted: what is cut stays beside the log under names that end with `.cut`. Cut from the back to the front, so that
//! after a crash in between the log is a shorter front of itself, and salvage can be run again. The epoch rises, and a mark says so.

use std::path::Path;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::Kind;

use crate::error::LogError;
use crate::file_log::names::FileName;
use crate::file_log::options::FileLogOptions;
use crate::file_log::recovery::{lock_folder, write_again};
use crate::file_log::replay::{Visitor, replay};
use crate::file_log::segment::write_zeros;
use crate::format::align8;
use crate::format::fragment::{FRAGMENT_HEADER_BYTES, FragmentType, seal_fragment};
use crate::format::layout::place_record;
use crate::format::record::{MARK_BYTES, Mark, RecordHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::segment_seed;
use crate::glsn::{Glsn, Position, StreamId};
use crate::side::SideRef;

/// What salvage left and what it moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// The end of what was kept.
    pub kept: Position,
    /// Names of the files that hold what was cut.
    pub aside: Vec<String>,
}

/// Cuts a log: whole records below `cut_at` are kept, as far as they are good. Nobody else may have the log open for writing.
///
/// # Errors
/// `Format` if nothing would be left, `Corrupt` if the segment in which the cut lies cannot be used at all, `Locked`, the disk, the budget.
pub fn salvage(options: &FileLogOptions, cut_at: Glsn) -> Result<Salvaged, LogError> {
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
    let mut aside = Vec::new();
    let mut epoch = 0;
    for first in segments[keep..].iter().rev() {
        epoch = epoch.max(read_epoch(disk, dir, *first));
        move_aside(disk, dir, FileName::Segment(*first), &mut aside)?;
        move_aside(disk, dir, FileName::Table(*first), &mut aside)?;
    }
    let kept = cut_segment(options, last, cut_at, epoch, &mut aside)?;
    Ok(Salvaged { kept, aside })
}

fn read_epoch(disk: &dyn Disk, dir: &Path, first: Glsn) -> u32 {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let file = disk.open(&FileName::Segment(first).path(dir), Open::Read, Caching::Buffered);
    let read = file.and_then(|file| file.read_exact_at(&mut bytes, 0));
    read.ok().and_then(|()| SegmentHeader::decode(&bytes).ok()).map_or(0, |header| header.epoch)
}

fn move_aside(disk: &dyn Disk, dir: &Path, name: FileName, aside: &mut Vec<String>) -> Result<(), LogError> {
    let path = name.path(dir);
    if disk.entry(&path)?.is_some() {
        let (free, target) = free_name(disk, dir, &name.name())?;
        disk.rename(&path, &target)?;
        disk.sync_dir(dir)?;
        aside.push(free);
    }
    Ok(())
}

/// A name that ends with `.cut` and is not taken.
fn free_name(disk: &dyn Disk, dir: &Path, name: &str) -> Result<(String, std::path::PathBuf), LogError> {
    let mut number = 0u32;
    loop {
        let free = if number == 0 { format!("{name}.cut") } else { format!("{name}.{number}.cut") };
        let path = dir.join(&free);
        if disk.entry(&path)?.is_none() {
            return Ok((free, path));
        }
        number += 1;
    }
}

/// Cuts the segment that is the last one now.
fn cut_segment(
    options: &FileLogOptions,
    first: Glsn,
    cut_at: Glsn,
    epoch: u32,
    aside: &mut Vec<String>,
) -> Result<Position, LogError> {
    let (disk, dir) = (&*options.disk, &*options.dir);
    let name = FileName::Segment(first);
    let file = disk.open(&name.path(dir), Open::ReadWrite, Caching::Buffered)?;
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let n = file.read_at(&mut bytes, 0)?;
    let header = SegmentHeader::decode(&bytes[..n]).map_err(|error| LogError::Corrupt {
        glsn: first,
        file: name.name(),
        offset: 0,
        what: format!("{error:?}: cut below this segment"),
    })?;
    let mut front = Front::new(&header, cut_at);
    let outcome = replay(&*file, &header, u64::MAX, &mut staging, &mut front)?;
    let (end, chain) = match front.cut {
        Some(cut) => cut,
        None => (outcome.end, outcome.chain),
    };
    let kept = Position { glsn: Glsn(front.next.0 - 1), chain };
    let cuts_here = front.cut.is_some() || outcome.problem.is_some();
    if cuts_here {
        move_aside(disk, dir, FileName::Table(first), aside)?;
        copy_aside(disk, dir, name, &*file, &mut staging, aside)?;
        write_zeros(&*file, u64::from(end), outcome.used)?;
        file.sync()?;
    }
    if cuts_here || epoch > 0 {
        // The mark says that all before it is durable, and nobody writes it again after that: so now.
        write_again(&*file, 0, u64::from(end), &mut staging)?;
        file.sync()?;
        let mark = Mark { durable: kept.glsn, chain: kept.chain, timestamp_micros: front.timestamp };
        write_mark(&*file, &header, end, epoch.max(outcome.epoch).saturating_add(1), &mark)?;
    }
    Ok(kept)
}

fn copy_aside(
    disk: &dyn Disk,
    dir: &Path,
    name: FileName,
    file: &dyn File,
    staging: &mut [u8],
    aside: &mut Vec<String>,
) -> Result<(), LogError> {
    let (free, target) = free_name(disk, dir, &name.name())?;
    let copy = disk.open(&target, Open::CreateNew, Caching::Buffered)?;
    let mut at = 0;
    loop {
        let n = file.read_at(staging, at)?;
        if n == 0 {
            break;
        }
        copy.write_at(&staging[..n], at)?;
        at += n as u64;
    }
    copy.sync()?;
    disk.sync_dir(dir)?;
    aside.push(free);
    Ok(())
}

/// Writes a mark behind what was kept: it carries the new epoch.
fn write_mark(file: &dyn File, header: &SegmentHeader, end: u32, epoch: u32, mark: &Mark) -> Result<(), LogError> {
    let (start, bound) = place_record(end, 0, MARK_BYTES);
    if bound > u64::from(header.segment_bytes) {
        return Ok(());
    }
    let mut fragment = [0; FRAGMENT_HEADER_BYTES + MARK_BYTES];
    fragment[FRAGMENT_HEADER_BYTES..].copy_from_slice(&mark.encode());
    let seed = segment_seed(header.log_id, header.first);
    seal_fragment(&mut fragment, seed, epoch, start as u32, FragmentType::Mark);
    debug_assert_eq!(align8(fragment.len()), fragment.len());
    file.write_at(&fragment, start)?;
    Ok(file.sync()?)
}

/// Finds the end of the records below a GLSN.
struct Front {
    cut_at: Glsn,
    next: Glsn,
    timestamp: u64,
    /// Where the first record that is not kept begins, and the chain hash before it.
    cut: Option<(u32, u64)>,
    /// Offset of the first entry since the last record.
    first_entry: Option<u32>,
}

impl Front {
    fn new(header: &SegmentHeader, cut_at: Glsn) -> Self {
        let timestamp = header.timestamp_floor;
        Self { cut_at, next: header.first, timestamp, cut: None, first_entry: None }
    }
}

impl Visitor for Front {
    fn entry(&mut self, offset: u32, _: StreamId) -> Result<(), LogError> {
        self.first_entry.get_or_insert(offset);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, _: &[SideRef]) -> Result<(), LogError> {
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
