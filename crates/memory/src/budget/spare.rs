//! Spare mappings: returned mappings that are kept for the next buffer.

use super::{Inner, Kind, OutOfBudget, State};
use crate::mapping::Mapping;
use crate::sync::{MutexGuard, Ordering};

/// Upper bound on all spare mappings together: a 64th of the budget, 4 MiB at most.
fn spare_bytes_max(limit_bytes: u64) -> u64 {
    (limit_bytes / 64).min(4 << 20)
}

/// The best-fitting spare mapping for `bytes`: the smallest that is large enough, but not more than
/// twice as large.
fn best_fit(spare: &[Mapping], bytes: usize) -> Option<usize> {
    let fits = |mapping: &Mapping| (bytes..=2 * bytes).contains(&mapping.bytes());
    let fitting = spare.iter().enumerate().filter(|(_, mapping)| fits(mapping));
    fitting.min_by_key(|(_, mapping)| mapping.bytes()).map(|(at, _)| at)
}

impl Inner {
    /// Takes a spare mapping of at least `bytes` and charges it as `kind`, by its full length.
    pub(super) fn take_spare(
        &self,
        kind: Kind,
        bytes: usize,
    ) -> Result<Option<Mapping>, OutOfBudget> {
        let mut state = self.lock();
        let Some(best) = best_fit(&state.spare, bytes) else { return Ok(None) };
        if state.refuses_on_purpose() {
            return Err(self.refusal(state, kind, bytes as u64));
        }
        let mapping = state.spare.swap_remove(best);
        self.charge_as(Kind::Spare, kind, mapping.bytes() as u64);
        Ok(Some(mapping))
    }

    /// Keeps a mapping, which is charged as `kind` so far, among the spares if they have room for
    /// it and no thread waits for memory. Otherwise returns it.
    pub(super) fn keep_spare(&self, kind: Kind, mapping: Mapping) -> Result<(), Mapping> {
        if self.origin.is_foreign() {
            return Err(mapping);
        }
        let bytes = mapping.bytes() as u64;
        let mut state = self.lock();
        let kept: u64 = state.spare.iter().map(|mapping| mapping.bytes() as u64).sum();
        if state.waiting > 0 || kept + bytes > spare_bytes_max(self.limit_bytes()) {
            return Err(mapping);
        }
        state.spare.push(mapping);
        self.charge_as(kind, Kind::Spare, bytes);
        Ok(())
    }

    fn charge_as(&self, before: Kind, now: Kind, bytes: u64) {
        self.by_kind[before as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.by_kind[now as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Unmaps spare mappings, then returns their charge to the budget.
    pub(super) fn release_spare(&self, spare: Vec<Mapping>) -> MutexGuard<'_, State> {
        let bytes = spare.iter().map(|mapping| mapping.bytes() as u64).sum();
        drop(spare);
        let mut state = self.lock();
        if self.unretire(&mut state, Kind::Spare, bytes) > 0 {
            self.freed.notify_all();
        }
        state
    }
}
