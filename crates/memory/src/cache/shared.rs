//! State of a cache that readers use without its lock: segments, index, queues' rings, and reader
//! lines; and the lock-free search through them.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::checksum::checksum;

use super::entry::Placed;
use super::index::Index;
use super::policy::Queue;
use super::queue::{Ring, offset_of, sequence_of};
use super::readers::{Readers, Reading, Span};
use super::segments::Segments;
use super::slot::Slot;

pub(super) struct Shared {
    pub(super) segments: Segments,
    pub(super) index: Index,
    pub(super) probation: Ring,
    pub(super) protected: Ring,
    pub(super) readers: Readers,
}

/// Result of a reader's search.
pub(super) enum Found<'a> {
    /// The entry was found. The reader's line now protects it, and no longer the index.
    Here(Placed<'a>),
    Nothing,
    /// A slot changed during the search: search again.
    Moved,
}

impl Shared {
    pub(super) fn heap_bytes(&self) -> u64 {
        let rings = self.probation.heap_bytes() + self.protected.heap_bytes();
        self.segments.heap_bytes() + self.index.heap_bytes() + rings + self.readers.heap_bytes()
    }

    #[inline]
    pub(super) fn ring(&self, queue: Queue) -> &Ring {
        match queue {
            Queue::Probation => &self.probation,
            Queue::Protected => &self.protected,
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        checksum(0, key)
    }

    /// The slot that refers to the entry at this position, if any. Under the cache's lock.
    pub(super) fn slot_of(&self, hash: u64, queue: Queue, position: u64) -> Option<&AtomicU64> {
        let expected = Slot::entry(hash, queue, 0, position);
        let mut candidates = self.index.candidates(&self.segments, hash);
        candidates.find(|slot| Slot(slot.load(Ordering::Relaxed)).is_same_entry(expected))
    }

    /// Searches for the entry of a key. If `touches`, records a touch of the entry.
    #[inline]
    pub(super) fn search<'a>(
        &'a self,
        reading: &'a Reading<'_>,
        key: &[u8],
        hash: u64,
        touches: bool,
    ) -> Found<'a> {
        for slot in self.index.candidates(&self.segments, hash) {
            let word = Slot(slot.load(Ordering::SeqCst));
            let Some(placed) =
                word.entry_for(hash).and_then(|queue| self.placed(slot, word, queue))
            else {
                return Found::Moved;
            };
            if placed.is_of(key) {
                if touches {
                    touch(slot, word);
                }
                let first = sequence_of(&self.segments, word.place());
                reading.leave_index(Span {
                    queue: placed.queue,
                    first,
                    count: placed.segment_count(),
                });
                return Found::Here(placed);
            }
        }
        Found::Nothing
    }

    /// The place of a slot's entry, or nothing if the slot no longer refers to it.
    #[allow(unsafe_code, reason = "reads an entry that a claimed line keeps in its place")]
    #[inline]
    fn placed(&self, slot: &AtomicU64, word: Slot, queue: Queue) -> Option<Placed<'_>> {
        let segment = self.ring(queue).get(sequence_of(&self.segments, word.place()));
        // Acquire: loads the slot again, after the ring. While the slot refers to the entry, the
        // ring names the entry's segment.
        if !Slot(slot.load(Ordering::Acquire)).is_same_entry(word) {
            return None;
        }
        let offset = offset_of(&self.segments, word.place());
        // Prefetch the next cache line together with the header's, because most entries extend into
        // it.
        self.segments.prefetch(segment, offset + 64);
        // SAFETY: the slot referred to this entry after the line published the use of the index for
        // its fingerprint. None of the entry's segments is written until the line changes, and it
        // changes to the use of these very segments or to nothing.
        Some(unsafe { Placed::at(&self.segments, queue, segment, offset) })
    }
}

/// Records a touch, unless the slot has changed meanwhile. A lost touch is harmless.
#[inline]
pub(super) fn touch(slot: &AtomicU64, word: Slot) {
    if let Some(touched) = word.touched() {
        // Relaxed: a touch publishes no other data.
        let _ = slot.compare_exchange(word.0, touched.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
