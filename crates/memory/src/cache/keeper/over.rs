//! An entry is written over the one that it replaces, where it fits and nobody looks: no dead bytes are left, and nothing is cleaned away for it.
//!
//! Law: a place means one key as long as it means any. So a reader that sees the same word of the index twice has seen an entry of its key all the
//! while, and whether that was written over meanwhile is a question of the readers' lines, as it is for segments ([`super::super::readers`]): the slot is
//! emptied first, and then nobody may look for its tag or read its segment.

use std::sync::atomic::Ordering;

use super::super::Shared;
use super::super::entry::{Arrival, Header, Placed};
use super::super::policy::Queue;
use super::super::queue::emptied;
use super::super::slot::{Slot, tag};
use super::{Keeper, Meant};

impl Keeper {
    /// Writes an entry over that of the same key, which counts as a touch; `false` if it is too large for that, somebody may be reading, or it would leave
    /// sooner than a new one. Then nothing is changed.
    pub(super) fn write_over(
        &mut self,
        shared: &Shared,
        before: &Meant<'_>,
        arrival: &Arrival<'_>,
        header: Header,
    ) -> bool {
        let Placed { queue, header: old, .. } = before.placed;
        let fits = header.words() <= old.words() && self.weight(header) <= self.weight(old);
        if !fits || before.placed.whole().is_none() || !self.stays_for_long(queue, before.position) {
            return false;
        }
        let word = Slot(before.slot.swap(Slot::EMPTY.0, Ordering::AcqRel));
        let its_segment = emptied(&shared.segments, queue, before.position);
        if shared.readers.reading(its_segment, |other| other == tag(before.hash)) > 0 {
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

    /// Whether an entry at this position will not leave much sooner than one that enters now: where nobody had to leave yet none does, in the main queue it
    /// goes round once more, and of the small one it must be in the younger half.
    fn stays_for_long(&self, queue: Queue, position: u64) -> bool {
        let ends = &self.ends[queue as usize];
        !self.was_full || queue == Queue::Main || (ends.young - position) * 2 <= ends.young - ends.old
    }
}
