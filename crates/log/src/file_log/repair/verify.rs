//! Reads every file of a log and reports damage.
//!
//! It checks records and chains, density, tables against their segments, and blob files against
//! their records. It needs no open log; a live log may be verified while it is written.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_payload};

use crate::blob::{BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::repair::verify_blob::{UnsoundBlob, read_blob_file};
use crate::file_log::repair::verify_table::{SegmentSummary, TableCheck, blob_hash, entry_hash};
use crate::file_log::segments::walk::{Lost, Outcome, Visitor, walk_past_damage};
use crate::format::blob_trailer::BlobTrailer;
use crate::format::offset_table::NamedBlob;
use crate::format::record::RecordHeader;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, blob_seed, table_seed};
use crate::glsn::{Glsn, StreamId};

/// Damage, or a remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The offset in it.
    pub offset: u64,
    /// The first GLSN concerned, if entries are.
    pub glsn: Option<Glsn>,
    /// The last GLSN concerned, if it is known.
    pub last: Option<Glsn>,
    /// A description of it.
    pub what: String,
    /// The remedy.
    pub remedy: Remedy,
    /// The blob file concerned.
    pub blob: Option<BlobDamage>,
    /// Whether no action is needed because nothing is lost or wrong: a table that is rebuilt, or a
    /// leftover of a killed writer or of a power cut.
    pub harmless: bool,
}

/// Damage of a blob file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobDamage {
    /// Its id.
    pub id: BlobId,
    /// Its damaged pages. The last range has no end if the file's own end is lost, because the file
    /// may have had more pages.
    pub pages: Vec<Range<u32>>,
    /// The reference of a record to it.
    pub named: Option<BlobRef>,
    /// Whether it holds plain bytes rather than pages of a run, according to its readable pages.
    pub is_plain: Option<bool>,
}

/// The remedy of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A good record follows: only the damaged records are lost.
    Drop,
    /// No good record follows: the log ends there.
    Cut,
    /// An earlier recovery recorded the loss.
    Dropped,
    /// Another remedy, which this module does not know.
    Other,
}

/// Progress of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// The scope of a verification.
pub struct VerifyScope<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// The log's folder.
    pub dir: &'a Path,
    /// The budget of its memory: two chunks.
    pub budget: &'a Budget,
    /// The last GLSN that must be readable; later entries may still be incomplete. `None` if the
    /// log is not open.
    pub durable: Option<Glsn>,
    /// Blob files that are being written.
    pub unfinished: &'a dyn Fn(BlobId) -> bool,
    /// Blob files that are needed although no record of the log names them any more.
    pub kept: &'a dyn Fn(BlobId) -> bool,
    /// Blob files that must be there, whether or not a record of the log names them.
    pub needed: &'a [BlobId],
}

/// Reads every file; returns the findings.
///
/// # Errors
/// The disk cannot be read, or the budget has no two chunks. Damage is a finding, not an error.
pub fn verify(
    scope: &VerifyScope<'_>,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<Vec<Finding>, LogError> {
    let files = scope.disk.list(scope.dir)?;
    let total_bytes = files
        .iter()
        .filter(|entry| FileName::parse(&entry.name).is_some())
        .map(|entry| entry.len)
        .sum();
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
    let mut blobs = Vec::new();
    for entry in &files {
        match FileName::parse(&entry.name) {
            Some(FileName::Segment(first)) => segments.push(first),
            Some(FileName::Blob(id)) => blobs.push(id),
            _ => {}
        }
    }
    let mut staging = scope.budget.take(Kind::Staging)?;
    let missing = scope.needed.iter().filter(|id| !blobs.contains(id)).copied();
    let missing: BTreeSet<BlobId> = missing.collect();
    blobs.extend(&missing);
    blobs.sort_unstable();
    // Read the blob files first. The scan of the records then shows which of the damaged ones are
    // named.
    check.log_id = check.find_log_id(&segments)?;
    for id in blobs {
        if missing.contains(&id) {
            check.is_missing(id);
        } else if !(scope.unfinished)(id) {
            check.blob_file(id, &mut staging)?;
        }
    }
    for (at, first) in segments.iter().enumerate() {
        check.segment(*first, segments.get(at + 1).copied(), &mut staging)?;
    }
    check.classify_unsound_blobs()?;
    Ok(check.findings)
}

/// The maximum number of damaged blob files that are remembered.
const MAX_UNSOUND: usize = 1000;

struct Check<'a> {
    scope: &'a VerifyScope<'a>,
    findings: Vec<Finding>,
    progress: &'a mut dyn FnMut(VerifyProgress),
    so_far: VerifyProgress,
    /// Header of the previous segment, and the outcome of its walk.
    before: Option<(SegmentHeader, Outcome)>,
    log_id: Option<u128>,
    /// The damaged blob files, in ascending order of their ids.
    unsound: Vec<UnsoundBlob>,
    page: plimsoll_memory::chunk::Chunk,
}

impl Check<'_> {
    fn report(&mut self, name: FileName, offset: u64, glsn: Option<Glsn>, what: impl Into<String>) {
        self.report_range(name, offset, (glsn, None), what, Remedy::Other);
    }

    fn report_range(
        &mut self,
        name: FileName,
        offset: u64,
        (glsn, last): (Option<Glsn>, Option<Glsn>),
        what: impl Into<String>,
        remedy: Remedy,
    ) {
        let (file, what) = (name.name(), what.into());
        self.findings.push(Finding {
            file,
            offset,
            glsn,
            last,
            what,
            harmless: false,
            remedy,
            blob: None,
        });
    }

    fn report_harmless(&mut self, name: FileName, offset: u64, what: impl Into<String>) {
        self.report(name, offset, None, what);
        if let Some(finding) = self.findings.last_mut() {
            finding.harmless = true;
        }
    }

    fn report_dropped(&mut self, name: FileName, glsns: Option<(Glsn, Glsn)>, what: String) {
        self.report_harmless(name, 0, what);
        if let Some(finding) = self.findings.last_mut() {
            (finding.glsn, finding.last) = glsns.unzip();
            finding.remedy = Remedy::Dropped;
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.so_far.done_bytes = (self.so_far.done_bytes + bytes).min(self.so_far.total_bytes);
        (self.progress)(self.so_far);
    }

    /// Opens a file; `None` if it was trimmed meanwhile.
    fn open(&self, name: FileName) -> Result<Option<std::sync::Arc<dyn File>>, LogError> {
        match self.scope.disk.open(&name.path(self.scope.dir), Open::Read, Caching::Buffered) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    fn segment(
        &mut self,
        first: Glsn,
        next: Option<Glsn>,
        staging: &mut [u8],
    ) -> Result<(), LogError> {
        let name = FileName::Segment(first);
        let found_before = self.findings.len();
        self.segment_there(first, next, staging)?;
        if self.open(name)?.is_none() {
            // The segment was trimmed while it was read. The files that it names may be gone too,
            // and the next segment has no predecessor to be compared with.
            self.findings.truncate(found_before);
            self.before = None;
        }
        Ok(())
    }

    fn segment_there(
        &mut self,
        first: Glsn,
        next: Option<Glsn>,
        staging: &mut [u8],
    ) -> Result<(), LogError> {
        let name = FileName::Segment(first);
        let Some(file) = self.open(name)? else { return Ok(()) };
        let Some(header) = self.segment_header(name, first, &*file)? else {
            self.before = None;
            return Ok(());
        };
        let len = file.len()?;
        if len > u64::from(header.segment_bytes) {
            let what = format!(
                "the file has {len} bytes, but a segment has at most {}; the rest is not read",
                header.segment_bytes
            );
            self.report_harmless(name, u64::from(header.segment_bytes), what);
        }
        self.follows(name, &header);
        let mut durable = self.scope.durable;
        let found_before = self.findings.len();
        let (mut outcome, mut seen, mut lost) = self.walk(name, &header, &*file, staging)?;
        // A writer may have filled the gap since it was read. Later records state what was durable
        // at their time; anything up to there must be readable now.
        let may_be_filled = |lost: &Lost| {
            durable.is_some_and(|durable| durable < lost.from && lost.from <= outcome.durable)
        };
        if next.is_none() && lost.iter().any(may_be_filled) {
            durable = Some(outcome.durable);
            self.findings.truncate(found_before);
            (outcome, seen, lost) = self.walk(name, &header, &*file, staging)?;
        }
        let is_whole = lost.is_empty() && outcome.problem.is_none();
        self.lost_records(name, durable.filter(|_| next.is_none()), &lost);
        self.end_of_segment(name, &outcome, next);
        if next.is_some() && is_whole {
            self.table(&header, &outcome, &seen)?;
        }
        self.before = Some((header, outcome));
        Ok(())
    }

    /// Reads a segment to its end, past damage.
    fn walk(
        &mut self,
        name: FileName,
        header: &SegmentHeader,
        file: &dyn File,
        staging: &mut [u8],
    ) -> Result<(Outcome, SegmentSummary, Vec<Lost>), LogError> {
        let mut walk = VerifyVisitor {
            check: self,
            log_id: header.log_id,
            name,
            hash: 0,
            count: 0,
            of_record: (0, 0),
            blobs: (0, 0),
            lost: Vec::new(),
        };
        let outcome = walk_past_damage(file, header, staging, &mut walk)?;
        Ok((
            outcome,
            SegmentSummary { hash: walk.hash, count: walk.count, blobs: walk.blobs },
            walk.lost,
        ))
    }

    fn segment_header(
        &mut self,
        name: FileName,
        first: Glsn,
        file: &dyn File,
    ) -> Result<Option<SegmentHeader>, LogError> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let n = file.read_at(&mut bytes, 0)?;
        let what = match SegmentHeader::decode(&bytes[..n]) {
            Ok(header) if header.first == first => return Ok(Some(header)),
            Ok(_) => "the segment's header does not match its file name",
            Err(HeaderError::Bad(what)) => what,
            Err(HeaderError::Newer(message)) => return Err(LogError::Format { message }),
        };
        self.report_range(name, 0, (Some(first), None), what, Remedy::Drop);
        Ok(None)
    }

    /// Compares a segment's header with the segment before it.
    fn follows(&mut self, name: FileName, header: &SegmentHeader) {
        let Some((before, outcome)) = self.before.take() else { return };
        if outcome.problem.is_some() {
            // The gap was reported already.
            return;
        }
        if before.log_id != header.log_id || before.epoch > header.epoch {
            self.report(
                name,
                0,
                Some(header.first),
                "the segment belongs to another log than the one before it",
            );
        } else if outcome.next != header.first {
            let what = format!("the segment before it ends with GLSN {}", outcome.next.0 - 1);
            let last = (outcome.next < header.first).then(|| Glsn(header.first.0 - 1));
            let remedy = if last.is_some() { Remedy::Drop } else { Remedy::Other };
            self.report_range(name, 0, (Some(outcome.next), last), what, remedy);
        } else if outcome.chain != header.previous_chain {
            self.report(
                name,
                48,
                Some(header.first),
                "the chain hash does not match the segment before it",
            );
        } else if outcome.end != header.previous_end {
            let what = format!(
                "the segment before it ends at offset {}, not at {}",
                outcome.end, header.previous_end
            );
            self.report(name, 76, Some(header.first), what);
        }
    }

    /// Reports damaged records that good ones follow. At the end of the log these were perhaps
    /// never durable, because the system writes unsynced bytes in any order and a writer may still
    /// be writing them.
    fn lost_records(&mut self, name: FileName, durable: Option<Glsn>, lost: &[Lost]) {
        for lost in lost {
            if durable.is_some_and(|durable| lost.from > durable) {
                self.report_harmless(name, lost.problem.at, after_all(lost.problem.what));
                // Everything after it is not durable either.
                break;
            }
            let last = (lost.from < lost.next).then(|| Glsn(lost.next.0 - 1));
            self.report_range(
                name,
                lost.problem.at,
                (Some(lost.from), last),
                lost.problem.what,
                Remedy::Drop,
            );
        }
    }

    fn end_of_segment(&mut self, name: FileName, outcome: &Outcome, next: Option<Glsn>) {
        if let Some(problem) = outcome.problem {
            let is_behind_all =
                next.is_none() && self.scope.durable.is_some_and(|durable| outcome.next > durable);
            if is_behind_all {
                self.report_harmless(name, problem.at, after_all(problem.what));
            } else {
                // The next segment's header states how the log continues.
                let remedy =
                    if next.is_some() && !problem.newer { Remedy::Drop } else { Remedy::Cut };
                let last = next.filter(|next| *next > outcome.next).map(|next| Glsn(next.0 - 1));
                self.report_range(
                    name,
                    problem.at,
                    (Some(outcome.next), last),
                    problem.what,
                    remedy,
                );
            }
        } else if next.is_none()
            && self.scope.durable.is_some_and(|durable| outcome.next <= durable)
        {
            let what = "the log ends before the last durable entry";
            self.report_range(
                name,
                u64::from(outcome.end),
                (Some(outcome.next), self.scope.durable),
                what,
                Remedy::Cut,
            );
        }
        if let Some(at) = outcome.dirty_padding {
            self.report(name, at, None, "nonzero bytes in padding; no entry is affected");
        }
    }

    /// Compares a segment's table with the segment.
    fn table(
        &mut self,
        header: &SegmentHeader,
        outcome: &Outcome,
        seen: &SegmentSummary,
    ) -> Result<(), LogError> {
        let name = FileName::Table(header.first);
        let Some(file) = self.open(name)? else {
            self.report_harmless(name, 0, "the table is missing; it is rebuilt when it is needed");
            return Ok(());
        };
        let mut pages = TableCheck {
            file: &*file,
            seed: table_seed(header.log_id, header.first),
            page: &mut self.page[..PAGE_BYTES],
        };
        let found = pages.table(header, outcome, seen)?;
        if let Some((offset, what)) = found {
            self.report_harmless(
                name,
                offset,
                format!("{what}; the table is rebuilt when it is needed"),
            );
        }
        let bytes = file.len()?;
        self.advance(bytes);
        Ok(())
    }

    fn blob_file(&mut self, id: BlobId, staging: &mut [u8]) -> Result<(), LogError> {
        let name = FileName::Blob(id);
        let Some(file) = self.open(name)? else { return Ok(()) };
        let Some(log_id) = self.log_id else { return Ok(()) };
        let page = &mut staging[..PAGE_BYTES];
        let read = read_blob_file(&*file, (log_id, id), page, &mut |bytes| self.advance(bytes))?;
        if read.dropped > 0 {
            let what = format!(
                "{} pages of the blob file are lost: they were damaged when the store was \
                 recovered",
                read.dropped
            );
            self.report_dropped(name, None, what);
        }
        if let Some(unsound) = read.damage {
            self.is_unsound(unsound);
        }
        Ok(())
    }

    /// Reports a blob file that must exist and is not in the folder.
    fn is_missing(&mut self, id: BlobId) {
        let pages = vec![Range { start: 0, end: u32::MAX }];
        let what = "the blob file is missing";
        self.is_unsound(UnsoundBlob { id, offset: 0, what, pages, is_plain: None, named_by: None });
    }

    fn is_unsound(&mut self, unsound: UnsoundBlob) {
        if self.unsound.len() < MAX_UNSOUND {
            self.unsound.push(unsound);
        } else {
            self.report_blob(unsound);
        }
    }

    fn report_blob(&mut self, unsound: UnsoundBlob) {
        let UnsoundBlob { id, offset, what, pages, is_plain, named_by } = unsound;
        let glsn = named_by.map(|(glsn, _)| glsn);
        self.report_range(FileName::Blob(id), offset, (glsn, glsn), what, Remedy::Drop);
        if let Some(finding) = self.findings.last_mut() {
            finding.blob =
                Some(BlobDamage { id, pages, named: named_by.map(|(_, named)| named), is_plain });
        }
    }

    /// Notes that a record names a blob file.
    fn is_named(&mut self, blob: BlobRef, by: Glsn) {
        if let Ok(at) = self.unsound.binary_search_by_key(&blob.id, |unsound| unsound.id) {
            self.unsound[at].named_by.get_or_insert((by, blob));
        }
    }

    /// Classifies the damaged blob files. A file that something needs is damage of the log; any
    /// other file is the leftover of a killed writer.
    fn classify_unsound_blobs(&mut self) -> Result<(), LogError> {
        for unsound in std::mem::take(&mut self.unsound) {
            if unsound.named_by.is_some() || (self.scope.kept)(unsound.id) {
                self.report_blob(unsound);
            } else if self.open(FileName::Blob(unsound.id))?.is_some() {
                let UnsoundBlob { id, offset, what, .. } = unsound;
                let what = format!(
                    "{what}, and nothing refers to it: a killed writer left it, and the next \
                     writer removes it"
                );
                self.report_harmless(FileName::Blob(id), offset, what);
            }
            // Otherwise the file was removed meanwhile and is no longer needed.
        }
        Ok(())
    }

    /// The log's id, from the first segment with a readable header.
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

    /// Compares a blob file's last page with the record that names it.
    fn named_blob(
        &mut self,
        log_id: u128,
        blob: &BlobRef,
    ) -> Result<Option<&'static str>, LogError> {
        if self.unsound.binary_search_by_key(&blob.id, |unsound| unsound.id).is_ok() {
            // The file is reported together with its pages.
            return Ok(None);
        }
        let Some(file) = self.open(FileName::Blob(blob.id))? else {
            return Ok(Some("the blob file is missing"));
        };
        let page = &mut self.page[..PAGE_BYTES];
        let n = file.read_at(page, u64::from(blob.pages) * PAGE_BYTES as u64)?;
        let good = check_page(&page[..n], blob_seed(log_id, blob.id.0), blob.pages).is_ok()
            && BlobTrailer::decode(page_payload(page)) == Ok(BlobTrailer { log_id, blob: *blob });
        Ok((!good).then_some("the blob file is not the one that the record names"))
    }
}

fn after_all(what: &str) -> String {
    format!(
        "{what}, after the last durable record; a writer may still be writing it, otherwise the \
         next opening for writing cuts it"
    )
}

struct VerifyVisitor<'c, 'a> {
    check: &'c mut Check<'a>,
    log_id: u128,
    name: FileName,
    hash: u64,
    count: u32,
    /// Damaged records of the segment.
    lost: Vec<Lost>,
    /// The hash and the count of the entries of the current record, which is perhaps not complete.
    of_record: (u64, u32),
    blobs: (u64, u32),
}

impl Visitor for VerifyVisitor<'_, '_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        let (by_place, by_stream) = entry_hash(offset, stream, self.count + self.of_record.1);
        self.of_record.0 = self.of_record.0.wrapping_add(by_place).wrapping_add(by_stream);
        self.of_record.1 += 1;
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        let (hash, count) = std::mem::take(&mut self.of_record);
        self.hash = self.hash.wrapping_add(hash);
        self.count += count;
        for blob in blobs {
            let named =
                NamedBlob { record_first: header.first, record_count: header.count, blob: *blob };
            self.blobs = (blob_hash(self.blobs.0, &named), self.blobs.1 + 1);
            self.check.is_named(*blob, header.first);
            if let Some(what) = self.check.named_blob(self.log_id, blob)? {
                let (pages, named_by) =
                    (vec![Range { start: 0, end: blob.pages }], Some((header.first, *blob)));
                let unsound =
                    UnsoundBlob { id: blob.id, offset: 0, what, pages, is_plain: None, named_by };
                self.check.report_blob(unsound);
            }
        }
        if header.dropped.is_some() {
            let what = format!(
                "GLSNs {} to {} are lost: they were damaged when the store was recovered",
                header.first,
                header.last()
            );
            self.check.report_dropped(self.name, Some((header.first, header.last())), what);
        }
        Ok(())
    }

    fn lost(&mut self, lost: &Lost) -> Result<(), LogError> {
        self.lost.push(*lost);
        Ok(())
    }

    fn abandon(&mut self) {
        self.of_record = (0, 0);
    }

    fn block(&mut self, _: u32) {
        self.check.advance(BLOCK_BYTES as u64);
    }
}
