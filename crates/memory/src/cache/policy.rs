//! The eviction policy: which entries stay and which leave. It only decides; `eviction` acts.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: SOSP 2023), over bytes, with a probation queue that is
//! longer than a tenth where that serves better ([`super::probation_part`]). Entries are in two
//! queues, first in, first out, and carry a count of touches from 0 to 3. In the probation queue
//! entries prove themselves; in the protected queue accessed entries go round; ghosts remember
//! those that left the first one too early. Scans do not flush the working set.

/// One of the two queues of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New entries, on probation.
    Probation,
    /// Entries that have been found again.
    Protected,
}

/// How full the cache is, in bytes of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupancy {
    pub(super) probation: u64,
    pub(super) protected: u64,
    /// Target size of the probation queue.
    pub(super) probation_limit: u64,
    /// Whether anything was ever evicted for room.
    pub(super) was_full: bool,
}

impl Occupancy {
    fn probation_is_full(&self) -> bool {
        self.probation > self.probation_limit
    }
}

/// Touches that prove an entry of the probation queue.
const PROOF: u8 = 2;

/// The queue in which a new entry begins. `returned`: it left the probation queue not long ago.
/// Until the cache is first full, entries beyond the probation queue's share begin in the protected
/// one: otherwise the cache would fill up as one probation queue.
pub(super) fn first_queue(returned: bool, occupancy: &Occupancy) -> Queue {
    if returned || (!occupancy.was_full && occupancy.probation_is_full()) {
        Queue::Protected
    } else {
        Queue::Probation
    }
}

/// The queue whose oldest entry is looked at next. If it is empty, the cache takes the other one.
pub(super) fn next_queue(occupancy: &Occupancy) -> Queue {
    if occupancy.probation_is_full() { Queue::Probation } else { Queue::Protected }
}

/// Whether the oldest entry of `queue` goes to the young end of the protected queue, and with how
/// many touches. `None`: it is evicted.
pub(super) fn touches_if_kept(queue: Queue, touches: u8) -> Option<u8> {
    match queue {
        Queue::Probation => (touches >= PROOF).then_some(0),
        Queue::Protected => touches.checked_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(probation: u64, protected: u64, was_full: bool) -> Occupancy {
        Occupancy { probation, protected, probation_limit: 10, was_full }
    }

    #[test]
    fn a_new_entry_proves_itself_in_the_probation_queue_and_a_returning_one_need_not() {
        assert_eq!(first_queue(false, &filled(0, 0, false)), Queue::Probation);
        assert_eq!(first_queue(true, &filled(0, 0, false)), Queue::Protected);
        assert_eq!(first_queue(false, &filled(50, 50, true)), Queue::Probation);
    }

    #[test]
    fn what_comes_before_the_cache_was_ever_full_does_not_wait_in_the_probation_queue() {
        assert_eq!(first_queue(false, &filled(11, 0, false)), Queue::Protected);
    }

    #[test]
    fn one_touch_is_no_proof_and_two_are() {
        assert_eq!(touches_if_kept(Queue::Probation, 1), None);
        assert_eq!(touches_if_kept(Queue::Probation, 2), Some(0));
        assert_eq!(touches_if_kept(Queue::Protected, 3), Some(2));
        assert_eq!(touches_if_kept(Queue::Protected, 0), None);
    }

    #[test]
    fn the_queue_that_has_more_than_its_part_is_looked_at() {
        assert_eq!(next_queue(&filled(11, 89, true)), Queue::Probation);
        assert_eq!(next_queue(&filled(10, 90, true)), Queue::Protected);
    }
}
