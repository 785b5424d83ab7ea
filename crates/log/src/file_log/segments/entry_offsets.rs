//! The entries of a segment in memory: for each the offset of its header and its stream, in chunks
//! of the budget.

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use crate::format::{put, u32_at};
use crate::glsn::StreamId;

/// Entries in one pair of chunks.
pub(crate) const ENTRIES_PER_PAIR: u32 = (CHUNK_BYTES / 4) as u32;

/// Offsets and streams of a segment's entries.
#[derive(Debug, Default)]
pub(crate) struct EntryOffsets {
    pairs: Vec<Pair>,
    len: u32,
}

#[derive(Debug)]
struct Pair {
    offsets: Chunk,
    streams: Chunk,
}

impl EntryOffsets {
    /// Number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Bytes of the budget that it holds.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.pairs.len() * 2 * CHUNK_BYTES) as u64
    }

    /// Makes room for `more` entries, so that [`EntryOffsets::push`] cannot fail.
    pub(crate) fn reserve(&mut self, more: u32, budget: &Budget) -> Result<(), OutOfBudget> {
        let wanted = (u64::from(self.len) + u64::from(more)).div_ceil(u64::from(ENTRIES_PER_PAIR));
        while (self.pairs.len() as u64) < wanted {
            self.pairs.push(Pair {
                offsets: budget.take(Kind::LogTable)?,
                streams: budget.take(Kind::LogTable)?,
            });
        }
        Ok(())
    }

    /// Adds an entry; room for it must have been made.
    pub(crate) fn push(&mut self, offset: u32, stream: StreamId) {
        let (pair, at) = place(self.len);
        put(&mut self.pairs[pair].offsets, at, &offset.to_le_bytes());
        put(&mut self.pairs[pair].streams, at, &stream.0.to_le_bytes());
        self.len += 1;
    }

    /// Removes the entries from `len` on.
    pub(crate) fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }

    /// Removes all entries, and returns all memory except that for the first entries of the next
    /// segment.
    pub(crate) fn clear(&mut self) {
        self.pairs.truncate(1);
        self.len = 0;
    }

    /// The offset of an entry's header.
    pub(crate) fn offset(&self, index: u32) -> Option<u32> {
        (index < self.len).then(|| {
            let (pair, at) = place(index);
            u32_at(&self.pairs[pair].offsets, at)
        })
    }

    /// The stream of an entry.
    pub(crate) fn stream(&self, index: u32) -> Option<StreamId> {
        (index < self.len).then(|| {
            let (pair, at) = place(index);
            StreamId(u32_at(&self.pairs[pair].streams, at))
        })
    }

    /// The first entry of `stream` from `from` on and below `below`.
    pub(crate) fn find(&self, stream: StreamId, from: u32, below: u32) -> Option<u32> {
        let below = below.min(self.len);
        let mut at = from;
        while at < below {
            let (pair, start) = place(at);
            let end = (CHUNK_BYTES).min(start + (below - at) as usize * 4);
            let bytes = &self.pairs[pair].streams[start..end];
            let wanted = stream.0.to_le_bytes();
            if let Some(found) = bytes.chunks_exact(4).position(|number| number == wanted) {
                return Some(at + found as u32);
            }
            at += (bytes.len() / 4) as u32;
        }
        None
    }
}

fn place(index: u32) -> (usize, usize) {
    ((index / ENTRIES_PER_PAIR) as usize, (index % ENTRIES_PER_PAIR) as usize * 4)
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn numbers_come_back_across_chunks_and_are_found_by_stream() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let mut entry_offsets = EntryOffsets::default();
        let count = ENTRIES_PER_PAIR + 100;
        entry_offsets.reserve(count, &budget).unwrap();
        for index in 0..count {
            entry_offsets.push(index * 8, StreamId(u32::from(index % 5000 == 4999)));
        }
        assert_eq!(entry_offsets.offset(ENTRIES_PER_PAIR + 1), Some((ENTRIES_PER_PAIR + 1) * 8));
        assert_eq!(entry_offsets.offset(count), None);
        assert_eq!(entry_offsets.find(StreamId(1), 0, count), Some(4999));
        assert_eq!(entry_offsets.find(StreamId(1), 5000, count), Some(9999));
        assert_eq!(entry_offsets.find(StreamId(1), 15_000, count), None);
        assert_eq!(
            entry_offsets.find(StreamId(0), ENTRIES_PER_PAIR - 1, count),
            Some(ENTRIES_PER_PAIR - 1)
        );
        assert_eq!(entry_offsets.find(StreamId(1), 5000, 9999), None);
        entry_offsets.clear();
        assert_eq!(budget.usage().of(Kind::LogTable), 2 * CHUNK_BYTES as u64);
    }
}
