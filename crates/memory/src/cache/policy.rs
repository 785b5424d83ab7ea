//! Eviction policies: which entries stay and which leave.
//!
//! Entries are in two queues, first in, first out, and carry a count of touches from 0 to 3. A policy decides in which
//! queue a new entry begins, which queue's oldest entry is looked at next, and whether that one leaves. It changes
//! nothing itself.

/// One of the two queues of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New entries, on probation.
    Small,
    /// Entries that have been found again.
    Main,
}

/// How full the cache is, in bytes of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupancy {
    pub(super) small: u64,
    pub(super) main: u64,
    /// Target size of the small queue.
    pub(super) small_limit: u64,
    /// Whether anything was ever evicted for room.
    pub(super) was_full: bool,
}

/// The decision on the oldest entry of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Evict,
    /// Goes to the young end of the main queue, with this many touches.
    Keep {
        touches: u8,
    },
}

/// An eviction policy.
pub(super) trait Policy: Send {
    /// The queue in which a new entry begins. `returned`: it left the small queue not long ago.
    fn begin(&self, returned: bool, occupancy: &Occupancy) -> Queue;

    /// The queue whose oldest entry is looked at next. If it is empty, the cache takes the other one.
    fn turn(&self, occupancy: &Occupancy) -> Queue;

    /// The decision on the oldest entry of `queue`.
    fn judge(&self, queue: Queue, touches: u8) -> Verdict;
}

/// The eviction policy of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// A small queue in which entries prove themselves, a main queue in which accessed entries go round, and ghosts of
    /// those that left the small one too early. Scans do not flush the working set.
    #[default]
    S3Fifo,
    /// One queue; accessed entries go round.
    Clock,
    /// One queue; the oldest leaves.
    Fifo,
}

impl Eviction {
    /// Every policy.
    pub const ALL: [Eviction; 3] = [Eviction::S3Fifo, Eviction::Clock, Eviction::Fifo];

    pub(super) fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::S3Fifo => Box::new(S3Fifo),
            Self::Clock => Box::new(OneQueue { second_chances: true }),
            Self::Fifo => Box::new(OneQueue { second_chances: false }),
        }
    }
}

/// Touches that prove an entry of the small queue.
const PROOF: u8 = 2;

/// S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: SOSP 2023), over bytes, with a small queue that is longer than a tenth
/// where that serves better ([`super::small_part`]). Until the cache is first full, entries beyond the small queue's
/// share begin in the main one: otherwise the cache would fill up as one small queue.
struct S3Fifo;

impl S3Fifo {
    fn small_is_full(occupancy: &Occupancy) -> bool {
        occupancy.small > occupancy.small_limit
    }
}

impl Policy for S3Fifo {
    fn begin(&self, returned: bool, occupancy: &Occupancy) -> Queue {
        if returned || (!occupancy.was_full && Self::small_is_full(occupancy)) { Queue::Main } else { Queue::Small }
    }

    fn turn(&self, occupancy: &Occupancy) -> Queue {
        if Self::small_is_full(occupancy) { Queue::Small } else { Queue::Main }
    }

    fn judge(&self, queue: Queue, touches: u8) -> Verdict {
        match queue {
            Queue::Small if touches >= PROOF => Verdict::Keep { touches: 0 },
            Queue::Main if touches > 0 => Verdict::Keep { touches: touches - 1 },
            _ => Verdict::Evict,
        }
    }
}

/// FIFO, with second chances or without. All entries are in the main queue.
struct OneQueue {
    second_chances: bool,
}

impl Policy for OneQueue {
    fn begin(&self, _: bool, _: &Occupancy) -> Queue {
        Queue::Main
    }

    fn turn(&self, _: &Occupancy) -> Queue {
        Queue::Main
    }

    fn judge(&self, _: Queue, touches: u8) -> Verdict {
        if self.second_chances && touches > 0 { Verdict::Keep { touches: touches - 1 } } else { Verdict::Evict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(small: u64, main: u64, was_full: bool) -> Occupancy {
        Occupancy { small, main, small_limit: 10, was_full }
    }

    #[test]
    fn a_new_entry_proves_itself_in_the_small_queue_and_a_returning_one_need_not() {
        assert_eq!(S3Fifo.begin(false, &filled(0, 0, false)), Queue::Small);
        assert_eq!(S3Fifo.begin(true, &filled(0, 0, false)), Queue::Main);
        assert_eq!(S3Fifo.begin(false, &filled(50, 50, true)), Queue::Small);
    }

    #[test]
    fn what_comes_before_the_cache_was_ever_full_does_not_wait_in_the_small_queue() {
        assert_eq!(S3Fifo.begin(false, &filled(11, 0, false)), Queue::Main);
    }

    #[test]
    fn one_touch_is_no_proof_and_two_are() {
        assert_eq!(S3Fifo.judge(Queue::Small, 1), Verdict::Evict);
        assert_eq!(S3Fifo.judge(Queue::Small, 2), Verdict::Keep { touches: 0 });
        assert_eq!(S3Fifo.judge(Queue::Main, 3), Verdict::Keep { touches: 2 });
        assert_eq!(S3Fifo.judge(Queue::Main, 0), Verdict::Evict);
    }

    #[test]
    fn the_queue_that_has_more_than_its_part_is_looked_at() {
        assert_eq!(S3Fifo.turn(&filled(11, 89, true)), Queue::Small);
        assert_eq!(S3Fifo.turn(&filled(10, 90, true)), Queue::Main);
    }
}
