//! The waiting time that writers owe while flushes and merges lag behind, and how it is spread over
//! the writers. Pure.

/// Shorter waits are accumulated until they reach this.
pub(crate) const WAIT_MIN_NANOS: u64 = 1_000_000;

/// Maximum total wait of all queued writers.
const QUEUE_MAX_NANOS: u64 = 10_000_000_000;

/// The waiting time that writers owe.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    owed_nanos: u64,
    /// The time at which the last queued writer finishes its wait, by the monotonic clock.
    paid_at_nanos: u64,
}

impl Debt {
    /// Adds to the debt.
    pub(crate) fn add(&mut self, nanos: u64) {
        self.owed_nanos = self.owed_nanos.saturating_add(nanos);
    }

    /// Whether the debt is too small to wait for.
    pub(crate) fn is_small(&self) -> bool {
        self.owed_nanos < WAIT_MIN_NANOS
    }

    /// Takes the whole debt. Returns how long the caller waits, including the waits of the writers
    /// that are queued before it: at most `longest_nanos`.
    pub(crate) fn take(&mut self, now_nanos: u64, longest_nanos: u64) -> u64 {
        let wait = std::mem::take(&mut self.owed_nanos).min(longest_nanos);
        let queue_end = now_nanos.saturating_add(QUEUE_MAX_NANOS);
        self.paid_at_nanos = self.paid_at_nanos.max(now_nanos).saturating_add(wait).min(queue_end);
        (self.paid_at_nanos - now_nanos).min(longest_nanos)
    }

    /// Clears the debt when nothing lags behind any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_waits_are_queued() {
        let mut debt = Debt::default();
        debt.add(WAIT_MIN_NANOS - 1);
        assert!(debt.is_small());
        debt.add(4_000_001);
        assert!(!debt.is_small());
        assert_eq!(debt.take(1_000, u64::MAX), 5_000_000);
        debt.add(2_000_000);
        // 4 ms of the first wait are left.
        assert_eq!(debt.take(1_001_000, u64::MAX), 6_000_000);
        debt.add(u64::MAX);
        assert_eq!(debt.take(10_000_000, 3_000_000), 3_000_000);
        // A small writer behind a large one waits no longer than its own maximum, even if the clock
        // does not advance.
        for _ in 0..3 {
            debt.add(8_000_000_000);
            assert!(debt.take(10_000_000, u64::MAX) <= QUEUE_MAX_NANOS);
        }
        debt.add(2_000_000);
        assert_eq!(debt.take(10_000_000, 100_000_000), 100_000_000);
        debt.clear();
        assert_eq!(debt.take(11_000_000, u64::MAX), 0);
    }
}
