//! The time that writers owe to flushes and merges that lag behind: how much, and who waits when. Pure.

/// Shorter waits are accumulated.
pub(crate) const WAIT_MIN_NANOS: u64 = 1_000_000;

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

    /// The time that the caller waits for all that is owed, up to `longest_nanos`, after those who wait already.
    pub(crate) fn pay(&mut self, now_nanos: u64, longest_nanos: u64) -> u64 {
        let wait = std::mem::take(&mut self.owed_nanos).min(longest_nanos);
        self.paid_at_nanos = self.paid_at_nanos.max(now_nanos).saturating_add(wait);
        self.paid_at_nanos - now_nanos
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
        debt.forgive();
        assert_eq!(debt.pay(11_000_000, u64::MAX), 0);
    }
}
