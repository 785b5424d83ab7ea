//! When a replica lets others append. Without pauses, a replica could append again before the
//! others have read its last batch, and a replica whose appends take longer would always be too
//! late.
//!
//! 1. After each batch of its own, a replica pauses for twice the time of an append while others
//!    append, too.
//! 2. A batch states how long an append of its replica takes. If the appends of another replica
//!    take more than twice as long as its own, a replica leaves a window (a longer pause) before
//!    each [`SLOW_EVERY`]th position, in which an append of the other replica is in time.
//! 3. A replica that has lost all races has no batch in the order, so the others do not know it.
//!    Therefore all replicas that append leave a window before each [`RARE_EVERY`]th position,
//!    except those that have lost [`LOSSES`] races in a row. The more powers of two divide the
//!    position, the longer is the window. A replica that appends alone leaves a window from time to
//!    time.
//!
//! Each pause is limited, so that a needless one costs only time. Time in which no replica has
//! appended counts as a part of the pause.

/// After a batch of another replica, the order counts as contended for this many nanoseconds.
const CONTENDED_NANOS: u64 = 5_000_000_000;

/// The longest pause, in nanoseconds.
const PAUSE_NANOS_MAX: u64 = 1_000_000_000;

/// The shortest time between two checks within a pause, in nanoseconds.
const STEP_NANOS_MIN: u64 = 1_000_000;

/// Positions between two windows for a replica whose appends take long. A power of two.
const SLOW_EVERY: u64 = 16;

/// Positions between two windows for a replica that is not known. A power of two.
const RARE_EVERY: u64 = 64;

/// The length of a window for a replica whose appends take long, in appends of the slowest replica.
/// That replica first has to read the batches before the window.
const SLOW_APPENDS: u64 = 4;

/// The length of the shortest window for a replica that is not known, in appends of the replica
/// that pauses.
const RARE_APPENDS: u64 = 16;

/// A replica that has lost this many races in a row leaves no window to unknown replicas.
const LOSSES: u32 = 8;

/// A replica that appends alone pauses after this many of its batches, so that another one with
/// equally fast appends can begin.
const ALONE_EVERY: u32 = 48;

/// The length of that pause, in appends.
const ALONE_APPENDS: u64 = 3;

/// At most once in this many nanoseconds, that pause is a window for an unknown replica instead.
const ALONE_NANOS: u64 = 5_000_000_000;

/// The recent batches of all replicas. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// How long an append takes, on average.
    append_nanos: u64,
    /// Batches of this replica since the last one of another.
    row: u32,
    /// Races that this replica has lost since its last batch.
    losses: u32,
    /// When a batch of another replica was last applied.
    other_nanos: Option<u64>,
    /// When the last batch of this replica was appended.
    own_nanos: Option<u64>,
    /// The longest time of an append that a batch has stated, and when a batch last did so.
    slowest: Option<(u64, u64)>,
    /// The number of windows that this replica has left while it appended alone.
    windows: u64,
    /// The time of the last such window.
    window_nanos: u64,
}

/// A pause before an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// When the pause ends, in nanoseconds of the monotonic clock.
    pub(super) until: u64,
    /// Nanoseconds between two checks whether another replica has appended.
    pub(super) step: u64,
}

impl Turns {
    /// Notes a batch of another replica, whose appends take `append_micros` on average.
    pub(super) fn note_other(&mut self, now: u64, append_micros: u32) {
        (self.row, self.other_nanos) = (0, Some(now));
        let nanos = u64::from(append_micros) * 1000;
        let is_slowest = |(slowest, at): (u64, u64)| {
            nanos >= slowest - slowest / 4 || now.saturating_sub(at) >= CONTENDED_NANOS
        };
        if self.slowest.is_none_or(is_slowest) {
            self.slowest = Some((nanos, now));
        }
    }

    pub(super) fn note_loss(&mut self) {
        self.losses = self.losses.saturating_add(1);
    }

    /// Notes a batch of this replica, whose append took from `begun` to `now`. Returns the average
    /// time of an append in microseconds.
    pub(super) fn note_own(&mut self, begun: u64, now: u64) -> u32 {
        let nanos = now.saturating_sub(begun);
        // The first value counts as a whole.
        let before = if self.append_nanos == 0 { nanos } else { self.append_nanos };
        self.append_nanos = before - before / 8 + nanos / 8;
        (self.row, self.losses, self.own_nanos) = (self.row.saturating_add(1), 0, Some(now));
        u32::try_from(self.append_nanos / 1000).unwrap_or(u32::MAX)
    }

    /// The pause before an append at `position`, if there is one.
    pub(super) fn pause(&mut self, now: u64, position: u64) -> Option<Pause> {
        let since = |then: Option<u64>| then.map_or(u64::MAX, |then| now.saturating_sub(then));
        // Time in which no replica has appended counts as a part of the pause.
        let idle = since(self.own_nanos.max(self.other_nanos));
        let step = 2 * self.append_nanos;
        let pause = |nanos: u64| {
            let left = nanos.min(PAUSE_NANOS_MAX).saturating_sub(idle);
            (left > 0).then(|| Pause { until: now + left, step: step.max(STEP_NANOS_MIN) })
        };
        let rare = |level: u32| pause((RARE_APPENDS * self.append_nanos) << level.min(10));
        if since(self.other_nanos) >= CONTENDED_NANOS {
            if self.row == 0 || !self.row.is_multiple_of(ALONE_EVERY) {
                return None;
            }
            if now.saturating_sub(self.window_nanos) < ALONE_NANOS {
                return pause(ALONE_APPENDS * self.append_nanos);
            }
            (self.windows, self.window_nanos) = (self.windows + 1, now);
            return rare(self.windows.trailing_zeros());
        }
        if let Some((slowest, at)) = self.slowest
            && position.is_multiple_of(SLOW_EVERY)
            && slowest > step
            && since(Some(at)) < CONTENDED_NANOS
        {
            return pause(SLOW_APPENDS * slowest);
        }
        if position.is_multiple_of(RARE_EVERY) && self.losses < LOSSES {
            return rare((position / RARE_EVERY).trailing_zeros() / 2);
        }
        if self.row > 0 { pause(step) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The milliseconds of a pause.
    fn pause(turns: &mut Turns, now: u64, position: u64) -> u64 {
        turns.pause(now, position).map_or(0, |pause| (pause.until - now) / MS)
    }

    #[test]
    fn a_replica_pauses_after_its_own_batch_while_others_append() {
        let mut turns = Turns::default();
        turns.note_own(0, 15 * MS);
        assert_eq!(pause(&mut turns, 15 * MS, 3), 0, "it is alone");
        turns.note_other(20 * MS, 0);
        assert_eq!(pause(&mut turns, 20 * MS, 4), 0, "another one was first");
        turns.note_own(20 * MS, 35 * MS);
        assert_eq!(pause(&mut turns, 40 * MS, 5), 25);
        assert_eq!(pause(&mut turns, 70 * MS, 5), 0);
        assert_eq!(pause(&mut turns, 20_000 * MS, 5), 0, "the others have ended");
    }

    #[test]
    fn windows_are_left_to_replicas_that_are_not_known() {
        let mut turns = Turns::default();
        turns.note_own(0, 10 * MS);
        turns.note_other(20 * MS, 10_000);
        let at = [16, 64, 128, 256, 1024, 1 << 40].map(|at| pause(&mut turns, 20 * MS, at));
        assert_eq!(at, [0, 160, 160, 320, 640, 1000]);
        (0..LOSSES).for_each(|_| turns.note_loss());
        assert_eq!(pause(&mut turns, 20 * MS, 256), 0);
    }

    #[test]
    fn windows_are_left_to_a_replica_whose_appends_take_long() {
        let mut turns = Turns::default();
        turns.note_own(0, 10 * MS);
        turns.note_other(20 * MS, 60_000);
        turns.note_other(30 * MS, 10_000);
        assert_eq!([15, 16, 32].map(|at| pause(&mut turns, 30 * MS, at)), [0, 240, 240]);
        turns.note_other(6000 * MS, 10_000);
        assert_eq!(pause(&mut turns, 6000 * MS, 16), 0, "it does not append any more");
        // The replica whose own appends take longer does not pause.
        let mut turns = Turns::default();
        turns.note_own(0, 60 * MS);
        turns.note_other(70 * MS, 10_000);
        assert_eq!(pause(&mut turns, 70 * MS, 16), 0);
    }

    #[test]
    fn a_replica_alone_leaves_a_window_now_and_then() {
        let mut turns = Turns::default();
        let (mut now, mut paused, mut windows) = (0, 0, Vec::new());
        for position in 1..40_000 {
            let pause = pause(&mut turns, now, position);
            if pause > 0 {
                windows.push(pause);
            }
            paused += pause * MS;
            now += pause * MS;
            turns.note_own(now, now + 15 * MS);
            now += 15 * MS;
        }
        assert!(windows.contains(&45) && windows.contains(&960), "{windows:?}");
        assert!(paused < now / 5, "{paused} of {now}");
    }
}
