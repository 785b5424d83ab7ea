//! Takes damaged records and damaged pages of blob files out of a log, so that all others can be read.
//!
//! Each record has the chain hash of the record before it. So the good record after damage says how the chain
//! continues, and one record of kind "dropped" with that hash replaces the damaged ones: GLSNs stay dense, and all
//! other records stay where they are. A damaged page of a blob file is replaced by a page of kind "dropped".
//!
//! Laws:
//! 1. Only damaged records and pages are dropped, and those that the caller names; the rest of a mended file is
//!    unchanged, which is checked before it gets its name.
//! 2. No existing file is modified (a backup may share it) or deleted: the damaged file stays under a name that ends
//!    with `.cut`.
//! 3. Each file is written, synced and renamed by itself: after an interruption anywhere, mending can be run again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind, page_payload, seal_page};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::blob::{BLOB_DROPPED_PAGE, BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::env::lock_folder;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::{copy_front, replace_file};
use crate::file_log::files::zeros::write_zeros;
use crate::file_log::options::FileLogOptions;
use crate::file_log::repair::aside::{keep_aside, move_aside};
use crate::file_log::repair::dropped_record::fill;
use crate::file_log::repair::spare_blobs::keep_spare_blobs;
use crate::file_log::segments::walk::{Lost, NoVisitor, Outcome, Problem, Visitor, walk_past_damage, walk_segment};
use crate::format::blob_trailer::{BLOB_TRAILER_BYTES, BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash};
use crate::format::block::first_fragment;
use crate::format::fragment::{FRAGMENT_HEADER_BYTES, Found, FragmentType, fragment_at};
use crate::format::record::RecordHeader;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, blob_seed, genesis_chain, segment_seed, u32_at};
use crate::glsn::{Glsn, StreamId};

/// What to drop.
pub struct Wanted<'a> {
    /// Whether to drop the damaged records between two GLSNs.
    pub damaged: &'a dyn Fn(&Range<Glsn>) -> bool,
    /// Whether to drop the record that begins with a GLSN, although it is sound.
    pub sound: &'a dyn Fn(Glsn) -> bool,
    /// Blob files whose damaged pages are dropped.
    pub blobs: &'a [WantedBlob],
    /// Whether a blob file is used by more than the log's records.
    pub kept: &'a dyn Fn(BlobId) -> bool,
    /// The log's id, for a log without a readable header.
    pub log_id: Option<u128>,
    /// Change nothing.
    pub dry_run: bool,
}

/// A blob file whose damaged pages are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedBlob {
    /// Its id.
    pub id: BlobId,
    /// The reference of a record to it, if it is known.
    pub named: Option<BlobRef>,
    /// The pages that values need, if no record names it: its own end may be lost.
    pub pages: u32,
    /// Pages that are dropped even if they match their checksums: they are not the ones that were written.
    pub wrong: Vec<Range<u32>>,
}

/// What was dropped, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Records, by GLSN; a range without records is a mark or a header: no entry is lost with it.
    pub records: Vec<DroppedRecords>,
    /// Pages of blob files.
    pub pages: Vec<(BlobId, Range<u32>)>,
    /// Names under which the damaged files are kept.
    pub aside: Vec<String>,
}

/// Records that were dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedRecords {
    /// Their segment.
    pub file: String,
    /// Their offset.
    pub offset: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their GLSNs.
    pub glsns: Range<Glsn>,
}

/// Drops the damage that `wanted` selects. Locks the log for writing.
///
/// # Errors
/// `Corrupt` if the damage cannot be mended because no good record follows it; `Format`, `Locked`, the disk, the
/// budget.
pub fn mend(options: &FileLogOptions, wanted: &Wanted<'_>) -> Result<Mended, LogError> {
    let _lock = lock_folder(options)?;
    let mut mender = Mender::new(options, wanted)?;
    let surveyed = mender.survey()?;
    mender.keep_spare_blobs(&surveyed)?;
    for segment in &surveyed {
        mender.mend_segment(segment)?;
    }
    if let Some(log_id) = surveyed.first().map(|segment| segment.header.log_id).or(wanted.log_id) {
        wanted.blobs.iter().try_for_each(|blob| mender.mend_blob(log_id, blob))?;
    }
    Ok(mender.mended)
}

/// The newest GLSN that anything in a damaged log tells of: its last record that can be read, behind damage or before it. Reads all of
/// the log and changes nothing. `log_id` is used if no header can be read.
///
/// # Errors
/// Nothing says which log it is; a newer format, the disk, the budget.
pub fn newest_record(options: &FileLogOptions, log_id: Option<u128>) -> Result<Glsn, LogError> {
    let wanted = Wanted { damaged: &|_| false, sound: &|_| false, blobs: &[], kept: &|_| true, log_id, dry_run: true };
    let surveyed = Mender::new(options, &wanted)?.survey()?;
    Ok(surveyed.last().map_or(Glsn::NONE, |segment| Glsn(segment.leads_to.0.0.saturating_sub(1))))
}

/// The pages of a blob file in a log that is not open.
///
/// # Errors
/// The file cannot be opened.
pub fn blob_pages(disk: &dyn Disk, dir: &Path, log_id: u128, id: BlobId) -> Result<Arc<dyn PageSource>, LogError> {
    let file = disk.open(&FileName::Blob(id).path(dir), Open::Read, Caching::Buffered)?;
    Ok(Arc::new(ClosedBlob { file, seed: blob_seed(log_id, id.0), id }))
}

struct ClosedBlob {
    file: Arc<dyn File>,
    seed: u64,
    id: BlobId,
}

impl PageSource for ClosedBlob {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let n = self.file.read_at(page, u64::from(number) * PAGE_BYTES as u64)?;
        let name = FileName::Blob(self.id).name();
        check_page(&page[..n], self.seed, number)
            .map_err(|what| LoadError::Corrupt { message: format!("{name}, page {number}: {what}") })
    }
}

/// A segment and its damage.
struct Surveyed {
    header: SegmentHeader,
    /// The header cannot be read, or the whole file is missing: this header is derived from the neighbours.
    new_header: bool,
    lost: Vec<Lost>,
    /// The GLSN, chain hash and offset after it.
    leads_to: (Glsn, u64, u32),
}

struct Mender<'a> {
    options: &'a FileLogOptions,
    wanted: &'a Wanted<'a>,
    mended: Mended,
    /// Blob files that records name which are not dropped.
    named: BTreeSet<BlobId>,
    staging: plimsoll_memory::chunk::Chunk,
}

impl<'a> Mender<'a> {
    fn new(options: &'a FileLogOptions, wanted: &'a Wanted<'a>) -> Result<Self, LogError> {
        let staging = options.budget.take(Kind::Staging)?;
        Ok(Self { options, wanted, mended: Mended::default(), named: BTreeSet::new(), staging })
    }

    fn disk(&self) -> &dyn Disk {
        &*self.options.disk
    }

    fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Reads all segments.
    fn survey(&mut self) -> Result<Vec<Surveyed>, LogError> {
        let (mut firsts, mut holes) = (Vec::new(), Vec::new());
        for name in self.disk().names(self.dir())? {
            match FileName::parse(&name) {
                Some(FileName::Segment(first)) => firsts.push(first),
                Some(FileName::Table(first)) => holes.push(first),
                _ => {}
            }
        }
        firsts.sort_unstable();
        // A table without its segment.
        holes.retain(|first| firsts.binary_search(first).is_err());
        let headers = firsts.iter().map(|first| self.read_header(*first)).collect::<Result<Vec<_>, _>>()?;
        let log_id = headers.iter().flatten().next().map(|header| header.log_id).or(self.wanted.log_id);
        let Some(log_id) = log_id else {
            let message = "no segment's header can be read, and nothing else says which log it is".to_owned();
            return Err(LogError::Format { message });
        };
        let mut surveyed: Vec<Surveyed> = Vec::new();
        for (at, (first, header)) in firsts.iter().zip(&headers).enumerate() {
            let next = headers.get(at + 1).copied().flatten();
            let guessed = match header {
                Some(header) => *header,
                None => self.guess_header(log_id, *first, surveyed.last(), next.as_ref())?,
            };
            close_hole(&holes, &mut surveyed, &guessed);
            let mut found = self.survey_segment(&guessed, next.as_ref(), &holes)?;
            found.new_header = header.is_none();
            surveyed.push(found);
        }
        Ok(surveyed)
    }

    fn read_header(&self, first: Glsn) -> Result<Option<SegmentHeader>, LogError> {
        let file = self.disk().open(&FileName::Segment(first).path(self.dir()), Open::Read, Caching::Buffered)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let n = file.read_at(&mut bytes, 0)?;
        match SegmentHeader::decode(&bytes[..n]) {
            Ok(header) => Ok(Some(header).filter(|header| header.first == first)),
            Err(HeaderError::Bad(_)) => Ok(None),
            Err(HeaderError::Newer(message)) => Err(LogError::Format { message }),
        }
    }

    /// Derives a header in place of one that cannot be read, from the segment before it and from its own first record.
    fn guess_header(
        &mut self,
        log_id: u128,
        first: Glsn,
        before: Option<&Surveyed>,
        next: Option<&SegmentHeader>,
    ) -> Result<SegmentHeader, LogError> {
        let file = self.disk().open(&FileName::Segment(first).path(self.dir()), Open::Read, Caching::Buffered)?;
        let len = u32::try_from(file.len()?).unwrap_or(u32::MAX).next_multiple_of(BLOCK_BYTES as u32);
        let block = &mut self.staging[..BLOCK_BYTES];
        let n = file.read_at(block, 0)?;
        block[n..].fill(0);
        let found = fragment_at(block, first_fragment(0), 0, segment_seed(log_id, first));
        let record = match found {
            Found::Fragment(fragment) if matches!(fragment.part, FragmentType::Whole | FragmentType::First) => {
                RecordHeader::decode(fragment.bytes)
                    .ok()
                    .filter(|record| record.first == first)
                    .map(|it| (fragment, it))
            }
            _ => None,
        };
        let (previous_chain, previous_end) = match (before, &record) {
            (Some(before), _) => (before.leads_to.1, before.leads_to.2),
            (None, Some((_, record))) => (record.previous_chain, 0),
            (None, None) => (genesis_chain(log_id), 0),
        };
        let epoch = before.map(|before| before.header.epoch).or(record.map(|(fragment, _)| fragment.epoch));
        Ok(SegmentHeader {
            log_id,
            epoch: epoch.unwrap_or(1),
            first,
            previous_chain,
            timestamp_floor: record.map_or(0, |(_, record)| record.timestamp_micros.saturating_sub(1)),
            last_blob_id: 0,
            segment_bytes: len.max(next.map_or(0, |next| next.previous_end)).max(self.options.segment_size()),
            previous_end,
        })
    }

    fn survey_segment(
        &mut self,
        header: &SegmentHeader,
        next: Option<&SegmentHeader>,
        holes: &[Glsn],
    ) -> Result<Surveyed, LogError> {
        let name = FileName::Segment(header.first);
        let file = self.disk().open(&name.path(self.dir()), Open::Read, Caching::Buffered)?;
        let mut visitor = DamageVisitor {
            sound: self.wanted.sound,
            named: &mut self.named,
            lost: Vec::new(),
            pending: None,
            first_entry: None,
            seen: None,
        };
        let outcome = walk_past_damage(&*file, header, &mut self.staging, &mut visitor)?;
        visitor.close(outcome.end, outcome.chain);
        for lost in &mut visitor.lost {
            if lost.epoch == 0 {
                lost.epoch = read_epoch(&*file, lost.start)?;
            }
        }
        let mut lost = visitor.lost;
        let mut leads_to = (outcome.next, outcome.chain, outcome.end);
        if let Some(next) = next {
            let wanted = (next.first, next.previous_chain, next.previous_end);
            let is_whole = outcome.problem.is_none() && holes.contains(&outcome.next);
            let may_be_mended =
                !is_whole && leads_to != wanted && outcome.next <= next.first && outcome.end <= next.previous_end;
            if may_be_mended {
                let missing = Problem { at: u64::from(outcome.end), what: "records are missing", newer: false };
                let problem = outcome.problem.unwrap_or(missing);
                lost.push(to_the_end(header, &outcome, next, problem));
                leads_to = wanted;
            }
        } else if let Some(problem) = outcome.problem.filter(|_| outcome.next <= outcome.durable) {
            let glsns = outcome.next..Glsn::MAX;
            if (self.wanted.damaged)(&glsns) {
                let what = format!("{}; no good record follows, so the log can only be cut here", problem.what);
                return Err(LogError::Corrupt { glsn: outcome.next, file: name.name(), offset: problem.at, what });
            }
        }
        Ok(Surveyed { header: *header, new_header: false, lost, leads_to })
    }

    fn is_wanted(&self, lost: &Lost) -> bool {
        (self.wanted.damaged)(&(lost.from..lost.next)) || (self.wanted.sound)(lost.from)
    }

    fn keep_spare_blobs(&mut self, surveyed: &[Surveyed]) -> Result<(), LogError> {
        let mut lost = surveyed.iter().flat_map(|segment| &segment.lost);
        let (disk, dir) = (&*self.options.disk, &*self.options.dir);
        if self.wanted.dry_run || !lost.any(|lost| lost.from < lost.next && self.is_wanted(lost)) {
            return Ok(());
        }
        keep_spare_blobs(disk, dir, &self.named, self.wanted.kept, &mut self.staging, &mut self.mended.aside)
    }

    fn mend_segment(&mut self, segment: &Surveyed) -> Result<(), LogError> {
        let first = segment.header.first;
        let name = FileName::Segment(first);
        let lost: Vec<Lost> = segment.lost.iter().filter(|lost| self.is_wanted(lost)).copied().collect();
        let new_header = segment.new_header && (self.wanted.damaged)(&(first..first));
        if lost.is_empty() && !new_header {
            return Ok(());
        }
        let dropped = |lost: &Lost| DroppedRecords {
            file: name.name(),
            offset: u64::from(lost.start),
            bytes: u64::from(lost.end - lost.start),
            glsns: lost.from..lost.next,
        };
        self.mended.records.extend(lost.iter().map(dropped));
        if lost.is_empty() {
            let bytes = SEGMENT_HEADER_BYTES as u64;
            self.mended.records.push(DroppedRecords { file: name.name(), offset: 0, bytes, glsns: first..first });
        }
        if self.wanted.dry_run {
            return Ok(());
        }
        let (disk, dir) = (&*self.options.disk, &*self.options.dir);
        // If mending is interrupted after this, the next call finishes it.
        move_aside(disk, dir, FileName::Table(first), &mut self.mended.aside)?;
        let source = match disk.entry(&name.path(dir))? {
            Some(_) => Some(disk.open(&name.path(dir), Open::Read, Caching::Buffered)?),
            None => None,
        };
        if let Some(source) = &source {
            keep_aside(disk, dir, name, &**source, &mut self.staging, &mut self.mended.aside)?;
        }
        let all = lost.len() == segment.lost.len();
        let staging = &mut self.staging;
        replace_file(disk, dir, name, &mut |draft| {
            if let Some(source) = &source {
                copy_front(&**source, draft, source.len()?.min(u64::from(segment.header.segment_bytes)), staging)?;
            }
            if segment.new_header {
                draft.write_at(&segment.header.encode(), 0)?;
            }
            for lost in &lost {
                write_zeros(draft, u64::from(lost.start), u64::from(lost.end))?;
                fill(draft, &segment.header, lost)?;
            }
            if all { check_mended(draft, segment, staging) } else { Ok(()) }
        })
    }

    /// Replaces a blob file, with pages of kind "dropped" in place of damaged ones.
    fn mend_blob(&mut self, log_id: u128, wanted: &WantedBlob) -> Result<(), LogError> {
        let (id, named) = (wanted.id, wanted.named);
        let name = FileName::Blob(id);
        let (disk, dir) = (&*self.options.disk, &*self.options.dir);
        let file = match disk.entry(&name.path(dir))? {
            Some(_) => Some(disk.open(&name.path(dir), Open::Read, Caching::Buffered)?),
            None => None,
        };
        let len = file.as_ref().map_or(Ok(0), |file| file.len())?;
        let there = u32::try_from(len / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let pages = named.map_or_else(|| there.saturating_sub(1).max(wanted.pages), |named| named.pages);
        let seed = blob_seed(log_id, id.0);
        let staging = &mut self.staging[..PAGE_BYTES];
        let read = |number: u32, page: &mut [u8]| -> Result<bool, LogError> {
            let n = match &file {
                Some(file) => file.read_at(page, u64::from(number) * PAGE_BYTES as u64)?,
                None => 0,
            };
            Ok(check_page(&page[..n], seed, number).is_ok())
        };
        let is_kept = |number: u32, page: &mut [u8]| -> Result<bool, LogError> {
            let is_wrong = wanted.wrong.iter().any(|pages| pages.contains(&number));
            Ok(read(number, page)? && (!is_wrong || page_kind(page) == BLOB_DROPPED_PAGE))
        };
        let mut lost: Vec<Range<u32>> = Vec::new();
        for number in 0..pages {
            if !is_kept(number, staging)? {
                match lost.last_mut() {
                    Some(range) if range.end == number => range.end += 1,
                    _ => lost.push(number..number + 1),
                }
            }
        }
        let trailer_fits = read(pages, staging)? && page_kind(staging) == BLOB_TRAILER_PAGE;
        let trailer = if trailer_fits { BlobTrailer::decode(page_payload(staging)).ok() } else { None };
        if lost.is_empty() && trailer.is_some() && there == pages + 1 {
            return Ok(());
        }
        self.mended.pages.extend(lost.iter().map(|range| (id, range.clone())));
        if self.wanted.dry_run {
            return Ok(());
        }
        if let Some(file) = &file {
            let mut rest = self.options.budget.take(Kind::Staging)?;
            keep_aside(disk, dir, name, &**file, &mut rest, &mut self.mended.aside)?;
        }
        replace_file(disk, dir, name, &mut |draft| {
            let mut hash = 0;
            for number in 0..pages {
                if !is_kept(number, staging)? {
                    seal_page(staging, seed, number, BLOB_DROPPED_PAGE, 0);
                }
                hash = extend_blob_hash(hash, staging);
                draft.write_at(staging, u64::from(number) * PAGE_BYTES as u64)?;
            }
            let blob = named.or(trailer.map(|trailer| trailer.blob)).unwrap_or(BlobRef { id, pages, hash });
            let payload = BlobTrailer { log_id, blob }.encode();
            staging[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOB_TRAILER_BYTES].copy_from_slice(&payload);
            seal_page(staging, seed, pages, BLOB_TRAILER_PAGE, BLOB_TRAILER_BYTES);
            Ok(draft.write_at(staging, u64::from(pages) * PAGE_BYTES as u64)?)
        })
    }
}

/// Replaces a missing segment between two others by one whose records are all lost.
fn close_hole(holes: &[Glsn], surveyed: &mut Vec<Surveyed>, next: &SegmentHeader) {
    let Some(before) = surveyed.last() else { return };
    let (first, chain, end) = before.leads_to;
    if first >= next.first || !holes.contains(&first) {
        return;
    }
    let header = SegmentHeader {
        epoch: before.header.epoch,
        first,
        previous_chain: chain,
        previous_end: end,
        timestamp_floor: before.header.timestamp_floor,
        ..*next
    };
    let what = "the segment is missing";
    let start = SEGMENT_HEADER_BYTES as u32;
    let lost = to_the_end(&header, &empty(&header, start), next, Problem { at: 0, what, newer: false });
    let leads_to = (next.first, next.previous_chain, next.previous_end);
    surveyed.push(Surveyed { header, new_header: true, lost: vec![lost], leads_to });
}

/// A segment of which nothing was read.
fn empty(header: &SegmentHeader, end: u32) -> Outcome {
    Outcome {
        end,
        next: header.first,
        chain: header.previous_chain,
        first_timestamp: 0,
        last_timestamp: header.timestamp_floor,
        epoch: header.epoch,
        last_blob_id: 0,
        durable: Glsn::NONE,
        marked: false,
        problem: None,
        used: 0,
        dirty_padding: None,
    }
}

/// Everything between the good records of a segment and the next segment.
fn to_the_end(header: &SegmentHeader, outcome: &Outcome, next: &SegmentHeader, problem: Problem) -> Lost {
    Lost {
        problem,
        start: outcome.end,
        end: next.previous_end.max(outcome.end),
        from: outcome.next,
        next: next.first,
        chain: outcome.chain,
        chain_after: next.previous_chain,
        epoch: outcome.epoch.max(header.epoch),
        timestamp: outcome.last_timestamp,
    }
}

fn read_epoch(file: &dyn File, at: u32) -> Result<u32, LogError> {
    let mut bytes = [0; FRAGMENT_HEADER_BYTES];
    file.read_exact_at(&mut bytes, u64::from(at))?;
    Ok(u32_at(&bytes, 8))
}

/// The mended file must read without damage and lead to the next segment.
fn check_mended(file: &dyn File, segment: &Surveyed, staging: &mut [u8]) -> Result<(), LogError> {
    let outcome = walk_segment(file, &segment.header, u64::MAX, staging, &mut NoVisitor)?;
    let (next, chain, _) = segment.leads_to;
    if outcome.problem.is_none() && (outcome.next, outcome.chain) == (next, chain) {
        return Ok(());
    }
    let name = FileName::Segment(segment.header.first).name();
    let (at, what) =
        outcome.problem.map_or((outcome.end.into(), "it does not lead to the next"), |it| (it.at, it.what));
    let message = format!("{name} does not read as it was mended, at offset {at}: {what}");
    Err(LogError::Io { kind: std::io::ErrorKind::InvalidData, message, source: None })
}

/// Collects damage, and sound records that are to be dropped.
struct DamageVisitor<'a> {
    sound: &'a dyn Fn(Glsn) -> bool,
    named: &'a mut BTreeSet<BlobId>,
    lost: Vec<Lost>,
    /// A sound record that is dropped; its end is not known yet.
    pending: Option<Lost>,
    first_entry: Option<u32>,
    /// Timestamp of the last record.
    seen: Option<u64>,
}

impl DamageVisitor<'_> {
    fn close(&mut self, end: u32, chain_after: u64) {
        if let Some(pending) = self.pending.take() {
            self.lost.push(Lost { end, chain_after, ..pending });
        }
    }
}

impl Visitor for DamageVisitor<'_> {
    fn entry(&mut self, offset: u32, _: StreamId) -> Result<(), LogError> {
        self.first_entry.get_or_insert(offset);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        if !(self.sound)(header.first) {
            self.named.extend(blobs.iter().map(|blob| blob.id));
        }
        let first_entry = self.first_entry.take().unwrap_or(0);
        let start = first_entry.saturating_sub((header.head_bytes() + FRAGMENT_HEADER_BYTES) as u32);
        self.close(start, header.previous_chain);
        if header.dropped.is_none() && (self.sound)(header.first) {
            let what = "the record is sound, and what it names is not";
            self.pending = Some(Lost {
                problem: Problem { at: u64::from(start), what, newer: false },
                start,
                end: start,
                from: header.first,
                next: header.last().next(),
                chain: header.previous_chain,
                chain_after: 0,
                // Read later from its own fragment.
                epoch: 0,
                timestamp: self.seen.unwrap_or(header.timestamp_micros.saturating_sub(1)),
            });
        }
        self.seen = Some(header.timestamp_micros);
        Ok(())
    }

    fn abandon(&mut self) {
        self.first_entry = None;
    }

    fn lost(&mut self, lost: &Lost) -> Result<(), LogError> {
        self.close(lost.start, lost.chain);
        self.lost.push(*lost);
        Ok(())
    }
}
