//! Finds the files of a log: its folder, the headers of its segments, and whether these belong
//! together.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, File, Open};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_payload};

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::{FileLogOptions, Mode};
use crate::file_log::segments::header_file::{open_header, read_header};
use crate::file_log::segments::walk::{NoVisitor, walk_segment};
use crate::format::offset_table::TableHeader;
use crate::format::segment_header::SegmentHeader;
use crate::format::table_seed;
use crate::glsn::Glsn;

/// Number of files open at a time to read their headers. All reads of a batch are announced before
/// the first is awaited.
const FILES_AT_ONCE: usize = 32;

pub(crate) fn no_log(dir: &Path) -> LogError {
    LogError::Format {
        message: format!("there is no log in {}: check the path, or create one", dir.display()),
    }
}

pub(crate) fn find_folder(options: &FileLogOptions) -> Result<(), LogError> {
    match options.disk.entry(&options.dir)? {
        Some(entry) if entry.is_dir => Ok(()),
        Some(_) => {
            let message = format!(
                "{} is a file, but a log is a folder: check the path",
                options.dir.display()
            );
            Err(LogError::Format { message })
        }
        None if options.mode == Mode::Create => {
            match options.disk.create_dir(&options.dir) {
                // Another process created it first. The lock decides which of the two opens the
                // log.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            match options.dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => {
                    Ok(options.disk.sync_dir(parent)?)
                }
                _ => Ok(options.disk.sync_dir(Path::new("."))?),
            }
        }
        None => Err(no_log(&options.dir)),
    }
}

/// Removes unfinished files.
pub(crate) fn sweep_unfinished(options: &FileLogOptions, names: &[String]) -> Result<(), LogError> {
    for name in names {
        if FileName::is_unfinished(name) {
            options.disk.remove(&options.dir.join(name))?;
        }
    }
    Ok(())
}

/// The contents of a log's folder.
#[derive(Debug)]
pub(crate) struct LogFiles {
    /// Headers of the segments, oldest first.
    pub(crate) headers: Vec<SegmentHeader>,
    /// The highest id of a blob file.
    pub(crate) last_blob_id: u64,
}

/// Reads the folder and the headers of all segments, and checks that they can belong together.
pub(crate) fn find_files(options: &FileLogOptions) -> Result<LogFiles, LogError> {
    find_named_files(options, options.disk.names(&options.dir)?)
}

/// Like [`find_files`], in a folder with these names.
pub(crate) fn find_named_files(
    options: &FileLogOptions,
    names: Vec<String>,
) -> Result<LogFiles, LogError> {
    let mut found = LogFiles { headers: Vec::new(), last_blob_id: 0 };
    let (mut segments, mut others) = (Vec::new(), None);
    for name in names {
        match FileName::parse(&name) {
            Some(FileName::Segment(first)) => segments.push(first),
            Some(FileName::Blob(id)) => {
                // No number that any node has assigned is assigned again.
                found.last_blob_id = found.last_blob_id.max(id.number());
                others = Some(name);
            }
            Some(FileName::Table(_)) => others = Some(name),
            None => {}
        }
    }
    for some in segments.chunks(FILES_AT_ONCE) {
        let files =
            some.iter().map(|first| open_header(options, *first)).collect::<Result<Vec<_>, _>>()?;
        for (first, file) in some.iter().zip(files) {
            found.headers.push(read_header(&*file, *first)?);
        }
    }
    if found.headers.is_empty()
        && let Some(file) = others
    {
        let what = "the log's segments are missing, but this file exists".to_owned();
        return Err(LogError::Corrupt { glsn: Glsn::FIRST, file, offset: 0, what });
    }
    found.headers.sort_unstable_by_key(|header| header.first);
    for pair in found.headers.windows(2) {
        if pair[0].log_id != pair[1].log_id || pair[0].epoch > pair[1].epoch {
            let what = "the segment belongs to another log than the one before it".to_owned();
            let file = FileName::Segment(pair[1].first).name();
            return Err(LogError::Corrupt { glsn: pair[1].first, file, offset: 0, what });
        }
    }
    Ok(found)
}

/// Looks for missing segments: each table has the position after its segment. If a table does not
/// match, its segment is read. A missing table is rebuilt when it is needed.
pub(crate) fn check_tables(
    options: &FileLogOptions,
    headers: &[SegmentHeader],
) -> Result<(), LogError> {
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut tables = VecDeque::with_capacity(FILES_AT_ONCE);
    let mut asked = 0;
    for (at, pair) in headers.windows(2).enumerate() {
        while asked + 1 < headers.len() && asked < at + FILES_AT_ONCE {
            tables.push_back(open_table(options, &headers[asked])?);
            asked += 1;
        }
        let Some(file) = tables.pop_front().flatten() else { continue };
        let Some(table) = read_table_header(&*file, &pair[0], &mut staging[..PAGE_BYTES])? else {
            continue;
        };
        if leads_to(pair[0].first, table.count, table.chain, table.end, &pair[1]) {
            continue;
        }
        let name = FileName::Segment(pair[0].first);
        let file = options.disk.open(&name.path(&options.dir), Open::Read, Caching::Buffered)?;
        let outcome = walk_segment(&*file, &pair[0], u64::MAX, &mut staging, &mut NoVisitor)?;
        let count = (outcome.next.0 - pair[0].first.0) as u32;
        if !leads_to(pair[0].first, count, outcome.chain, outcome.end, &pair[1]) {
            let what = match outcome.problem {
                Some(problem) => problem.what.to_owned(),
                None => format!(
                    "the segment's last record is not the one before GLSN {}, with which the next \
                     segment begins: records are missing",
                    pair[1].first
                ),
            };
            let offset = outcome.problem.map_or(u64::from(outcome.end), |problem| problem.at);
            return Err(LogError::Corrupt { glsn: outcome.next, file: name.name(), offset, what });
        }
    }
    Ok(())
}

fn leads_to(first: Glsn, count: u32, chain: u64, end: u32, next: &SegmentHeader) -> bool {
    let is_next = first.0.checked_add(u64::from(count)) == Some(next.first.0);
    is_next && chain == next.previous_chain && end == next.previous_end
}

/// Opens a segment's table to read its header; `None` if it does not exist.
fn open_table(
    options: &FileLogOptions,
    segment: &SegmentHeader,
) -> Result<Option<Arc<dyn File>>, LogError> {
    let path = FileName::Table(segment.first).path(&options.dir);
    match options.disk.open(&path, Open::Read, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => {
            let file = opened?;
            file.will_read(0, PAGE_BYTES as u64);
            Ok(Some(file))
        }
    }
}

/// The header of a segment's table; `None` if it is invalid.
fn read_table_header(
    file: &dyn File,
    segment: &SegmentHeader,
    page: &mut [u8],
) -> Result<Option<TableHeader>, LogError> {
    let n = file.read_at(page, 0)?;
    if check_page(&page[..n], table_seed(segment.log_id, segment.first), 0).is_err() {
        return Ok(None);
    }
    Ok(TableHeader::decode(page_payload(page)).ok().filter(|table| table.first == segment.first))
}
