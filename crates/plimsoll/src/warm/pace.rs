//! Throttles the restore: it pauses while processors are short.
//!
//! Before each step, the number of runnable threads of the machine is compared with the number of
//! its processors. A container may have fewer processors, so a thread of the restore also compares
//! its running time with its time in the run queue. A lower priority would help other runnable
//! threads as much, but would harm threads that wait for a lock or a page that the restore holds
//! while it is not running.
//!
//! Invariants:
//! 1. The thread pauses only between steps, when it holds no lock.
//! 2. While there are enough processors, only the first pause is made.
//! 3. A pause is bounded. Each pause of the maximum length is followed by a portion of steps even
//!    if processors are short, so the restore gets at least a sixteenth of a processor. Restoring a
//!    row is cheaper than loading it in a request.

use std::time::Duration;

use plimsoll_disk::processors::{Processors, ThreadClock, ThreadTime};

/// The first and the longest pause. Each pause is twice as long as the previous one while
/// processors are short.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// The steps of at least this running time form a portion, after which the pace is decided again.
const PORTION_NANOS: u64 = 1_000_000;

/// A waking thread may wait up to this time even if a processor is free.
const WAKING_NANOS: u64 = 300_000;

/// The pace of one thread.
#[derive(Debug)]
pub(super) struct Pace {
    processors: Processors,
    clock: ThreadClock,
    /// This many threads may be runnable without a processor before processors count as short.
    spare: u64,
    /// The time at the beginning of the current portion.
    begun: ThreadTime,
    /// `None` before the first move.
    pacing: Option<Pacing>,
}

/// The next action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Step,
    Pause(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pacing {
    /// Whether the thread has slept since the last portion.
    paused: bool,
    /// The length of the last pause, or of the next one.
    pause: Duration,
}

impl Pace {
    /// The pace of the calling thread. `spare`: the number of threads that may be runnable without
    /// a processor.
    pub(super) fn of_this_thread(spare: u64) -> Self {
        let clock = ThreadClock::of_this_thread();
        let begun = clock.now().unwrap_or_default();
        Self { processors: Processors::of_this_machine(), clock, spare, begun, pacing: None }
    }

    /// The next move. The first is a pause, because the delay until the thread runs again after it
    /// measures the load.
    pub(super) fn next(&mut self) -> Move {
        let is_crowded = self.processors.threads_beyond().is_some_and(|beyond| beyond > self.spare);
        let now = self.clock.now().unwrap_or_default();
        let portion = ThreadTime {
            ran_nanos: now.ran_nanos.saturating_sub(self.begun.ran_nanos),
            queued_nanos: now.queued_nanos.saturating_sub(self.begun.queued_nanos),
        };
        let pacing = match self.pacing {
            None => Pacing { paused: true, pause: PAUSE_MIN },
            Some(pacing)
                if portion.ran_nanos < PORTION_NANOS && pacing.may_continue(is_crowded) =>
            {
                return Move::Step;
            }
            Some(pacing) => pacing.after(is_crowded || has_queued(portion)),
        };
        (self.pacing, self.begun) = (Some(pacing), now);
        match pacing.paused {
            true => Move::Pause(pacing.pause),
            false => Move::Step,
        }
    }
}

impl Pacing {
    /// Whether a portion that was begun continues.
    fn may_continue(self, is_crowded: bool) -> bool {
        // After a pause of the maximum length, the portion continues even if processors are short.
        !self.paused && (!is_crowded || self.pause == PAUSE_MAX)
    }

    /// The pacing after a portion; `short`: whether processors were short.
    fn after(self, short: bool) -> Self {
        match (short, self.paused) {
            (false, _) => Self { paused: false, pause: PAUSE_MIN },
            (true, false) => Self { paused: true, ..self },
            (true, true) if self.pause == PAUSE_MAX => Self { paused: false, ..self },
            (true, true) => Self { paused: true, pause: PAUSE_MAX.min(self.pause * 2) },
        }
    }
}

/// Whether a thread was queued for much of its time. If three threads share two processors, each is
/// queued for a third of its time; this is not a reason to pause, because one of them may be the
/// restore's own helper.
fn has_queued(portion: ThreadTime) -> bool {
    portion.queued_nanos > WAKING_NANOS && portion.queued_nanos > portion.ran_nanos / 3 * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(pauses: &[Pacing]) -> Vec<u128> {
        pauses
            .iter()
            .map(|pacing| if pacing.paused { pacing.pause.as_millis() } else { 0 })
            .collect()
    }

    #[test]
    fn pauses_grow_while_processors_are_short_and_a_portion_follows_each_of_the_longest() {
        let mut pacing = Pacing { paused: true, pause: PAUSE_MIN };
        let mut pacings = Vec::new();
        for _ in 0..12 {
            pacing = pacing.after(true);
            pacings.push(pacing);
        }
        assert_eq!(millis(&pacings), [2, 4, 8, 16, 0, 16, 0, 16, 0, 16, 0, 16]);
        assert!(pacings[4].may_continue(true) && !pacings[3].may_continue(true));
    }

    #[test]
    fn a_free_processor_ends_the_pauses_and_makes_the_next_one_short() {
        let free = Pacing { paused: true, pause: PAUSE_MAX }.after(false);
        assert_eq!(millis(&[free, free.after(false), free.after(true)]), [0, 0, 1]);
        assert!(free.may_continue(false) && !free.may_continue(true));
    }

    #[test]
    fn three_threads_on_two_processors_are_not_too_many_and_four_are() {
        let portion = |ran_nanos, queued_nanos| ThreadTime { ran_nanos, queued_nanos };
        assert!(!has_queued(portion(2_000_000, 1_000_000)));
        assert!(has_queued(portion(2_000_000, 2_000_000)));
        assert!(!has_queued(portion(0, 200_000)), "a thread that just woke");
        assert!(has_queued(portion(0, 3_000_000)));
    }

    #[test]
    fn the_first_move_is_a_pause() {
        assert_eq!(Pace::of_this_thread(0).next(), Move::Pause(PAUSE_MIN));
    }
}
