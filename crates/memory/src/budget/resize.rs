//! Resizing a budget while it is in use.
//!
//! Invariants:
//! 1. Resizes run one at a time. An error leaves the budget as it was.
//! 2. Chunks beyond a smaller limit are decommitted. They stay in the arena, but are not free until
//!    the budget becomes larger again.

use std::fmt;
use std::io;

use super::lease::{DECOMMIT_BATCH, RECLAIMED_AT_ONCE};
use super::{Inner, Lease, State, Usage};
use crate::budget::chunk::CHUNK_BYTES;
use crate::sync::{MutexGuard, Ordering};

/// Why a budget could not be resized. The budget is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// The request is less than one chunk, or exceeds the address space that was reserved when the
    /// budget was made.
    BeyondCeiling {
        /// The requested size.
        wanted_bytes: u64,
        /// The largest possible size.
        ceiling_bytes: u64,
    },
    /// Too much is held that cannot be evicted.
    Held {
        /// Bytes still missing.
        missing_bytes: u64,
        /// Bytes held, by kind.
        usage: Box<Usage>,
    },
    /// The system refuses the memory.
    Refused {
        /// The system's message.
        message: String,
    },
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeyondCeiling { wanted_bytes, ceiling_bytes } => write!(
                f,
                "cannot resize the memory budget to {wanted_bytes} bytes while it is in use \
                 (minimum 65536, maximum {ceiling_bytes})"
            ),
            Self::Held { missing_bytes, usage } => {
                write!(
                    f,
                    "cannot shrink the memory budget: {missing_bytes} bytes too many are in use, \
                     {usage}"
                )
            }
            Self::Refused { message } => {
                write!(f, "the system refuses memory for a larger budget: {message}")
            }
        }
    }
}

impl std::error::Error for ResizeError {}

impl Inner {
    pub(super) fn resize(
        &self,
        limit_bytes: u64,
        lease: &mut Lease,
        leased_bytes: u64,
    ) -> Result<(), ResizeError> {
        let ceiling_bytes = u64::from(self.arena.ceiling()) * CHUNK_BYTES as u64;
        let wanted = limit_bytes / CHUNK_BYTES as u64;
        match u32::try_from(wanted) {
            Ok(wanted) if wanted > 0 && wanted <= self.arena.ceiling() => {
                self.resize_to(wanted, lease, leased_bytes)
            }
            _ => Err(ResizeError::BeyondCeiling { wanted_bytes: limit_bytes, ceiling_bytes }),
        }
    }

    fn resize_to(
        &self,
        wanted: u32,
        lease: &mut Lease,
        leased_bytes: u64,
    ) -> Result<(), ResizeError> {
        let _turn = self.resizing.lock().expect("no code under this lock panics");
        let mut state = self.lock();
        let before = self.chunks.load(Ordering::Relaxed);
        loop {
            let over = self.chunks.load(Ordering::Relaxed).saturating_sub(wanted) as usize;
            let short = self.short_for(&state, wanted, lease, leased_bytes);
            state = match (over, short) {
                (0, 0) => break,
                (1.., _) if !state.free.is_empty() => {
                    self.decommit_some(state, over.min(DECOMMIT_BATCH))
                }
                // The rest of the surplus is retired for the lease, and is decommitted once the
                // lease has shrunk (below).
                (1.., 0) => break,
                _ => match self.reclaim(state, short.min(RECLAIMED_AT_ONCE)) {
                    Ok(state) => state,
                    Err(state) => return Err(self.resize_back(state, before, short)),
                },
            };
        }
        if leased_bytes < lease.bytes {
            self.unretire(&mut state, lease.kind, lease.bytes - leased_bytes);
            lease.bytes = leased_bytes;
            self.decommit_over(&mut state, wanted);
        }
        self.enlarge(&mut state, wanted)
            .map_err(|error| ResizeError::Refused { message: error.to_string() })?;
        if leased_bytes > lease.bytes {
            self.retire(&mut state, lease.kind, leased_bytes - lease.bytes);
            lease.bytes = leased_bytes;
        }
        state.peak_chunks = wanted as usize - state.free.len();
        drop(state);
        self.freed.notify_all();
        Ok(())
    }

    /// Chunks missing for a budget of `wanted` chunks in which `lease` covers `leased_bytes`.
    fn short_for(&self, state: &State, wanted: u32, lease: &Lease, leased_bytes: u64) -> usize {
        let leased = state.leased_bytes - lease.bytes + leased_bytes;
        let retired = leased.div_ceil(CHUNK_BYTES as u64) as usize;
        let needed = self.chunks.load(Ordering::Relaxed) as usize + retired;
        needed.saturating_sub(state.retired.len() + state.free.len() + wanted as usize)
    }

    /// Withdraws the chunks beyond `wanted` from the budget; they are free.
    fn decommit_over(&self, state: &mut State, wanted: u32) {
        while self.chunks.load(Ordering::Relaxed) > wanted {
            // The chunks that were just unretired are at the front.
            let id = state.free.pop_front().expect("the surplus was counted as retired");
            self.decommit(state, id);
            state.decommitted.push(id);
            self.chunks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Withdraws up to `count` free chunks from the budget, then releases the lock for a moment.
    fn decommit_some<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        count: usize,
    ) -> MutexGuard<'a, State> {
        for _ in 0..count {
            let Some(id) = self.decommit_one(&mut state) else { break };
            state.decommitted.push(id);
            self.chunks.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.lock()
    }

    /// Restores the size of `before` chunks after a failed resize, which would have needed `short`
    /// more free chunks.
    fn resize_back(
        &self,
        mut state: MutexGuard<'_, State>,
        before: u32,
        short: usize,
    ) -> ResizeError {
        self.enlarge(&mut state, before).expect("these chunks were in the budget a moment ago");
        let usage = Box::new(self.usage_of(&state));
        drop(state);
        self.freed.notify_all();
        ResizeError::Held { missing_bytes: (short * CHUNK_BYTES) as u64, usage }
    }

    /// Adds chunks until there are `wanted`: first decommitted ones, then new ones. On an error
    /// none is added.
    fn enlarge(&self, state: &mut State, wanted: u32) -> io::Result<()> {
        let more = wanted - self.chunks.load(Ordering::Relaxed);
        let fresh = more.saturating_sub(state.decommitted.len() as u32);
        if fresh > 0 {
            self.arena.grow(state.made + fresh)?;
        }
        let keep = state.decommitted.len() - (more - fresh) as usize;
        let again = state.decommitted.split_off(keep);
        again.into_iter().for_each(|id| state.free.push_front(id));
        (state.made..state.made + fresh).for_each(|id| state.free.push_front(id));
        state.made += fresh;
        let made = state.made as usize;
        state.out.resize(made, false);
        self.chunks.store(wanted, Ordering::Relaxed);
        Ok(())
    }
}
