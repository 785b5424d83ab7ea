//! One word of the index: the place of an entry, or one or two ghosts.
//!
//! ```text
//! bits 62..64  kind: 0 empty, 1 ghosts, 2 an entry of the probation queue, 3 of the protected one
//! bits 60..62  touches: recent hits, 0 to 3
//! bits 36..60  fingerprint: the topmost bits of the key's hash
//! bits  0..36  place: the entry's position in its queue, in words of 8 bytes, modulo 2^36
//!
//! ghosts: bits 31..62 one, bits 0..31 another; 0 where there is none
//! bits  7..31  fingerprint
//! bits  0..7   the tick of its eviction, modulo 128
//! ```
//!
//! A position is used for one key only. Places repeat after 2^36 words (512 GiB) have passed
//! through a queue, and a reader would have to sleep for exactly that long to confuse two
//! positions. If a reader reads the same word twice, the slot has therefore referred to an entry of
//! the same key in between.

use super::policy::Queue;

const FINGERPRINT_BITS: u32 = 24;
const PLACE_BITS: u32 = 36;
const TOUCH: u64 = 1 << 60;
const KIND_SHIFT: u32 = 62;
const IS_ENTRY: u64 = 2 << KIND_SHIFT;
const IS_PROTECTED: u64 = 1 << KIND_SHIFT;
const FINGERPRINT_MASK: u64 = ((1 << FINGERPRINT_BITS) - 1) << PLACE_BITS;

/// Upper bound on the count of touches.
pub(super) const MAX_TOUCHES: u8 = 3;

/// Modulus of places, minus one.
pub(super) const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// A word of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Ghosts,
    Entry(Queue),
}

const TICK_BITS: u32 = 7;
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
const GHOST_BITS: u32 = FINGERPRINT_BITS + TICK_BITS;

/// A record of an entry that was evicted from the probation queue: a part of its key's hash, and
/// the tick of the eviction. Ticks are those of the ghosts' clock, which evictions advance
/// ([`super::entries`]). One ghost in 2^31 reads as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ghost(u32);

impl Ghost {
    const NONE: Ghost = Ghost(0);

    pub(super) fn new(hash: u64, tick: u64) -> Self {
        Self((hash >> (64 - FINGERPRINT_BITS) << TICK_BITS | tick & TICK_MASK) as u32)
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether it may be the ghost of a key with this hash.
    #[inline]
    pub(super) fn is_of(self, hash: u64) -> bool {
        !self.is_none() && u64::from(self.0 >> TICK_BITS) == hash >> (64 - FINGERPRINT_BITS)
    }

    /// Ticks since the eviction, modulo 128.
    #[inline]
    pub(super) fn age(self, now: u64) -> u64 {
        now.wrapping_sub(u64::from(self.0)) & TICK_MASK
    }

    /// The top bits of its key's hash.
    pub(super) fn hash_top(self) -> u64 {
        u64::from(self.0 >> TICK_BITS) << (64 - FINGERPRINT_BITS)
    }
}

impl Slot {
    pub(super) const EMPTY: Slot = Slot(0);

    pub(super) fn entry(hash: u64, queue: Queue, touches: u8, position: u64) -> Self {
        let kind = match queue {
            Queue::Probation => 2,
            Queue::Protected => 3,
        };
        let touches = u64::from(touches.min(MAX_TOUCHES)) * TOUCH;
        Self((kind << KIND_SHIFT) | touches | fingerprint_of(hash) | (position & PLACE_MASK))
    }

    /// A slot of two ghosts; empty if both are none.
    pub(super) fn of_ghosts([one, other]: [Ghost; 2]) -> Self {
        let both = u64::from(one.0) << GHOST_BITS | u64::from(other.0);
        if both == 0 { Self::EMPTY } else { Self(1 << KIND_SHIFT | both) }
    }

    /// Its ghosts, if it has any.
    #[inline]
    pub(super) fn ghosts(self) -> [Ghost; 2] {
        match self.kind() {
            Kind::Ghosts => [self.0 >> GHOST_BITS, self.0]
                .map(|bits| Ghost((bits & ((1 << GHOST_BITS) - 1)) as u32)),
            _ => [Ghost::NONE; 2],
        }
    }

    /// Whether one of its ghosts may be that of a key with this hash.
    #[inline]
    pub(super) fn may_have_ghost_of(self, hash: u64) -> bool {
        let is_of = |bits: u64| {
            (bits >> TICK_BITS ^ fingerprint(hash)) & (FINGERPRINT_MASK >> PLACE_BITS) == 0
        };
        (self.0 >> KIND_SHIFT == 1) & (is_of(self.0 >> GHOST_BITS) | is_of(self.0))
    }

    /// Age of its younger ghost in ticks; the maximum if it has none.
    #[inline]
    pub(super) fn age(self, now: u64) -> u64 {
        let ghosts = self.ghosts().into_iter().filter(|ghost| !ghost.is_none());
        ghosts.map(|ghost| ghost.age(now)).min().unwrap_or(u64::MAX)
    }

    /// Keeps only the ghosts for which `keep` returns true; entries stay as they are.
    pub(super) fn map_ghosts(self, mut keep: impl FnMut(Ghost) -> bool) -> Self {
        match self.kind() {
            Kind::Ghosts => Self::of_ghosts(
                self.ghosts().map(|ghost| if keep(ghost) { ghost } else { Ghost::NONE }),
            ),
            _ => self,
        }
    }

    /// Adds a ghost in place of one for which `is_free` returns true.
    pub(super) fn with_ghost(self, ghost: Ghost, is_free: impl Fn(Ghost) -> bool) -> Option<Self> {
        let [one, other] = self.ghosts();
        match self.kind() {
            Kind::Entry(_) => None,
            _ if is_free(one) => Some(Self::of_ghosts([ghost, other])),
            _ if is_free(other) => Some(Self::of_ghosts([one, ghost])),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Empty,
            1 => Kind::Ghosts,
            2 => Kind::Entry(Queue::Probation),
            _ => Kind::Entry(Queue::Protected),
        }
    }

    /// Whether it is an entry whose key may be the one with this hash.
    #[inline]
    pub(super) fn may_be_entry_of(self, hash: u64) -> bool {
        // Both kinds of entry have the upper bit set, so one comparison covers both.
        (self.0 ^ (IS_ENTRY | fingerprint_of(hash))) & (IS_ENTRY | FINGERPRINT_MASK) == 0
    }

    /// The queue of the entry; `None` if this is no entry, or its key cannot have this hash.
    #[inline]
    pub(super) fn entry_for(self, hash: u64) -> Option<Queue> {
        self.may_be_entry_of(hash).then_some(if self.0 & IS_PROTECTED > 0 {
            Queue::Protected
        } else {
            Queue::Probation
        })
    }

    #[inline]
    pub(super) fn touches(self) -> u8 {
        (self.0 / TOUCH) as u8 & MAX_TOUCHES
    }

    /// Adds a touch; nothing if it has the maximum.
    #[inline]
    pub(super) fn touched(self) -> Option<Self> {
        (self.touches() < MAX_TOUCHES).then_some(Self(self.0.wrapping_add(TOUCH)))
    }

    /// The low bits of the position.
    #[inline]
    pub(super) fn place(self) -> u64 {
        self.0 & PLACE_MASK
    }

    /// Whether both refer to the same entry, regardless of touches.
    #[inline]
    pub(super) fn is_same_entry(self, other: Slot) -> bool {
        (self.0 ^ other.0) & !(u64::from(MAX_TOUCHES) * TOUCH) == 0
    }

    /// The top bits of the key's hash.
    pub(super) fn hash_top(self) -> u64 {
        self.0 << 4 >> (64 - FINGERPRINT_BITS) << (64 - FINGERPRINT_BITS)
    }
}

/// The part of a hash that a slot keeps: its top bits.
#[inline]
pub(super) fn fingerprint(hash: u64) -> u64 {
    hash >> (64 - FINGERPRINT_BITS)
}

#[inline]
fn fingerprint_of(hash: u64) -> u64 {
    fingerprint(hash) << PLACE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_fields_round_trip() {
        let hash = 0xfedc_ba98_7654_3210;
        let slot = Slot::entry(hash, Queue::Protected, 2, 7 + (5 << 36));
        assert_eq!(slot.kind(), Kind::Entry(Queue::Protected));
        assert_eq!((slot.touches(), slot.place()), (2, 7));
        assert_eq!(slot.hash_top(), 0xfedc_ba00_0000_0000);
        assert_eq!((slot.entry_for(hash), slot.entry_for(!hash)), (Some(Queue::Protected), None));
        assert_eq!(
            Slot::entry(hash, Queue::Probation, 3, 7).entry_for(hash),
            Some(Queue::Probation)
        );
        let ghosts = Slot::EMPTY.with_ghost(Ghost::new(hash, 1), Ghost::is_none).unwrap();
        assert_eq!((ghosts.entry_for(hash), Slot::EMPTY.entry_for(0)), (None, None));
    }

    #[test]
    fn slot_holds_two_distinct_ghosts() {
        let hash = 0xfedc_ba98_7654_3210;
        let [one, other] = [Ghost::new(hash, 120), Ghost::new(!hash, 5 + (1 << 40))];
        assert!(one.is_of(hash) && !one.is_of(!hash) && !Ghost::NONE.is_of(0));
        assert!(
            !Slot::EMPTY.may_have_ghost_of(0)
                && !Slot::entry(hash, Queue::Probation, 1, 2).may_have_ghost_of(hash)
        );
        assert_eq!((one.age(130), other.age(7)), (10, 2));
        assert_eq!(one.hash_top(), 0xfedc_ba00_0000_0000);
        let single = Slot::EMPTY.with_ghost(one, Ghost::is_none).unwrap();
        let both = single.with_ghost(other, Ghost::is_none).unwrap();
        assert_eq!((both.kind(), both.ghosts()), (Kind::Ghosts, [one, other]));
        assert!(
            both.may_have_ghost_of(hash)
                && both.may_have_ghost_of(!hash)
                && !both.may_have_ghost_of(hash ^ 1 << 63)
        );
        assert!(single.may_have_ghost_of(hash) && !single.may_have_ghost_of(!hash));
        assert_eq!((both.age(130), Slot::EMPTY.age(7)), (10, u64::MAX));
        assert_eq!(both.with_ghost(one, Ghost::is_none), None);
        assert_eq!(both.with_ghost(one, |ghost| ghost == other).unwrap().ghosts(), [one, one]);
        assert_eq!(both.map_ghosts(|ghost| ghost == other).ghosts(), [Ghost::NONE, other]);
        assert_eq!(both.map_ghosts(|_| false), Slot::EMPTY);
        let entry = Slot::entry(hash, Queue::Probation, 1, 2);
        assert_eq!((entry.ghosts(), entry.map_ghosts(|_| false)), ([Ghost::NONE; 2], entry));
        assert_eq!(entry.with_ghost(one, |_| true), None);
    }

    #[test]
    fn touches_saturate_at_three_and_keep_entry_identity() {
        let slot = Slot::entry(1, Queue::Probation, 2, 3);
        let touched = slot.touched().unwrap();
        assert!(slot.is_same_entry(touched));
        assert_eq!(touched.touched(), None);
        assert!(!slot.is_same_entry(Slot::entry(1, Queue::Protected, 2, 3)));
    }
}
