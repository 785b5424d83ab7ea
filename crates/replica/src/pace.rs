//! How often a member asks for the next batch: often after one arrived, rarely at rest.
//!
//! The interval is an eighth of the time since the last batch. Asking for the batch that comes
//! after a pause of any length therefore takes place at most an eighth of that pause later, up to
//! the interval of a member at rest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest interval.
const LEAST: Duration = Duration::from_millis(1);

/// The interval is this fraction of the time since the last batch.
const FRACTION: u64 = 8;

/// When a member asked last, and when the last batch arrived. Times are nanoseconds of one clock.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The interval of a member at rest.
    most: Duration,
    active: AtomicU64,
    asked: AtomicU64,
}

impl Pace {
    pub(crate) fn new(most: Duration, now: u64) -> Self {
        Self { most, active: AtomicU64::new(now), asked: AtomicU64::new(0) }
    }

    /// A batch arrived or was appended.
    pub(crate) fn note_batch(&self, now: u64) {
        // Relaxed: the times pass nothing but themselves.
        self.active.store(now, Ordering::Relaxed);
    }

    /// The member asks now.
    pub(crate) fn note_question(&self, now: u64) {
        self.asked.store(now, Ordering::Relaxed);
    }

    /// How long to wait before asking again.
    pub(crate) fn pause(&self, now: u64) -> Duration {
        let idle = now.saturating_sub(self.active.load(Ordering::Relaxed));
        let interval = Duration::from_nanos(idle / FRACTION).clamp(LEAST, self.most);
        let since = Duration::from_nanos(now.saturating_sub(self.asked.load(Ordering::Relaxed)));
        interval.saturating_sub(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_interval_grows_with_the_time_since_the_last_batch() {
        let pace = Pace::new(Duration::from_secs(10), 0);
        for (now, pause) in [(1, 1), (8, 1), (800, 100), (80_000, 10_000), (8_000_000, 10_000)] {
            let now = now * SECOND / 1000;
            pace.note_question(now);
            assert_eq!(pace.pause(now), Duration::from_millis(pause), "{now}");
        }
        pace.note_batch(8000 * SECOND);
        assert_eq!(pace.pause(8000 * SECOND + 1_000_000), Duration::ZERO);
    }

    #[test]
    fn a_member_at_rest_asks_at_most_260_000_times_a_month() {
        let (pace, month) = (Pace::new(Duration::from_secs(10), 0), 30 * 24 * 3600 * SECOND);
        let (mut now, mut questions) = (0, 0);
        while now < month {
            pace.note_question(now);
            questions += 1;
            now += pace.pause(now).as_nanos() as u64;
        }
        assert!((250_000..260_000).contains(&questions), "{questions}");
    }
}
