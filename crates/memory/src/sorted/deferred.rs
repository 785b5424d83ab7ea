//! Deferred entries: written but not linked yet. The list keeps key prefixes side by side for
//! sorting.
//!
//! Invariant: the list stays within its maximum, and a lease covers it; draining it needs no
//! memory.

use std::cmp::Ordering;

use super::Entry;
use super::entries::Unlinked;
use crate::budget::{Budget, Kind};
use crate::buffer::Buffer;

/// Bytes of a key that are stored next to its entry.
const PREFIX_BYTES: usize = 16;

#[derive(Clone, Copy)]
struct Slot {
    /// Big-endian halves of the key's first bytes, zeros where it ends.
    prefix: [u64; 2],
    entry: Unlinked,
}

/// The deferred entries.
#[derive(Default)]
pub(super) struct Deferred {
    slots: Buffer<Slot>,
    /// Whether the budget once had no room. It is not asked again.
    is_refused: bool,
}

impl Deferred {
    /// Whether one more entry can be deferred. The list grows, from `first` slots to `most`, if the
    /// budget has room without reclaiming. Deferring only saves time, so it is not worth evicting a
    /// page, and a full budget is asked once rather than at every entry.
    pub(super) fn has_room(
        &mut self,
        budget: &Budget,
        kind: Kind,
        [first, most]: [usize; 2],
    ) -> bool {
        let capacity = self.slots.capacity();
        if self.slots.len() < capacity {
            return true;
        }
        if capacity >= most || self.is_refused {
            return false;
        }
        let slots = (2 * capacity).clamp(first, most);
        let bytes = (slots * size_of::<Slot>()) as u64;
        let larger = if bytes <= budget.free_bytes() {
            Buffer::with_capacity(budget, kind, slots).ok()
        } else {
            None
        };
        self.is_refused = larger.is_none();
        let Some(mut larger) = larger else { return false };
        larger.extend_from_slice(&self.slots);
        self.slots = larger;
        true
    }

    /// Size of the list in bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.slots.charged_bytes()
    }

    /// Adds an entry. The caller has checked [`Deferred::has_room`].
    pub(super) fn push(&mut self, key: &[u8], entry: Unlinked) {
        self.slots.push(Slot { prefix: prefix_of(key), entry });
    }

    /// Sorts the entries in map order. `read` returns the content of an entry.
    pub(super) fn sort<'a>(&mut self, read: impl Fn(Unlinked) -> Entry<'a>) {
        self.slots.sort_unstable_by(|one, other| {
            one.prefix
                .cmp(&other.prefix)
                .then_with(|| in_order(&read(one.entry), &read(other.entry)))
        });
    }

    /// Number of deferred entries.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The entry at a place, if there is one.
    pub(super) fn get(&self, at: usize) -> Option<Unlinked> {
        self.slots.get(at).map(|slot| slot.entry)
    }

    /// Empties the list, once all are linked.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }
}

fn in_order(one: &Entry<'_>, other: &Entry<'_>) -> Ordering {
    one.key.cmp(other.key).then(other.order.cmp(&one.order))
}

fn prefix_of(key: &[u8]) -> [u64; 2] {
    let mut bytes = [0; PREFIX_BYTES];
    let length = key.len().min(PREFIX_BYTES);
    bytes[..length].copy_from_slice(&key[..length]);
    let number = u128::from_be_bytes(bytes);
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;
    use crate::budget::chunk::CHUNK_BYTES;

    #[test]
    fn deferred_insert_does_not_press_a_full_budget() {
        let budget = Budget::new(2 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let held = [(); 2].map(|()| budget.take(Kind::Pages).unwrap());
        let before = budget.pressure();
        let mut deferred = Deferred::default();
        assert!(!deferred.has_room(&budget, Kind::Memtable, [8, 64]));
        assert_eq!(budget.pressure(), before);
        drop(held);
        assert!(!deferred.has_room(&budget, Kind::Memtable, [8, 64]));
        assert!(Deferred::default().has_room(&budget, Kind::Memtable, [8, 64]));
        assert_eq!(deferred.held_bytes(), 0);
    }
}
