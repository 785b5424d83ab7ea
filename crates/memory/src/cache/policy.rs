//! The eviction policy: which entries stay and which leave. The functions are pure; `eviction`
//! carries out their decisions.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: SOSP 2023), over bytes, with a probation queue that
//! adapts its size from a tenth of the cache upwards ([`super::probation_part`]). Entries are in
//! two FIFO queues, and carry a count of touches, at most [`super::slot::MAX_TOUCHES`]. New entries
//! start in the probation queue, entries touched there at least [`PROMOTING_TOUCHES`] times are
//! promoted to the protected queue, and ghosts detect entries that were evicted from probation too
//! early. Scans do not flush the working set.

/// One of the two queues of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New entries, on probation.
    Probation,
    /// Entries that were accessed again.
    Protected,
}

/// The occupancy of the cache, in bytes of entries.
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

/// Touches that promote an entry of the probation queue.
const PROMOTING_TOUCHES: u8 = 2;

/// The queue in which a new entry begins. `returned` is set if a ghost shows that the entry was
/// evicted from probation recently. Until the cache is first full, entries beyond the probation
/// queue's share begin in the protected queue; otherwise the cache would fill as one probation
/// queue.
pub(super) fn first_queue(returned: bool, occupancy: &Occupancy) -> Queue {
    if returned || (!occupancy.was_full && occupancy.probation_is_full()) {
        Queue::Protected
    } else {
        Queue::Probation
    }
}

/// The queue whose oldest entry is processed next. If it is empty, the caller takes the other one.
pub(super) fn next_queue(occupancy: &Occupancy) -> Queue {
    if occupancy.probation_is_full() { Queue::Probation } else { Queue::Protected }
}

/// The touches with which the oldest entry of `queue` moves to the young end of the protected
/// queue, or `None` if it is evicted.
pub(super) fn touches_if_kept(queue: Queue, touches: u8) -> Option<u8> {
    match queue {
        Queue::Probation => (touches >= PROMOTING_TOUCHES).then_some(0),
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
    fn new_entry_starts_on_probation_and_a_returning_one_protected() {
        assert_eq!(first_queue(false, &filled(0, 0, false)), Queue::Probation);
        assert_eq!(first_queue(true, &filled(0, 0, false)), Queue::Protected);
        assert_eq!(first_queue(false, &filled(50, 50, true)), Queue::Probation);
    }

    #[test]
    fn overflow_before_first_eviction_starts_protected() {
        assert_eq!(first_queue(false, &filled(11, 0, false)), Queue::Protected);
    }

    #[test]
    fn two_touches_promote_and_one_does_not() {
        assert_eq!(touches_if_kept(Queue::Probation, 1), None);
        assert_eq!(touches_if_kept(Queue::Probation, 2), Some(0));
        assert_eq!(touches_if_kept(Queue::Protected, 3), Some(2));
        assert_eq!(touches_if_kept(Queue::Protected, 0), None);
    }

    #[test]
    fn next_queue_is_the_one_above_its_share() {
        assert_eq!(next_queue(&filled(11, 89, true)), Queue::Probation);
        assert_eq!(next_queue(&filled(10, 90, true)), Queue::Protected);
    }
}
