//! The page table: maps a page to the frame that may hold it. Open addressing, sized in proportion
//! to the pool.
//!
//! Invariants:
//! 1. The table changes only under the pool's lock. A look-up under the lock finds every entry.
//! 2. A look-up without the lock may miss an entry that is being moved, and may find one that is
//!    gone. Readers therefore check the key in the frame, and search again under the lock after a
//!    miss. A prefetch does neither.
//! 3. The table grows and shrinks in place, under the lock: the address space for its largest size
//!    is reserved from the start.

use std::ops::ControlFlow;

use super::frame::PageKey;
use crate::cpu_prefetch::prefetch_address;
#[cfg(not(any(loom, all(test, shuttle))))]
use crate::reserved::Reserved;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Slots for each frame: at most half of them are ever in use, so a search ends soon.
pub(super) const SLOTS_PER_FRAME: usize = 2;

/// A bit of a slot: its entry has not yet reached its new place after a change of the table's
/// length.
const UNSETTLED: u64 = 1 << 31;

/// One word for each slot: the page's fingerprint in the upper half, the frame plus one in the
/// lower half; 0 if the slot is empty.
pub(super) struct Table {
    slots: Slots,
    /// The table's present length in slots; the slots after it are zero.
    len: AtomicUsize,
}

#[cfg(not(any(loom, all(test, shuttle))))]
pub(super) type Slots = Reserved<AtomicU64>;
#[cfg(any(loom, all(test, shuttle)))]
pub(super) type Slots = Box<[AtomicU64]>;

/// The part of a page's key that a slot stores; it determines where the search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u32);

impl Fingerprint {
    pub(super) fn of(key: PageKey) -> Self {
        Self((key.hash() >> 32) as u32)
    }
}

impl Table {
    /// Makes a table of `len` of these slots, which are all zero.
    pub(super) fn new(slots: Slots, len: usize) -> Self {
        assert!(slots.len() as u64 <= UNSETTLED && (1..=slots.len()).contains(&len));
        Self { slots, len: AtomicUsize::new(len) }
    }

    /// Grows or shrinks to `len` slots. Under the pool's lock; entries found before are found
    /// after. Allocates nothing: each entry goes to its new place, and displaces an entry there
    /// that has not settled yet.
    pub(super) fn resize(&self, len: usize) {
        assert!((1..=self.slots.len()).contains(&len));
        let before = self.len();
        let mut entries = 0;
        // Slots never used are not touched.
        for slot in &self.slots[..before] {
            let entry = slot.load(Ordering::Relaxed);
            if entry > 0 {
                entries += 1;
                slot.store(entry | UNSETTLED, Ordering::Relaxed);
            }
        }
        assert!(entries * SLOTS_PER_FRAME <= len, "half of the slots are free");
        self.len.store(len, Ordering::Relaxed);
        for slot in &self.slots[..before] {
            let entry = slot.load(Ordering::Relaxed);
            if entry & UNSETTLED > 0 {
                slot.store(0, Ordering::Relaxed);
                self.settle(entry);
            }
        }
    }

    /// Puts an entry into the first slot, from its home on, that is free or has an unsettled entry.
    /// Then does the same with the displaced entry, until no entry is displaced. So all slots
    /// between an entry and its home are taken at each step.
    fn settle(&self, entry: u64) {
        let mut left = entry;
        while left > 0 {
            let settled = left & !UNSETTLED;
            left = 0;
            let full = self.walk(fingerprint_in(settled), |at, slot| {
                if slot > 0 && slot & UNSETTLED == 0 {
                    return ControlFlow::Continue(());
                }
                self.slots[at].store(settled, Ordering::Relaxed);
                left = slot;
                ControlFlow::Break(())
            });
            assert!(!full, "half of the slots are free");
        }
    }

    /// All slots up to the ceiling; those from [`Table::len`] on are zero.
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The table's present length in slots.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // Relaxed: an old length misses entries, and a new one finds them; invariant 2 covers both.
        self.len.load(Ordering::Relaxed)
    }

    /// The first frame under this fingerprint for which `is_it` returns true.
    #[inline]
    pub(super) fn find(
        &self,
        fingerprint: Fingerprint,
        mut is_it: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut found = None;
        self.walk(fingerprint, |_, slot| {
            if slot == 0 {
                return ControlFlow::Break(());
            }
            let frame = frame_in(slot);
            if fingerprint_in(slot) == fingerprint && is_it(frame) {
                found = Some(frame);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Prefetches the slot at which a search for this fingerprint begins.
    #[inline]
    pub(super) fn prefetch(&self, fingerprint: Fingerprint) {
        prefetch_address(&self.slots[home(fingerprint, self.len())]);
    }

    /// Adds a frame. Under the pool's lock.
    pub(super) fn insert(&self, fingerprint: Fingerprint, frame: u32) {
        let full = self.walk(fingerprint, |at, slot| {
            if slot > 0 {
                return ControlFlow::Continue(());
            }
            self.slots[at]
                .store(u64::from(fingerprint.0) << 32 | u64::from(frame + 1), Ordering::Relaxed);
            ControlFlow::Break(())
        });
        assert!(!full, "half of the slots are free");
    }

    /// Removes a frame. Under the pool's lock.
    pub(super) fn remove(&self, fingerprint: Fingerprint, frame: u32) {
        let mut hole = None;
        self.walk(fingerprint, |at, slot| {
            if slot > 0 && frame_in(slot) != frame {
                return ControlFlow::Continue(());
            }
            assert!(slot > 0, "a removed entry was inserted before");
            hole = Some(at);
            ControlFlow::Break(())
        });
        self.close(hole.expect("a removed entry was inserted before"));
    }

    /// Moves up the entries after a hole that a search would not find across the hole.
    fn close(&self, mut hole: usize) {
        let len = self.len();
        let mut at = hole;
        loop {
            at = wrapping_next(at, len);
            let slot = self.slots[at].load(Ordering::Relaxed);
            if slot == 0 {
                break;
            }
            if distance(home(fingerprint_in(slot), len), at, len) >= distance(hole, at, len) {
                self.slots[hole].store(slot, Ordering::Relaxed);
                hole = at;
            }
        }
        self.slots[hole].store(0, Ordering::Relaxed);
    }

    /// Visits each slot at most once, from the fingerprint's home on. Returns whether all were
    /// visited.
    #[inline]
    fn walk(
        &self,
        fingerprint: Fingerprint,
        mut visit: impl FnMut(usize, u64) -> ControlFlow<()>,
    ) -> bool {
        let len = self.len();
        let mut at = home(fingerprint, len);
        for _ in 0..len {
            if visit(at, self.slots[at].load(Ordering::Relaxed)).is_break() {
                return false;
            }
            at = wrapping_next(at, len);
        }
        true
    }
}

#[inline]
fn home(fingerprint: Fingerprint, len: usize) -> usize {
    ((u64::from(fingerprint.0) * len as u64) >> 32) as usize
}

#[inline]
fn wrapping_next(at: usize, len: usize) -> usize {
    if at + 1 == len { 0 } else { at + 1 }
}

fn distance(from: usize, to: usize, len: usize) -> usize {
    if to >= from { to - from } else { to + len - from }
}

fn fingerprint_in(slot: u64) -> Fingerprint {
    Fingerprint((slot >> 32) as u32)
}

fn frame_in(slot: u64) -> u32 {
    (slot & !UNSETTLED) as u32 - 1
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    fn table() -> Arc<(Table, Mutex<()>)> {
        let table = Table::new((0..6).map(|_| AtomicU64::new(0)).collect(), 4);
        // All three entries have the same home, so that removing one moves the others up.
        (0..2).for_each(|frame| table.insert(Fingerprint(0), frame));
        Arc::new((table, Mutex::new(())))
    }

    fn finds(table: &Table, frame: u32) -> bool {
        table.find(Fingerprint(0), |found| found == frame).is_some()
    }

    /// A reader may miss without the lock, but not with it.
    fn look(shared: &(Table, Mutex<()>)) {
        let (table, lock) = shared;
        if !finds(table, 1) {
            let _turn = lock.lock().unwrap();
            assert!(finds(table, 1), "an entry is found under the lock");
        }
    }

    #[test]
    fn loom_entry_is_found_while_its_neighbours_change() {
        loom::model(|| {
            let shared = table();
            let reader = thread::spawn({
                let shared = Arc::clone(&shared);
                move || look(&shared)
            });
            let (table, lock) = &*shared;
            let turn = lock.lock().unwrap();
            table.remove(Fingerprint(0), 0);
            table.insert(Fingerprint(0), 2);
            drop(turn);
            reader.join().unwrap();
            assert!(!finds(table, 0) && finds(table, 2));
        });
    }

    /// From `from` slots to `to`, with a concurrent reader.
    fn resized(from: usize, to: usize) {
        loom::model(move || {
            let shared = table();
            shared.0.resize(from);
            let reader = thread::spawn({
                let shared = Arc::clone(&shared);
                move || look(&shared)
            });
            let (table, lock) = &*shared;
            let turn = lock.lock().unwrap();
            table.resize(to);
            drop(turn);
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_entry_is_found_while_the_table_grows() {
        resized(4, 6);
    }

    #[test]
    fn loom_entry_is_found_while_the_table_shrinks() {
        resized(6, 4);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;

    #[allow(unsafe_code, reason = "all-zero bytes are a valid zero")]
    fn table_of(most: usize, len: usize) -> Table {
        // SAFETY: all-zero bytes are a valid zero.
        Table::new(unsafe { Reserved::zeroed(most, Backing::Heap) }.unwrap(), len)
    }

    #[test]
    fn entries_are_found_despite_tag_collisions() {
        let many = if cfg!(miri) { 4 } else { 64 };
        for (frames, fingerprints) in [(1, 1), (8, 3), (many, 5), (many, many as u32)] {
            let table = table_of(2 * frames * SLOTS_PER_FRAME, frames * SLOTS_PER_FRAME);
            let mut fingerprint_of = vec![None; frames];
            let mut random = 1u64;
            let steps = if cfg!(miri) { 30 } else { 3000 };
            for step in 0..steps {
                if step == steps / 2 {
                    table.resize(frames * SLOTS_PER_FRAME + 1);
                }
                if step == steps / 2 + 5 {
                    table.resize(2 * frames * SLOTS_PER_FRAME);
                }
                if step == steps / 2 + 10 {
                    table.resize(frames * SLOTS_PER_FRAME);
                    assert!(
                        table.slots()[table.len()..]
                            .iter()
                            .all(|slot| slot.load(Ordering::Relaxed) == 0)
                    );
                }
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                if step > steps / 2 + 10 && step % 7 == 0 {
                    let more = (random >> 50) as usize % (frames * SLOTS_PER_FRAME);
                    table.resize(frames * SLOTS_PER_FRAME + more);
                }
                let frame = (random >> 33) as usize % frames;
                match fingerprint_of[frame].take() {
                    Some(fingerprint) => table.remove(fingerprint, frame as u32),
                    None => {
                        let fingerprint = Fingerprint(
                            ((random >> 40) as u32 % fingerprints).wrapping_mul(0xffff_fff1),
                        );
                        table.insert(fingerprint, frame as u32);
                        fingerprint_of[frame] = Some(fingerprint);
                    }
                }
                for (frame, fingerprint) in fingerprint_of.iter().enumerate() {
                    let found = (0..fingerprints)
                        .map(|fingerprint| Fingerprint(fingerprint.wrapping_mul(0xffff_fff1)))
                        .filter(|fingerprint| {
                            table.find(*fingerprint, |found| found as usize == frame).is_some()
                        });
                    assert!(found.eq(*fingerprint));
                }
            }
        }
    }
}
