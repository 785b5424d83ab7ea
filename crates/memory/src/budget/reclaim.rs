//! Reclaiming memory when the budget is short: from lenders first, then from reclaimers.

use std::sync::Weak;

use super::bell::Cause;
use super::{Budget, Inner, State};
use crate::sync::MutexGuard;

/// A holder of memory that can give some back on request.
pub trait Reclaim: Send + Sync {
    /// Releases up to `chunks` chunks (by dropping them) and returns how many. Must not take memory
    /// from the budget, and must not wait for a thread that might take some.
    fn reclaim(&self, chunks: usize) -> usize;
}

impl Budget {
    /// Asks the reclaimers once, for a caller that has no memory of its own left to evict.
    pub(crate) fn reclaim_once(&self) {
        drop(self.inner.reclaim(self.inner.lock(), 1));
    }

    /// Adds a reclaimer to ask when no chunk is free. Reclaimers are asked in the order in which
    /// they were added.
    pub fn add_reclaimer(&self, reclaimer: Weak<dyn Reclaim>) {
        let mut reclaimers = self.inner.reclaimers.lock().expect("a reclaimer never panics");
        reclaimers.retain(|known| known.strong_count() > 0);
        reclaimers.push(reclaimer);
    }

    /// Adds a lender: a holder of memory that would otherwise be free. Lenders are asked before the
    /// reclaimers. The evictor also asks them before it evicts pages.
    pub fn add_lender(&self, lender: Weak<dyn Reclaim>) {
        let mut lenders = self.inner.lenders.lock().expect("a reclaimer never panics");
        lenders.retain(|known| known.strong_count() > 0);
        lenders.push(lender);
    }

    /// Asks the lenders for `chunks` chunks; returns how many more are free afterwards.
    pub(crate) fn reclaim_lent(&self, chunks: usize) -> usize {
        self.inner.reclaim_lent(chunks)
    }
}

impl Inner {
    /// Releases the lock and obtains free chunks: from the spare mappings if there are any,
    /// otherwise up to `chunks` from the lenders or the reclaimers. Then locks again. Returns `Err`
    /// if none gave any, and no more chunks are free than before.
    pub(super) fn reclaim<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        chunks: usize,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        if !state.spare.is_empty() {
            let spare = std::mem::take(&mut state.spare);
            drop(state);
            return Ok(self.release_spare(spare));
        }
        state.pressure.inline_evictions += 1;
        let before = state.free.len();
        drop(state);
        self.ring(Cause::Inline);
        if self.reclaim_lent(chunks) > 0 {
            return Ok(self.lock());
        }
        let reclaimers: Vec<_> = self
            .reclaimers
            .lock()
            .expect("a reclaimer never panics")
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let given = reclaimers.iter().any(|reclaimer| reclaimer.reclaim(chunks) > 0);
        // Drop these references while the lock is not held: one may be the last, and dropping a
        // reclaimer takes the lock to return its memory.
        drop(reclaimers);
        let state = self.lock();
        // Another thread, such as the evictor or a reclaimer asked by another caller, may have
        // freed chunks meanwhile.
        if given || state.free.len() > before { Ok(state) } else { Err(state) }
    }

    /// See [`Budget::reclaim_lent`].
    pub(super) fn reclaim_lent(&self, chunks: usize) -> usize {
        let lenders: Vec<_> = self
            .lenders
            .lock()
            .expect("a reclaimer never panics")
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let before = self.lock().free.len();
        if !lenders.iter().any(|lender| lender.reclaim(chunks) > 0) {
            return 0;
        }
        drop(lenders);
        // A lender's large buffer became a spare when it was dropped, so give up the spares too.
        let mut state = self.lock();
        if state.free.len() < before + chunks && !state.spare.is_empty() {
            let spare = std::mem::take(&mut state.spare);
            drop(state);
            state = self.release_spare(spare);
        }
        state.free.len().saturating_sub(before)
    }
}
