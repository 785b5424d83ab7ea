//! The time that writers owe to flushes and merges that lag behind: how much, and who waits when.
//! Pure.

/// Shorter waits are accumulated.
pub(crate) const WAIT_MIN_NANOS: u64 = 1_000_000;

/// The longest time that those who wait take together.
const QUEUE_MAX_NANOS: u64 = 10_000_000_000;

/// The time that writers owe.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    owed_nanos: u64,
    /// When the last of those who wait has waited, by the monotonic clock.
    paid_at_nanos: u64,
}

impl Debt {
    /// Adds to what is owed.
    pub(crate) fn owe(&mut self, nanos: u64) {
        self.owed_nanos = self.owed_nanos.saturating_add(nanos);
    }

    /// Whether it is too little to wait for.
    pub(crate) fn is_small(&self) -> bool {
        self.owed_nanos < WAIT_MIN_NANOS
    }

    /// The time that the caller waits for all that is owed, after those who wait already: at most
    /// `longest_nanos` for both.
    pub(crate) fn pay(&mut self, now_nanos: u64, longest_nanos: u64) -> u64 {
        let wait = std::mem::take(&mut self.owed_nanos).min(longest_nanos);
        let queue_end = now_nanos.saturating_add(QUEUE_MAX_NANOS);
        self.paid_at_nanos = self.paid_at_nanos.max(now_nanos).saturating_add(wait).min(queue_end);
        (self.paid_at_nanos - now_nanos).min(longest_nanos)
    }

    /// Nothing lags behind any more.
    pub(crate) fn forgive(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_that_wait_at_once_wait_one_behind_the_other() {
        let mut debt = Debt::default();
        debt.owe(WAIT_MIN_NANOS - 1);
        assert!(debt.is_small());
        debt.owe(4_000_001);
        assert!(!debt.is_small());
        assert_eq!(debt.pay(1_000, u64::MAX), 5_000_000);
        debt.owe(2_000_000);
        // The first has 4 ms left.
        assert_eq!(debt.pay(1_001_000, u64::MAX), 6_000_000);
        debt.owe(u64::MAX);
        assert_eq!(debt.pay(10_000_000, 3_000_000), 3_000_000);
        // A small one that comes after a large one waits as long as a small one may, also if the
        // clock does not advance.
        for _ in 0..3 {
            debt.owe(8_000_000_000);
            assert!(debt.pay(10_000_000, u64::MAX) <= QUEUE_MAX_NANOS);
        }
        debt.owe(2_000_000);
        assert_eq!(debt.pay(10_000_000, 100_000_000), 100_000_000);
        debt.forgive();
        assert_eq!(debt.pay(11_000_000, u64::MAX), 0);
    }
}
