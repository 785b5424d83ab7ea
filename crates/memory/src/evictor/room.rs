//! The amount of room that the evictor keeps free: a pure function of measured rates.
//!
//! ```text
//! 0 ........ low ........ high .................. capacity
//!             |             |
//!    wakes the evictor    where it stops
//! ```
//!
//! `low` is the amount allocated during the evictor's reaction (rate times reaction time). `high`
//! is twice that, so that at the start of a round the room left equals the room to be made. All
//! arithmetic saturates: a surplus never becomes a negative shortfall.

/// Batch size in pages: the least, and the most.
pub(super) const BATCH_PAGES_MIN: usize = 16;
pub(super) const BATCH_PAGES_MAX: usize = 64;

/// Upper bound on each of the two kinds of room (free frames, free chunks): one part in this many
/// of the budget, so 2 % for both.
const PART_MAX: usize = 100;

/// Rates are averaged over about this long.
const MEAN_OVER_NANOS: f64 = 100e6;

/// Watermarks between which room is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermarks {
    pub(super) low: usize,
    pub(super) high: usize,
}

/// Allocation rate, and the evictor's reaction time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    taken: u64,
    at_nanos: u64,
    per_nano: f64,
    reaction_nanos: f64,
}

impl Demand {
    /// Records the running total `taken`, as of `now_nanos`.
    pub(super) fn note_taken(&mut self, taken: u64, now_nanos: u64) {
        let elapsed = now_nanos.saturating_sub(self.at_nanos) as f64;
        if elapsed > 0.0 {
            let rate = taken.saturating_sub(self.taken) as f64 / elapsed;
            self.per_nano += (rate - self.per_nano) * elapsed / (elapsed + MEAN_OVER_NANOS);
            (self.taken, self.at_nanos) = (taken, now_nanos);
        }
    }

    /// Records the time from a call to the first room.
    pub(super) fn note_reaction(&mut self, nanos: u64) {
        self.reaction_nanos += (nanos as f64 - self.reaction_nanos) / 8.0;
    }

    /// Units taken during one reaction.
    fn taken_in_one_reaction(self) -> usize {
        // A float that does not fit becomes the largest number, and NaN becomes 0.
        (self.per_nano * self.reaction_nanos) as usize
    }

    /// Watermarks for a pool of `capacity` units. The high one is twice what is taken during one
    /// reaction, but at least two batches of `batch` units, and at most 1 % of the pool.
    pub(super) fn watermarks(self, batch: usize, capacity: usize) -> Watermarks {
        let least = 2 * batch;
        let high = self
            .taken_in_one_reaction()
            .saturating_mul(2)
            .clamp(least, (capacity / PART_MAX).max(least));
        Watermarks { low: high / 2, high }
    }
}

/// Batch size, given `free` units and a target of `high`.
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
    fn room_is_rate_times_reaction_within_bounds() {
        let idle = Demand::default();
        assert_eq!(idle.watermarks(16, 1 << 20), Watermarks { low: 16, high: 32 });
        assert_eq!(
            idle.watermarks(16, 0),
            Watermarks { low: 16, high: 32 },
            "at least two batches"
        );
        let mut busy = Demand::default();
        for second in 1..=10 {
            // A million per second, with a reaction time of 200 microseconds.
            busy.note_taken(second * 1_000_000, second * 1_000_000_000);
            (0..20).for_each(|_| busy.note_reaction(200_000));
        }
        let watermarks = busy.watermarks(16, 1 << 20);
        assert!(
            (150..=200).contains(&watermarks.low)
                && watermarks.high.abs_diff(2 * watermarks.low) <= 1,
            "{watermarks:?}"
        );
        assert_eq!(
            busy.watermarks(16, 10_000),
            Watermarks { low: 50, high: 100 },
            "never above a hundredth"
        );
    }

    #[test]
    fn rate_decays_when_nothing_is_taken() {
        let mut demand = Demand::default();
        demand.note_taken(1_000_000, 1_000_000_000);
        demand.note_reaction(1_000_000_000);
        assert!(demand.taken_in_one_reaction() > 10_000);
        demand.note_taken(1_000_000, 3_600_000_000_000);
        assert!(demand.taken_in_one_reaction() < 200);
    }

    #[test]
    fn stalled_or_backward_clock_changes_nothing() {
        let mut demand = Demand::default();
        demand.note_taken(10, 0);
        demand.note_taken(100, 5);
        let before = demand.per_nano;
        demand.note_taken(1000, 5);
        demand.note_taken(1000, 3);
        assert_eq!(demand.per_nano.to_bits(), before.to_bits());
    }

    /// Regression: the shortfall was computed with unsigned numbers that wrapped.
    #[test]
    fn surplus_room_is_not_a_huge_shortfall() {
        assert_eq!(batch(33, 32, 16, 64), 0);
        assert_eq!(batch(usize::MAX, 0, 16, 64), 0);
        assert_eq!(batch(31, 32, 16, 64), 16);
        assert_eq!(batch(0, 40, 16, 64), 40);
        assert_eq!(batch(0, usize::MAX, 16, 64), 64);
    }
}
