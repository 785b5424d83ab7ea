//! Adapts the probation queue's share of a cache, by the marginal worth of space to either queue.
//!
//! A tenth serves most mixes of requests. It fails if entries are requested again a little later
//! than a tenth reaches: each has left by then, while the protected queue may hold entries long
//! dead. So the probation queue grows with each entry that comes back soon after it left (the age
//! of its ghost tells: a queue longer by that much would have kept it). It shrinks with each entry
//! of the protected queue that was found once in a round (a queue shorter by that much might not
//! have kept it). Entries are counted, not their bytes: a hit is a hit.
//!
//! Late returns change nothing: a loop longer than the cache would otherwise take all of it for the
//! probation queue, without any more hits.

use super::index::GHOST_TICKS;

/// The least and the most, as fractions of the cache.
const LEAST: f64 = 0.1;
const MOST: f64 = 0.9;

/// Ticks since an entry left within which it came back soon.
const SOON: u64 = 1;

/// Bytes that leave the probation queue within that time, as a fraction of the cache: ghosts reach
/// back 27/20 of it, and a tick is, on average, half over.
const REACH: f64 = (SOON as f64 + 0.5) * 27.0 / 20.0 / GHOST_TICKS as f64;

/// Weight of an entry found once in the protected queue, relative to one that comes back soon. With
/// a weight of one, mixes for which a tenth is right lose up to two points of hits in small caches
/// to chance; with two they lose nothing noticeable, and the gains stay.
const WEIGHT_OF_PROTECTED: f64 = 2.0;

/// The probation queue's share of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbationPart {
    part: f64,
}

impl ProbationPart {
    pub(super) fn new() -> Self {
        Self { part: LEAST }
    }

    /// Its size in bytes, in a cache of `limit`.
    pub(super) fn of(self, limit: u64) -> u64 {
        (limit as f64 * self.part) as u64
    }

    /// Records that an entry came back this many ticks after it left the probation queue. `entry`
    /// is the mean size of an entry, as a fraction of the cache.
    pub(super) fn came_back(&mut self, ticks: u64, entry: f64) {
        if ticks <= SOON {
            self.change(entry);
        }
    }

    /// Records that the oldest entry of the protected queue was found once. `protected` is that
    /// queue's fraction of the cache, `entry` as for [`ProbationPart::came_back`].
    pub(super) fn found_once(&mut self, protected: f64, entry: f64) {
        // Of the entries found once in a round, the share found in the part that the queue would
        // lose.
        let lost = if protected > REACH { REACH / protected } else { 1.0 };
        self.change(-WEIGHT_OF_PROTECTED * lost * entry);
    }

    fn change(&mut self, by: f64) {
        self.part = (self.part + by).clamp(LEAST, MOST);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]
mod tests {
    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    /// Requests each key twice: the second time after `between` to twice as many others. Returns
    /// the percentage of second requests that hit, once the cache has seen 20,000 keys.
    fn found_again(cache: &Cache, between: u32) -> u32 {
        let mut found = 0;
        for number in 0..30_000_u32 {
            // The distance differs from key to key, and each key has one.
            let earlier = (number / between)
                .checked_sub(2)
                .map(|round| round * between + number * 7919 % between);
            for key in [Some(number), earlier].into_iter().flatten().map(u32::to_be_bytes) {
                let is_there = cache.get(&key).is_some();
                found += u32::from(is_there && number >= 20_000);
                if !is_there {
                    cache.insert(&key, &[1; 100]);
                }
            }
        }
        found / 100
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn what_is_asked_for_again_later_than_a_tenth_of_the_cache_reaches_is_found_in_the_end() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap();
        let found = found_again(&cache, 300);
        let stats = cache.stats();
        assert!(stats.entries > 1400 && stats.probation_bytes > 50_000, "{stats:?}");
        assert!(found > 80, "{found} %");
        // If keys are requested again too late for any cache of this size, a tenth is enough for
        // the rest.
        assert_eq!(
            found_again(&Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap(), 4000),
            0
        );
        cache.check();
    }

    #[test]
    fn the_part_follows_what_comes_back_soon_and_stays_within_its_ends() {
        let mut part = ProbationPart::new();
        assert_eq!(part.of(1000), 100);
        part.came_back(SOON + 1, 0.1);
        part.found_once(0.9, 0.1);
        assert_eq!(
            part.of(1000),
            100,
            "late ones count for nothing, and there is no less than a tenth"
        );
        (0..4).for_each(|ticks| part.came_back(ticks / 4, 0.1));
        assert_eq!(part.of(1000), 500);
        part.found_once(0.5, 0.1);
        assert!((460..500).contains(&part.of(1000)), "{part:?}");
        part.found_once(0.0, 0.01);
        assert!(part.of(1000) < 480, "{part:?}");
        (0..100).for_each(|_| part.came_back(0, 0.1));
        assert_eq!(part.of(1000), 900);
    }
}
