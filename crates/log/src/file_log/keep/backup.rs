//! Lists the files of a consistent copy of an open log.

use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::page::check_page;

use crate::error::LogError;
use crate::file_log::append::seal;
use crate::file_log::env::lock;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::segment::{KnownEnd, check_whole_block};
use crate::format::{BLOCK_BYTES, blob_seed, segment_seed};
use crate::glsn::{Glsn, Position};

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    /// Its name in the log's folder, and in the copy's.
    pub name: String,
    /// Whether the file never changes again, so that a hard link is a copy. Otherwise exactly its
    /// first `bytes` bytes belong to the copy.
    pub immutable: bool,
    /// Bytes that belong to the copy.
    pub bytes: u64,
    /// For a segment: the position after its last record in the copy, if it is known.
    pub end: Option<Position>,
    /// For a segment: where the fragments of the segment before it end; 0 if there is none.
    pub previous_end: u32,
}

impl OpenLog {
    /// Syncs the log and lists the files of a copy that ends there, the active segment last.
    /// Segments that begin below `from` are left out, with their blob files. Nothing is trimmed or
    /// swept meanwhile; appends continue.
    pub(crate) fn list_backup(
        &self,
        from: Glsn,
        each: &mut dyn FnMut(&BackupFile) -> Result<(), LogError>,
    ) -> Result<Position, LogError> {
        let _trimming = lock(&self.segments.trimming);
        let (end, segments, active, previous_end, blobs) = {
            // While the order is held nothing is appended or sealed.
            let _order = self.tail.order().ok();
            let end = if self.env.is_read_only() {
                self.tail.read().end
            } else {
                self.durability.sync_to_end()?
            };
            // Seal now, so that the length of the segment's file does not change while it is
            // copied.
            seal(self)?;
            let tail = self.tail.read();
            let named = tail.blobs.list();
            let mut blobs =
                Buffer::with_capacity(&self.env.options.budget, Kind::Staging, named.len())?;
            named.iter().for_each(|named| blobs.push(named.blob.id));
            let previous_end = tail.segment.header.previous_end;
            (end, self.segments.all(), tail.first, previous_end, blobs)
        };
        let sealed = segments.iter().filter(|it| (from..active).contains(&it.first()));
        for segment in sealed {
            // Blob files first. A copy that has blob files but not their records only has files to
            // sweep.
            let count = self.segments.with_table(segment, |table| Ok(table.blob_count()))?;
            for index in 0..count {
                let blob = self.segments.with_table(segment, |table| table.blob(index))?;
                self.immutable(FileName::Blob(blob.blob.id), None, 0, each)?;
            }
            let end = segment.sealed();
            let end = end.map(|end| Position { glsn: Glsn(end.next.0 - 1), chain: end.chain });
            self.immutable(FileName::Table(segment.first()), None, 0, each)?;
            let previous_end = segment.header.previous_end;
            self.immutable(FileName::Segment(segment.first()), end, previous_end, each)?;
        }
        for blob in blobs.iter() {
            self.immutable(FileName::Blob(*blob), None, 0, each)?;
        }
        let (name, bytes) = (FileName::Segment(active).name(), u64::from(end.offset));
        let end = Position { glsn: Glsn(end.next.0 - 1), chain: end.chain };
        each(&BackupFile { name, immutable: false, bytes, end: Some(end), previous_end })?;
        Ok(end)
    }

    /// Checks whole blocks or pages that begin at `at` of a file of the log, as read for a copy up
    /// to the offset `end`. `immutable` is the value of [`BackupFile::immutable`] in the listing. A
    /// segment that was active at the listing may be sealed by now, but its copy still ends at the
    /// listed offset. Tables are not checked, because a table that does not match is rebuilt.
    pub(crate) fn check_piece(
        &self,
        name: &str,
        immutable: bool,
        at: u64,
        end: u64,
        bytes: &[u8],
    ) -> Result<(), LogError> {
        let pages = ((at / BLOCK_BYTES as u64) as u32..).zip(bytes.chunks(BLOCK_BYTES));
        let corrupt = |glsn, number: u32, what: String| {
            let offset = u64::from(number) * BLOCK_BYTES as u64;
            LogError::Corrupt { glsn, file: name.to_owned(), offset, what }
        };
        match FileName::parse(name) {
            Some(FileName::Segment(first)) => {
                let seed = segment_seed(self.env.id, first);
                let segment = self.segments.find(first).filter(|segment| segment.first() == first);
                let end = match segment.and_then(|segment| segment.sealed()) {
                    Some(sealed) if immutable => KnownEnd::At(sealed.end),
                    _ => KnownEnd::NotBefore(end as u32),
                };
                for (number, block) in pages {
                    check_whole_block(block, number, seed, end)
                        .map_err(|bad| corrupt(first, number, bad.what))?;
                }
            }
            Some(FileName::Blob(id)) => {
                for (number, page) in pages {
                    check_page(page, blob_seed(self.env.id, id.0), number)
                        .map_err(|what| corrupt(Glsn::NONE, number, what.to_owned()))?;
                }
            }
            Some(FileName::Table(_)) | None => {}
        }
        Ok(())
    }

    fn immutable(
        &self,
        name: FileName,
        end: Option<Position>,
        previous_end: u32,
        each: &mut dyn FnMut(&BackupFile) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        match (self.env.options.disk.entry(&self.env.files.path(name))?, name) {
            (Some(entry), _) => {
                let (name, bytes) = (name.name(), entry.len);
                each(&BackupFile { name, immutable: true, bytes, end, previous_end })
            }
            // Another process has trimmed segments that the index of the copy may need. A segment
            // is removed before the blob files that it names.
            (None, FileName::Segment(first)) if self.env.is_read_only() => {
                Err(LogError::Trimmed { asked: first, first: first.next() })
            }
            // A table is rebuilt; any other missing file is found when the copy is verified.
            (None, _) => Ok(()),
        }
    }
}
