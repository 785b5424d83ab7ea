//! An account: heap memory of many small holders, charged to the budget together.
//!
//! Changing a lease takes the budget's lock, and the needs of a small holder may change with every
//! operation. An account therefore adds up charges in one counter and leases the sum in steps of
//! [`STEP_BYTES`].
//!
//! Invariants:
//! 1. All charges are covered by the account's lease.
//! 2. No lock is held while the budget is asked for more, because the budget asks reclaimers, and
//!    these may drop charges.

use std::fmt;
use std::sync::Arc;

use plimsoll_disk::fork::Origin;

use super::{Budget, Kind, Lease, OutOfBudget};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The lease grows and shrinks by multiples of this.
pub const STEP_BYTES: u64 = 16 << 10;

/// The account.
pub struct Account {
    /// The sum of all charges, including those that are not covered yet because [`Account::add`] is
    /// asking the budget.
    charged: AtomicU64,
    /// Bytes that may be charged without asking the budget: the lease's bytes, or less while it
    /// shrinks.
    covered: AtomicU64,
    lease: Mutex<Lease>,
    budget: Budget,
    kind: Kind,
    origin: Origin,
}

impl Account {
    /// Makes an account whose lease never falls below one step, so that opening and closing one
    /// small holder does not ask the budget.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn new(budget: &Budget, kind: Kind) -> Result<Arc<Self>, OutOfBudget> {
        let lease = budget.lease(kind, STEP_BYTES)?;
        Ok(Arc::new(Self {
            charged: AtomicU64::new(0),
            covered: AtomicU64::new(STEP_BYTES),
            lease: Mutex::new(lease),
            budget: budget.clone(),
            kind,
            origin: Origin::here(),
        }))
    }

    /// The sum of all charges.
    pub fn charged_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// An empty charge.
    pub fn charge(self: &Arc<Self>) -> Charge {
        Charge { account: Arc::clone(self), bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("no code under this lock panics")
    }

    fn add(&self, bytes: u64) -> Result<(), OutOfBudget> {
        // AcqRel: pairs with the second read of `charged` in `subtract`. The later of the two sees
        // the change of the earlier.
        let mut charged = self.charged.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let mut refused: Option<OutOfBudget> = None;
        loop {
            let covered = self.covered.load(Ordering::Acquire);
            if charged <= covered {
                return Ok(());
            }
            let more = (charged - covered).next_multiple_of(STEP_BYTES);
            // Reclaimers may have dropped charges, so that less is missing than the refusal
            // reports.
            if let Some(refusal) = refused.take_if(|refusal| more >= refusal.needed_bytes) {
                self.subtract(bytes);
                return Err(refusal);
            }
            match self.budget.lease(self.kind, more) {
                Ok(more) => {
                    let mut lease = self.lock();
                    lease.absorb(more);
                    self.covered.store(lease.bytes(), Ordering::Release);
                }
                Err(refusal) => refused = Some(refusal),
            }
            // Other threads may have charged more meanwhile, or less.
            charged = self.charged.load(Ordering::Acquire);
        }
    }

    fn subtract(&self, bytes: u64) {
        if self.origin.is_foreign() {
            return;
        }
        let charged = self.charged.fetch_sub(bytes, Ordering::AcqRel) - bytes;
        // Keep some slack, so that a charge that oscillates around a step does not change the lease
        // each time.
        if charged + 2 * STEP_BYTES > self.covered.load(Ordering::Acquire) {
            return;
        }
        let mut lease = self.lock();
        let keep = self.charged.load(Ordering::Acquire).next_multiple_of(STEP_BYTES) + STEP_BYTES;
        if keep >= lease.bytes() {
            return;
        }
        self.covered.store(keep, Ordering::Release);
        // A read-modify-write orders this before or after the one in `add`, so that a later charge
        // sees the new cover.
        if self.charged.fetch_add(0, Ordering::AcqRel) > keep {
            // Another holder charged between the two reads, and may have seen the old cover.
            self.covered.store(lease.bytes(), Ordering::Release);
            return;
        }
        let spare = lease.bytes() - keep;
        lease.shrink(spare);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let covered = self.covered.load(Ordering::Relaxed);
        write!(f, "Account({:?}, {} of {covered} bytes)", self.kind, self.charged_bytes())
    }
}

/// The charge of one holder; returned on drop.
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// Bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the charge stays as it was.
    pub fn set(&mut self, bytes: u64) -> Result<(), OutOfBudget> {
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes)?;
        } else if bytes < self.bytes {
            self.account.subtract(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.subtract(self.bytes);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} bytes)", self.bytes)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;
    use crate::budget::chunk::CHUNK_BYTES;

    fn account(chunks: u64) -> (Budget, Arc<Account>) {
        let budget = Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let account = Account::new(&budget, Kind::Iterators).unwrap();
        (budget, account)
    }

    #[test]
    fn lease_covers_charges_with_little_slack() {
        let (budget, account) = account(64);
        let leased = || budget.usage().of(Kind::Iterators);
        let mut charges: Vec<_> = (0..100).map(|_| account.charge()).collect();
        for (number, charge) in (0..).zip(&mut charges) {
            charge.set(number * 300).unwrap();
            let all = account.charged_bytes();
            assert!((all..=all + 3 * STEP_BYTES).contains(&leased()), "{account:?}");
        }
        charges[99].set(7).unwrap();
        while charges.pop().is_some() {
            let all = account.charged_bytes();
            assert!((all..=all + 3 * STEP_BYTES).contains(&leased()), "{account:?}");
        }
        assert_eq!((account.charged_bytes(), leased()), (0, STEP_BYTES));
        drop(account);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn refused_charge_is_unchanged() {
        let (budget, account) = account(4);
        let mut charge = account.charge();
        charge.set(20_000).unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
        let error = charge.set(200_000).unwrap_err();
        assert!(error.to_string().contains("Iterators"), "{error}");
        assert_eq!((charge.bytes(), account.charged_bytes()), (20_000, 20_000));
        drop(rest);
        charge.set(200_000).unwrap();
    }

    /// Drops a charge on request.
    struct Leaving(Mutex<Option<Charge>>);

    impl crate::budget::Reclaim for Leaving {
        fn reclaim(&self, _: usize) -> usize {
            drop(self.0.lock().unwrap().take());
            0
        }
    }

    #[test]
    fn charge_dropped_during_a_request_makes_room_for_it() {
        let (budget, account) = account(4);
        let mut first = account.charge();
        first.set(3 * CHUNK_BYTES as u64).unwrap();
        let leaving = Arc::new(Leaving(Mutex::new(Some(first))));
        let reclaimer = Arc::downgrade(&leaving);
        budget.add_reclaimer(reclaimer);
        let mut second = account.charge();
        second.set(2 * CHUNK_BYTES as u64).unwrap();
        assert_eq!(account.charged_bytes(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn concurrent_charges_are_covered() {
        let (budget, account) = account(64);
        std::thread::scope(|scope| {
            for thread in 1..4u64 {
                let (budget, account) = (&budget, &account);
                scope.spawn(move || {
                    let mut charge = account.charge();
                    for step in 0..if cfg!(miri) { 20 } else { 5000 } {
                        charge.set(step * thread * 7919 % 200_000).unwrap();
                        assert!(budget.usage().of(Kind::Iterators) >= charge.bytes());
                    }
                });
            }
        });
        assert_eq!(account.charged_bytes(), 0);
        assert!(budget.usage().of(Kind::Iterators) <= 2 * STEP_BYTES);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::budget::Backing;

    /// One holder returns enough to shrink the lease, while another charges more than the rest of
    /// it. The lease covers all charges at the end.
    #[test]
    fn loom_charge_during_a_shrink_is_covered() {
        loom::model(|| {
            let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
            let account = Account::new(&budget, Kind::Iterators).unwrap();
            let mut leaving = account.charge();
            leaving.set(4 * STEP_BYTES).unwrap();
            let mut coming = account.charge();
            let other = thread::spawn(move || {
                coming.set(3 * STEP_BYTES).unwrap();
                coming
            });
            drop(leaving);
            let coming = other.join().unwrap();
            assert!(budget.usage().of(Kind::Iterators) >= coming.bytes(), "{account:?}");
        });
    }
}
