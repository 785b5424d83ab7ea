//! Adapts the probation queue's share of a cache to the marginal value of space in either queue.
//!
//! A tenth serves most workloads. It fails if entries are requested again slightly after their
//! eviction from probation, while the protected queue may hold entries that are no longer used. The
//! probation queue therefore grows with each entry that returns soon after its eviction (by the age
//! of its ghost), because a slightly longer queue would have kept it. It shrinks with each entry of
//! the protected queue that was found only once on its way from the young end of that queue to the
//! old end, because a slightly shorter protected queue might not have kept it. Entries of any size
//! count equally, because hits do.
//!
//! Late returns are ignored. Otherwise a loop longer than the cache would give all space to the
//! probation queue without gaining hits.

use super::index::GHOST_TICKS;

/// The least and the most, as fractions of the cache.
const LEAST: f64 = 0.1;
const MOST: f64 = 0.9;

/// Age of a ghost in ticks up to which its entry returned soon.
const SOON: u64 = 1;

/// Bytes evicted from the probation queue within [`SOON`], as a fraction of the cache. The window
/// of the ghosts is 27/20 of the cache, and the present tick is half over on average.
const REACH: f64 = (SOON as f64 + 0.5) * 27.0 / 20.0 / GHOST_TICKS as f64;

/// Weight of an entry found once in the protected queue, relative to one that returns soon. With a
/// weight of one, workloads that are best served by a tenth lose up to two points of hit rate to
/// noise in small caches. With two, they lose nothing noticeable, and the gains remain.
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

    /// Records that an entry returned this many ticks after its eviction from the probation queue.
    /// `entry` is the mean size of an entry, as a fraction of the cache.
    pub(super) fn note_return(&mut self, ticks: u64, entry: f64) {
        if ticks <= SOON {
            self.change(entry);
        }
    }

    /// Records that the oldest entry of the protected queue was found once. `protected` is that
    /// queue's fraction of the cache, `entry` as for [`ProbationPart::note_return`].
    pub(super) fn found_once(&mut self, protected: f64, entry: f64) {
        // The fraction of such entries that are found in the part that the queue would lose.
        let lost = if protected > REACH { REACH / protected } else { 1.0 };
        self.change(-WEIGHT_OF_PROTECTED * lost * entry);
    }

    fn change(&mut self, by: f64) {
        self.part = (self.part + by).clamp(LEAST, MOST);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    /// Requests each key twice: the second time after `between` to twice as many others. Returns
    /// the percentage of second requests that hit, once the cache has seen 20,000 keys.
    fn found_again(cache: &Cache, between: u32) -> u32 {
        let mut found = 0;
        for number in 0..30_000_u32 {
            // The distance differs between keys, but is constant for each.
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
    fn probation_grows_to_hit_keys_requested_again_late() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap();
        let found = found_again(&cache, 300);
        let stats = cache.stats();
        assert!(stats.entries > 1400 && stats.probation_bytes > 50_000, "{stats:?}");
        assert!(found > 80, "{found} %");
        // Keys that are requested again too late for any cache of this size do not hit.
        assert_eq!(
            found_again(&Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap(), 4000),
            0
        );
        cache.check();
    }

    #[test]
    fn probation_part_follows_early_returns_within_bounds() {
        let mut part = ProbationPart::new();
        assert_eq!(part.of(1000), 100);
        part.note_return(SOON + 1, 0.1);
        part.found_once(0.9, 0.1);
        assert_eq!(
            part.of(1000),
            100,
            "late returns are ignored, and the part is at least a tenth"
        );
        (0..4).for_each(|ticks| part.note_return(ticks / 4, 0.1));
        assert_eq!(part.of(1000), 500);
        part.found_once(0.5, 0.1);
        assert!((460..500).contains(&part.of(1000)), "{part:?}");
        part.found_once(0.0, 0.01);
        assert!(part.of(1000) < 480, "{part:?}");
        (0..100).for_each(|_| part.note_return(0, 0.1));
        assert_eq!(part.of(1000), 900);
    }
}
