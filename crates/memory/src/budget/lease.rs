//! Leases: room in the budget for memory from the heap.

use std::fmt;
use std::sync::Arc;

use super::chunk::CHUNK_BYTES;
use super::{Backing, Budget, Inner, Kind, OutOfBudget, State};
use crate::mapping::Mapping;
use crate::sync::{MutexGuard, Ordering};

/// The most chunks requested from the reclaimers at once, so that other threads can use the pool
/// between two requests.
pub(super) const RECLAIMED_AT_ONCE: usize = 16;

/// Chunks given to the system per acquisition of the lock.
pub(super) const DECOMMIT_BATCH: usize = 64;

/// A claim on the budget for heap memory; returned on drop.
pub struct Lease {
    inner: Arc<Inner>,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
}

impl Lease {
    /// Bytes it covers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Extends the lease by `bytes`.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the lease stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<(), OutOfBudget> {
        self.inner.grow_leases(self.kind, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes over the bytes of `other`.
    ///
    /// # Panics
    /// `other` is of another budget or kind.
    pub(crate) fn absorb(&mut self, mut other: Lease) {
        assert!(Arc::ptr_eq(&self.inner, &other.inner) && self.kind == other.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Another lease of the same kind.
    pub(crate) fn same_kind(&self, bytes: u64) -> Result<Lease, OutOfBudget> {
        let mut lease = self.empty_like_it();
        lease.grow(bytes)?;
        Ok(lease)
    }

    /// An empty lease of the same kind.
    pub(crate) fn empty_like_it(&self) -> Lease {
        Lease { inner: Arc::clone(&self.inner), kind: self.kind, bytes: 0 }
    }

    /// The source of contiguous memory.
    pub(crate) fn backing(&self) -> Backing {
        if cfg!(any(miri, loom)) { Backing::Heap } else { self.inner.arena.backing() }
    }

    /// Takes a spare mapping of at least `bytes`, and the lease of the same kind that covers it.
    pub(crate) fn take_spare(&self, bytes: usize) -> Result<Option<(Mapping, Lease)>, OutOfBudget> {
        let Some(mapping) = self.inner.take_spare(self.kind, bytes)? else { return Ok(None) };
        let lease = Lease {
            inner: Arc::clone(&self.inner),
            kind: self.kind,
            bytes: mapping.bytes() as u64,
        };
        Ok(Some((mapping, lease)))
    }

    /// Returns a mapping together with the lease that covers it, or keeps both as a spare.
    pub(crate) fn release_with(mut self, mapping: Mapping) {
        if self.bytes == mapping.bytes() as u64 {
            match self.inner.keep_spare(self.kind, mapping) {
                // Its bytes are charged as spare from now on.
                Ok(()) => self.bytes = 0,
                Err(mapping) => drop(mapping),
            }
        }
    }

    /// Shrinks the lease by `bytes` (at most to zero).
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.inner.shrink_leases(self.kind, bytes);
        self.bytes -= bytes;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inner.shrink_leases(self.kind, self.bytes);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, {} bytes)", self.kind, self.bytes)
    }
}

impl Budget {
    /// Leases room for `bytes` of heap memory; asks the reclaimers if there is none.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn lease(&self, kind: Kind, bytes: u64) -> Result<Lease, OutOfBudget> {
        let mut lease = self.empty_lease(kind);
        lease.grow(bytes)?;
        Ok(lease)
    }

    /// An empty lease, to grow later.
    pub fn empty_lease(&self, kind: Kind) -> Lease {
        Lease { inner: Arc::clone(&self.inner), kind, bytes: 0 }
    }
}

impl Inner {
    pub(super) fn grow_leases(&self, kind: Kind, bytes: u64) -> Result<(), OutOfBudget> {
        let mut state = self.lock();
        if state.refuses_on_purpose() {
            return Err(self.refusal(state, kind, bytes));
        }
        loop {
            let missing = state.missing_for(bytes);
            if missing <= state.free.len() {
                state = self.decommit_ahead(state, missing);
            }
            // Other threads may have taken chunks meanwhile.
            let missing = state.missing_for(bytes);
            if missing <= state.free.len() {
                self.retire(&mut state, kind, bytes);
                self.note_taken(state);
                return Ok(());
            }
            let short = missing - state.free.len();
            state = self
                .reclaim(state, short.min(RECLAIMED_AT_ONCE))
                .map_err(|state| self.refusal(state, kind, bytes))?;
        }
    }

    /// Returns memory to the system ahead of time: the memory of the next `count` free chunks to be
    /// retired, except for the last batch. Releases the lock between batches. The chunks stay free;
    /// retiring them later is then cheap. Chunks that were never taken are skipped, because they
    /// have no memory yet, and retiring them is cheap anyway.
    fn decommit_ahead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        count: usize,
    ) -> MutexGuard<'a, State> {
        for first in (DECOMMIT_BATCH..count).step_by(DECOMMIT_BATCH) {
            for at in first - DECOMMIT_BATCH..first.min(state.free.len()) {
                let id = state.free.at(at);
                if !state.free.never_taken().contains(&id) {
                    self.decommit(&mut state, id);
                }
            }
            drop(state);
            state = self.lock();
        }
        state
    }

    /// Returns a free chunk's memory to the system, unless that was done before.
    pub(super) fn decommit(&self, state: &mut State, id: u32) {
        if !std::mem::replace(&mut state.out[id as usize], true) {
            self.arena.decommit(id);
        }
    }

    /// Retires the free chunks needed to cover `bytes` more.
    pub(super) fn retire(&self, state: &mut State, kind: Kind, bytes: u64) {
        let missing = state.missing_for(bytes);
        let fresh = state.free.pop_fresh(missing);
        if !fresh.is_empty() {
            debug_assert!(
                !state.out[fresh.start as usize..fresh.end as usize].contains(&true),
                "each is counted once"
            );
            state.out[fresh.start as usize..fresh.end as usize].fill(true);
            self.arena.decommit_fresh(fresh.clone());
            state.retired.extend(fresh.clone().rev());
        }
        for _ in fresh.len()..missing {
            let id = self.decommit_one(state).expect("enough chunks are free");
            state.retired.push(id);
        }
        state.leased_bytes += bytes;
        state.taken += missing as u64;
        self.by_kind[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the free chunk at the front, and returns its memory to the system.
    pub(super) fn decommit_one(&self, state: &mut State) -> Option<u32> {
        let id = state.free.pop_front()?;
        self.decommit(state, id);
        Some(id)
    }

    pub(super) fn shrink_leases(&self, kind: Kind, bytes: u64) {
        if self.origin.is_foreign() {
            return;
        }
        let mut state = self.lock();
        let any = self.unretire(&mut state, kind, bytes) > 0;
        state.given += u64::from(any);
        drop(state);
        if any {
            self.freed.notify_all();
        }
    }

    /// Frees the chunks no longer needed once `bytes` fewer are leased. Returns how many.
    pub(super) fn unretire(&self, state: &mut State, kind: Kind, bytes: u64) -> usize {
        state.leased_bytes -= bytes;
        let keep = state.leased_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        let spare = state.retired.len().saturating_sub(keep);
        for id in state.retired.drain(keep.min(state.retired.len())..) {
            state.free.push_front(id);
        }
        self.by_kind[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        spare
    }
}
