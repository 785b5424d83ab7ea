//! Overwrites an entry in place when the new one fits and there is no reader: no dead bytes are
//! left, and nothing is cleaned away for it.
//!
//! Law: as long as a place refers to a key, it refers to the same key. A reader that sees the same
//! index word twice has therefore seen an entry of its key throughout. Whether that entry was
//! overwritten meanwhile is decided by the readers' lines, as for segments
//! ([`super::super::readers`]): the slot is emptied first, and then no line may hold its
//! fingerprint or its segment.

use std::sync::atomic::Ordering;

use super::super::Shared;
use super::super::entry::{Arrival, Header, Placed};
use super::super::policy::Queue;
use super::super::queue::emptied;
use super::super::slot::{Slot, fingerprint};
use super::{Keeper, Meant};

impl Keeper {
    /// Writes an entry over that of the same key, which counts as a touch. Returns `false` without
    /// any change if it is too large, may have a reader, or would leave sooner than a new one.
    pub(super) fn write_over(
        &mut self,
        shared: &Shared,
        before: &Meant<'_>,
        arrival: &Arrival<'_>,
        header: Header,
    ) -> bool {
        let Placed { queue, header: old, .. } = before.placed;
        let fits = header.words() <= old.words();
        if !fits || before.placed.whole().is_none() || !self.stays_for_long(queue, before.position)
        {
            return false;
        }
        let word = Slot(before.slot.swap(Slot::EMPTY.0, Ordering::AcqRel));
        let its_segment = emptied(&shared.segments, queue, before.position);
        if shared.readers.reading(its_segment, |other| other == fingerprint(before.hash)) > 0 {
            before.slot.store(word.0, Ordering::Release);
            return false;
        }
        let ends = self.ends(queue);
        ends.uncount(old);
        let place = (before.position, old.words());
        let ring = shared.ring(queue);
        ends.write_over(&shared.segments, ring, place, arrival);
        ends.count(header);
        // Release: the entry's bytes were written before; pairs with the reader's Acquire.
        before.slot.store(word.touched().unwrap_or(word).0, Ordering::Release);
        true
    }

    /// Whether an entry at this position will not leave much sooner than one inserted now. Always
    /// true in a cache that never had to evict, and in the protected queue, where it goes round
    /// once more; in the probation queue it must be in the younger half.
    fn stays_for_long(&self, queue: Queue, position: u64) -> bool {
        let ends = &self.ends[queue as usize];
        !self.was_full
            || queue == Queue::Protected
            || (ends.young - position) * 2 <= ends.young - ends.old
    }
}
