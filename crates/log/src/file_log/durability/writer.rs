//! Writes the buffer's bytes to the active segment's file. The files that then need a sync are in
//! [`Unsynced`].
//!
//! One thread at a time holds the writer. Full chunks are written without any other lock; the new
//! part of the current chunk is copied first. The writer is not held during a sync, so that an
//! append to a full buffer does not wait for the sync.
//!
//! Invariant: exactly the new bytes are written, never a rounded range, so newer bytes are never
//! overwritten. Only the first write after opening may start earlier, at the beginning of the block
//! that the opening found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::vfs::File;
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use crate::error::LogError;
use crate::file_log::durability::syncing::Unsynced;
use crate::file_log::durability::unsynced_blobs::Ready;
use crate::file_log::tail::order::End;
use crate::file_log::tail::{Tail, TailState};
use crate::format::BLOCK_BYTES;
use crate::glsn::Glsn;

/// The most bytes that are copied before appends get a chance to run.
const COPY_BYTES: u64 = 4 << 10;

/// Writes to the active segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    /// The active segment's file.
    pub(crate) file: Arc<dyn File>,
    /// Its bytes below this offset were written.
    pub(crate) written: u64,
    /// The offset at which the first write begins, if it is before `written`. Bytes between the two
    /// were found at opening and may be only in the page cache.
    pub(crate) again_from: Option<u64>,
    /// Bytes that were written since the last sync began.
    pub(crate) unsynced: u64,
    /// The file of the previous segment, if some of its bytes are also unsynced.
    pub(crate) behind: Option<Arc<dyn File>>,
    /// The active segment, while its file has its temporary name.
    pub(crate) unnamed: Option<Glsn>,
    /// Buffer for a copy of the bytes that are written; also used for other writes under this lock.
    pub(crate) staging: Chunk,
    /// A moving average of the bytes per sync; distinguishes a stream of small commits from a bulk
    /// load.
    pub(crate) group_bytes: Arc<AtomicU64>,
}

impl SegmentWriter {
    /// Writes everything up to the end that is ready; returns that end. Does not sync.
    pub(crate) fn write_out(&mut self, tail: &Tail, ready: Ready) -> Result<End, LogError> {
        let end = ready.end();
        let target = u64::from(end.offset);
        let full: Vec<_> = {
            let tail = tail.read();
            if !ready.is_in(tail.first) {
                // A new segment was begun since, which wrote all of the previous one.
                return Ok(end);
            }
            tail.buffer.full_chunks().map(|(start, chunk)| (start, Arc::clone(chunk))).collect()
        };
        if target > self.written {
            self.written = self.again_from.take().unwrap_or(self.written);
        }
        for (start, chunk) in &full {
            self.write_chunk(*start, chunk, target)?;
        }
        let let_go = !full.is_empty();
        drop(full);
        self.copy_rest(tail, target);
        if target > self.written {
            // The rest is in the copy, at its offset within its chunk.
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

    /// Writes about `bytes` bytes of the oldest full chunks, up to the end of a block, and releases
    /// the chunks that are completely written.
    pub(crate) fn write_oldest(
        &mut self,
        tail: &Tail,
        ready: Ready,
        bytes: u64,
    ) -> Result<(), LogError> {
        let from = self.again_from.unwrap_or(self.written);
        let target = u64::from(ready.end().offset)
            .min((from + bytes) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64);
        let oldest: Vec<_> = {
            let tail = tail.read();
            if !ready.is_in(tail.first) {
                return Ok(());
            }
            let old = tail.buffer.full_chunks().take_while(|(start, _)| *start < target);
            old.map(|(start, chunk)| (start, Arc::clone(chunk))).collect()
        };
        (self.written, self.again_from) = (from, None);
        for (start, chunk) in &oldest {
            self.write_chunk(*start, chunk, target)?;
        }
        drop(oldest);
        tail.write().buffer.release(self.written);
        Ok(())
    }

    /// Writes the full chunks and releases them, in the middle of a record. The blob files that the
    /// record names are durable.
    pub(crate) fn write_full_chunks(&mut self, tail: &mut TailState) -> Result<(), LogError> {
        let full: Vec<_> =
            tail.buffer.full_chunks().map(|(start, chunk)| (start, Arc::clone(chunk))).collect();
        self.written = self.again_from.take().unwrap_or(self.written);
        for (start, chunk) in &full {
            self.write_chunk(*start, chunk, start + CHUNK_BYTES as u64)?;
        }
        drop(full);
        tail.buffer.release(self.written);
        Ok(())
    }

    /// The files that were written since the last call, to be synced.
    pub(crate) fn take_unsynced(&mut self) -> Unsynced {
        let bytes = std::mem::take(&mut self.unsynced);
        if bytes > 0 {
            let lately = self.group_bytes.load(Ordering::Relaxed);
            self.group_bytes.store((lately * 7 + bytes) / 8, Ordering::Relaxed);
        }
        let file = (bytes > 0 || self.unnamed.is_some()).then(|| Arc::clone(&self.file));
        Unsynced { behind: self.behind.take(), file, unnamed: self.unnamed }
    }

    /// Switches to the file of a new segment, which has its temporary name. Its first `written`
    /// bytes are already written.
    pub(crate) fn turn_to(&mut self, file: Arc<dyn File>, first: Glsn, written: u64) {
        debug_assert!(
            self.behind.is_none() && self.unnamed.is_none(),
            "the previous segment has its final name"
        );
        let before = std::mem::replace(&mut self.file, file);
        self.behind = (std::mem::take(&mut self.unsynced) > 0).then_some(before);
        self.unnamed = Some(first);
        (self.written, self.again_from) = (written, None);
    }

    /// Notes that the active segment has its final name, and that the previous one is durable.
    pub(crate) fn is_named(&mut self) {
        (self.behind, self.unnamed) = (None, None);
    }

    /// Copies the unwritten bytes below `target`, which are all in the current chunk, to their
    /// offset within `staging`. Copies little at a time, because appends wait meanwhile.
    fn copy_rest(&mut self, tail: &Tail, target: u64) {
        let mut from = self.written;
        while from < target {
            let to = target.min(from + COPY_BYTES);
            if let Some(bytes) = tail.read().buffer.bytes_at(from) {
                self.staging[within_chunk(from)..][..(to - from) as usize]
                    .copy_from_slice(&bytes[..(to - from) as usize]);
            }
            from = to;
        }
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
