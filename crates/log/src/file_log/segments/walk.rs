//! Reads a segment front to back and checks everything in it: for recovery, for lost tables, and
//! for `verify`.
//!
//! Invariant: a walk reports where the good records end and which bytes follow them; it decides
//! nothing. `recovery::decide` does.

use plimsoll_disk::vfs::File;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::format::block::first_fragment;
use crate::format::content::ContentHash;
use crate::format::fragment::{
    FRAGMENT_HEADER_BYTES, Found, Fragment, FragmentType, Refusal, fragment_at,
};
use crate::format::record::{
    BLOB_REF_BYTES, ENTRY_HEADER_BYTES, EntryHeader, Mark, RECORD_HEADER_BYTES, RecordHeader,
    decode_blob,
};
use crate::format::segment_header::SegmentHeader;
use crate::format::{BLOCK_BYTES, align8, segment_seed};
use crate::glsn::{Glsn, StreamId};

/// Receives the contents of a segment, record by record.
pub(crate) trait Visitor {
    /// An entry of a record that is perhaps not complete.
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError>;

    /// The record of the entries since the last call is complete and good.
    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError>;

    /// The entries since the last complete record belong to no record.
    fn abandon(&mut self);

    /// Records are damaged, and a good one follows. Called only by walks that continue after
    /// damage.
    fn lost(&mut self, lost: &Lost) -> Result<(), LogError> {
        let _ = lost;
        Ok(())
    }

    /// A block was read.
    fn block(&mut self, number: u32) {
        let _ = number;
    }
}

/// Ignores the visited records, for a walk of which only the outcome is needed.
pub(crate) struct NoVisitor;

impl Visitor for NoVisitor {
    fn entry(&mut self, _: u32, _: StreamId) -> Result<(), LogError> {
        Ok(())
    }

    fn record(&mut self, _: &RecordHeader, _: &[BlobRef]) -> Result<(), LogError> {
        Ok(())
    }

    fn abandon(&mut self) {}
}

/// Damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Its offset.
    pub(crate) at: u64,
    /// The kind of damage.
    pub(crate) what: &'static str,
    /// Whether the bytes are intact but of a newer format.
    pub(crate) newer: bool,
}

/// Damaged records between two good ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The first damage.
    pub(crate) problem: Problem,
    /// The end of the good bytes before the damage, and the beginning of those after it.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The first lost GLSN, and the one after the last; equal if only a mark or padding is lost.
    pub(crate) from: Glsn,
    pub(crate) next: Glsn,
    /// Chain hashes at both ends.
    pub(crate) chain: u64,
    pub(crate) chain_after: u64,
    /// Epoch and timestamp of the last good record.
    pub(crate) epoch: u32,
    pub(crate) timestamp: u64,
}

/// The result of a walk.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The end of the last good record or mark; bytes that are not good begin here.
    pub(crate) end: u32,
    /// The GLSN after the last good record.
    pub(crate) next: Glsn,
    /// Chain hash of the last good record.
    pub(crate) chain: u64,
    /// Timestamp of the first good record; 0 if there is none.
    pub(crate) first_timestamp: u64,
    /// Timestamp of the last good record, or the segment's floor.
    pub(crate) last_timestamp: u64,
    /// The highest epoch seen.
    pub(crate) epoch: u32,
    /// The highest blob file id known to have been given out.
    pub(crate) last_blob_id: u64,
    /// The highest GLSN that is durable according to any good fragment, also after damage.
    pub(crate) durable: Glsn,
    /// Whether the last good fragment is a mark.
    pub(crate) marked: bool,
    /// The damage at `end`.
    pub(crate) problem: Option<Problem>,
    /// The offset after the last nonzero byte.
    pub(crate) used: u64,
    /// The first nonzero byte in padding, with records after it.
    pub(crate) dirty_padding: Option<u64>,
}

/// Bytes per read-ahead request. The requests reach at least two such lengths ahead of the walk. A
/// disk reads several large pieces at once two to four times as fast as one after the other.
const AHEAD_BYTES: u64 = 4 << 20;

/// Reads the segment with this header through `staging` (a multiple of a block), up to `limit`
/// bytes of its file. Bytes after the length in the header belong to nothing and are not read.
pub(crate) fn walk_segment(
    file: &dyn File,
    header: &SegmentHeader,
    limit: u64,
    staging: &mut [u8],
    visitor: &mut dyn Visitor,
) -> Result<Outcome, LogError> {
    run(file, limit, header, staging, SegmentWalk::new(header, visitor))
}

/// The beginning of a walk, right after a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Its offset.
    pub(crate) offset: u32,
    /// The GLSN of the next record.
    pub(crate) next: Glsn,
    /// Chain hash, timestamp and epoch of the record before it.
    pub(crate) chain: u64,
    pub(crate) timestamp: u64,
    pub(crate) epoch: u32,
}

/// Like [`walk_segment`], but from a place within the segment up to `limit`, where a record ends.
/// If `staging` has room for all blocks in between, it then holds their bytes from that place on.
pub(crate) fn walk_on(
    file: &dyn File,
    header: &SegmentHeader,
    start: Start,
    limit: u64,
    staging: &mut [u8],
    visitor: &mut dyn Visitor,
) -> Result<Outcome, LogError> {
    let mut walk = SegmentWalk::new(header, visitor);
    walk.begin = start.offset as usize % BLOCK_BYTES;
    walk.ends_at_limit = true;
    let outcome = &mut walk.outcome;
    (outcome.end, outcome.next, outcome.chain) = (start.offset, start.next, start.chain);
    (outcome.last_timestamp, outcome.epoch) = (start.timestamp, start.epoch);
    let from = u64::from(start.offset) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    walk_between(from, limit, file, staging, walk)
}

/// Like [`walk_segment`] of the whole segment, but continues with the next good record after damage
/// and reports the lost records to the visitor. Damage without a good record after it is the
/// outcome's problem.
pub(crate) fn walk_past_damage(
    file: &dyn File,
    header: &SegmentHeader,
    staging: &mut [u8],
    visitor: &mut dyn Visitor,
) -> Result<Outcome, LogError> {
    run(
        file,
        u64::MAX,
        header,
        staging,
        SegmentWalk { passes: true, ..SegmentWalk::new(header, visitor) },
    )
}

fn run(
    file: &dyn File,
    limit: u64,
    header: &SegmentHeader,
    staging: &mut [u8],
    walk: SegmentWalk<'_>,
) -> Result<Outcome, LogError> {
    let longest = u64::from(header.segment_bytes).min(u64::from(u32::MAX) - BLOCK_BYTES as u64);
    walk_between(0, limit.min(file.len()?).min(longest), file, staging, walk)
}

/// Walks from the block that begins at `from` up to `limit`.
fn walk_between(
    from: u64,
    limit: u64,
    file: &dyn File,
    staging: &mut [u8],
    mut walk: SegmentWalk<'_>,
) -> Result<Outcome, LogError> {
    let (mut offset, mut told) = (from, from);
    let is_long = limit - from > AHEAD_BYTES;
    while offset < limit {
        while is_long && told < limit && told < offset + 2 * AHEAD_BYTES {
            file.will_read(told, AHEAD_BYTES.min(limit - told));
            told += AHEAD_BYTES;
        }
        let wanted = ((limit - offset) as usize).min(staging.len());
        // Bytes before the place where the walk begins were checked by an earlier walk.
        let known = if offset == from { walk.begin.min(wanted) } else { 0 };
        let n = known + file.read_at(&mut staging[known..wanted], offset + known as u64)?;
        let whole = if walk.ends_at_limit {
            n
        } else {
            wanted.next_multiple_of(BLOCK_BYTES).min(staging.len())
        };
        staging[n..whole].fill(0);
        for block in staging[..whole].chunks(BLOCK_BYTES) {
            walk.block(block, (offset / BLOCK_BYTES as u64) as u32)?;
            offset += BLOCK_BYTES as u64;
        }
    }
    Ok(walk.finish())
}

struct SegmentWalk<'v> {
    visitor: &'v mut dyn Visitor,
    seed: u64,
    outcome: Outcome,
    open: Option<OpenRecord>,
    blobs: Vec<BlobRef>,
    /// The first nonzero byte after the last fragment.
    dirty: Option<u64>,
    /// Whether a block without fragments was seen, which lies after the end of the log.
    blank: bool,
    /// Whether the walk continues after damage.
    passes: bool,
    /// The offset of the record at which the walk last resumed after damage.
    resumed_at: u32,
    /// Offset in the first block at which the walk begins.
    begin: usize,
    /// Whether a record is known to end at the limit, so that the rest of that block is not
    /// checked.
    ends_at_limit: bool,
}

/// A record whose last fragment was not read yet.
struct OpenRecord {
    header: RecordHeader,
    /// Offset of its header.
    at: u32,
    /// Checksum of its first fragment.
    head: u64,
    chain: RecordChain,
    epoch: u32,
    entries_seen: u32,
    /// Padded payload bytes of the last entry that were not read yet.
    payload_left: usize,
    body_left: u64,
}

/// The chain hash of a record.
enum RecordChain {
    /// Known: of a record in one fragment, or of a lost record.
    Known(u64),
    /// The hash of the content so far, and the chain hash that the later parts name, once one of
    /// them was read.
    Content(ContentHash, Option<u64>),
}

impl<'v> SegmentWalk<'v> {
    fn new(header: &SegmentHeader, visitor: &'v mut dyn Visitor) -> Self {
        let outcome = Outcome {
            end: crate::format::segment_header::SEGMENT_HEADER_BYTES as u32,
            next: header.first,
            chain: header.previous_chain,
            first_timestamp: 0,
            last_timestamp: header.timestamp_floor,
            epoch: header.epoch,
            last_blob_id: header.last_blob_id,
            durable: Glsn(header.first.0 - 1),
            marked: false,
            problem: None,
            used: 0,
            dirty_padding: None,
        };
        let seed = segment_seed(header.log_id, header.first);
        Self {
            visitor,
            seed,
            outcome,
            open: None,
            blobs: Vec::new(),
            dirty: None,
            blank: false,
            passes: false,
            resumed_at: 0,
            begin: 0,
            ends_at_limit: false,
        }
    }

    fn block(&mut self, block: &[u8], number: u32) -> Result<(), LogError> {
        self.visitor.block(number);
        let block_offset = number * BLOCK_BYTES as u32;
        let begin = std::mem::take(&mut self.begin);
        if let Some(last) = block[begin..].iter().rposition(|byte| *byte != 0) {
            self.outcome.used = u64::from(block_offset) + (begin + last) as u64 + 1;
        }
        let mut at = first_fragment(number).max(begin);
        loop {
            if let Some(problem) = self.outcome.problem {
                if !self.passes || problem.newer {
                    break;
                }
                match self.resume(block, block_offset, at, problem)? {
                    Some(found) => at = found,
                    None => return Ok(()),
                }
            }
            let offset = block_offset + at as u32;
            match fragment_at(block, at, block_offset, self.seed) {
                Found::Fragment(fragment) => {
                    let taken = self.fragment(offset, &fragment)?;
                    if let Err(refusal) = taken {
                        self.fail(offset, refusal);
                        continue;
                    }
                    at += align8(fragment.whole_bytes());
                }
                Found::Bad(refusal) => self.fail(offset, refusal),
                Found::Nothing
                    if self.passes && self.find_record(block, block_offset, at).is_some() =>
                {
                    self.fail(offset, Refusal::bad("zeros in place of a fragment"));
                }
                Found::Nothing => {
                    self.no_fragment(block, block_offset, at);
                    match self.outcome.problem {
                        Some(problem) if self.passes && !problem.newer => continue,
                        _ => return Ok(()),
                    }
                }
            }
        }
        self.find_evidence(block, block_offset, at);
        Ok(())
    }

    /// Searches a block for the next good record, from `at` on, and continues there; returns its
    /// place.
    fn resume(
        &mut self,
        block: &[u8],
        offset: u32,
        at: usize,
        problem: Problem,
    ) -> Result<Option<usize>, LogError> {
        let Some((at, header)) = self.find_record(block, offset, at) else { return Ok(None) };
        let here = offset + at as u32;
        let outcome = &mut self.outcome;
        let lost = Lost {
            problem,
            start: outcome.end,
            end: here,
            from: outcome.next,
            next: header.first,
            chain: outcome.chain,
            chain_after: header.previous_chain,
            epoch: outcome.epoch,
            timestamp: outcome.last_timestamp,
        };
        self.visitor.lost(&lost)?;
        (outcome.problem, outcome.end) = (None, here);
        (outcome.next, outcome.chain) = (header.first, header.previous_chain);
        (self.blank, self.dirty, self.resumed_at) = (false, None, here);
        Ok(Some(at))
    }

    /// The next good record in a block, from `at` on, whose GLSN, epoch and timestamp are possible
    /// after the last good record.
    fn find_record(
        &self,
        block: &[u8],
        offset: u32,
        mut at: usize,
    ) -> Option<(usize, RecordHeader)> {
        while at + FRAGMENT_HEADER_BYTES <= block.len() {
            let Found::Fragment(fragment) = fragment_at(block, at, offset, self.seed) else {
                at += 8;
                continue;
            };
            let here = offset + at as u32;
            let begins = matches!(fragment.part, FragmentType::Whole | FragmentType::First);
            let header = RecordHeader::decode(fragment.bytes)
                .ok()
                .filter(|_| begins && here > self.resumed_at);
            if let Some(header) = header.filter(|header| self.may_follow(fragment.epoch, header)) {
                return Some((at, header));
            }
            at += align8(fragment.whole_bytes());
        }
        None
    }

    /// Whether a record can come after the last good one.
    fn may_follow(&self, epoch: u32, header: &RecordHeader) -> bool {
        let outcome = &self.outcome;
        let is_next = header.first == outcome.next && header.previous_chain == outcome.chain;
        let is_later =
            header.first > outcome.next && header.timestamp_micros > outcome.last_timestamp;
        epoch >= outcome.epoch && (is_next || is_later)
    }

    /// No fragment at `at`: the records continue in the next block, or end here.
    fn no_fragment(&mut self, block: &[u8], block_offset: u32, at: usize) {
        let at = at.min(block.len());
        if self.open.is_some() && at + FRAGMENT_HEADER_BYTES <= block.len() {
            self.fail(block_offset + at as u32, Refusal::bad("a record whose end is missing"));
            return self.find_evidence(block, block_offset, at);
        }
        let dirty = block[at..]
            .iter()
            .position(|byte| *byte != 0)
            .map(|i| u64::from(block_offset) + (at + i) as u64);
        if at == first_fragment(block_offset / BLOCK_BYTES as u32) {
            self.blank = true;
        }
        self.dirty = self.dirty.or(dirty);
        if dirty.is_some() {
            self.find_evidence(block, block_offset, at);
        }
    }

    fn fail(&mut self, offset: u32, refusal: Refusal) {
        self.outcome.problem =
            Some(Problem { at: u64::from(offset), what: refusal.what, newer: refusal.newer });
        (self.open, self.dirty) = (None, None);
        self.visitor.abandon();
    }

    /// Adds the next intact fragment; the inner `Err` is the reason why it does not follow.
    fn fragment(
        &mut self,
        offset: u32,
        fragment: &Fragment<'_>,
    ) -> Result<Result<(), Refusal>, LogError> {
        if fragment.epoch < self.outcome.epoch {
            return Ok(Err(Refusal::bad("a fragment of an earlier epoch: stale bytes")));
        }
        if self.blank {
            return Ok(Err(Refusal::bad("a fragment after the end of the log")));
        }
        let taken = match fragment.part {
            FragmentType::Mark => self.mark(fragment),
            FragmentType::Whole | FragmentType::First => self.begin(offset, fragment)?,
            FragmentType::Middle | FragmentType::Last => self.continue_record(offset, fragment)?,
        };
        if taken.is_err() {
            return Ok(taken);
        }
        self.outcome.dirty_padding = self.outcome.dirty_padding.or(self.dirty.take());
        if matches!(fragment.part, FragmentType::Whole | FragmentType::Last) {
            let ended = self.end_record()?;
            if ended.is_err() {
                return Ok(ended);
            }
        }
        if self.open.is_none() {
            self.outcome.epoch = fragment.epoch;
            self.outcome.marked = fragment.part == FragmentType::Mark;
            self.outcome.end = offset + align8(fragment.whole_bytes()) as u32;
        }
        Ok(Ok(()))
    }

    fn mark(&mut self, fragment: &Fragment<'_>) -> Result<(), Refusal> {
        let Some(mark) = Mark::decode(fragment.bytes) else {
            return Err(Refusal::bad("a mark of an impossible length"));
        };
        if self.open.is_some() {
            return Err(Refusal::bad("a mark in the middle of a record"));
        }
        if mark.durable.next() != self.outcome.next || mark.chain != self.outcome.chain {
            return Err(Refusal::bad("a mark that does not follow the record before it"));
        }
        self.outcome.durable = self.outcome.durable.max(mark.durable);
        Ok(())
    }

    fn begin(
        &mut self,
        offset: u32,
        fragment: &Fragment<'_>,
    ) -> Result<Result<(), Refusal>, LogError> {
        if self.open.is_some() {
            return Ok(Err(Refusal::bad("a record that begins within another")));
        }
        let header = match RecordHeader::decode(fragment.bytes) {
            Ok(header) => header,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if header.first != self.outcome.next {
            return Ok(Err(Refusal::bad("a record whose GLSN does not belong at this place")));
        }
        if header.previous_chain != self.outcome.chain {
            return Ok(Err(Refusal::bad("a record that does not follow the one before it")));
        }
        self.blobs.clear();
        for index in 0..usize::from(header.blobs) {
            let at = RECORD_HEADER_BYTES + index * BLOB_REF_BYTES;
            let Some(blob) = fragment.bytes.get(at..).and_then(decode_blob) else {
                return Ok(Err(Refusal::bad("a record whose list of blob files is truncated")));
            };
            self.blobs.push(blob);
        }
        let head = header.head_bytes();
        let chain = match (fragment.chain, header.dropped) {
            (_, Some(after)) => RecordChain::Known(after),
            (Some(content), None) => RecordChain::Known(content),
            (None, None) => RecordChain::Content(ContentHash::of_first(fragment.bytes, head), None),
        };
        self.open = Some(OpenRecord {
            at: offset + FRAGMENT_HEADER_BYTES as u32,
            head: fragment.checksum,
            chain,
            epoch: fragment.epoch,
            entries_seen: 0,
            payload_left: 0,
            body_left: u64::from(header.body_bytes),
            header,
        });
        self.entries(offset, fragment, head)
    }

    fn continue_record(
        &mut self,
        offset: u32,
        fragment: &Fragment<'_>,
    ) -> Result<Result<(), Refusal>, LogError> {
        let missing = Refusal::bad("a part of a record whose beginning is missing");
        let (Some(open), Some(continues)) = (&mut self.open, fragment.continues) else {
            return Ok(Err(missing));
        };
        if open.epoch != fragment.epoch || open.head != continues.head {
            return Ok(Err(missing));
        }
        let agrees = match &mut open.chain {
            RecordChain::Known(chain) => *chain == continues.chain,
            RecordChain::Content(content, named) => {
                content.fragment(fragment.bytes);
                *named.get_or_insert(continues.chain) == continues.chain
            }
        };
        if !agrees {
            return Ok(Err(Refusal::bad("a part of a record that names a different chain hash")));
        }
        self.entries(offset, fragment, 0)
    }

    /// Walks over the entries in a fragment, from byte `pos` of it on.
    fn entries(
        &mut self,
        offset: u32,
        fragment: &Fragment<'_>,
        mut pos: usize,
    ) -> Result<Result<(), Refusal>, LogError> {
        let Some(open) = &mut self.open else {
            return Ok(Err(Refusal::bad("a part of a record whose beginning is missing")));
        };
        let bytes = fragment.bytes;
        let offset = offset + fragment.part.header_bytes() as u32;
        while pos < bytes.len() {
            if open.payload_left > 0 {
                let step = open.payload_left.min(bytes.len() - pos);
                open.payload_left -= step;
                pos += step;
                continue;
            }
            if open.entries_seen == open.header.count {
                return Ok(Err(Refusal::bad("bytes after a record's last entry")));
            }
            let Some(entry) = EntryHeader::decode(&bytes[pos..]) else {
                return Ok(Err(Refusal::bad("an entry's header is truncated")));
            };
            let at = offset + pos as u32;
            let payload = align8(entry.payload_bytes as usize);
            let taken = (ENTRY_HEADER_BYTES + payload) as u64;
            if entry.index != open.entries_seen
                || entry.back != at - open.at
                || taken > open.body_left
            {
                return Ok(Err(Refusal::bad("an entry that does not belong at this place")));
            }
            open.entries_seen += 1;
            open.body_left -= taken;
            open.payload_left = payload;
            pos += ENTRY_HEADER_BYTES;
            self.visitor.entry(at, entry.stream)?;
        }
        Ok(Ok(()))
    }

    fn end_record(&mut self) -> Result<Result<(), Refusal>, LogError> {
        let Some(open) = self.open.take() else {
            return Ok(Err(Refusal::bad("the end of a record whose beginning is missing")));
        };
        if open.entries_seen != open.header.count || open.payload_left > 0 || open.body_left > 0 {
            return Ok(Err(Refusal::bad("a record that ends before its last entry does")));
        }
        let chain = match open.chain {
            RecordChain::Known(chain) => chain,
            RecordChain::Content(content, named) if named == Some(content.sum()) => content.sum(),
            RecordChain::Content(..) => {
                return Ok(Err(Refusal::bad(
                    "a record whose parts do not have the chain hash that they name",
                )));
            }
        };
        self.visitor.record(&open.header, &self.blobs)?;
        let outcome = &mut self.outcome;
        if outcome.first_timestamp == 0 {
            outcome.first_timestamp = open.header.timestamp_micros;
        }
        outcome.last_timestamp = open.header.timestamp_micros;
        outcome.last_blob_id = self
            .blobs
            .iter()
            .map(|blob| blob.id.number())
            .fold(outcome.last_blob_id.max(open.header.last_blob_id), u64::max);
        outcome.durable = outcome.durable.max(open.header.durable);
        outcome.chain = chain;
        outcome.next = open.header.last().next();
        Ok(Ok(()))
    }

    /// Searches the fragments after a bad one for durable GLSNs: each intact fragment that begins a
    /// record or is a mark states a GLSN that was durable when it was written.
    fn find_evidence(&mut self, block: &[u8], block_offset: u32, from: usize) {
        let mut at = from;
        while at + FRAGMENT_HEADER_BYTES <= block.len() {
            if let Found::Fragment(fragment) = fragment_at(block, at, block_offset, self.seed) {
                let durable = match fragment.part {
                    FragmentType::Mark => Mark::decode(fragment.bytes).map(|mark| mark.durable),
                    FragmentType::Whole | FragmentType::First => {
                        RecordHeader::decode(fragment.bytes).ok().map(|header| header.durable)
                    }
                    FragmentType::Middle | FragmentType::Last => None,
                };
                self.outcome.durable = self.outcome.durable.max(durable.unwrap_or(Glsn::NONE));
                at += align8(fragment.whole_bytes());
            } else {
                at += 8;
            }
        }
    }

    fn finish(mut self) -> Outcome {
        if self.outcome.problem.is_none() {
            if self.open.is_some() {
                let end = self.outcome.end;
                self.fail(end, Refusal::bad("a record whose end is missing"));
            } else if let Some(at) = self.dirty {
                self.outcome.problem =
                    Some(Problem { at, what: "nonzero bytes after the last record", newer: false });
            }
        }
        self.outcome
    }
}
