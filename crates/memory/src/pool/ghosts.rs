//! Ghosts: a record of recently evicted pages. A page that is missed soon after its eviction from
//! probation was evicted too early, and comes back hot. The number of pages missed very soon after
//! any eviction estimates the hits that a slightly larger pool would have had.
//!
//! A ghost is a fingerprint in a table in proportion to the pool: sets of four, each with the time
//! (counted in ghosts) at which it was noted. A ghost expires once as many newer ghosts were noted
//! as the pool has frames. A fingerprint has 31 bits and may match another page, which then becomes
//! hot too early; there is no other effect. From the ghost queue of S3-FIFO (Yang et al., "FIFO
//! queues are all you need for cache eviction", SOSP 2023).

use super::frame::PageKey;

/// Ghosts of a set.
const WAYS: usize = 4;

/// Bits below the fingerprint: the time at which it was noted.
const TIME_BITS: u32 = 32;

/// The lowest bit of the fingerprint's field: set if the page left probation.
const PROBATION: u64 = 1 << TIME_BITS;

/// A pool larger by one part in this many would have kept the pages that count as returned.
const WINDOW_PART: usize = 8;

/// The queue that a page was evicted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// From probation, accessed once.
    Probation,
    /// From the clock, after it had cooled.
    Clock,
}

/// Slots: high bits, the fingerprint and [`Left`]; low bits, the time. 0 if empty.
pub(super) struct Ghosts {
    slots: Vec<u64>,
    /// Total ghosts noted, wrapping.
    now: u32,
    /// Total pages that were reloaded within the window.
    returns: u64,
}

impl Ghosts {
    /// Heap bytes for this many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        len_for(frames) * size_of::<u64>()
    }

    pub(super) fn new(frames: usize) -> Self {
        Self { slots: vec![0; len_for(frames)], now: 0, returns: 0 }
    }

    /// Resizes for `frames` frames, and forgets all ghosts.
    pub(super) fn resize(&mut self, frames: usize) {
        let len = len_for(frames);
        self.slots.truncate(len);
        self.slots.shrink_to_fit();
        self.slots.fill(0);
        self.slots.reserve_exact(len - self.slots.len());
        self.slots.resize(len, 0);
    }

    /// Notes an evicted page; it replaces the oldest of its set.
    pub(super) fn note(&mut self, key: PageKey, left: Left) {
        self.now = self.now.wrapping_add(1);
        let (set, fingerprint) = self.place(key);
        let now = self.now;
        let ways = &mut self.slots[set..set + WAYS];
        let at = match ways.iter().position(|&slot| fingerprint_in(slot) == fingerprint) {
            Some(at) => at,
            None => (0..WAYS).max_by_key(|&at| age(ways[at], now)).expect("a set has four ways"),
        };
        ways[at] = fingerprint | (u64::from(left == Left::Probation) * PROBATION) | u64::from(now);
    }

    /// Takes the ghost of a page, and returns where it was evicted from. `frames` is the pool's
    /// present size.
    pub(super) fn take(&mut self, key: PageKey, frames: usize) -> Option<Left> {
        let (set, fingerprint) = self.place(key);
        let now = self.now;
        let ways = &mut self.slots[set..set + WAYS];
        let slot =
            std::mem::take(ways.iter_mut().find(|slot| fingerprint_in(**slot) == fingerprint)?);
        let age = age(slot, now);
        self.returns += u64::from(age < self.window(frames) as u64);
        let left = if slot & PROBATION > 0 { Left::Probation } else { Left::Clock };
        (age < frames as u64).then_some(left)
    }

    /// Total pages that were reloaded within the window.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// Length of the window of a pool of this many frames.
    pub(super) fn window(&self, frames: usize) -> usize {
        frames / WINDOW_PART
    }

    /// The page's set and its fingerprint, which is never 0.
    fn place(&self, key: PageKey) -> (usize, u64) {
        let hash = key.hash();
        let sets = (self.slots.len() / WAYS) as u64;
        let set = ((hash >> 32) * sets) >> 32;
        (set as usize * WAYS, fingerprint_in(hash << TIME_BITS).max(PROBATION << 1))
    }
}

/// The number of ghosts noted after the one in this slot; the maximum for an empty slot.
fn age(slot: u64, now: u32) -> u64 {
    if slot == 0 { u64::MAX } else { u64::from(now.wrapping_sub(slot as u32)) }
}

fn fingerprint_in(slot: u64) -> u64 {
    slot >> (TIME_BITS + 1) << (TIME_BITS + 1)
}

fn len_for(frames: usize) -> usize {
    frames.next_multiple_of(WAYS).max(WAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> PageKey {
        PageKey { file: 7, number }
    }

    fn is_ghost(ghosts: &mut Ghosts, number: u32, frames: usize) -> bool {
        ghosts.take(key(number), frames).is_some()
    }

    #[test]
    fn evicted_page_is_a_ghost_exactly_once() {
        let mut ghosts = Ghosts::new(400);
        assert!(!is_ghost(&mut ghosts, 1, 400));
        (0..100).for_each(|number| ghosts.note(key(number), Left::Clock));
        let found = (0..100).filter(|&number| is_ghost(&mut ghosts, number, 400)).count();
        assert!(found >= 95, "{found} of 100: at a quarter of the load, few sets overflow");
        assert!(
            (0..200).all(|number| !is_ghost(&mut ghosts, number, 400)),
            "a ghost is found once, and only if noted"
        );
    }

    #[test]
    fn ghost_is_forgotten_after_one_generation_of_frames() {
        let mut ghosts = Ghosts::new(4000);
        ghosts.note(key(0), Left::Probation);
        (1..100).for_each(|number| ghosts.note(key(number), Left::Probation));
        assert!(!is_ghost(&mut ghosts, 0, 50) && is_ghost(&mut ghosts, 60, 50));
        for frames in [8000, 400] {
            ghosts.resize(frames);
            assert!(
                (0..100).all(|number| !is_ghost(&mut ghosts, number, frames)),
                "resizing forgets all ghosts"
            );
            assert_eq!(ghosts.slots.capacity() * 8, Ghosts::heap_bytes(frames));
            (0..100).for_each(|number| ghosts.note(key(number), Left::Probation));
        }
    }

    #[test]
    fn take_reports_the_queue_and_counts_early_returns() {
        let mut ghosts = Ghosts::new(4000);
        ghosts.note(key(0), Left::Probation);
        ghosts.note(key(1), Left::Clock);
        assert_eq!(
            [0, 1].map(|number| ghosts.take(key(number), 80)),
            [Some(Left::Probation), Some(Left::Clock)]
        );
        assert_eq!(ghosts.returns(), 2);
        (0..20).for_each(|number| ghosts.note(key(number), Left::Clock));
        assert!(is_ghost(&mut ghosts, 5, 80));
        assert_eq!(
            (ghosts.returns(), ghosts.window(80)),
            (2, 10),
            "14 other pages were evicted after it"
        );
    }

    #[test]
    fn ghost_time_may_wrap() {
        let mut ghosts = Ghosts::new(64);
        ghosts.now = u32::MAX - 1;
        (0..3).for_each(|number| ghosts.note(key(number), Left::Probation));
        assert!((0..3).all(|number| is_ghost(&mut ghosts, number, 64)));
    }
}
