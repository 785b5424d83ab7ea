//! The eviction policy: which entries stay and which leave. It only decides; `keeper` acts.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: SOSP 2023), over bytes, with a small queue that is longer than a tenth where
//! that serves better ([`super::small_part`]). Entries are in two queues, first in, first out, and carry a count of
//! touches from 0 to 3. In the small queue entries prove themselves; in the main queue accessed entries go round; ghosts
//! remember those that left the small one too early. Scans do not flush the working set.

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

impl Occupancy {
    fn small_is_full(&self) -> bool {
        self.small > self.small_limit
    }
}

/// Touches that prove an entry of the small queue.
const PROOF: u8 = 2;

/// The queue in which a new entry begins. `returned`: it left the small queue not long ago. Until the cache is first
/// full, entries beyond the small queue's share begin in the main one: otherwise the cache would fill up as one small
/// queue.
pub(super) fn first_queue(returned: bool, occupancy: &Occupancy) -> Queue {
    if returned || (!occupancy.was_full && occupancy.small_is_full()) { Queue::Main } else { Queue::Small }
}

/// The queue whose oldest entry is looked at next. If it is empty, the cache takes the other one.
pub(super) fn next_queue(occupancy: &Occupancy) -> Queue {
    if occupancy.small_is_full() { Queue::Small } else { Queue::Main }
}

/// Whether the oldest entry of `queue` goes to the young end of the main queue, and with how many touches. `None`: it
/// is evicted.
pub(super) fn touches_if_kept(queue: Queue, touches: u8) -> Option<u8> {
    match queue {
        Queue::Small => (touches >= PROOF).then_some(0),
        Queue::Main => touches.checked_sub(1),
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
        assert_eq!(first_queue(false, &filled(0, 0, false)), Queue::Small);
        assert_eq!(first_queue(true, &filled(0, 0, false)), Queue::Main);
        assert_eq!(first_queue(false, &filled(50, 50, true)), Queue::Small);
    }

    #[test]
    fn what_comes_before_the_cache_was_ever_full_does_not_wait_in_the_small_queue() {
        assert_eq!(first_queue(false, &filled(11, 0, false)), Queue::Main);
    }

    #[test]
    fn one_touch_is_no_proof_and_two_are() {
        assert_eq!(touches_if_kept(Queue::Small, 1), None);
        assert_eq!(touches_if_kept(Queue::Small, 2), Some(0));
        assert_eq!(touches_if_kept(Queue::Main, 3), Some(2));
        assert_eq!(touches_if_kept(Queue::Main, 0), None);
    }

    #[test]
    fn the_queue_that_has_more_than_its_part_is_looked_at() {
        assert_eq!(next_queue(&filled(11, 89, true)), Queue::Small);
        assert_eq!(next_queue(&filled(10, 90, true)), Queue::Main);
    }
}
