//! The memory budget: one limit, and an account of its use by kind.
//!
//! Laws:
//! 1. free chunks + chunks held + chunks retired by leases = chunks of the budget, at every moment.
//! 2. A lease retires chunks for its bytes before its holder allocates them; all leases together retire the sum,
//!    rounded up. A retired chunk's memory is given back to the system, so that arena and leased heap together never
//!    exceed the budget.
//! 3. Everything taken is given back on drop, on error paths too.
//! 4. A budget that was made smaller holds no more than its new limit; the memory above it was given back to the
//!    system.
//!
//! When few chunks are free, the budget calls the evictor, if there is one. When none is free, it asks its reclaimers
//! (lenders first, then the page pool), and refuses only if they give none.

pub mod account;
pub(crate) mod bell;
pub mod chunk;
mod free;
mod resize;
mod spare;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
mod usage;
pub mod wait_queue;

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use plimsoll_disk::fork::Origin;

use crate::arena::Arena;
pub use crate::backing::Backing;
use crate::mapping::Mapping;
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use bell::{Bell, Cause};
use chunk::{CHUNK_BYTES, Chunk};
use free::Free;
pub use resize::ResizeError;
use spare::{best_of, spare_bytes_max};
pub use usage::{Kind, OutOfBudget, Pressure, Usage};

/// The smallest budget: 16 MiB.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

/// Batch size for requests to reclaimers, so that others can use the pool between batches.
const RECLAIMED_AT_ONCE: usize = 16;

/// Chunks given to the system per acquisition of the lock.
const WITHDRAWN_AT_ONCE: usize = 64;

/// A holder of memory that can give some back on request.
pub trait Reclaim: Send + Sync {
    /// Gives back up to `chunks` chunks (by dropping them) and returns how many it gave. Must not take memory from the
    /// budget, and must not wait for a thread that might.
    fn reclaim(&self, chunks: usize) -> usize;
}

/// The memory budget. Clones share it.
#[derive(Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    arena: Arena,
    /// Chunks of the budget; changed under the lock.
    chunks: AtomicU32,
    /// Serialises resizes. Taken before the state's lock.
    resizing: Mutex<()>,
    state: Mutex<State>,
    bell: OnceLock<Arc<Bell>>,
    freed: Condvar,
    by_kind: [AtomicU64; Kind::ALL.len()],
    reclaimers: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// Holders of memory that would be free without them.
    lenders: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// In a forked child nothing is given back: a thread that it does not have may hold the lock.
    origin: Origin,
}

#[derive(Default)]
struct State {
    /// Taken from the back, where the most recently returned chunks are: their bytes are still resident. Retired from
    /// the front.
    free: Free,
    retired: Vec<u32>,
    /// By chunk: whether its memory was given to the system and the chunk not taken since. Such a chunk may be free; it
    /// is taken last.
    out: Vec<bool>,
    /// Chunks removed from the budget when it was made smaller.
    withdrawn: Vec<u32>,
    /// Chunks from this number on were never part of the budget.
    made: u32,
    leased_bytes: u64,
    /// Covered by leases of [`Kind::Spare`].
    spare: Vec<Mapping>,
    peak_chunks: usize,
    /// The evictor is called when fewer chunks than this are free.
    low_watermark: usize,
    /// Total chunks taken, by leases too, but not by the page pool.
    taken: u64,
    /// Total times that holders other than the page pool and the object cache gave chunks back.
    given: u64,
    pressure: Pressure,
    /// Threads that wait for a chunk; at zero, no notification is needed.
    waiting: usize,
    /// Reservations that still succeed before one is refused on purpose.
    #[cfg(any(test, feature = "testing"))]
    fail_after: Option<u64>,
}

impl Budget {
    /// Makes a budget of `limit_bytes`, rounded down to whole chunks. Memory is taken from the system at first touch.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn new(limit_bytes: u64, backing: Backing) -> io::Result<Self> {
        Self::with_ceiling(limit_bytes, limit_bytes, backing)
    }

    /// Makes a budget of `limit_bytes` that [`Budget::resize`] can raise to `ceiling_bytes`. The ceiling costs address
    /// space, not memory. If the system refuses that much address space, the ceiling is the limit.
    ///
    /// # Errors
    /// The system refuses the address space for `limit_bytes`.
    pub fn with_ceiling(limit_bytes: u64, ceiling_bytes: u64, backing: Backing) -> io::Result<Self> {
        let count = |bytes: u64| {
            u32::try_from(bytes / CHUNK_BYTES as u64)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a budget is below 256 TiB"))
        };
        let chunks = count(limit_bytes)?;
        let ceiling = count(ceiling_bytes)?.max(chunks);
        let arena = Arena::new(chunks, ceiling, backing).or_else(|_| Arena::new(chunks, chunks, backing))?;
        let state =
            State { free: Free::fresh(0..chunks), out: vec![false; chunks as usize], made: chunks, ..State::default() };
        let inner = Inner {
            arena,
            chunks: AtomicU32::new(chunks),
            resizing: Mutex::new(()),
            state: Mutex::new(state),
            bell: OnceLock::new(),
            freed: Condvar::new(),
            by_kind: std::array::from_fn(|_| AtomicU64::new(0)),
            reclaimers: Mutex::new(Vec::new()),
            lenders: Mutex::new(Vec::new()),
            origin: Origin::here(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.limit_bytes()
    }

    /// The highest limit that [`Budget::resize`] accepts.
    pub fn ceiling_bytes(&self) -> u64 {
        u64::from(self.inner.arena.ceiling()) * CHUNK_BYTES as u64
    }

    /// Changes the limit, in whole chunks (rounded down). Memory above a lower limit goes back to the system.
    ///
    /// # Errors
    /// [`ResizeError`]; the budget is as it was.
    pub fn resize(&self, limit_bytes: u64) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, &mut self.empty_lease(Kind::Pages), 0)
    }

    /// As [`Budget::resize`]; also resizes `lease` to `leased_bytes`, atomically: no other thread can take the memory
    /// in between.
    pub(crate) fn resize_with(
        &self,
        limit_bytes: u64,
        lease: &mut Lease,
        leased_bytes: u64,
    ) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, lease, leased_bytes)
    }

    /// Upper bound on the system's page tables for the chunks of a budget of `limit_bytes`, including the chunks that
    /// it has had so far.
    pub(crate) fn page_table_bytes(&self, limit_bytes: u64) -> u64 {
        let chunks = usize::try_from(limit_bytes / CHUNK_BYTES as u64).unwrap_or(usize::MAX / CHUNK_BYTES);
        Arena::page_table_bytes(chunks, self.inner.lock().made as usize) as u64
    }

    /// Bytes available without asking a reclaimer.
    pub fn free_bytes(&self) -> u64 {
        (self.inner.lock().free.len() * CHUNK_BYTES) as u64
    }

    /// Takes one chunk; asks the reclaimers if none is free.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn take(&self, kind: Kind) -> Result<Chunk, OutOfBudget> {
        self.inner.take(kind)
    }

    /// Takes one chunk if one is free. Asks no reclaimer, and a failure does not count as a refusal.
    pub fn try_take(&self, kind: Kind) -> Option<Chunk> {
        self.inner.take_free(self.inner.lock(), kind).ok()
    }

    /// Takes one chunk that was never taken before, if one is free and at hand: most likely its memory has not come from the system yet. Asks
    /// no reclaimer, and a failure does not count as a refusal.
    pub fn try_take_fresh(&self, kind: Kind) -> Option<Chunk> {
        let mut state = self.inner.lock();
        let id = state.free.pop_never_taken()?;
        Some(self.inner.taken(state, id, kind))
    }

    /// Takes one chunk, waiting up to `patience` for one to become free.
    ///
    /// # Errors
    /// [`OutOfBudget`] after that time; nothing is taken.
    pub fn take_waiting(&self, kind: Kind, patience: Duration) -> Result<Chunk, OutOfBudget> {
        let mut waited = Duration::ZERO;
        loop {
            match self.inner.take(kind) {
                Ok(chunk) => return Ok(chunk),
                Err(refusal) if waited >= patience => return Err(refusal),
                Err(_) => {
                    self.inner.lock().pressure.waits += u64::from(waited.is_zero());
                    // In short steps: a chunk may also become reclaimable without being given back (a pin is dropped).
                    let step = Duration::from_millis(5).min(patience);
                    let mut state = self.inner.lock();
                    if state.free.is_empty() {
                        state.waiting += 1;
                        let waited = self.inner.freed.wait_timeout(state, step);
                        waited.expect("no code under this lock panics").0.waiting -= 1;
                    }
                    waited += step;
                }
            }
        }
    }

    /// Times that chunks were given back by holders other than the reclaimers.
    fn given(&self) -> u64 {
        self.inner.lock().given
    }

    /// Waits until that count exceeds `seen`, for up to `patience`.
    fn wait_given(&self, seen: u64, patience: Duration) {
        let mut state = self.inner.lock();
        if state.given == seen {
            state.waiting += 1;
            let waited = self.inner.freed.wait_timeout(state, patience);
            waited.expect("no code under this lock panics").0.waiting -= 1;
        }
    }

    fn note_wait(&self) {
        self.inner.lock().pressure.waits += 1;
    }

    /// Asks the reclaimers once. For a caller whose own memory is all in use.
    pub(crate) fn press(&self) {
        drop(self.inner.reclaim(self.inner.lock(), 1));
    }

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

    /// Bytes held, by kind.
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// Counters of shortage.
    pub fn pressure(&self) -> Pressure {
        self.inner.lock().pressure
    }

    pub(crate) fn backing(&self) -> Backing {
        self.inner.arena.backing()
    }

    /// Installs the evictor, which is called when free chunks become few. A budget has at most one.
    pub(crate) fn hire(&self, bell: Arc<Bell>) {
        assert!(self.inner.bell.set(bell).is_ok(), "a budget has one evictor at most");
    }

    /// Sets the watermark: the evictor is called when fewer chunks than `low` are free.
    pub(crate) fn set_low_watermark(&self, low: usize) {
        self.inner.lock().low_watermark = low;
    }

    /// Whether free chunks are below that watermark.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.inner.lock();
        state.free.len() < state.low_watermark
    }

    /// Free chunks, and the total of chunks taken by others than the page pool.
    pub(crate) fn room(&self) -> (usize, u64) {
        let state = self.inner.lock();
        (state.free.len(), state.taken)
    }

    /// Adds a reclaimer to ask when no chunk is free. Reclaimers are asked in the order in which they were added.
    pub fn add_reclaimer(&self, reclaimer: Weak<dyn Reclaim>) {
        let mut reclaimers = self.inner.reclaimers.lock().expect("a reclaimer never panics");
        reclaimers.retain(|known| known.strong_count() > 0);
        reclaimers.push(reclaimer);
    }

    /// Adds a holder of memory that would be free without it: it is asked before the reclaimers, and by the evictor before that evicts
    /// pages for others.
    pub fn add_lender(&self, lender: Weak<dyn Reclaim>) {
        let mut lenders = self.inner.lenders.lock().expect("a reclaimer never panics");
        lenders.retain(|known| known.strong_count() > 0);
        lenders.push(lender);
    }

    /// Asks the lenders for `chunks`; returns how many more are free.
    pub(crate) fn take_back(&self, chunks: usize) -> usize {
        self.inner.take_back(chunks)
    }

    /// Lets `n` more reservations (chunks and growing leases) succeed, refuses one, then goes on as before.
    /// Returns whether a refusal set up by an earlier call was still pending.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_after(&self, n: u64) -> bool {
        self.inner.lock().fail_after.replace(n).is_some()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    pub(crate) fn address(&self, chunk: u32) -> NonNull<u8> {
        self.arena.address(chunk)
    }

    fn limit_bytes(&self) -> u64 {
        u64::from(self.chunks.load(Ordering::Relaxed)) * CHUNK_BYTES as u64
    }

    fn take(self: &Arc<Self>, kind: Kind) -> Result<Chunk, OutOfBudget> {
        let mut state = self.lock();
        if state.refuses_on_purpose() {
            return Err(self.refusal(state, kind, CHUNK_BYTES as u64));
        }
        loop {
            state = match self.take_free(state, kind) {
                Ok(chunk) => return Ok(chunk),
                Err(state) => self.reclaim(state, 1).map_err(|state| self.refusal(state, kind, CHUNK_BYTES as u64))?,
            };
        }
    }

    /// Takes one chunk if one is free; otherwise returns with the lock still held.
    fn take_free<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        kind: Kind,
    ) -> Result<Chunk, MutexGuard<'a, State>> {
        let Some(id) = state.free.pop_back() else { return Err(state) };
        Ok(self.taken(state, id, kind))
    }

    /// Hands out a chunk that was removed from the free ones under this lock.
    fn taken(self: &Arc<Self>, mut state: MutexGuard<'_, State>, id: u32, kind: Kind) -> Chunk {
        if std::mem::take(&mut state.out[id as usize]) {
            self.arena.restore(id);
        }
        state.taken += u64::from(kind != Kind::Pages);
        self.by_kind[kind as usize].fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
        self.note_taken(state);
        Chunk::new(Arc::clone(self), id, kind)
    }

    /// Called after chunks were taken: calls the evictor if few are left.
    fn note_taken(&self, mut state: MutexGuard<'_, State>) {
        let taken = self.chunks.load(Ordering::Relaxed) as usize - state.free.len();
        state.peak_chunks = state.peak_chunks.max(taken);
        let little = state.free.len() < state.low_watermark;
        drop(state);
        if little {
            self.ring(Cause::Chunks);
        }
    }

    fn ring(&self, cause: Cause) {
        if let Some(bell) = self.bell.get() {
            bell.ring(cause);
        }
    }

    pub(crate) fn give_back(&self, id: u32, kind: Kind) {
        if self.origin.is_foreign() {
            return;
        }
        let mut state = self.lock();
        self.by_kind[kind as usize].fetch_sub(CHUNK_BYTES as u64, Ordering::Relaxed);
        state.free.push_back(id);
        state.given += u64::from(!matches!(kind, Kind::Pages | Kind::Objects));
        let any_waits = state.waiting > 0;
        drop(state);
        if any_waits {
            self.freed.notify_all();
        }
    }

    /// Releases the lock, asks for `chunks`, and locks again. Returns `Err` if no reclaimer gave any and none is free.
    fn reclaim<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        chunks: usize,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        if !state.spare.is_empty() {
            let spare = std::mem::take(&mut state.spare);
            drop(state);
            return Ok(self.give_up(spare));
        }
        state.pressure.inline_evictions += 1;
        let before = state.free.len();
        drop(state);
        self.ring(Cause::Inline);
        if self.take_back(chunks) > 0 {
            return Ok(self.lock());
        }
        let reclaimers: Vec<_> =
            self.reclaimers.lock().expect("a reclaimer never panics").iter().filter_map(Weak::upgrade).collect();
        let given = reclaimers.iter().any(|reclaimer| reclaimer.reclaim(chunks) > 0);
        // This may drop the last owner of a reclaimer, which then gives back its memory: not under the lock.
        drop(reclaimers);
        let state = self.lock();
        // Another thread may have freed some meanwhile: the evictor, or a reclaimer asked by another caller.
        if given || state.free.len() > before { Ok(state) } else { Err(state) }
    }

    /// See [`Budget::take_back`].
    fn take_back(&self, chunks: usize) -> usize {
        let lenders: Vec<_> =
            self.lenders.lock().expect("a reclaimer never panics").iter().filter_map(Weak::upgrade).collect();
        let before = self.lock().free.len();
        if !lenders.iter().any(|lender| lender.reclaim(chunks) > 0) {
            return 0;
        }
        drop(lenders);
        // A large buffer is kept as a spare when it is dropped.
        let mut state = self.lock();
        if state.free.len() < before + chunks && !state.spare.is_empty() {
            let spare = std::mem::take(&mut state.spare);
            drop(state);
            state = self.give_up(spare);
        }
        state.free.len().saturating_sub(before)
    }

    fn grow_leases(&self, kind: Kind, bytes: u64) -> Result<(), OutOfBudget> {
        let mut state = self.lock();
        if state.refuses_on_purpose() {
            return Err(self.refusal(state, kind, bytes));
        }
        loop {
            let missing = state.missing_for(bytes);
            if missing <= state.free.len() {
                state = self.withdraw_ahead(state, missing);
            }
            // Others may have taken some meanwhile.
            let missing = state.missing_for(bytes);
            if missing <= state.free.len() {
                self.retire(&mut state, kind, bytes);
                self.note_taken(state);
                return Ok(());
            }
            let short = missing - state.free.len();
            state =
                self.reclaim(state, short.min(RECLAIMED_AT_ONCE)).map_err(|state| self.refusal(state, kind, bytes))?;
        }
    }

    /// Gives the memory of the `count` free chunks that are retired next to the system, except for the last batch,
    /// releasing the lock between batches. The chunks stay free; retiring them later is then cheap.
    fn withdraw_ahead<'a>(&'a self, mut state: MutexGuard<'a, State>, count: usize) -> MutexGuard<'a, State> {
        // Chunks never touched cost little to withdraw.
        let count = if state.free.begins_fresh(count) { 0 } else { count };
        for first in (WITHDRAWN_AT_ONCE..count).step_by(WITHDRAWN_AT_ONCE) {
            for at in first - WITHDRAWN_AT_ONCE..first.min(state.free.len()) {
                let id = state.free.at(at);
                self.withdraw(&mut state, id);
            }
            drop(state);
            state = self.lock();
        }
        state
    }

    /// Gives a free chunk's memory to the system, unless that was done before.
    fn withdraw(&self, state: &mut State, id: u32) {
        if !std::mem::replace(&mut state.out[id as usize], true) {
            self.arena.withdraw(id);
        }
    }

    /// Retires the free chunks needed to cover `bytes` more.
    fn retire(&self, state: &mut State, kind: Kind, bytes: u64) {
        let missing = state.missing_for(bytes);
        let fresh = state.free.pop_fresh(missing);
        if !fresh.is_empty() {
            state.out[fresh.start as usize..fresh.end as usize].fill(true);
            self.arena.withdraw_fresh(fresh.clone());
            state.retired.extend(fresh.clone().rev());
        }
        for _ in fresh.len()..missing {
            let id = self.withdraw_one(state).expect("as many as are missing are free");
            state.retired.push(id);
        }
        state.leased_bytes += bytes;
        state.taken += missing as u64;
        self.by_kind[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the free chunk that was returned longest ago, and gives its memory to the system.
    fn withdraw_one(&self, state: &mut State) -> Option<u32> {
        let id = state.free.pop_front()?;
        self.withdraw(state, id);
        Some(id)
    }

    fn shrink_leases(&self, kind: Kind, bytes: u64) {
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
    fn unretire(&self, state: &mut State, kind: Kind, bytes: u64) -> usize {
        state.leased_bytes -= bytes;
        let keep = state.leased_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        let spare = state.retired.len().saturating_sub(keep);
        for id in state.retired.drain(keep.min(state.retired.len())..) {
            state.free.push_front(id);
        }
        self.by_kind[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        spare
    }

    /// Takes a spare mapping of at least `bytes` and charges it as `kind`, by its full length.
    fn take_spare(&self, kind: Kind, bytes: usize) -> Result<Option<Mapping>, OutOfBudget> {
        let mut state = self.lock();
        let Some(best) = best_of(&state.spare, bytes) else { return Ok(None) };
        if state.refuses_on_purpose() {
            return Err(self.refusal(state, kind, bytes as u64));
        }
        let mapping = state.spare.swap_remove(best);
        self.charge_as(Kind::Spare, kind, mapping.bytes() as u64);
        Ok(Some(mapping))
    }

    /// Keeps a mapping that was charged as `kind` as a spare, if the spares have room for it and no thread waits for
    /// memory.
    fn keep_spare(&self, kind: Kind, mapping: Mapping) -> Result<(), Mapping> {
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

    /// Gives spare mappings to the system, then their charge to the budget.
    fn give_up(&self, spare: Vec<Mapping>) -> MutexGuard<'_, State> {
        let bytes = spare.iter().map(|mapping| mapping.bytes() as u64).sum();
        drop(spare);
        let mut state = self.lock();
        if self.unretire(&mut state, Kind::Spare, bytes) > 0 {
            self.freed.notify_all();
        }
        state
    }

    fn usage(&self) -> Usage {
        self.usage_of(&self.lock())
    }

    fn usage_of(&self, state: &State) -> Usage {
        Usage {
            limit_bytes: self.limit_bytes(),
            free_bytes: (state.free.len() * CHUNK_BYTES) as u64,
            by_kind: Kind::ALL.map(|kind| (kind, self.by_kind[kind as usize].load(Ordering::Relaxed))),
            peak_bytes: (state.peak_chunks * CHUNK_BYTES) as u64,
        }
    }

    fn refusal(&self, mut state: MutexGuard<'_, State>, kind: Kind, needed_bytes: u64) -> OutOfBudget {
        state.pressure.refusals += 1;
        OutOfBudget { needed_bytes, kind, usage: Box::new(self.usage_of(&state)) }
    }
}

impl State {
    /// Chunks to retire so that `bytes` more are covered by leases.
    fn missing_for(&self, bytes: u64) -> usize {
        let wanted = self.leased_bytes.saturating_add(bytes).div_ceil(CHUNK_BYTES as u64) as usize;
        wanted.saturating_sub(self.retired.len())
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn refuses_on_purpose(&mut self) -> bool {
        false
    }

    #[cfg(any(test, feature = "testing"))]
    fn refuses_on_purpose(&mut self) -> bool {
        match &mut self.fail_after {
            None => false,
            Some(0) => {
                self.fail_after = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
        }
    }
}

/// A claim on the budget for heap memory; given back on drop.
pub struct Lease {
    inner: Arc<Inner>,
    kind: Kind,
    bytes: u64,
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
    pub(crate) fn like_it(&self, bytes: u64) -> Result<Lease, OutOfBudget> {
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
        let lease = Lease { inner: Arc::clone(&self.inner), kind: self.kind, bytes: mapping.bytes() as u64 };
        Ok(Some((mapping, lease)))
    }

    /// Returns a mapping together with the lease that covers it, or keeps both as a spare.
    pub(crate) fn give_back_with(mut self, mapping: Mapping) {
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
