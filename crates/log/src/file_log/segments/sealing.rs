//! Seals segments in the background. Once the next segment has begun, the offset table of the
//! previous one is written to a file. From then on, its entries are found through the file.
//!
//! Until then, they are found through the table in memory that was filled while the segment was
//! active. A crash before that loses nothing, because a missing table is rebuilt when it is needed
//! ([`super::rebuild`]).
//!
//! Invariant: at most one segment waits to be sealed.

use std::sync::{Arc, PoisonError};

use plimsoll_disk::vfs::File;

use crate::error::LogError;
use crate::file_log::env::lock;
use crate::file_log::files::names::FileName;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::list::{Sealing, Segments};
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::offset_table::OffsetTable;
use crate::file_log::segments::segment::Segment;
use crate::file_log::segments::table_file::TableFile;
use crate::file_log::segments::table_writer::{SortScratch, TableSource, write_table};
use crate::format::offset_table::{NamedBlob, TableHeader};
use crate::format::{BLOCK_BYTES, table_seed};
use crate::glsn::{Glsn, StreamId};

impl Segments {
    /// Queues `sealing`; no other segment waits to be sealed.
    pub(crate) fn seal_later(&self, sealing: Sealing) {
        set_table(&sealing.segment, Some(Arc::clone(&sealing.table)));
        let before = lock(&self.sealing).replace(sealing);
        debug_assert!(before.is_none(), "at most one segment waits to be sealed");
        self.bell.ring();
    }

    /// Seals the segment that waits for it; returns its table in memory, or `None` if no segment
    /// waits. If the disk has no room, its table is written again when it is needed.
    pub(crate) fn seal(&self, staging: &mut [u8]) -> Option<Arc<OffsetTable>> {
        let mut scratch = lock(&self.rebuilding);
        let Sealing { segment, table, header, file } = lock(&self.sealing).clone()?;
        let is_shared = self.env.options.shared.is_some();
        // Another member may have written the table already; replacing it would keep the space of
        // the old file while any member has it open.
        let theirs = if is_shared { self.finished_table(&header) } else { None };
        let opened = match theirs {
            None if !self.env.is_read_only() => {
                self.write_finished(&header, &table, &*file, &mut scratch, staging)
            }
            theirs => theirs,
        };
        set_table(&segment, opened.map(|table| Arc::new(OffsetTable::File(table))));
        lock(&self.sealing).take();
        Some(table)
    }

    /// The finished table of a segment, if it exists.
    fn finished_table(&self, header: &TableHeader) -> Option<TableFile> {
        let told = |header: &TableHeader| (header.chain, header.end, header.count);
        TableFile::open(&self.env, header.first)
            .ok()
            .filter(|table| told(&table.header) == told(header))
    }

    fn write_finished(
        &self,
        header: &TableHeader,
        table: &OffsetTable,
        file: &dyn File,
        scratch: &mut SortScratch,
        staging: &mut [u8],
    ) -> Option<TableFile> {
        // Zeros after the end are not needed any more; if they stay, they only take space.
        let _ = file.set_len(u64::from(header.end).next_multiple_of(BLOCK_BYTES as u64));
        let seed = table_seed(header.log_id, header.first);
        self.env.files.forget(FileName::Table(header.first));
        let (disk, place) = (&*self.env.options.disk, self.env.table_place(header.first));
        let written =
            write_table(disk, &place, *header, seed, &mut FromMemory(table), scratch, staging);
        // A reader may have opened the table that was replaced.
        self.env.files.forget(FileName::Table(header.first));
        written.ok().and_then(|_| TableFile::open(&self.env, header.first).ok())
    }

    /// Drops the segment from the queue, because it and its table are about to be removed.
    pub(crate) fn cancel_sealing(&self, first: Glsn) {
        let _rebuilding = lock(&self.rebuilding);
        lock(&self.sealing).take_if(|sealing| sealing.header.first == first);
    }

    /// Whether a segment waits to be sealed.
    pub(crate) fn is_sealing(&self) -> bool {
        lock(&self.sealing).is_some()
    }
}

fn set_table(segment: &Segment, table: Option<Arc<OffsetTable>>) {
    *segment.table.write().unwrap_or_else(PoisonError::into_inner) = table;
}

/// The entries of the segment that was active until just now.
struct FromMemory<'a>(&'a OffsetTable);

impl FromMemory<'_> {
    fn parts(&self) -> Result<(&EntryOffsets, &NamedBlobs), LogError> {
        match self.0 {
            OffsetTable::Memory { entry_offsets, blobs } => Ok((entry_offsets, blobs)),
            OffsetTable::File(_) => {
                Err(LogError::Format { message: "a segment that was sealed already".to_owned() })
            }
        }
    }
}

impl TableSource for FromMemory<'_> {
    fn offsets(
        &mut self,
        each: &mut dyn FnMut(u32) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let (entry_offsets, _) = self.parts()?;
        (0..entry_offsets.len()).filter_map(|index| entry_offsets.offset(index)).try_for_each(each)
    }

    fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError> {
        let (entry_offsets, _) = self.parts()?;
        (0..entry_offsets.len()).filter_map(|index| entry_offsets.stream(index)).for_each(each);
        Ok(())
    }

    fn blobs(
        &mut self,
        each: &mut dyn FnMut(NamedBlob) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.parts()?.1.list().iter().try_for_each(|blob| each(*blob))
    }
}
