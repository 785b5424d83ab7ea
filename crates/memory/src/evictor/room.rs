//! How much room is kept free: a pure function of what was measured.
//!
//! ```text
//! 0 ........ low ........ high .................. capacity
//!             |             |
//!    wakes the evictor    where it stops
//! ```
//!
//! `low` is what is allocated while the evictor comes to it (rate times reaction time), `high` is twice that, so that a round begins
//! with as much below it as it has to make. All arithmetic saturates: more room than wanted is never a negative shortfall.

/// Pages of a batch of victims: the least, and the most.
pub(super) const BATCH_PAGES_MIN: usize = 16;
pub(super) const BATCH_PAGES_MAX: usize = 64;

/// The most of the budget that each of the two kinds of room (free frames, free chunks) takes: one in this many. Together 2 %.
const PART_MAX: usize = 100;

/// A rate is a mean over about this long.
const MEAN_OVER_NANOS: f64 = 100e6;

/// Marks between which room is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) low: usize,
    pub(super) high: usize,
}

/// How fast something is taken, and how long the evictor needs to answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    taken: u64,
    at_nanos: u64,
    per_nano: f64,
    reaction_nanos: f64,
}

impl Demand {
    /// Notes that `taken` units were taken since ever, as of `now_nanos`.
    pub(super) fn note_taken(&mut self, taken: u64, now_nanos: u64) {
        let elapsed = now_nanos.saturating_sub(self.at_nanos) as f64;
        if elapsed > 0.0 {
            let rate = taken.saturating_sub(self.taken) as f64 / elapsed;
            self.per_nano += (rate - self.per_nano) * elapsed / (elapsed + MEAN_OVER_NANOS);
            (self.taken, self.at_nanos) = (taken, now_nanos);
        }
    }

    /// Notes how long it took from a call to the first room.
    pub(super) fn note_reaction(&mut self, nanos: u64) {
        self.reaction_nanos += (nanos as f64 - self.reaction_nanos) / 8.0;
    }

    /// What is taken while the evictor comes.
    fn taken_meanwhile(self) -> usize {
        // A float that does not fit becomes the largest number, and one that is none becomes 0.
        (self.per_nano * self.reaction_nanos) as usize
    }

    /// Marks for a pool of `capacity` units, `batch` of which are the least to evict at once: between two batches and 1 %.
    pub(super) fn marks(self, batch: usize, capacity: usize) -> Marks {
        let least = 2 * batch;
        let high = self.taken_meanwhile().saturating_mul(2).clamp(least, (capacity / PART_MAX).max(least));
        Marks { low: high / 2, high }
    }
}

/// How many to evict at once, if `free` are there and `high` are wanted.
pub(super) fn batch(free: usize, high: usize, least: usize, most: usize) -> usize {
    match high.saturating_sub(free) {
        0 => 0,
        short => short.clamp(least, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_rate_times_reaction_between_two_batches_and_a_hundredth() {
        let idle = Demand::default();
        assert_eq!(idle.marks(16, 1 << 20), Marks { low: 16, high: 32 });
        assert_eq!(idle.marks(16, 0), Marks { low: 16, high: 32 }, "two batches, however little there is");
        let mut busy = Demand::default();
        for second in 1..=10 {
            // A million in each second, answered within 200 microseconds.
            busy.note_taken(second * 1_000_000, second * 1_000_000_000);
            (0..20).for_each(|_| busy.note_reaction(200_000));
        }
        let marks = busy.marks(16, 1 << 20);
        assert!((150..=200).contains(&marks.low) && marks.high.abs_diff(2 * marks.low) <= 1, "{marks:?}");
        assert_eq!(busy.marks(16, 10_000), Marks { low: 50, high: 100 }, "never above a hundredth");
    }

    #[test]
    fn a_rate_is_forgotten_once_nothing_is_taken() {
        let mut demand = Demand::default();
        demand.note_taken(1_000_000, 1_000_000_000);
        demand.note_reaction(1_000_000_000);
        assert!(demand.taken_meanwhile() > 10_000);
        demand.note_taken(1_000_000, 3_600_000_000_000);
        assert!(demand.taken_meanwhile() < 200);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_changes_nothing() {
        let mut demand = Demand::default();
        demand.note_taken(10, 0);
        demand.note_taken(100, 5);
        let before = demand.per_nano;
        demand.note_taken(1000, 5);
        demand.note_taken(1000, 3);
        assert_eq!(demand.per_nano.to_bits(), before.to_bits());
    }

    /// An origin computed the shortfall with unsigned numbers that wrapped, and evicted whole classes.
    #[test]
    fn more_room_than_wanted_is_no_shortfall_of_two_to_the_64() {
        assert_eq!(batch(33, 32, 16, 64), 0);
        assert_eq!(batch(usize::MAX, 0, 16, 64), 0);
        assert_eq!(batch(31, 32, 16, 64), 16);
        assert_eq!(batch(0, 40, 16, 64), 40);
        assert_eq!(batch(0, usize::MAX, 16, 64), 64);
    }
}
