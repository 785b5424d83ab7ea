//! Reads all segments of a damaged log that is not open, past damage, and plans the segments of a
//! sound copy.
//!
//! Each record contains the chain hash of the record before it. So the good record after damage
//! states the hash that must precede it, and a lost record with that hash replaces the damaged
//! ones. Missing segments are replaced by segments that contain only lost records. The end of the
//! log, up to the newest position that is known to have been durable, is replaced in the same way.
//!
//! Invariant: the survey changes nothing. It drops only damaged records, and those that its caller
//! cannot use.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::Chunk;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::FileLogOptions;
use crate::file_log::repair::lost_record::{fits, room_for};
use crate::file_log::segments::walk::{Lost, Outcome, Problem, Visitor, walk_past_damage};
use crate::format::block::first_fragment;
use crate::format::fragment::{FRAGMENT_HEADER_BYTES, Found, FragmentType, fragment_at};
use crate::format::record::RecordHeader;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, genesis_chain, segment_seed, u32_at};
use crate::glsn::{Glsn, Position, StreamId};

/// The most entries of a segment that has lost records only.
const LOST_IN_A_SEGMENT_MAX: u64 = 1 << 25;

/// The most entries that are replaced in one gap; their headers take 64 GiB. A wider gap is not a
/// loss: the header or the manifest that names its end contains a wrong number.
const LOST_MAX: u64 = 1 << 32;

/// The log to survey, and the facts that the caller knows about it.
pub struct Scope<'a> {
    /// Its disk, folder and budget (one chunk), and the size of new segments.
    pub options: &'a FileLogOptions,
    /// Its id according to the index, for a log without a readable header.
    pub log_id: Option<u128>,
    /// The newest position that is known to have been durable.
    pub known: Position,
    /// The first entry that the log is known to have had, because it was trimmed only below this
    /// one.
    pub begins: Option<Glsn>,
    /// Whether to drop the record that begins at a GLSN, although it can be read.
    pub unusable: &'a dyn Fn(Glsn) -> bool,
    /// The GLSNs whose chain hashes the caller asks for.
    pub asked: &'a [Glsn],
}

/// The contents of a log, as far as they can be read.
#[derive(Debug)]
pub struct Survey {
    /// The log's id.
    pub log_id: u128,
    /// The entries that are lost, in order. An empty range is a header or a mark; no entry is lost
    /// with it.
    pub lost: Vec<LostRecords>,
    /// Entries that an earlier recovery found to be lost.
    pub lost_before: Vec<Range<Glsn>>,
    /// The chain hashes that were asked for and are known.
    pub chains: BTreeMap<Glsn, u64>,
    /// Segments of another log, by their file names. They are left out.
    pub foreign: Vec<String>,
    /// Records that can be read.
    pub records: u64,
    pub(super) segments: Vec<Planned>,
}

/// Records that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRecords {
    /// Their segment.
    pub file: String,
    /// The offset of the damage.
    pub offset: u64,
    /// Their GLSNs.
    pub glsns: Range<Glsn>,
    /// The damage.
    pub what: &'static str,
}

/// The source of a segment of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The same file, which is sealed and sound.
    Whole,
    /// A copy of this many of its first bytes: of the active segment, whose torn tail is cut when
    /// the copy is opened.
    Active(u64),
    /// The good bytes of a damaged file.
    Damaged,
    /// There is no file.
    Missing,
}

/// A segment of the copy.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) header: SegmentHeader,
    pub(super) source: Source,
    pub(super) lost: Vec<Lost>,
    /// The GLSN, chain hash and offset after its last record.
    pub(super) leads_to: (Glsn, u64, u32),
    /// Epoch and timestamp of its last record.
    at_end: (u32, u64),
}

impl Survey {
    /// The first GLSN of the copy, and the GLSN after its last.
    pub fn bounds(&self) -> Range<Glsn> {
        let first = self.segments.first().map_or(Glsn::FIRST, |segment| segment.header.first);
        first..self.segments.last().map_or(first, |segment| segment.leads_to.0)
    }

    /// The position before the first entry of the copy.
    pub fn start(&self) -> Position {
        let header = self.segments.first().map(|segment| segment.header);
        header.map_or_else(Position::default, |it| Position {
            glsn: Glsn(it.first.0 - 1),
            chain: it.previous_chain,
        })
    }

    /// The position at the end of the copy.
    pub fn end(&self) -> Position {
        let end = self.segments.last().map(|segment| segment.leads_to);
        end.map_or_else(Position::default, |(next, chain, _)| Position {
            glsn: Glsn(next.0 - 1),
            chain,
        })
    }

    /// Whether the entry with a GLSN can be read.
    pub fn has(&self, glsn: Glsn) -> bool {
        self.bounds().contains(&glsn) && !self.gaps().any(|gap| gap.contains(&glsn))
    }

    /// The newest entry between `from` and `glsn` that cannot be read; `None` if all can be read.
    pub fn newest_gap(&self, from: Glsn, glsn: Glsn) -> Option<Glsn> {
        let bounds = self.bounds();
        let outside = [Glsn::NONE..bounds.start, bounds.end..Glsn::MAX];
        let gaps =
            self.gaps().chain(outside).filter(|gap| gap.start <= glsn && gap.start < gap.end);
        gaps.map(|gap| Glsn(gap.end.0 - 1).min(glsn)).max().filter(|newest| *newest >= from)
    }

    /// Whether every entry that was ever ordered can be read.
    pub fn is_whole(&self) -> bool {
        self.bounds().start == Glsn::FIRST && self.gaps().next().is_none()
    }

    fn gaps(&self) -> impl Iterator<Item = Range<Glsn>> {
        let lost = self.lost.iter().map(|lost| lost.glsns.clone());
        lost.chain(self.lost_before.iter().cloned()).filter(|gap| !gap.is_empty())
    }
}

/// Reads all of a log. The caller excludes writers.
///
/// # Errors
/// `Corrupt` if the log's id cannot be found, or if its segments do not belong together;
/// `Format` for a newer format; an I/O error; or the budget has no room.
pub fn survey(scope: &Scope<'_>) -> Result<Survey, LogError> {
    let mut firsts: Vec<Glsn> = Vec::new();
    for name in names(&*scope.options.disk, &scope.options.dir)? {
        if let Some(FileName::Segment(first)) = FileName::parse(&name) {
            firsts.push(first);
        }
    }
    firsts.sort_unstable();
    let mut headers = Vec::with_capacity(firsts.len());
    for first in firsts {
        headers.push((first, read_header(scope, first)?));
    }
    let readable = || headers.iter().filter_map(|(_, header)| header.as_ref());
    let hint = scope
        .log_id
        .filter(|id| readable().next().is_none() || readable().any(|header| header.log_id == *id));
    let Some(log_id) = hint.or_else(|| readable().next().map(|header| header.log_id)) else {
        let what =
            "no segment's header can be read, and no other source names the log's id".to_owned();
        return Err(LogError::Corrupt { glsn: Glsn::FIRST, file: String::new(), offset: 0, what });
    };
    let found = Survey {
        log_id,
        lost: Vec::new(),
        lost_before: Vec::new(),
        chains: BTreeMap::new(),
        foreign: Vec::new(),
        records: 0,
        segments: Vec::new(),
    };
    let mut surveyor =
        Surveyor { scope, staging: scope.options.budget.take(Kind::Staging)?, found };
    let is_foreign =
        |header: &Option<SegmentHeader>| header.is_some_and(|header| header.log_id != log_id);
    let foreign = headers.extract_if(.., |(_, header)| is_foreign(header));
    surveyor.found.foreign = foreign.map(|(first, _)| FileName::Segment(first).name()).collect();
    for (at, (first, header)) in headers.iter().enumerate() {
        let next = headers.get(at + 1);
        surveyor.segment(
            *first,
            *header,
            next.and_then(|(_, header)| header.as_ref()),
            next.is_none(),
        )?;
    }
    surveyor.end()?;
    let mut found = surveyor.found;
    let first = found.bounds().start;
    if let Some(begins) = scope.begins.filter(|begins| *begins < first) {
        let (file, what) = (FileName::Segment(begins).name(), "the first segments are missing");
        found.lost.insert(0, LostRecords { file, offset: 0, glsns: begins..first, what });
    }
    Ok(found)
}

/// The names in a folder; none if it is missing.
pub(super) fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, LogError> {
    match disk.names(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        names => Ok(names?),
    }
}

/// The header of a segment, if it can be read and matches the file's name.
fn read_header(scope: &Scope<'_>, first: Glsn) -> Result<Option<SegmentHeader>, LogError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let n = open(scope.options, first)?.read_at(&mut bytes, 0)?;
    match SegmentHeader::decode(&bytes[..n]) {
        Ok(header) => Ok(Some(header).filter(|header| header.first == first)),
        Err(HeaderError::Bad(_)) => Ok(None),
        Err(HeaderError::Newer(message)) => Err(LogError::Format { message }),
    }
}

pub(super) fn open(options: &FileLogOptions, first: Glsn) -> Result<Arc<dyn File>, LogError> {
    Ok(options.disk.open(
        &FileName::Segment(first).path(&options.dir),
        Open::Read,
        Caching::Buffered,
    )?)
}

struct Surveyor<'a> {
    scope: &'a Scope<'a>,
    staging: Chunk,
    found: Survey,
}

impl Surveyor<'_> {
    fn segment(
        &mut self,
        first: Glsn,
        header: Option<SegmentHeader>,
        next: Option<&SegmentHeader>,
        is_last: bool,
    ) -> Result<(), LogError> {
        let file = open(self.scope.options, first)?;
        let is_guessed = header.is_none();
        let mut header = match header {
            Some(header) => header,
            None => self.guess_header(&*file, first, next)?,
        };
        self.fill_gap_before(&mut header, is_guessed)?;
        let (outcome, mut lost) = self.walk(&*file, &header)?;
        let mut end = (outcome.next, outcome.chain, outcome.end);
        let durable = outcome.durable.max(self.scope.known.glsn);
        if is_last && let Some(torn) = lost.iter().position(|lost| lost.from > durable) {
            // The system writes unsynced bytes in any order, so everything from here on was never
            // acknowledged.
            end = (lost[torn].from, lost[torn].chain, lost[torn].start);
            lost.truncate(torn);
        }
        let mut is_sound = !is_guessed && lost.is_empty() && outcome.dirty_padding.is_none();
        match (is_last, next) {
            (true, _) => is_sound &= end.0 > durable || outcome.problem.is_none(),
            (false, Some(next))
                if next.first == end.0
                    && (next.previous_chain, next.previous_end) != (end.1, end.2) =>
            {
                // Marks at its end are missing.
                lost.push(self.to_next(&header, &outcome, next)?);
                end = (next.first, next.previous_chain, next.previous_end);
                is_sound = false;
            }
            (false, _) => is_sound &= outcome.problem.is_none(),
        }
        let source = match is_sound {
            true if is_last && end.0 > durable => Source::Active(
                outcome.used.max(u64::from(outcome.end)).next_multiple_of(BLOCK_BYTES as u64),
            ),
            true => Source::Whole,
            false => Source::Damaged,
        };
        if is_guessed {
            let what = "the header of the segment cannot be read";
            self.note(first, &Problem { at: 0, what, newer: false }, first..first);
        }
        for lost in &lost {
            self.note(first, &lost.problem, lost.from..lost.next);
        }
        let at_end = (outcome.epoch.max(header.epoch), outcome.last_timestamp);
        self.found.segments.push(Planned { header, source, lost, leads_to: end, at_end });
        Ok(())
    }

    fn walk(
        &mut self,
        file: &dyn File,
        header: &SegmentHeader,
    ) -> Result<(Outcome, Vec<Lost>), LogError> {
        let Survey { chains, records, lost_before, .. } = &mut self.found;
        let mut visitor = DamageVisitor {
            scope: self.scope,
            chains,
            records,
            lost_before,
            lost: Vec::new(),
            pending: None,
            first_entry: None,
            seen: None,
        };
        let outcome = walk_past_damage(file, header, &mut self.staging, &mut visitor)?;
        if let Some(problem) = outcome.problem.filter(|problem| problem.newer) {
            let name = FileName::Segment(header.first).name();
            let message = format!(
                "{name}, offset {}: {}: use a newer version of Plimsoll",
                problem.at, problem.what
            );
            return Err(LogError::Format { message });
        }
        visitor.note_chain(Glsn(outcome.next.0 - 1), outcome.chain);
        visitor.close(outcome.end, outcome.chain);
        for lost in &mut visitor.lost {
            if lost.epoch == 0 {
                lost.epoch = read_epoch(file, lost.start)?;
            }
        }
        Ok((outcome, visitor.lost))
    }

    fn note(&mut self, first: Glsn, problem: &Problem, glsns: Range<Glsn>) {
        let file = FileName::Segment(first).name();
        self.found.lost.push(LostRecords { file, offset: problem.at, glsns, what: problem.what });
    }

    /// Derives a header for a segment whose header cannot be read, from the segment before it and
    /// from its own first record.
    fn guess_header(
        &mut self,
        file: &dyn File,
        first: Glsn,
        next: Option<&SegmentHeader>,
    ) -> Result<SegmentHeader, LogError> {
        let log_id = self.found.log_id;
        let len = u32::try_from(file.len()?)
            .unwrap_or(u32::MAX - BLOCK_BYTES as u32)
            .next_multiple_of(BLOCK_BYTES as u32);
        let block = &mut self.staging[..BLOCK_BYTES];
        let n = file.read_at(block, 0)?;
        block[n..].fill(0);
        let record = match fragment_at(block, first_fragment(0), 0, segment_seed(log_id, first)) {
            Found::Fragment(fragment)
                if matches!(fragment.part, FragmentType::Whole | FragmentType::First) =>
            {
                let record = RecordHeader::decode(fragment.bytes).ok();
                record.filter(|record| record.first == first).map(|record| (fragment.epoch, record))
            }
            _ => None,
        };
        let before = self.found.segments.last();
        let (previous_chain, previous_end) = match (before, &record) {
            (Some(before), _) if before.leads_to.0 == first => {
                (before.leads_to.1, before.leads_to.2)
            }
            (_, Some((_, record))) => (record.previous_chain, 0),
            (Some(before), None) => (before.leads_to.1, 0),
            (None, None) => (genesis_chain(log_id), 0),
        };
        Ok(SegmentHeader {
            log_id,
            epoch: before
                .map(|before| before.at_end.0)
                .or(record.map(|(epoch, _)| epoch))
                .unwrap_or(1),
            first,
            previous_chain,
            timestamp_floor: match (before, &record) {
                (_, Some((_, record))) => record.timestamp_micros.saturating_sub(1),
                (Some(before), None) => before.at_end.1,
                (None, None) => 0,
            },
            last_blob_id: 0,
            segment_bytes: len
                .max(next.map_or(0, |next| next.previous_end))
                .max(self.scope.options.segment_size()),
            previous_end,
        })
    }

    /// Fills the gap between the previous segment and this one with segments of lost records.
    fn fill_gap_before(
        &mut self,
        header: &mut SegmentHeader,
        is_guessed: bool,
    ) -> Result<(), LogError> {
        let Some(before) = self.found.segments.last() else { return Ok(()) };
        let (next, chain, end) = before.leads_to;
        if next == header.first {
            return if (chain, end) == (header.previous_chain, header.previous_end) {
                Ok(())
            } else {
                Err(unrelated(header))
            };
        }
        if next > header.first {
            return Err(unrelated(header));
        }
        self.fill_to(
            header.first,
            header.previous_chain,
            (!is_guessed).then_some(header.previous_end),
        )?;
        if is_guessed {
            header.previous_end = self.found.segments.last().map_or(0, |before| before.leads_to.2);
        }
        Ok(())
    }

    /// Adds segments of lost records up to `next`; the last one ends at `end`, if that is given. If
    /// nothing of the segment before the gap can be read, the first new segment replaces it.
    ///
    /// # Errors
    /// `Corrupt` if the gap is wider than [`LOST_MAX`].
    fn fill_to(&mut self, next: Glsn, chain: u64, end: Option<u32>) -> Result<(), LogError> {
        let what = "records are missing";
        if let Some(before) = self.found.segments.last() {
            let (file, offset) = (before.header.first, u64::from(before.leads_to.2));
            let from = before.leads_to.0;
            if next.0 - from.0 > LOST_MAX {
                return Err(too_wide(file, offset, from, next));
            }
            self.note(file, &Problem { at: offset, what, newer: false }, from..next);
        }
        loop {
            let empty = self.found.segments.pop_if(|last| last.leads_to.0 == last.header.first);
            let before = empty
                .as_ref()
                .or(self.found.segments.last())
                .expect("there is a segment before the gap");
            let (from, chain_before, previous_end) = match &empty {
                Some(empty) => {
                    (empty.header.first, empty.header.previous_chain, empty.header.previous_end)
                }
                None => before.leads_to,
            };
            let (epoch, timestamp) = before.at_end;
            let mut header = SegmentHeader {
                first: from,
                previous_chain: chain_before,
                previous_end,
                epoch,
                timestamp_floor: timestamp,
                ..before.header
            };
            let start = SEGMENT_HEADER_BYTES as u32;
            let problem = Problem { at: 0, what, newer: false };
            let mut lost = Lost {
                problem,
                start,
                end: end.unwrap_or(0).max(start),
                from,
                next,
                chain: chain_before,
                chain_after: chain,
                epoch,
                timestamp,
            };
            if !fits(&lost) {
                // If the end is given, the last segment holds only the last entry.
                let count = next.0 - from.0 - u64::from(end.is_some());
                let count = count.min(LOST_IN_A_SEGMENT_MAX);
                lost.next = Glsn(from.0 + count);
                lost.end =
                    room_for(count).filter(|_| count > 0).ok_or_else(|| unrelated(&header))?;
            }
            header.segment_bytes = self
                .scope
                .options
                .segment_size()
                .max(lost.end.next_multiple_of(BLOCK_BYTES as u32));
            let leads_to = (lost.next, chain, lost.end);
            let at_end = (epoch, timestamp + 1);
            self.found.segments.push(Planned {
                header,
                source: Source::Missing,
                lost: vec![lost],
                leads_to,
                at_end,
            });
            if lost.next == next {
                return Ok(());
            }
        }
    }

    /// Reports the bytes between the good records of a segment and the next segment, where no entry
    /// is missing.
    fn to_next(
        &self,
        header: &SegmentHeader,
        outcome: &Outcome,
        next: &SegmentHeader,
    ) -> Result<Lost, LogError> {
        if next.previous_chain != outcome.chain || next.previous_end < outcome.end {
            return Err(unrelated(next));
        }
        let missing =
            Problem { at: u64::from(outcome.end), what: "a mark is missing", newer: false };
        Ok(Lost {
            problem: outcome.problem.unwrap_or(missing),
            start: outcome.end,
            end: next.previous_end,
            from: outcome.next,
            next: next.first,
            chain: outcome.chain,
            chain_after: next.previous_chain,
            epoch: outcome.epoch.max(header.epoch),
            timestamp: outcome.last_timestamp,
        })
    }

    /// Adds the part of the end of the log that is known to have been durable, and a first segment
    /// if there is none.
    fn end(&mut self) -> Result<(), LogError> {
        let known = self.scope.known;
        match self.found.segments.last_mut() {
            None => {
                let log_id = self.found.log_id;
                let is_new = known.glsn == Glsn::NONE;
                let header = SegmentHeader {
                    log_id,
                    epoch: 1,
                    first: known.glsn.next(),
                    previous_chain: if is_new { genesis_chain(log_id) } else { known.chain },
                    timestamp_floor: 0,
                    last_blob_id: 0,
                    segment_bytes: self.scope.options.segment_size(),
                    previous_end: 0,
                };
                let leads_to = (header.first, header.previous_chain, SEGMENT_HEADER_BYTES as u32);
                let source = Source::Missing;
                self.found.segments.push(Planned {
                    header,
                    source,
                    lost: Vec::new(),
                    leads_to,
                    at_end: (1, 0),
                });
                Ok(())
            }
            Some(last) if last.leads_to.0 <= known.glsn => {
                // Later records must have a higher epoch than the lost ones.
                last.at_end.0 = last.at_end.0.saturating_add(1);
                self.fill_to(known.glsn.next(), known.chain, None)
            }
            Some(_) => Ok(()),
        }
    }
}

/// The error for segments that do not follow each other.
fn unrelated(header: &SegmentHeader) -> LogError {
    let file = FileName::Segment(header.first).name();
    let what = "the segment does not follow the one before it: files of different logs, or of \
                different times of one log, are in this folder"
        .to_owned();
    LogError::Corrupt { glsn: header.first, file, offset: 0, what }
}

/// The error for a gap that no loss explains.
fn too_wide(file: Glsn, offset: u64, from: Glsn, next: Glsn) -> LogError {
    let what = format!(
        "the log ends at entry {}, and the next segment or the index's newest manifest says that \
         it continues at entry {next}; one of the two is wrong: in a copy of the store, move the \
         wrong file away, and recover the copy",
        from.0 - 1
    );
    LogError::Corrupt { glsn: from, file: FileName::Segment(file).name(), offset, what }
}

fn read_epoch(file: &dyn File, at: u32) -> Result<u32, LogError> {
    let mut bytes = [0; FRAGMENT_HEADER_BYTES];
    file.read_exact_at(&mut bytes, u64::from(at))?;
    Ok(u32_at(&bytes, 8))
}

/// Collects the damage, and the records that the caller cannot use.
struct DamageVisitor<'a> {
    scope: &'a Scope<'a>,
    chains: &'a mut BTreeMap<Glsn, u64>,
    records: &'a mut u64,
    lost_before: &'a mut Vec<Range<Glsn>>,
    lost: Vec<Lost>,
    /// A record that is dropped; its end is still unknown.
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

    fn note_chain(&mut self, glsn: Glsn, chain: u64) {
        if self.scope.asked.contains(&glsn) {
            self.chains.insert(glsn, chain);
        }
    }
}

impl Visitor for DamageVisitor<'_> {
    fn entry(&mut self, offset: u32, _: StreamId) -> Result<(), LogError> {
        self.first_entry.get_or_insert(offset);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, _: &[BlobRef]) -> Result<(), LogError> {
        let first_entry = self.first_entry.take().unwrap_or(0);
        let start =
            first_entry.saturating_sub((header.head_bytes() + FRAGMENT_HEADER_BYTES) as u32);
        self.close(start, header.previous_chain);
        self.note_chain(Glsn(header.first.0 - 1), header.previous_chain);
        let glsns = header.first..header.last().next();
        if header.dropped.is_some() {
            self.lost_before.push(glsns);
        } else if (self.scope.unusable)(header.first) {
            let what = "the record can be read, but a file that it refers to cannot";
            self.pending = Some(Lost {
                problem: Problem { at: u64::from(start), what, newer: false },
                start,
                end: start,
                from: glsns.start,
                next: glsns.end,
                chain: header.previous_chain,
                chain_after: 0,
                // Set later, when its own fragment is read.
                epoch: 0,
                timestamp: self.seen.unwrap_or(header.timestamp_micros.saturating_sub(1)),
            });
        } else {
            *self.records += 1;
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
