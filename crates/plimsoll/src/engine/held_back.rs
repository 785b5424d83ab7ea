//! Notices when much of the log that was held back for long may be freed: a snapshot was dropped,
//! or a member with one has ended.
//!
//! What is left then is held by memtables only, which may take minutes to fill.
//!
//! Laws:
//! 1. What was written less than [`LONG`] before counts for nothing: neither short transactions
//!    beside a busy writer nor floors that are told late cause a flush.
//! 2. Each byte of the log counts once: it takes another four segments before members are asked
//!    again.

use std::time::Duration;

use plimsoll_log::glsn::Glsn;

/// What is held back for less time is not noticed.
const LONG: Duration = Duration::from_secs(2);

/// Observations of earlier looks.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// Up to here the log could be freed at an earlier look. It only rises: a member that is
    /// joining has promised nothing yet, and threads that look at the same time may come in any
    /// order.
    until: Glsn,
    /// The newest commit at a look at least [`LONG`] before this one.
    old: Glsn,
    /// The newest commit at a later look, and when that was.
    sample: (u64, Glsn),
}

impl HeldBack {
    /// Whether much of the log was held back until the last look, now that it may be freed up to
    /// `until`. `is_much` gets the bounds of it, which are in the wrong order if nothing was.
    pub(crate) fn lets_go(
        &mut self,
        now: u64,
        until: Glsn,
        newest: Glsn,
        is_much: impl FnOnce(Glsn, Glsn) -> bool,
    ) -> bool {
        let (since, then) = self.sample;
        if now.saturating_sub(since) >= LONG.as_nanos() as u64 {
            (self.old, self.sample) = (then, (now, newest));
        }
        let lets_go = is_much(self.until, until.min(self.old));
        self.until = self.until.max(until);
        lets_go
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// How much is let go of and when, in half seconds: at looks twice a second, of 100 commits a
    /// second, under floors that lag behind as `floor` says.
    fn let_go(seconds: u64, floor: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let mut held = HeldBack::default();
        let mut look = |half: u64| {
            let (newest, mut bytes) = (half * 50, 0);
            let is_much = |from: Glsn, to: Glsn| {
                bytes = to.0.saturating_sub(from.0);
                bytes > 0
            };
            let until = Glsn(floor(newest).min(newest));
            held.lets_go(half * SECOND / 2, until, Glsn(newest), is_much).then_some((half, bytes))
        };
        (0..2 * seconds).filter_map(&mut look).collect()
    }

    #[test]
    fn a_floor_that_was_held_for_long_is_noticed_once() {
        let gone = let_go(30, |newest| if newest < 2000 { 100 } else { newest });
        assert_eq!(gone.len(), 1);
        assert!((1500..1900).contains(&gone[0].1), "{gone:?}");
    }

    #[test]
    fn what_is_let_go_of_soon_after_is_noticed_by_itself() {
        // After 20 and 22 seconds, of which the first five are held to the end.
        let floor = |newest| match newest {
            0..2000 => 100,
            2000..2200 => 1000,
            _ => 2000,
        };
        let gone = let_go(50, floor);
        assert_eq!(gone, [(40, 900), (44, 1000)]);
    }

    #[test]
    fn a_floor_that_is_unknown_at_one_look_is_not_noticed() {
        assert_eq!(let_go(30, |newest| if newest == 2000 { 0 } else { newest }), []);
    }

    #[test]
    fn transactions_of_a_second_are_not_noticed() {
        assert_eq!(let_go(30, |newest| newest.saturating_sub(100)), []);
        assert_eq!(let_go(30, |newest| newest / 100 * 100), []);
    }
}
