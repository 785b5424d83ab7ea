//! Notices when much of the log that was held back for long may be freed: a snapshot was dropped, or a member with one has ended.
//!
//! What is left then is held by memtables only, which may take minutes to fill. Law: what was written less than [`LONG`] before counts for
//! nothing. So short transactions beside a busy writer cause no flush, and members that tell their floors late neither.

use std::mem;
use std::time::Duration;

use plimsoll_log::glsn::Glsn;

/// What is held back for less time is not noticed.
const LONG: Duration = Duration::from_secs(2);

/// Observations of earlier looks.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// Up to here the log could be freed at the last look.
    until: Glsn,
    /// The newest commit at a look at least [`LONG`] before this one.
    old: Glsn,
    /// The newest commit at a later look, and when that was.
    sample: (u64, Glsn),
}

impl HeldBack {
    /// The bounds of what was held back until the last look, and may be freed up to `until` now. They are empty, or in the wrong order, if
    /// nothing was.
    pub(crate) fn look(&mut self, now: u64, until: Glsn, newest: Glsn) -> (Glsn, Glsn) {
        let (since, then) = self.sample;
        if now.saturating_sub(since) >= LONG.as_nanos() as u64 {
            (self.old, self.sample) = (then, (now, newest));
        }
        (mem::replace(&mut self.until, until), until.min(self.old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// What is let go at looks twice a second, of 100 commits a second, under floors that lag behind as `floor` says.
    fn let_go(seconds: u64, floor: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut held = HeldBack::default();
        let mut look = |half: u64| {
            let newest = half * 50;
            let (from, until) = held.look(half * SECOND / 2, Glsn(floor(newest).min(newest)), Glsn(newest));
            until.0.saturating_sub(from.0)
        };
        (0..2 * seconds).map(&mut look).filter(|gone| *gone > 0).collect()
    }

    #[test]
    fn a_floor_that_was_held_for_long_is_noticed_once() {
        let gone = let_go(30, |newest| if newest < 2000 { 100 } else { newest });
        assert_eq!(gone.len(), 1);
        assert!((1500..1900).contains(&gone[0]), "{gone:?}");
    }

    #[test]
    fn transactions_of_a_second_are_not_noticed() {
        assert_eq!(let_go(30, |newest| newest.saturating_sub(100)), []);
        assert_eq!(let_go(30, |newest| newest / 100 * 100), []);
    }
}
