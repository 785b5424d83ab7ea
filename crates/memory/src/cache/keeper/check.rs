//! Consistency check: recounts everything and compares the result with the running counters.

use super::super::Shared;
use super::super::queue::{Ends, offset_of};
use super::super::slot::Kind;
use super::Keeper;

impl Keeper {
    /// Recounts everything and compares.
    pub(in super::super) fn check(&mut self, shared: &Shared) {
        self.take_back_what_is_read_no_more(shared);
        let mut meant = 0;
        self.pages.for_each(&shared.segments, |slot| {
            meant += usize::from(matches!(slot.kind(), Kind::Entry(_)))
        });
        assert_eq!(meant, self.pages.entries(), "entries in the index, by its pages");
        let mut queued = 0;
        let mut spanned = self.pages.len() + self.aside.len();
        for ends in &self.ends {
            let (mut live, mut filled, mut position) = (0, 0, ends.old);
            while position < ends.young {
                let placed = ends.entry_at(&shared.segments, shared.ring(ends.queue), position);
                let hash = shared.hash(placed.key());
                let is_meant = !placed.header.is_filler()
                    && Self::slot_of(shared, hash, ends.queue, position).is_some();
                if is_meant {
                    queued += 1;
                    live += placed.header.bytes();
                }
                if placed.header.is_filler() {
                    filled += Ends::filled_by(&shared.segments, position, placed.header);
                }
                position += placed.header.words();
            }
            assert_eq!(position, ends.young, "entries end where the queue does");
            assert_eq!(live, ends.live_bytes, "bytes of entries");
            assert_eq!(filled, ends.filled_bytes, "fillers that end where a segment does");
            let shift = shared.segments.words_shift();
            let last = ends.young
                + u64::from(offset_of(&shared.segments, ends.young) > 0) * ((1 << shift) - 1);
            spanned += ((last >> shift) - (ends.old >> shift)) as usize;
        }
        assert_eq!(
            (queued, queued as u64),
            (meant, self.counters.entries),
            "entries in queues and in the index"
        );
        assert_eq!(spanned, self.owner.used(), "segments of the queues, the index, and aside");
        assert!(self.owner.used() <= self.owner.limit(), "segments in use and the limit");
        self.owner.check(&shared.segments);
    }
}
