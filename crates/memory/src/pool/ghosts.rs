//! Pages that left lately. Who misses one soon after it left before it had proved itself finds that it should have stayed, and it comes back
//! hot; and those that are missed very soon, however they left, are what a somewhat larger pool would have kept.
//!
//! A table of fingerprints in proportion to the pool: sets of four, each with the time (counted in ghosts) at which it was noted. A
//! ghost older than as many others as there are frames counts no more. A fingerprint of 31 bits may be another page's: then a page is
//! hot too early, and nothing else happens. From the ghost queue of S3-FIFO (Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023).

use super::frame::PageKey;

/// Ghosts of a set.
const WAYS: usize = 4;

/// Below the fingerprint: when it was noted.
const TIME_BITS: u32 = 32;

/// The lowest bit of a fingerprint's place: set where the page left probation.
const PROBATION: u64 = 1 << TIME_BITS;

/// A pool larger by this part would have kept those that count as returned.
const WINDOW_PART: usize = 8;

/// What had become of a page when it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It was touched once.
    Probation,
    /// It had been hot, and had cooled.
    Clock,
}

/// Each slot: fingerprint above, with how the page left, time below; 0 where nothing was noted.
pub(super) struct Ghosts {
    slots: Vec<u64>,
    /// Ghosts noted since ever, wrapping.
    now: u32,
    /// Pages that came back within the window, since ever.
    returns: u64,
}

impl Ghosts {
    /// Bytes of heap for so many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        len_for(frames) * size_of::<u64>()
    }

    pub(super) fn new(frames: usize) -> Self {
        Self { slots: vec![0; len_for(frames)], now: 0, returns: 0 }
    }

    /// Makes place for those of `frames`, or makes do with that, and forgets all.
    pub(super) fn resize(&mut self, frames: usize) {
        let len = len_for(frames);
        self.slots.truncate(len);
        self.slots.shrink_to_fit();
        self.slots.fill(0);
        self.slots.reserve_exact(len - self.slots.len());
        self.slots.resize(len, 0);
    }

    /// Notes a page that left; it takes the place of the oldest of its set.
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

    /// How the page left, if it is a ghost, which it then is no more. `frames`: those of the pool now.
    pub(super) fn take(&mut self, key: PageKey, frames: usize) -> Option<Left> {
        let (set, fingerprint) = self.place(key);
        let now = self.now;
        let ways = &mut self.slots[set..set + WAYS];
        let slot = std::mem::take(ways.iter_mut().find(|slot| fingerprint_in(**slot) == fingerprint)?);
        let age = age(slot, now);
        self.returns += u64::from(age < self.window(frames) as u64);
        let left = if slot & PROBATION > 0 { Left::Probation } else { Left::Clock };
        (age < frames as u64).then_some(left)
    }

    /// Pages that came back after fewer others had left than the window is long, since ever.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// Length of the window of a pool of so many frames.
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

/// Ghosts noted since; an empty slot is older than all.
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
    fn a_page_that_left_is_a_ghost_once_and_no_other_is() {
        let mut ghosts = Ghosts::new(400);
        assert!(!is_ghost(&mut ghosts, 1, 400));
        (0..100).for_each(|number| ghosts.note(key(number), Left::Clock));
        let found = (0..100).filter(|&number| is_ghost(&mut ghosts, number, 400)).count();
        assert!(found >= 95, "{found} of 100: few sets of a quarter's load have more than four");
        assert!((0..200).all(|number| !is_ghost(&mut ghosts, number, 400)), "once, and only those noted");
    }

    #[test]
    fn a_ghost_is_forgotten_after_as_many_others_as_there_are_frames() {
        let mut ghosts = Ghosts::new(4000);
        ghosts.note(key(0), Left::Probation);
        (1..100).for_each(|number| ghosts.note(key(number), Left::Probation));
        assert!(!is_ghost(&mut ghosts, 0, 50) && is_ghost(&mut ghosts, 60, 50));
        for frames in [8000, 400] {
            ghosts.resize(frames);
            assert!((0..100).all(|number| !is_ghost(&mut ghosts, number, frames)), "growing and shrinking forget all");
            assert_eq!(ghosts.slots.capacity() * 8, Ghosts::heap_bytes(frames));
            (0..100).for_each(|number| ghosts.note(key(number), Left::Probation));
        }
    }

    #[test]
    fn it_is_told_how_a_page_left_and_counted_if_it_came_back_soon() {
        let mut ghosts = Ghosts::new(4000);
        ghosts.note(key(0), Left::Probation);
        ghosts.note(key(1), Left::Clock);
        assert_eq!([0, 1].map(|number| ghosts.take(key(number), 80)), [Some(Left::Probation), Some(Left::Clock)]);
        assert_eq!(ghosts.returns(), 2);
        (0..20).for_each(|number| ghosts.note(key(number), Left::Clock));
        assert!(is_ghost(&mut ghosts, 5, 80));
        assert_eq!((ghosts.returns(), ghosts.window(80)), (2, 10), "14 others left after it");
    }

    #[test]
    fn time_may_wrap() {
        let mut ghosts = Ghosts::new(64);
        ghosts.now = u32::MAX - 1;
        (0..3).for_each(|number| ghosts.note(key(number), Left::Probation));
        assert!((0..3).all(|number| is_ghost(&mut ghosts, number, 64)));
    }
}
