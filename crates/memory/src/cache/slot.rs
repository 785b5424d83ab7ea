//! One word of the index: where an entry stands, or that there was one.
//!
//! ```text
//! bits 62..64  what it is: 0 nothing, 1 a ghost, 2 an entry of the small queue, 3 an entry of the main queue
//! bits 60..62  touches: how often it was found lately, 0 to 3
//! bits 36..60  tag: the topmost bits of the key's hash
//! bits  0..36  place: an entry's position in its queue, in words of 8 bytes; a ghost's time of death. Both modulo 2^36
//! ```
//!
//! A position is never used twice (2^36 words are 512 GiB that pass through a queue, and a reader would have to sleep for exactly
//! that long), so a word that reads the same twice meant the same entry all the while.

use super::policy::Queue;

const TAG_BITS: u32 = 24;
const PLACE_BITS: u32 = 36;
const TOUCH: u64 = 1 << 60;
const KIND_SHIFT: u32 = 62;

/// The most touches that are counted.
pub(super) const MAX_TOUCHES: u8 = 3;

/// Places and times of death are modulo this.
pub(super) const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// A word of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

/// What a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Ghost,
    Entry(Queue),
}

impl Slot {
    pub(super) const EMPTY: Slot = Slot(0);

    pub(super) fn entry(hash: u64, queue: Queue, touches: u8, position: u64) -> Self {
        let kind = match queue {
            Queue::Small => 2,
            Queue::Main => 3,
        };
        let touches = u64::from(touches.min(MAX_TOUCHES)) * TOUCH;
        Self((kind << KIND_SHIFT) | touches | tag_of(hash) | (position & PLACE_MASK))
    }

    pub(super) fn ghost(hash: u64, died_at: u64) -> Self {
        Self((1 << KIND_SHIFT) | tag_of(hash) | (died_at & PLACE_MASK))
    }

    pub(super) fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Empty,
            1 => Kind::Ghost,
            2 => Kind::Entry(Queue::Small),
            _ => Kind::Entry(Queue::Main),
        }
    }

    /// The queue that the entry stands in, if it is one and its key may be the one with this hash.
    #[inline]
    pub(super) fn entry_for(self, hash: u64) -> Option<Queue> {
        match self.kind() {
            Kind::Entry(queue) if self.has_tag_of(hash) => Some(queue),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn has_tag_of(self, hash: u64) -> bool {
        (self.0 ^ tag_of(hash)) >> PLACE_BITS << (64 - TAG_BITS) == 0
    }

    pub(super) fn touches(self) -> u8 {
        (self.0 / TOUCH) as u8 & MAX_TOUCHES
    }

    /// With one touch more, unless it has the most already.
    #[inline]
    pub(super) fn touched(self) -> Option<Self> {
        (self.touches() < MAX_TOUCHES).then_some(Self(self.0.wrapping_add(TOUCH)))
    }

    /// The position's, or the time of death's, last bits.
    #[inline]
    pub(super) fn place(self) -> u64 {
        self.0 & PLACE_MASK
    }

    /// Whether both mean the same entry, however often it was touched in between.
    #[inline]
    pub(super) fn is_same_entry(self, other: Slot) -> bool {
        (self.0 ^ other.0) & !(u64::from(MAX_TOUCHES) * TOUCH) == 0
    }

    /// The topmost bits of the hash of whatever it stands for.
    pub(super) fn hash_top(self) -> u64 {
        self.0 << 4 >> (64 - TAG_BITS) << (64 - TAG_BITS)
    }
}

fn tag_of(hash: u64) -> u64 {
    hash >> (64 - TAG_BITS) << PLACE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_says_what_it_was_made_of() {
        let hash = 0xfedc_ba98_7654_3210;
        let slot = Slot::entry(hash, Queue::Main, 2, 7 + (5 << 36));
        assert_eq!(slot.kind(), Kind::Entry(Queue::Main));
        assert_eq!((slot.touches(), slot.place()), (2, 7));
        assert_eq!(slot.hash_top(), 0xfedc_ba00_0000_0000);
        assert!(slot.has_tag_of(hash) && !slot.has_tag_of(!hash));
        assert_eq!(Slot::ghost(hash, 9).kind(), Kind::Ghost);
        assert_eq!(Slot::ghost(hash, 9).hash_top(), slot.hash_top());
    }

    #[test]
    fn touches_end_at_three_and_do_not_make_another_entry() {
        let slot = Slot::entry(1, Queue::Small, 2, 3);
        let touched = slot.touched().unwrap();
        assert!(slot.is_same_entry(touched));
        assert_eq!(touched.touched(), None);
        assert!(!slot.is_same_entry(Slot::entry(1, Queue::Main, 2, 3)));
    }
}
