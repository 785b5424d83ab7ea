//! Writes a sound copy of a damaged log into another folder, as planned by a survey.
//!
//! Invariants:
//! 1. No file of the source is changed. Sound sealed segments, their offset tables and sound blob
//!    files are hard-linked into the copy where the disk supports links; a file with two names is
//!    never changed.
//! 2. The good bytes of a damaged file are copied unchanged; lost records and dropped pages replace
//!    all others. Each segment that is written is read again before it gets its name.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind, page_payload, seal_page,
};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::blob::{BLOB_DROPPED_PAGE, BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::{copy_front, replace_file};
use crate::file_log::files::zeros::write_zeros;
use crate::file_log::options::FileLogOptions;
use crate::file_log::repair::lost_record::fill;
use crate::file_log::repair::survey::{Planned, Source, Survey, names, open};
use crate::file_log::segments::walk::{NoVisitor, walk_segment};
use crate::format::blob_trailer::{
    BLOB_TRAILER_BYTES, BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash,
};
use crate::format::layout::block_end;
use crate::format::{BLOCK_BYTES, blob_seed};

/// A blob file with damaged pages, which are dropped from its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBlob {
    /// Its id.
    pub id: BlobId,
    /// The reference of a record to it, if it is known.
    pub named: Option<BlobRef>,
    /// The number of pages that values need, if no record names the file, because its own end may
    /// be lost.
    pub pages: u32,
    /// Pages that are dropped even if their checksums match, because they are not the pages that
    /// were written last.
    pub wrong: Vec<Range<u32>>,
}

/// The amounts that were linked and copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of files that were linked.
    pub linked_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Copied {
    fn wrote(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }
}

/// Hard-links an immutable file into the folder `into`, or copies it where the disk has no links.
///
/// # Errors
/// An I/O error, or the budget has no room.
pub fn link_or_copy(
    options: &FileLogOptions,
    from: &Path,
    into: &Path,
    copied: &mut Copied,
) -> Result<(), LogError> {
    let disk = &*options.disk;
    let to = into.join(from.file_name().unwrap_or_default());
    let bytes = disk.entry(from)?.map_or(0, |entry| entry.len);
    if disk.hard_link(from, &to).is_ok() {
        copied.linked_bytes += bytes;
        return Ok(());
    }
    let mut staging = options.budget.take(Kind::Staging)?;
    let source = disk.open(from, Open::Read, Caching::Buffered)?;
    let target = disk.open(&to, Open::CreateNew, Caching::Buffered)?;
    copy_front(&*source, &*target, bytes, &mut staging)?;
    copied.wrote(bytes);
    Ok(target.sync()?)
}

/// Writes the segments of a surveyed log into the existing folder `into`.
///
/// # Errors
/// An I/O error, or the budget has no room.
pub fn write_segments(
    options: &FileLogOptions,
    survey: &Survey,
    into: &Path,
    copied: &mut Copied,
) -> Result<(), LogError> {
    for (at, segment) in survey.segments.iter().enumerate() {
        let first = segment.header.first;
        // Never link the active segment, because later appends change it.
        if segment.source == Source::Whole && at + 1 < survey.segments.len() {
            link_or_copy(options, &FileName::Segment(first).path(&options.dir), into, copied)?;
            let table = FileName::Table(first).path(&options.dir);
            if options.disk.entry(&table)?.is_some() {
                link_or_copy(options, &table, into, copied)?;
            }
        } else {
            write_segment(options, segment, into, copied)?;
        }
    }
    Ok(options.disk.sync_dir(into)?)
}

/// Writes the blob files of a log that are missing in the folder `into`; those in `damaged` without
/// their damaged pages.
///
/// # Errors
/// An I/O error, or the budget has no room.
pub fn write_blobs(
    options: &FileLogOptions,
    log_id: u128,
    damaged: &[DamagedBlob],
    into: &Path,
    copied: &mut Copied,
) -> Result<(), LogError> {
    let there = names(&*options.disk, into)?;
    for name in names(&*options.disk, &options.dir)?.iter().filter(|name| !there.contains(name)) {
        if let Some(FileName::Blob(id)) = FileName::parse(name)
            && !damaged.iter().any(|blob| blob.id == id)
        {
            link_or_copy(options, &options.dir.join(name), into, copied)?;
        }
    }
    for blob in damaged.iter().filter(|blob| !there.contains(&blob.id.file_name())) {
        write_blob(options, log_id, blob, into, copied)?;
    }
    Ok(options.disk.sync_dir(into)?)
}

fn write_segment(
    options: &FileLogOptions,
    segment: &Planned,
    into: &Path,
    copied: &mut Copied,
) -> Result<(), LogError> {
    let mut staging = options.budget.take(Kind::Staging)?;
    let first = segment.header.first;
    let end = match segment.source {
        Source::Active(bytes) => bytes,
        Source::Whole | Source::Damaged | Source::Missing => u64::from(segment.leads_to.2),
    };
    let source = match segment.source {
        Source::Missing => None,
        _ => Some(open(options, first)?),
    };
    replace_file(&*options.disk, into, FileName::Segment(first), &mut |draft| {
        if let Some(source) = &source {
            copy_front(&**source, draft, end, &mut staging)?;
        }
        if let Source::Active(_) = segment.source {
            return Ok(());
        }
        draft.write_at(&segment.header.encode(), 0)?;
        for lost in &segment.lost {
            write_zeros(draft, u64::from(lost.start), u64::from(lost.end))?;
            fill(draft, &segment.header, lost)?;
        }
        // Fill the rest of the last block.
        write_zeros(draft, end, end.next_multiple_of(BLOCK_BYTES as u64))?;
        check_written(draft, segment, &mut staging)
    })?;
    copied.wrote(end);
    Ok(())
}

/// Checks that a written segment reads without damage, and that its end matches the next segment.
/// Nonzero bytes in its padding become zeros.
fn check_written(file: &dyn File, segment: &Planned, staging: &mut [u8]) -> Result<(), LogError> {
    let outcome = loop {
        let outcome = walk_segment(file, &segment.header, u64::MAX, staging, &mut NoVisitor)?;
        match outcome.dirty_padding {
            Some(at) if outcome.problem.is_none() => write_zeros(file, at, block_end(at))?,
            _ => break outcome,
        }
    };
    if outcome.problem.is_none() && (outcome.next, outcome.chain, outcome.end) == segment.leads_to {
        return Ok(());
    }
    let name = FileName::Segment(segment.header.first).name();
    let (at, what) = outcome.problem.map_or(
        (outcome.end.into(), "the segment's end does not match the beginning of the next one"),
        |it| (it.at, it.what),
    );
    let message = format!(
        "the copy of {name} differs from what was written to it, at offset {at}: {what}; check the \
         disk of the destination, or recover to another one"
    );
    Err(LogError::Io { kind: std::io::ErrorKind::InvalidData, message, source: None })
}

/// Writes a copy of a blob file in which dropped pages replace the damaged ones.
fn write_blob(
    options: &FileLogOptions,
    log_id: u128,
    damaged: &DamagedBlob,
    into: &Path,
    copied: &mut Copied,
) -> Result<(), LogError> {
    let mut staging = options.budget.take(Kind::Staging)?;
    let staging = &mut staging[..PAGE_BYTES];
    let (id, named, name) = (damaged.id, damaged.named, FileName::Blob(damaged.id));
    let path = name.path(&options.dir);
    let file = match options.disk.entry(&path)? {
        Some(_) => Some(options.disk.open(&path, Open::Read, Caching::Buffered)?),
        None => None,
    };
    let len = file.as_ref().map_or(Ok(0), |file| file.len())?;
    let there = u32::try_from(len / PAGE_BYTES as u64).unwrap_or(u32::MAX);
    let pages =
        named.map_or_else(|| there.saturating_sub(1).max(damaged.pages), |named| named.pages);
    let seed = blob_seed(log_id, id.0);
    let read = |number: u32, page: &mut [u8]| -> Result<bool, LogError> {
        let n = match &file {
            Some(file) => file.read_at(page, u64::from(number) * PAGE_BYTES as u64)?,
            None => 0,
        };
        Ok(check_page(&page[..n], seed, number).is_ok())
    };
    let trailer_fits = read(pages, staging)? && page_kind(staging) == BLOB_TRAILER_PAGE;
    let trailer = if trailer_fits { BlobTrailer::decode(page_payload(staging)).ok() } else { None };
    replace_file(&*options.disk, into, name, &mut |draft| {
        let mut hash = 0;
        for number in 0..pages {
            let is_wrong = damaged.wrong.iter().any(|pages| pages.contains(&number));
            if !read(number, staging)? || (is_wrong && page_kind(staging) != BLOB_DROPPED_PAGE) {
                seal_page(staging, seed, number, BLOB_DROPPED_PAGE, 0);
            }
            hash = extend_blob_hash(hash, staging);
            draft.write_at(staging, u64::from(number) * PAGE_BYTES as u64)?;
        }
        let blob =
            named.or(trailer.map(|trailer| trailer.blob)).unwrap_or(BlobRef { id, pages, hash });
        let payload = BlobTrailer { log_id, blob }.encode();
        staging[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOB_TRAILER_BYTES]
            .copy_from_slice(&payload);
        seal_page(staging, seed, pages, BLOB_TRAILER_PAGE, BLOB_TRAILER_BYTES);
        Ok(draft.write_at(staging, u64::from(pages) * PAGE_BYTES as u64)?)
    })?;
    copied.wrote((u64::from(pages) + 1) * PAGE_BYTES as u64);
    Ok(())
}

/// The pages of a blob file in a log that is not open.
///
/// # Errors
/// The file cannot be opened.
pub fn blob_pages(
    disk: &dyn Disk,
    dir: &Path,
    log_id: u128,
    id: BlobId,
) -> Result<Arc<dyn PageSource>, LogError> {
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
        check_page(&page[..n], self.seed, number).map_err(|what| LoadError::Corrupt {
            message: format!("{name}, page {number}: {what}"),
        })
    }
}
