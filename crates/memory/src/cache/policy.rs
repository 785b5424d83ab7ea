//! What stays and what leaves: the part of a cache that is a matter of opinion.
//!
//! Entries stand in two queues, first in, first out, and carry a count of touches from 0 to 3. A policy says at which end of which queue
//! a new entry begins, which queue's oldest entry is looked at next, and whether that one leaves. It changes nothing itself.

/// One of the two queues of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Where an entry proves itself.
    Small,
    /// Where those stay that did.
    Main,
}

/// How full the cache is, in bytes of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupancy {
    pub(super) small: u64,
    pub(super) main: u64,
    /// What the small queue may have.
    pub(super) small_limit: u64,
    /// Whether anything ever had to leave.
    pub(super) was_full: bool,
}

/// What becomes of the oldest entry of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Evict,
    /// Goes to the young end of the main queue, with so many touches.
    Keep {
        touches: u8,
    },
}

/// Decides what stays.
pub(super) trait Policy: Send {
    /// The queue in which a new entry begins. `returned`: it left the small queue not long ago.
    fn begin(&self, returned: bool, occupancy: &Occupancy) -> Queue;

    /// The queue whose oldest entry is looked at next. The cache takes the other one where this is empty.
    fn turn(&self, occupancy: &Occupancy) -> Queue;

    /// What becomes of the oldest entry of `queue`.
    fn judge(&self, queue: Queue, touches: u8) -> Verdict;
}

/// Which policy a cache follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// A small queue in which entries prove themselves, a main queue in which those touched go round, and ghosts of those that left the small
    /// one too early. Scans do not flush what is in use.
    #[default]
    S3Fifo,
    /// One queue; what was touched goes round.
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

/// S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: SOSP 2023), over bytes, with a small queue that is longer than a tenth where that serves better
/// ([`super::small_part`]). As long as the cache was never full, what the small queue has no
/// room for begins in the main one: else its first tenant would be a cache that is all small queue.
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
