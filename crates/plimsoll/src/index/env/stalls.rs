//! Counts the waits of writers by cause. One call may wait for several causes; each is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::events;
use crate::types::stats::{StallStats, Waits};

/// Why a writer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Room,
    FlushPace,
    MergePace,
    Depth,
}

impl Cause {
    /// The name of the cause in [`StallStats`].
    fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::FlushPace => "flush_pace",
            Self::MergePace => "merge_pace",
            Self::Depth => "depth",
        }
    }
}

/// The counters behind [`StallStats`].
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    by_cause: [(AtomicU64, AtomicU64); 4],
}

impl Stalls {
    /// Counts a wait.
    pub(crate) fn note(&self, cause: Cause, nanos: u64) {
        let (times, sum) = &self.by_cause[cause as usize];
        times.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(nanos, Ordering::Relaxed);
        events::stalled(cause.name(), nanos);
    }

    /// The waits so far.
    pub(crate) fn stats(&self) -> StallStats {
        let of = |cause: Cause| {
            let (times, nanos) = &self.by_cause[cause as usize];
            Waits { times: times.load(Ordering::Relaxed), nanos: nanos.load(Ordering::Relaxed) }
        };
        StallStats {
            room: of(Cause::Room),
            flush_pace: of(Cause::FlushPace),
            merge_pace: of(Cause::MergePace),
            depth: of(Cause::Depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_counters_of_its_own_and_the_total_is_their_sum() {
        let stalls = Stalls::default();
        for (times, cause) in
            [Cause::Room, Cause::FlushPace, Cause::MergePace, Cause::Depth].into_iter().enumerate()
        {
            (0..=times).for_each(|_| stalls.note(cause, 10 + times as u64));
        }
        let stats = stalls.stats();
        let all = [stats.room, stats.flush_pace, stats.merge_pace, stats.depth];
        assert_eq!(
            all.map(|waits| (waits.times, waits.nanos)),
            [(1, 10), (2, 22), (3, 36), (4, 52)]
        );
        assert_eq!(stats.total(), Waits { times: 10, nanos: 120 });
    }
}
