//! Which pages were evicted lately: what a larger pool would have kept.
//!
//! A table of fixed size, one slot for two frames, each the fingerprint of a page and when it was evicted. A newer one takes the place of an
//! older one that stands in its slot; since only the last quarter of a table's worth of evictions counts, few are lost that way.

use super::frame::PageKey;

/// Evictions that count: this part of the slots.
const WINDOW_PART: usize = 4;

/// The table. Under the pool's lock.
pub(super) struct Ghosts {
    /// Fingerprint above, number of the eviction below, both 32 bits; 0 where there is none.
    slots: Vec<u64>,
    evicted: u32,
    returns: u64,
}

impl Ghosts {
    /// Bytes of heap for so many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        slots_for(frames) * size_of::<u64>()
    }

    /// For a pool of so many frames at most.
    pub(super) fn new(frames: usize) -> Self {
        Self { slots: vec![0; slots_for(frames)], evicted: 0, returns: 0 }
    }

    /// From now on for so many frames; forgets what it knew.
    pub(super) fn grow(&mut self, frames: usize) {
        self.slots = vec![0; slots_for(frames)];
    }

    /// A page was evicted.
    pub(super) fn bury(&mut self, key: PageKey) {
        self.evicted = self.evicted.wrapping_add(1);
        let (slot, fingerprint) = self.place(key);
        self.slots[slot] = fingerprint << 32 | u64::from(self.evicted);
    }

    /// A page is loaded: counts it if it was evicted lately.
    pub(super) fn wake(&mut self, key: PageKey) {
        let (slot, fingerprint) = self.place(key);
        let ghost = self.slots[slot];
        if ghost >> 32 == fingerprint {
            self.slots[slot] = 0;
            let age = self.evicted.wrapping_sub(ghost as u32);
            self.returns += u64::from((age as usize) < self.window());
        }
    }

    /// Pages that were loaded again within the window, since ever.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// How many evictions back count.
    pub(super) fn window(&self) -> usize {
        self.slots.len() / WINDOW_PART
    }

    fn place(&self, key: PageKey) -> (usize, u64) {
        // The golden ratio and a mixer's constant: pages of a file stand side by side, and must not in the table.
        let mixed = (key.file.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(key.number).wrapping_mul(0xff51_afd7_ed55_8ccd))
        .wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let mixed = mixed ^ mixed >> 33;
        (mixed as usize & (self.slots.len() - 1), (mixed >> 32).max(1))
    }
}

fn slots_for(frames: usize) -> usize {
    (frames / 2).next_power_of_two()
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_comes_back_soon_counts_once_and_one_that_comes_late_does_not() {
        let mut ghosts = Ghosts::new(128);
        let key = |number| PageKey { file: 3, number };
        ghosts.wake(key(1));
        assert_eq!(ghosts.returns(), 0);
        ghosts.bury(key(1));
        ghosts.wake(key(1));
        ghosts.wake(key(1));
        assert_eq!(ghosts.returns(), 1);
        ghosts.bury(key(2));
        (100..100 + ghosts.window() as u32).for_each(|number| ghosts.bury(key(number)));
        ghosts.wake(key(2));
        assert_eq!(ghosts.returns(), 1, "sixteen others left after it");
    }
}
