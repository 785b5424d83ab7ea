//! From a page to the frame that may hold it: open addressing, in proportion to the pool.
//!
//! Laws:
//! 1. Only whoever holds the pool's lock changes it, and finds everything.
//! 2. Whoever reads it without the lock may miss an entry that is being moved and may find one that is gone: a frame says itself what
//!    it holds, and who missed looks again under the lock.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use super::frame::PageKey;

/// Slots for each frame: at most half of them are ever in use, so a search ends soon.
pub(super) const SLOTS_PER_FRAME: usize = 2;

/// Each slot: the page's tag above, the frame plus one below, or 0.
pub(super) struct Table {
    slots: Box<[AtomicU64]>,
}

/// What is left of a page's key in a slot; says where its search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    pub(super) fn of(key: PageKey) -> Self {
        let file = key.file.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = file ^ u64::from(key.number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self(((mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 32) as u32)
    }
}

impl Table {
    /// Slots that are all zero.
    pub(super) fn new(slots: Box<[AtomicU64]>) -> Self {
        assert!(u32::try_from(slots.len()).is_ok_and(|slots| slots > 0));
        Self { slots }
    }

    /// The first frame under this tag that `is_it` says yes to.
    #[inline]
    pub(super) fn find(&self, tag: Tag, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut found = None;
        self.walk(tag, |_, slot| {
            if slot == 0 {
                return ControlFlow::Break(());
            }
            let frame = frame_in(slot);
            if tag_in(slot) == tag && is_it(frame) {
                found = Some(frame);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Adds a frame. Under the pool's lock.
    pub(super) fn insert(&self, tag: Tag, frame: u32) {
        let full = self.walk(tag, |at, slot| {
            if slot > 0 {
                return ControlFlow::Continue(());
            }
            self.slots[at].store(u64::from(tag.0) << 32 | u64::from(frame + 1), Ordering::Relaxed);
            ControlFlow::Break(())
        });
        assert!(!full, "half of the slots are free");
    }

    /// Removes a frame. Under the pool's lock.
    pub(super) fn remove(&self, tag: Tag, frame: u32) {
        let mut hole = None;
        self.walk(tag, |at, slot| {
            if slot > 0 && frame_in(slot) != frame {
                return ControlFlow::Continue(());
            }
            assert!(slot > 0, "what is removed was inserted");
            hole = Some(at);
            ControlFlow::Break(())
        });
        self.close(hole.expect("what is removed was inserted"));
    }

    /// Moves up what stands behind a hole and would not be found across it.
    fn close(&self, mut hole: usize) {
        let mut at = hole;
        loop {
            at = self.behind(at);
            let slot = self.slots[at].load(Ordering::Relaxed);
            if slot == 0 {
                break;
            }
            if self.distance(self.home(tag_in(slot)), at) >= self.distance(hole, at) {
                self.slots[hole].store(slot, Ordering::Relaxed);
                hole = at;
            }
        }
        self.slots[hole].store(0, Ordering::Relaxed);
    }

    /// Visits each slot once at most, from the tag's home on; whether all were visited.
    #[inline]
    fn walk(&self, tag: Tag, mut visit: impl FnMut(usize, u64) -> ControlFlow<()>) -> bool {
        let mut at = self.home(tag);
        for _ in 0..self.slots.len() {
            if visit(at, self.slots[at].load(Ordering::Relaxed)).is_break() {
                return false;
            }
            at = self.behind(at);
        }
        true
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag.0) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn behind(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

fn tag_in(slot: u64) -> Tag {
    Tag((slot >> 32) as u32)
}

fn frame_in(slot: u64) -> u32 {
    slot as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_and_not_removed_is_found_however_tags_collide() {
        let many = if cfg!(miri) { 4 } else { 64 };
        for (frames, tags) in [(1, 1), (8, 3), (many, 5), (many, many as u32)] {
            let table = Table::new((0..frames * SLOTS_PER_FRAME).map(|_| AtomicU64::new(0)).collect());
            let mut tag_of = vec![None; frames];
            let mut random = 1u64;
            for _ in 0..if cfg!(miri) { 30 } else { 3000 } {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let frame = (random >> 33) as usize % frames;
                match tag_of[frame].take() {
                    Some(tag) => table.remove(tag, frame as u32),
                    None => {
                        let tag = Tag(((random >> 40) as u32 % tags).wrapping_mul(0xffff_fff1));
                        table.insert(tag, frame as u32);
                        tag_of[frame] = Some(tag);
                    }
                }
                for (frame, tag) in tag_of.iter().enumerate() {
                    let found = (0..tags)
                        .map(|tag| Tag(tag.wrapping_mul(0xffff_fff1)))
                        .filter(|tag| table.find(*tag, |found| found as usize == frame).is_some());
                    assert!(found.eq(*tag));
                }
            }
        }
    }
}
