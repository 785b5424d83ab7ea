//! Maps the entries of a sealed segment, by GLSN or by stream, to offsets. The table is a file that
//! is read through the pool, or is held in memory where the file cannot be written.

use plimsoll_memory::pool::LoadError;

use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::table_file::TableFile;
use crate::format::offset_table::NamedBlob;
use crate::glsn::StreamId;

/// The offset table of a sealed segment.
#[derive(Debug)]
pub(crate) enum OffsetTable {
    /// Read through the pool.
    File(TableFile),
    /// In memory, because the file cannot be written: the log is open read-only, or the disk is
    /// full.
    Memory {
        /// The offsets of all entries.
        entry_offsets: EntryOffsets,
        /// The blob files of all records.
        blobs: NamedBlobs,
    },
}

/// The postings of one stream that are still to be read from a table file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Postings {
    at: u32,
    end: u32,
}

impl OffsetTable {
    /// The offset of an entry.
    pub(crate) fn offset(&self, index: u32) -> Result<u32, LoadError> {
        match self {
            Self::File(table) => table.offset(index),
            Self::Memory { entry_offsets, .. } => entry_offsets.offset(index).ok_or_else(missing),
        }
    }

    /// Fills `into` with the offsets of the entries from `index` on; returns how many, at least
    /// one.
    pub(crate) fn offsets(&self, index: u32, into: &mut [u32]) -> Result<usize, LoadError> {
        match self {
            Self::File(table) => table.offsets(index, into),
            Self::Memory { entry_offsets, .. } => {
                for (i, offset) in into.iter_mut().enumerate() {
                    *offset = entry_offsets.offset(index + i as u32).ok_or_else(missing)?;
                }
                Ok(into.len())
            }
        }
    }

    /// Fills `into` with the indexes of the entries of a stream from `index` on; returns how many,
    /// 0 at the end. If the last call ended right before `index`, `postings` continues from it
    /// without a search.
    ///
    /// A segment's table may be replaced by one of the other kind between two calls. The position
    /// of a scan is `index`; `postings` is only its position in a file.
    pub(crate) fn of_stream(
        &self,
        stream: StreamId,
        index: u32,
        postings: &mut Option<Postings>,
        into: &mut [u32],
    ) -> Result<usize, LoadError> {
        match self {
            Self::File(table) => {
                let mut left = match *postings {
                    Some(left) => left,
                    None => first_posting(table, stream, index)?,
                };
                let wanted = into.len().min((left.end - left.at) as usize);
                let n = if wanted > 0 { table.postings(left.at, &mut into[..wanted])? } else { 0 };
                left.at += n as u32;
                *postings = Some(left);
                Ok(n)
            }
            Self::Memory { entry_offsets, .. } => {
                *postings = None;
                let (mut n, mut from) = (0, index);
                while n < into.len()
                    && let Some(found) = entry_offsets.find(stream, from, entry_offsets.len())
                {
                    into[n] = found;
                    from = found + 1;
                    n += 1;
                }
                Ok(n)
            }
        }
    }

    /// Number of blob files named in the segment.
    pub(crate) fn blob_count(&self) -> u32 {
        match self {
            Self::File(table) => table.header.blobs,
            Self::Memory { blobs, .. } => blobs.list().len() as u32,
        }
    }

    /// Blob file number `index`.
    pub(crate) fn blob(&self, index: u32) -> Result<NamedBlob, LoadError> {
        match self {
            Self::File(table) => table.blob(index),
            Self::Memory { blobs, .. } => {
                blobs.list().get(index as usize).copied().ok_or_else(missing)
            }
        }
    }
}

fn first_posting(table: &TableFile, stream: StreamId, index: u32) -> Result<Postings, LoadError> {
    Ok(match table.stream(stream)? {
        None => Postings { at: 0, end: 0 },
        Some(item) => {
            Postings { at: table.posting_from(&item, index)?, end: item.start + item.count }
        }
    })
}

fn missing() -> LoadError {
    LoadError::Corrupt { message: "the segment's table lacks the entry".to_owned() }
}
