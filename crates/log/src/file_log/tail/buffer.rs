//! The newest bytes of the active segment, until (and shortly after) they are written to its file.
//!
//! ```text
//! base                                          end
//! | full chunk | full chunk | ... | current chunk |
//! ```
//!
//! Full chunks are shared and never change again, so that they can be written without a lock.
//! Invariant: bytes not in the file are here; a chunk is released only after it was written.

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

/// The number of chunks that are always reserved, so that a commit never depends on memory that
/// other users of the budget could take.
const SET_ASIDE: usize = 4;

/// The most chunks that hold bytes: 1 MiB.
const CHUNKS_MAX: usize = 16;

/// The newest bytes of the active segment.
#[derive(Debug)]
pub(crate) struct TailBuffer {
    base: u64,
    full: VecDeque<Arc<Chunk>>,
    current: Chunk,
    spares: Vec<Chunk>,
}

impl TailBuffer {
    /// A buffer of zeros from offset 0 on.
    pub(crate) fn new(budget: &Budget) -> Result<Self, OutOfBudget> {
        let mut current = budget.take(Kind::LogBuffer)?;
        current.fill(0);
        let spares =
            (1..SET_ASIDE).map(|_| budget.take(Kind::LogBuffer)).collect::<Result<_, _>>()?;
        Ok(Self { base: 0, full: VecDeque::new(), current, spares })
    }

    /// Restarts with zeros from `offset` on, rounded down to a chunk. All bytes before it are in
    /// the file.
    pub(crate) fn restart(&mut self, offset: u64) {
        while let Some(chunk) = self.full.pop_front() {
            self.keep_spare(chunk);
        }
        self.base = offset - offset % CHUNK_BYTES as u64;
        self.current.fill(0);
    }

    /// Offset of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Offset of the current chunk.
    pub(crate) fn current_start(&self) -> u64 {
        self.base + (self.full.len() * CHUNK_BYTES) as u64
    }

    /// Bytes of the current chunk, to be written to.
    pub(crate) fn current_mut(&mut self) -> &mut [u8] {
        &mut self.current
    }

    /// Number of additional chunks needed to hold bytes below `end`.
    pub(crate) fn chunks_needed(&self, end: u64) -> usize {
        let held = self.current_start() + CHUNK_BYTES as u64;
        end.saturating_sub(held).div_ceil(CHUNK_BYTES as u64) as usize
    }

    /// Whether `chunks` more chunks can be started. Allocates them from the budget while the buffer
    /// is below its limit.
    pub(crate) fn prepare(&mut self, chunks: usize, budget: &Budget) -> bool {
        while self.spares.len() < chunks && self.full.len() + self.spares.len() < CHUNKS_MAX {
            match budget.take(Kind::LogBuffer) {
                Ok(chunk) => self.spares.push(chunk),
                Err(_) => return false,
            }
        }
        self.spares.len() >= chunks
    }

    /// Whether half of the chunks are full, so that appends write chunks themselves.
    pub(crate) fn is_half_full(&self) -> bool {
        self.full.len() >= CHUNKS_MAX / 2
    }

    /// Starts the next chunk; `false` if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(mut next) = self.spares.pop() else { return false };
        next.fill(0);
        let full = std::mem::replace(&mut self.current, next);
        self.full.push_back(Arc::new(full));
        true
    }

    /// The full chunks, oldest first, with their offsets.
    pub(crate) fn full_chunks(&self) -> impl Iterator<Item = (u64, &Arc<Chunk>)> {
        self.full.iter().enumerate().map(|(i, chunk)| (self.base + (i * CHUNK_BYTES) as u64, chunk))
    }

    /// Releases full chunks that end at or below `written`.
    pub(crate) fn release(&mut self, written: u64) {
        while !self.full.is_empty() && self.base + CHUNK_BYTES as u64 <= written {
            if let Some(chunk) = self.full.pop_front() {
                self.base += CHUNK_BYTES as u64;
                self.keep_spare(chunk);
            }
        }
    }

    /// The bytes at `offset`, up to the end of their chunk; `None` if they are not in the buffer.
    pub(crate) fn bytes_at(&self, offset: u64) -> Option<&[u8]> {
        let within = offset.checked_sub(self.base)?;
        let at = (within % CHUNK_BYTES as u64) as usize;
        let chunk = (within / CHUNK_BYTES as u64) as usize;
        match chunk.cmp(&self.full.len()) {
            std::cmp::Ordering::Less => Some(&self.full[chunk][at..]),
            std::cmp::Ordering::Equal => Some(&self.current[at..]),
            std::cmp::Ordering::Greater => None,
        }
    }

    fn keep_spare(&mut self, chunk: Arc<Chunk>) {
        if self.spares.len() + 1 < SET_ASIDE {
            match Arc::try_unwrap(chunk) {
                Ok(chunk) => self.spares.push(chunk),
                // Unreachable, because the segment writer drops its references before it releases
                // chunks.
                Err(shared) => drop(shared),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn bytes_stay_until_written_and_chunks_are_reused() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let mut buffer = TailBuffer::new(&budget).unwrap();
        let chunk = CHUNK_BYTES as u64;
        assert_eq!(buffer.chunks_needed(chunk), 0);
        assert_eq!(buffer.chunks_needed(chunk * 5 + 1), 5);
        assert!(buffer.prepare(5, &budget));
        for number in 0..5u8 {
            buffer.current_mut().fill(number);
            assert!(buffer.advance());
        }
        assert!(!buffer.advance());
        assert_eq!(buffer.bytes_at(chunk * 3).map(|bytes| bytes[0]), Some(3));
        buffer.release(chunk * 4 - 1);
        assert_eq!((buffer.base(), buffer.current_start()), (chunk * 3, chunk * 5));
        assert_eq!(buffer.bytes_at(chunk * 2), None);
        assert_eq!(buffer.bytes_at(chunk * 5).map(|bytes| bytes[0]), Some(0));
        buffer.restart(chunk * 7 + 9);
        assert_eq!((buffer.base(), buffer.spares.len()), (chunk * 7, SET_ASIDE - 1));
        drop(buffer);
        assert_eq!(budget.usage().of(Kind::LogBuffer), 0);
    }

    #[test]
    fn reserved_chunks_survive_an_exhausted_budget() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let mut buffer = TailBuffer::new(&budget).unwrap();
        let others: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
        assert!(buffer.prepare(SET_ASIDE - 1, &budget));
        assert!(!buffer.prepare(SET_ASIDE, &budget));
        drop(others);
    }
}
