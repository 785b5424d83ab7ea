//! Writes the buffer's bytes to the active segment's file, and syncs it.
//!
//! One thread at a time holds the writer, across the write and the sync. Full chunks are written without any other
//! lock; the new part of the current chunk is copied first.
//!
//! Laws:
//! 1. Exactly the new bytes are written, never a rounded range, so newer bytes are never overwritten.
//! 2. After a failed sync no thread syncs again: the system reports lost bytes once, and the next sync would succeed
//!    without them. A thread that was waiting for the writer has not seen the failure, so the writer itself remembers
//!    it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::vfs::File;
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use crate::error::LogError;
use crate::file_log::tail::order::End;
use crate::file_log::tail::{Tail, TailState};

/// Writes to the active segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    /// The active segment's file.
    pub(crate) file: Arc<dyn File>,
    /// Its bytes below this were written.
    pub(crate) written: u64,
    /// Bytes that were written and not synced.
    pub(crate) unsynced: u64,
    /// The error of a failed sync.
    pub(crate) failed: Option<LogError>,
    /// Buffer for a copy of the bytes that are written; also used for other writes under this lock.
    pub(crate) staging: Chunk,
    /// A moving average of the bytes per sync: tells a stream of small commits from a bulk load.
    pub(crate) group_bytes: Arc<AtomicU64>,
}

impl SegmentWriter {
    /// Writes everything below the end of the last record; returns that end. Does not sync.
    pub(crate) fn write_out(&mut self, tail: &Tail) -> Result<End, LogError> {
        let (end, full) = self.take_new(&tail.read());
        let target = u64::from(end.offset);
        for (start, chunk) in &full {
            self.write_chunk(*start, chunk, target)?;
        }
        let let_go = !full.is_empty();
        drop(full);
        if target > self.written {
            // The rest is in the copy, at its place within its chunk.
            let (from, to) = (within_chunk(self.written), within_chunk(target - 1) + 1);
            self.file.write_at(&self.staging[from..to], self.written)?;
            self.unsynced += target - self.written;
            self.written = target;
        }
        if let_go {
            tail.write().buffer.release(self.written);
        }
        Ok(end)
    }

    /// Writes the full chunks and releases them, in the middle of a record.
    pub(crate) fn write_full_chunks(&mut self, tail: &mut TailState) -> Result<(), LogError> {
        let full: Vec<_> = tail.buffer.full_chunks().map(|(start, chunk)| (start, Arc::clone(chunk))).collect();
        for (start, chunk) in &full {
            self.write_chunk(*start, chunk, start + CHUNK_BYTES as u64)?;
        }
        drop(full);
        tail.buffer.release(self.written);
        Ok(())
    }

    /// Syncs the written bytes. After a failure it always fails.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.unsynced > 0 {
            if let Err(error) = self.file.sync() {
                let error = LogError::from(error);
                self.failed = Some(error.clone());
                return Err(error);
            }
            let lately = self.group_bytes.load(Ordering::Relaxed);
            self.group_bytes.store((lately * 7 + self.unsynced) / 8, Ordering::Relaxed);
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Switches to a new segment, of which `written` bytes are written and synced.
    pub(crate) fn turn_to(&mut self, file: Arc<dyn File>, written: u64) {
        self.file = file;
        self.written = written;
        self.unsynced = 0;
    }

    /// The end, the full chunks that were not written, and in `staging` a copy of the new part of the current one.
    fn take_new(&mut self, tail: &TailState) -> (End, Vec<(u64, Arc<Chunk>)>) {
        let end = tail.end;
        let target = u64::from(end.offset);
        let full = tail.buffer.full_chunks().map(|(start, chunk)| (start, Arc::clone(chunk))).collect();
        let start = tail.buffer.current_start();
        let from = self.written.max(start);
        if target > from
            && let Some(bytes) = tail.buffer.bytes_at(from)
        {
            let (at, len) = (within_chunk(from), (target - from) as usize);
            self.staging[at..at + len].copy_from_slice(&bytes[..len]);
        }
        (end, full)
    }

    fn write_chunk(&mut self, start: u64, chunk: &[u8], target: u64) -> Result<(), LogError> {
        let end = (start + CHUNK_BYTES as u64).min(target);
        if end > self.written {
            let from = self.written.max(start);
            self.file.write_at(&chunk[(from - start) as usize..(end - start) as usize], from)?;
            self.unsynced += end - self.written;
            self.written = end;
        }
        Ok(())
    }
}

fn within_chunk(offset: u64) -> usize {
    (offset % CHUNK_BYTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plimsoll_disk::lying::LyingDisk;
    use plimsoll_disk::vfs::{Caching, Disk, Open};
    use plimsoll_memory::budget::{Backing, Budget, Kind};

    use super::*;

    #[test]
    fn whoever_waited_for_the_writer_while_a_sync_failed_cannot_sync_after_it() {
        let disk = LyingDisk::new(1);
        let file = disk.open(Path::new("/segment"), Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(b"lost", 0).unwrap();
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let mut writer = SegmentWriter {
            file,
            written: 4,
            unsynced: 4,
            failed: None,
            staging: budget.take(Kind::Staging).unwrap(),
            group_bytes: Arc::default(),
        };
        disk.fail_next_sync();
        let failed = writer.sync().unwrap_err();
        assert_eq!(writer.sync(), Err(failed.clone()), "to the disk it would be a sync like any other");
        // Nor in the segment that follows.
        let next = disk.open(Path::new("/next"), Open::CreateNew, Caching::Buffered).unwrap();
        writer.turn_to(next, 0);
        assert_eq!(writer.sync(), Err(failed));
    }
}
