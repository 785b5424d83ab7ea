//! Reads everything that belongs to a log and says what is not as it was written.
//!
//! It trusts nothing that it has not read: records and chains, density, tables against their segments, side files against their
//! records. Needs no open log; a live one may be verified while it is written.

use std::io;
use std::path::Path;

use plimsoll_disk::checksum::seed;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};

use crate::error::LogError;
use crate::file_log::names::FileName;
use crate::file_log::replay::{Outcome, Visitor, replay};
use crate::format::offset_table::{
    DIRECTORY_ITEM_BYTES, DIRECTORY_PAGE, DirectoryItem, NamedSide, OFFSET_PAGE, POSTING_PAGE, SIDE_ITEM_BYTES,
    SIDE_PAGE, TableHeader,
};
use crate::format::record::RecordHeader;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::side_trailer::{SIDE_TRAILER_PAGE, SideTrailer, extend_side_hash};
use crate::format::{BLOCK_BYTES, side_seed, table_seed, u32_at};
use crate::glsn::{Glsn, StreamId};
use crate::side::{SideId, SideRef};

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// The first GLSN concerned, where entries are.
    pub glsn: Option<Glsn>,
    /// What is wrong.
    pub what: String,
    /// Nothing is lost or wrong, and nobody has to do anything: a table that is made again, what a killed writer or a power cut left.
    pub harmless: bool,
}

/// How far verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// What is verified, and what is not.
pub struct VerifyScope<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// The log's folder.
    pub dir: &'a Path,
    /// What memory is taken from: two chunks.
    pub budget: &'a Budget,
    /// Everything up to here must be there; what comes behind may still be being written. `None`: the log is not open.
    pub durable: Option<Glsn>,
    /// Side files that are being written.
    pub unfinished: &'a dyn Fn(SideId) -> bool,
    /// Side files that are needed although no record of the log names them any more.
    pub kept: &'a dyn Fn(SideId) -> bool,
}

/// Reads everything; returns what was found.
///
/// # Errors
/// The disk cannot be read, or the budget has no two chunks. Bad bytes are findings, not errors.
pub fn verify(scope: &VerifyScope<'_>, progress: &mut dyn FnMut(VerifyProgress)) -> Result<Vec<Finding>, LogError> {
    let files = scope.disk.list(scope.dir)?;
    let total_bytes = files.iter().filter(|entry| FileName::parse(&entry.name).is_some()).map(|entry| entry.len).sum();
    let mut check = Check {
        scope,
        findings: Vec::new(),
        progress,
        so_far: VerifyProgress { done_bytes: 0, total_bytes },
        before: None,
        log_id: None,
        unsound: Vec::new(),
        page: scope.budget.take(Kind::Staging)?,
    };
    let mut segments = Vec::new();
    let mut sides = Vec::new();
    for entry in &files {
        match FileName::parse(&entry.name) {
            Some(FileName::Segment(first)) => segments.push(first),
            Some(FileName::Side(id)) => sides.push(id),
            _ => {}
        }
    }
    let mut staging = scope.budget.take(Kind::Staging)?;
    sides.sort_unstable();
    // Side files first: which of those that are not sound are named is seen in the records.
    check.log_id = check.find_log_id(&segments)?;
    for id in sides {
        if !(scope.unfinished)(id) {
            check.side_file(id, &mut staging)?;
        }
    }
    for (at, first) in segments.iter().enumerate() {
        check.segment(*first, segments.get(at + 1).copied(), &mut staging)?;
    }
    check.judge_unsound_sides();
    Ok(check.findings)
}

/// The most side files of which it is remembered that they are not sound.
const MAX_UNSOUND: usize = 1000;

/// A side file that is not as it was written.
struct UnsoundSide {
    id: SideId,
    offset: u64,
    what: &'static str,
    /// A record that names it.
    named_by: Option<Glsn>,
}

struct Check<'a> {
    scope: &'a VerifyScope<'a>,
    findings: Vec<Finding>,
    progress: &'a mut dyn FnMut(VerifyProgress),
    so_far: VerifyProgress,
    /// Header of the segment before, and what it led to.
    before: Option<(SegmentHeader, Outcome)>,
    log_id: Option<u128>,
    /// Ascending by id.
    unsound: Vec<UnsoundSide>,
    page: plimsoll_memory::chunk::Chunk,
}

impl Check<'_> {
    fn report(&mut self, name: FileName, offset: u64, glsn: Option<Glsn>, what: impl Into<String>) {
        self.findings.push(Finding { file: name.name(), offset, glsn, what: what.into(), harmless: false });
    }

    fn report_harmless(&mut self, name: FileName, offset: u64, what: impl Into<String>) {
        self.findings.push(Finding { file: name.name(), offset, glsn: None, what: what.into(), harmless: true });
    }

    fn advance(&mut self, bytes: u64) {
        self.so_far.done_bytes = (self.so_far.done_bytes + bytes).min(self.so_far.total_bytes);
        (self.progress)(self.so_far);
    }

    /// Opens a file; `None` if it went away (it was trimmed meanwhile).
    fn open(&self, name: FileName) -> Result<Option<std::sync::Arc<dyn File>>, LogError> {
        match self.scope.disk.open(&name.path(self.scope.dir), Open::Read, Caching::Buffered) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    fn segment(&mut self, first: Glsn, next: Option<Glsn>, staging: &mut [u8]) -> Result<(), LogError> {
        let name = FileName::Segment(first);
        let found_before = self.findings.len();
        self.segment_there(first, next, staging)?;
        if self.open(name)?.is_none() {
            // Trimmed while it was read: what it names may have gone with it, and nothing follows it.
            self.findings.truncate(found_before);
            self.before = None;
        }
        Ok(())
    }

    fn segment_there(&mut self, first: Glsn, next: Option<Glsn>, staging: &mut [u8]) -> Result<(), LogError> {
        let name = FileName::Segment(first);
        let Some(file) = self.open(name)? else { return Ok(()) };
        let Some(header) = self.segment_header(name, first, &*file)? else {
            self.before = None;
            return Ok(());
        };
        let len = file.len()?;
        if len > u64::from(header.segment_bytes) {
            let what = format!(
                "the file has {len} bytes, a segment of it at most {}: the rest is not read",
                header.segment_bytes
            );
            self.report_harmless(name, u64::from(header.segment_bytes), what);
        }
        self.follows(name, &header);
        let log_id = header.log_id;
        let mut walk =
            Walk { check: self, log_id, hash: 0, count: 0, of_record: (0, 0), sides: (0, 0), bad_sides: Vec::new() };
        let outcome = replay(&*file, &header, u64::MAX, staging, &mut walk)?;
        let seen = Seen { hash: walk.hash, count: walk.count, sides: walk.sides };
        for (glsn, what) in std::mem::take(&mut walk.bad_sides) {
            self.report(name, 0, Some(glsn), what);
        }
        self.end_of_segment(name, &outcome, next);
        if next.is_some() {
            self.table(&header, &outcome, &seen)?;
        }
        self.before = Some((header, outcome));
        Ok(())
    }

    fn segment_header(
        &mut self,
        name: FileName,
        first: Glsn,
        file: &dyn File,
    ) -> Result<Option<SegmentHeader>, LogError> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let n = file.read_at(&mut bytes, 0)?;
        match SegmentHeader::decode(&bytes[..n]) {
            Ok(header) if header.first == first => Ok(Some(header)),
            Ok(_) => {
                self.report(name, 0, Some(first), "the segment stands under another name than its own");
                Ok(None)
            }
            Err(HeaderError::Bad(what)) => {
                self.report(name, 0, Some(first), what);
                Ok(None)
            }
            Err(HeaderError::Newer(message)) => Err(LogError::Format { message }),
        }
    }

    /// Compares a segment's header with the segment before it.
    fn follows(&mut self, name: FileName, header: &SegmentHeader) {
        let Some((before, outcome)) = self.before.take() else { return };
        if before.log_id != header.log_id || before.epoch > header.epoch {
            self.report(name, 0, Some(header.first), "the segment belongs to another log than the one before it");
        } else if outcome.next != header.first {
            let what = format!("the segment before it ends with GLSN {}", outcome.next.0 - 1);
            self.report(name, 0, Some(outcome.next), what);
        } else if outcome.chain != header.previous_chain {
            self.report(name, 48, Some(header.first), "the chain hash of the segment before it is another");
        } else if outcome.end != header.previous_end {
            let what = format!("the segment before it ends at offset {}, not at {}", outcome.end, header.previous_end);
            self.report(name, 76, Some(header.first), what);
        }
    }

    fn end_of_segment(&mut self, name: FileName, outcome: &Outcome, next: Option<Glsn>) {
        if let Some(problem) = outcome.problem {
            let is_behind_all = next.is_none() && self.scope.durable.is_some_and(|durable| outcome.next > durable);
            if is_behind_all {
                let what = format!(
                    "{}, behind the last durable record: a writer is at it, or the next opening for writing cuts it",
                    problem.what
                );
                self.report_harmless(name, problem.at, what);
            } else {
                self.report(name, problem.at, Some(outcome.next), problem.what);
            }
        } else if next.is_none() && self.scope.durable.is_some_and(|durable| outcome.next <= durable) {
            self.report(name, u64::from(outcome.end), Some(outcome.next), "the log ends before what is durable");
        }
        if let Some(at) = outcome.dirty_padding {
            self.report(name, at, None, "bytes that are not zero where only padding is: no entry is concerned");
        }
    }

    /// Compares a segment's table with the segment.
    fn table(&mut self, header: &SegmentHeader, outcome: &Outcome, seen: &Seen) -> Result<(), LogError> {
        let name = FileName::Table(header.first);
        let Some(file) = self.open(name)? else {
            self.report_harmless(name, 0, "the table is missing; it is made again when it is needed");
            return Ok(());
        };
        let mut pages =
            Pages { file: &*file, seed: table_seed(header.log_id, header.first), page: &mut self.page[..PAGE_BYTES] };
        let found = pages.table(header, outcome, seen)?;
        if let Some((offset, what)) = found {
            self.report_harmless(name, offset, format!("{what}; the table is made again when it is needed"));
        }
        let bytes = file.len()?;
        self.advance(bytes);
        Ok(())
    }

    fn side_file(&mut self, id: SideId, staging: &mut [u8]) -> Result<(), LogError> {
        let name = FileName::Side(id);
        let Some(file) = self.open(name)? else { return Ok(()) };
        let Some(log_id) = self.log_id else { return Ok(()) };
        let pages = file.len()? / PAGE_BYTES as u64;
        let mut hash = 0;
        for number in 0..pages {
            let page = &mut staging[..PAGE_BYTES];
            let place = number * PAGE_BYTES as u64;
            let n = file.read_at(page, place)?;
            let last = number + 1 == pages;
            if let Err(what) = check_page(&page[..n], side_seed(log_id, id.0), number as u32) {
                self.is_unsound(id, place, what);
                return Ok(());
            }
            if last {
                let expected = SideTrailer { log_id, side: SideRef { id, pages: number as u32, hash } };
                if page_kind(page) != SIDE_TRAILER_PAGE || SideTrailer::decode(page_payload(page)) != Ok(expected) {
                    self.is_unsound(id, place, "the side file's last page does not fit the others");
                }
            } else {
                hash = extend_side_hash(hash, page);
            }
            self.advance(PAGE_BYTES as u64);
        }
        if pages == 0 {
            self.is_unsound(id, 0, "the side file was never finished");
        }
        Ok(())
    }

    fn is_unsound(&mut self, id: SideId, offset: u64, what: &'static str) {
        if self.unsound.len() < MAX_UNSOUND {
            self.unsound.push(UnsoundSide { id, offset, what, named_by: None });
        } else {
            self.report(FileName::Side(id), offset, None, what);
        }
    }

    /// A record names a side file.
    fn is_named(&mut self, id: SideId, by: Glsn) {
        if let Ok(at) = self.unsound.binary_search_by_key(&id, |unsound| unsound.id) {
            self.unsound[at].named_by.get_or_insert(by);
        }
    }

    /// A side file that is not sound is damage if something needs it, else what a killed writer left.
    fn judge_unsound_sides(&mut self) {
        for unsound in std::mem::take(&mut self.unsound) {
            let UnsoundSide { id, offset, what, named_by } = unsound;
            if named_by.is_some() || (self.scope.kept)(id) {
                self.report(FileName::Side(id), offset, named_by, what);
            } else {
                let what =
                    format!("{what}, and nothing names it: a writer that was killed left it, the next one removes it");
                self.report_harmless(FileName::Side(id), offset, what);
            }
        }
    }

    /// The log's id, as the first segment says whose header can be read.
    fn find_log_id(&mut self, segments: &[Glsn]) -> Result<Option<u128>, LogError> {
        for first in segments {
            let Some(file) = self.open(FileName::Segment(*first))? else { continue };
            let mut bytes = [0; SEGMENT_HEADER_BYTES];
            let n = file.read_at(&mut bytes, 0)?;
            if let Ok(header) = SegmentHeader::decode(&bytes[..n]) {
                return Ok(Some(header.log_id));
            }
        }
        Ok(None)
    }

    /// Compares a side file's last page with the record that names it.
    fn named_side(&mut self, log_id: u128, side: &SideRef) -> Result<Option<String>, LogError> {
        let Some(file) = self.open(FileName::Side(side.id))? else {
            return Ok(Some(format!("side file {} is missing", side.id.0)));
        };
        let page = &mut self.page[..PAGE_BYTES];
        let n = file.read_at(page, u64::from(side.pages) * PAGE_BYTES as u64)?;
        let good = check_page(&page[..n], side_seed(log_id, side.id.0), side.pages).is_ok()
            && SideTrailer::decode(page_payload(page)) == Ok(SideTrailer { log_id, side: *side });
        Ok((!good).then(|| format!("side file {} is not the one that the record names", side.id.0)))
    }
}

/// What was seen of a segment's entries, to be compared with its table.
struct Seen {
    /// Sum over the entries; their order does not matter.
    hash: u64,
    count: u32,
    /// Hash over the side files in order, and their number.
    sides: (u64, u32),
}

fn entry_hash(offset: u32, stream: StreamId, index: u32) -> (u64, u64) {
    let by_place = seed(&[u64::from(offset), u64::from(index)]);
    let by_stream = seed(&[u64::from(stream.0), u64::from(index), 1]);
    (by_place, by_stream)
}

struct Walk<'c, 'a> {
    check: &'c mut Check<'a>,
    log_id: u128,
    hash: u64,
    count: u32,
    /// Of the record that is not known to be complete yet.
    of_record: (u64, u32),
    sides: (u64, u32),
    bad_sides: Vec<(Glsn, String)>,
}

impl Visitor for Walk<'_, '_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        let (by_place, by_stream) = entry_hash(offset, stream, self.count + self.of_record.1);
        self.of_record.0 = self.of_record.0.wrapping_add(by_place).wrapping_add(by_stream);
        self.of_record.1 += 1;
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, sides: &[SideRef]) -> Result<(), LogError> {
        let (hash, count) = std::mem::take(&mut self.of_record);
        self.hash = self.hash.wrapping_add(hash);
        self.count += count;
        for side in sides {
            let named = NamedSide { record_first: header.first, record_count: header.count, side: *side };
            self.sides = (side_hash(self.sides.0, &named), self.sides.1 + 1);
            self.check.is_named(side.id, header.first);
            if let Some(what) = self.check.named_side(self.log_id, side)? {
                self.bad_sides.push((header.first, what));
            }
        }
        Ok(())
    }

    fn abandon(&mut self) {
        self.of_record = (0, 0);
    }

    fn block(&mut self, _: u32) {
        self.check.advance(BLOCK_BYTES as u64);
    }
}

fn side_hash(hash: u64, side: &NamedSide) -> u64 {
    seed(&[hash, side.record_first.0, u64::from(side.record_count), side.side.id.0, side.side.hash])
}

/// Pages of a table.
struct Pages<'a> {
    file: &'a dyn File,
    seed: u64,
    page: &'a mut [u8],
}

impl Pages<'_> {
    /// Reads a page; `Err` says what is wrong with it.
    fn get(&mut self, number: u32, kind: Option<u8>) -> Result<Result<&[u8], &'static str>, LogError> {
        let n = self.file.read_at(self.page, u64::from(number) * PAGE_BYTES as u64)?;
        if let Err(what) = check_page(&self.page[..n], self.seed, number) {
            return Ok(Err(what));
        }
        if kind.is_some_and(|kind| kind != page_kind(self.page)) {
            return Ok(Err("a page of another kind than expected"));
        }
        Ok(Ok(page_payload(self.page)))
    }

    /// An item of a table, through the one page that is held.
    fn item(
        &mut self,
        held: &mut u32,
        place: (u32, usize),
        kind: u8,
        len: usize,
    ) -> Result<Result<&[u8], &'static str>, LogError> {
        if *held != place.0 {
            if let Err(what) = self.get(place.0, Some(kind))? {
                return Ok(Err(what));
            }
            *held = place.0;
        }
        Ok(page_payload(self.page).get(place.1..place.1 + len).ok_or("a page that ends too early"))
    }

    /// Compares the whole table; where and what is wrong.
    fn table(
        &mut self,
        segment: &SegmentHeader,
        outcome: &Outcome,
        seen: &Seen,
    ) -> Result<Option<(u64, &'static str)>, LogError> {
        let header = match self.get(0, None)? {
            Err(what) => return Ok(Some((0, what))),
            Ok(payload) => match TableHeader::decode(payload) {
                Ok(header) => header,
                Err(_) => return Ok(Some((0, "the header cannot be read"))),
            },
        };
        let fits = header.log_id == segment.log_id
            && header.first == segment.first
            && header.count == seen.count
            && header.chain == outcome.chain
            && header.sides == seen.sides.1;
        if !fits {
            return Ok(Some((0, "the table does not fit its segment")));
        }
        let mut hash = 0u64;
        let mut held = u32::MAX;
        for index in 0..header.count {
            let place = header.offset_place(index);
            match self.item(&mut held, place, OFFSET_PAGE, 4)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => hash = hash.wrapping_add(entry_hash(u32_at(bytes, 0), StreamId(0), index).0),
            }
        }
        if let Some(found) = self.postings(&header, &mut hash)? {
            return Ok(Some(found));
        }
        if hash != seen.hash {
            return Ok(Some((PAGE_BYTES as u64, "offsets or postings are not those of the segment")));
        }
        self.sides(&header, seen)
    }

    fn postings(&mut self, header: &TableHeader, hash: &mut u64) -> Result<Option<(u64, &'static str)>, LogError> {
        let mut held = u32::MAX;
        let mut next = 0;
        for number in 0..header.streams {
            let place = header.stream_place(number);
            let item = match self.item(&mut held, place, DIRECTORY_PAGE, DIRECTORY_ITEM_BYTES)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => DirectoryItem::decode(bytes),
            };
            let Some(item) = item.filter(|item| item.start == next) else {
                return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, "the directory has a hole")));
            };
            next = item.start.saturating_add(item.count);
            if next > header.count {
                return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, "the directory is out of bounds")));
            }
            for posting in item.start..next {
                let place = header.posting_place(posting);
                match self.item(&mut held, place, POSTING_PAGE, 4)? {
                    Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                    Ok(bytes) => *hash = hash.wrapping_add(entry_hash(0, item.stream, u32_at(bytes, 0)).1),
                }
            }
        }
        Ok(None)
    }

    fn sides(&mut self, header: &TableHeader, seen: &Seen) -> Result<Option<(u64, &'static str)>, LogError> {
        let mut held = u32::MAX;
        let mut hash = 0;
        for index in 0..header.sides {
            let place = header.side_place(index);
            match self.item(&mut held, place, SIDE_PAGE, SIDE_ITEM_BYTES)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => hash = NamedSide::decode(bytes).map_or(hash, |side| side_hash(hash, &side)),
            }
        }
        Ok((hash != seen.sides.0).then_some((0, "the side files are not those of the segment")))
    }
}
