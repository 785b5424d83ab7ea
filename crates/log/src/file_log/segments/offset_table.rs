//! Maps the entries of a sealed segment, by GLSN or by stream, to offsets. The table is a file that is read through the
//! pool, or is held in memory where the file cannot be written.

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
    /// In memory, because the file cannot be written: the log is open read-only, or the disk is full.
    Memory {
        /// Of all entries.
        entry_offsets: EntryOffsets,
        /// Of all records.
        blobs: NamedBlobs,
    },
}

/// An iteration over the entries of one stream in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamCursor {
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

    /// Fills `into` with the offsets of the entries from `index` on; returns how many, at least one.
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

    /// The entries of a stream from `index` on.
    pub(crate) fn stream(&self, stream: StreamId, index: u32) -> Result<StreamCursor, LoadError> {
        match self {
            Self::File(table) => Ok(match table.stream(stream)? {
                None => StreamCursor { at: 0, end: 0 },
                Some(item) => StreamCursor { at: table.posting_from(&item, index)?, end: item.start + item.count },
            }),
            Self::Memory { entry_offsets, .. } => Ok(StreamCursor { at: index, end: entry_offsets.len() }),
        }
    }

    /// Fills `into` with the indexes of the next entries of a stream; returns how many, 0 at the end.
    pub(crate) fn next_of_stream(
        &self,
        stream: StreamId,
        cursor: &mut StreamCursor,
        into: &mut [u32],
    ) -> Result<usize, LoadError> {
        let wanted = into.len().min((cursor.end - cursor.at) as usize);
        if wanted == 0 {
            return Ok(0);
        }
        match self {
            Self::File(table) => {
                let n = table.postings(cursor.at, &mut into[..wanted])?;
                cursor.at += n as u32;
                Ok(n)
            }
            Self::Memory { entry_offsets, .. } => {
                let mut n = 0;
                while n < into.len()
                    && let Some(found) = entry_offsets.find(stream, cursor.at, cursor.end)
                {
                    into[n] = found;
                    cursor.at = found + 1;
                    n += 1;
                }
                if n == 0 {
                    cursor.at = cursor.end;
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
            Self::Memory { blobs, .. } => blobs.list().get(index as usize).copied().ok_or_else(missing),
        }
    }
}

fn missing() -> LoadError {
    LoadError::Corrupt { message: "an entry that is not in its segment's table".to_owned() }
}
