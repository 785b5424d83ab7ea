//! The one number, and who uses how much of it.
//!
//! Laws:
//! 1. free chunks + chunks held + chunks retired by leases = chunks of the budget, at every moment.
//! 2. A lease retires chunks for its bytes before its holder allocates them; all leases together retire the sum, rounded up. A retired
//!    chunk's memory is given back to the system, so that arena and leased heap together never exceed the budget.
//! 3. Whatever was taken is given back on drop, on error paths too.
//! 4. A budget that was made smaller holds no more than it says; what it no longer has was given back to the system.
//!
//! When no chunk is free the budget asks its reclaimers (the page pool first) for some, and only then refuses. Before it comes to that
//! it calls the evictor, if there is one.

pub mod account;
mod free;
mod resize;
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

use crate::arena::Arena;
pub use crate::arena::Backing;
use crate::buffer::{backing_of, best_of, spare_bytes_max};
use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::evictor::bell::{Bell, Cause};
use crate::mapping::Mapping;
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use free::Free;
pub use resize::ResizeError;
pub use usage::{Kind, OutOfBudget, Pressure, Usage};

/// The smallest budget: 16 MiB.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

/// Whoever needs many chunks asks for so many at a time, so that others get at the pool in between.
const RECLAIMED_AT_ONCE: usize = 16;

/// So many chunks are given to the system under one turn of the lock.
const WITHDRAWN_AT_ONCE: usize = 64;

/// Something that can give memory back when asked.
pub trait Reclaim: Send + Sync {
    /// Gives back up to `chunks` chunks (by dropping them) and returns how many it gave. Must not take memory from the budget
    /// and must not wait for anybody who might.
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
    /// Held while it becomes larger or smaller, before the state's: one at a time.
    resizing: Mutex<()>,
    state: Mutex<State>,
    bell: OnceLock<Arc<Bell>>,
    freed: Condvar,
    by_kind: [AtomicU64; Kind::ALL.len()],
    reclaimers: Mutex<Vec<Weak<dyn Reclaim>>>,
}

#[derive(Default)]
struct State {
    /// Taken from the back, where those stand that were given back last: their bytes are resident already. Retired from the front.
    free: Free,
    retired: Vec<u32>,
    /// By chunk: whether its memory was given to the system and not taken again since. A free one may be: it is taken last.
    out: Vec<bool>,
    /// Chunks that were of the budget before it was made smaller.
    withdrawn: Vec<u32>,
    /// Chunks from this one on were never of the budget.
    made: u32,
    leased_bytes: u64,
    /// Covered by leases of [`Kind::Spare`].
    spare: Vec<Mapping>,
    peak_chunks: usize,
    /// With fewer free chunks the evictor is called.
    low_mark: usize,
    /// Chunks taken since ever, by leases too, but not by the page pool.
    taken: u64,
    /// Times that chunks were given back by others than the page pool and the object cache.
    given: u64,
    pressure: Pressure,
    /// Threads that wait for a chunk: without any, nobody has to be told of one.
    waiting: usize,
    /// Reservations still to succeed before one is refused on purpose.
    fail_after: Option<u64>,
}

impl Budget {
    /// A budget of `limit_bytes`, rounded down to whole chunks. The memory is taken from the system as it is first touched.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn new(limit_bytes: u64, backing: Backing) -> io::Result<Self> {
        Self::with_ceiling(limit_bytes, limit_bytes, backing)
    }

    /// A budget of `limit_bytes` that [`Budget::resize`] can make as large as `ceiling_bytes`: address space, no memory. Where the
    /// system refuses that much, the ceiling is the limit.
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
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The budget in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.limit_bytes()
    }

    /// The most bytes that [`Budget::resize`] can make of it.
    pub fn ceiling_bytes(&self) -> u64 {
        u64::from(self.inner.arena.ceiling()) * CHUNK_BYTES as u64
    }

    /// Makes the budget larger or smaller, in whole chunks (rounded down). What it gives up goes back to the system.
    ///
    /// # Errors
    /// [`ResizeError`]; the budget is as it was.
    pub fn resize(&self, limit_bytes: u64) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, &mut self.empty_lease(Kind::Pages), 0)
    }

    /// As [`Budget::resize`]; with it `lease` becomes one of `leased_bytes`, before anybody else can have what that takes.
    pub(crate) fn resize_with(
        &self,
        limit_bytes: u64,
        lease: &mut Lease,
        leased_bytes: u64,
    ) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, lease, leased_bytes)
    }

    /// The most that the system's own page tables take for the chunks of a budget of so many bytes, given those that there were.
    pub(crate) fn page_table_bytes(&self, limit_bytes: u64) -> u64 {
        let chunks = usize::try_from(limit_bytes / CHUNK_BYTES as u64).unwrap_or(usize::MAX / CHUNK_BYTES);
        Arena::page_table_bytes(chunks, self.inner.lock().made as usize) as u64
    }

    /// Bytes that can be had without asking anybody.
    pub fn free_bytes(&self) -> u64 {
        (self.inner.lock().free.len() * CHUNK_BYTES) as u64
    }

    /// One chunk, after asking the reclaimers where none is free.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn take(&self, kind: Kind) -> Result<Chunk, OutOfBudget> {
        self.inner.take(kind)
    }

    /// One chunk if one is free, for whoever can do without: asks nobody, and counts as no refusal where there is none.
    pub fn try_take(&self, kind: Kind) -> Option<Chunk> {
        self.inner.take_free(self.inner.lock(), kind).ok()
    }

    /// One chunk, waiting up to `patience` for one to become free.
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

    /// How often chunks were given back by others than those who are asked for them.
    fn given(&self) -> u64 {
        self.inner.lock().given
    }

    /// Waits until that is more than `seen`, for up to `patience`.
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

    /// Asks the reclaimers once, for who found everything in use that it could have for itself.
    pub(crate) fn press(&self) {
        drop(self.inner.reclaim(self.inner.lock(), 1));
    }

    /// Room for `bytes` of heap memory, after asking the reclaimers where there is none.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn lease(&self, kind: Kind, bytes: u64) -> Result<Lease, OutOfBudget> {
        let mut lease = self.empty_lease(kind);
        lease.grow(bytes)?;
        Ok(lease)
    }

    /// A lease of nothing, to grow later.
    pub fn empty_lease(&self, kind: Kind) -> Lease {
        Lease { inner: Arc::clone(&self.inner), kind, bytes: 0 }
    }

    /// Who holds how much.
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// How often it was short.
    pub fn pressure(&self) -> Pressure {
        self.inner.lock().pressure
    }

    pub(crate) fn backing(&self) -> Backing {
        self.inner.arena.backing()
    }

    /// Hires the evictor that is called when free chunks become few. A budget has one at most.
    pub(crate) fn hire(&self, bell: Arc<Bell>) {
        assert!(self.inner.bell.set(bell).is_ok(), "a budget has one evictor at most");
    }

    /// From now on the evictor is called when fewer chunks than `low` are free.
    pub(crate) fn set_low_mark(&self, low: usize) {
        self.inner.lock().low_mark = low;
    }

    /// Whether the evictor would be called now.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.inner.lock();
        state.free.len() < state.low_mark
    }

    /// Free chunks, and chunks taken since ever by others than the page pool.
    pub(crate) fn room(&self) -> (usize, u64) {
        let state = self.inner.lock();
        (state.free.len(), state.taken)
    }

    /// Adds somebody to ask when no chunk is free; they are asked in the order in which they were added.
    pub fn add_reclaimer(&self, reclaimer: Weak<dyn Reclaim>) {
        let mut reclaimers = self.inner.reclaimers.lock().expect("a reclaimer never panics");
        reclaimers.retain(|known| known.strong_count() > 0);
        reclaimers.push(reclaimer);
    }

    /// For tests: lets `n` more reservations (chunks and growing leases) succeed, refuses one, then goes on as before. Whether a refusal
    /// that an earlier call asked for was still to come.
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

    /// One chunk if one is free; else the lock is still held.
    fn take_free<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        kind: Kind,
    ) -> Result<Chunk, MutexGuard<'a, State>> {
        let Some(id) = state.free.pop_back() else { return Err(state) };
        if std::mem::take(&mut state.out[id as usize]) {
            self.arena.restore(id);
        }
        state.taken += u64::from(kind != Kind::Pages);
        self.by_kind[kind as usize].fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
        self.note_taken(state);
        Ok(Chunk::new(Arc::clone(self), id, kind))
    }

    /// Chunks were taken: calls the evictor if few are left.
    fn note_taken(&self, mut state: MutexGuard<'_, State>) {
        let taken = self.chunks.load(Ordering::Relaxed) as usize - state.free.len();
        state.peak_chunks = state.peak_chunks.max(taken);
        let little = state.free.len() < state.low_mark;
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

    /// Lets go of the lock, asks for `chunks`, and takes the lock again: `Err` if nobody gave any and none is free.
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
        let reclaimers: Vec<_> =
            self.reclaimers.lock().expect("a reclaimer never panics").iter().filter_map(Weak::upgrade).collect();
        let given = reclaimers.iter().any(|reclaimer| reclaimer.reclaim(chunks) > 0);
        // A reclaimer may go with its last owner here, and gives back what it held: not under the lock.
        drop(reclaimers);
        let state = self.lock();
        // Somebody else may have given some meanwhile: the evictor, or whoever was asked by another.
        if given || state.free.len() > before { Ok(state) } else { Err(state) }
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

    /// Gives the memory of free chunks to the system, of those that go next: so many, but for as many as one turn of the lock may. They
    /// stay free; whoever retires them then has little to do. Lets others have the lock in between.
    fn withdraw_ahead<'a>(&'a self, mut state: MutexGuard<'a, State>, count: usize) -> MutexGuard<'a, State> {
        // Those that were never touched are quickly done.
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

    /// Gives a free chunk's memory to the system, if that has not been done.
    fn withdraw(&self, state: &mut State, id: u32) {
        if !std::mem::replace(&mut state.out[id as usize], true) {
            self.arena.withdraw(id);
        }
    }

    /// Retires as many chunks as `bytes` more need; they are free.
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

    /// Takes the free chunk that was given back the longest ago, and gives its memory to the system.
    fn withdraw_one(&self, state: &mut State) -> Option<u32> {
        let id = state.free.pop_front()?;
        self.withdraw(state, id);
        Some(id)
    }

    fn shrink_leases(&self, kind: Kind, bytes: u64) {
        let mut state = self.lock();
        let any = self.unretire(&mut state, kind, bytes) > 0;
        state.given += u64::from(any);
        drop(state);
        if any {
            self.freed.notify_all();
        }
    }

    /// Makes chunks free that so many leased bytes fewer do not need; how many.
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

    /// A mapping of at least `bytes` that was kept, which becomes one of `kind`; its length is what it is charged for.
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

    /// Keeps a mapping that was charged as `kind` if there is room for it among those that are kept, and nobody waits for memory.
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

    /// Gives mappings that were kept to the system, and then what they were charged for to the budget.
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
    /// Chunks to retire for so many more leased bytes.
    fn missing_for(&self, bytes: u64) -> usize {
        let wanted = self.leased_bytes.saturating_add(bytes).div_ceil(CHUNK_BYTES as u64) as usize;
        wanted.saturating_sub(self.retired.len())
    }

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

/// Room in the budget for heap memory; given back on drop.
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

    /// Covers `bytes` more.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the lease stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<(), OutOfBudget> {
        self.inner.grow_leases(self.kind, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Covers what `other` covered, too.
    ///
    /// # Panics
    /// It is of another budget or kind.
    pub(crate) fn absorb(&mut self, mut other: Lease) {
        assert!(Arc::ptr_eq(&self.inner, &other.inner) && self.kind == other.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Another one of the same kind.
    pub(crate) fn like_it(&self, bytes: u64) -> Result<Lease, OutOfBudget> {
        let mut lease = self.empty_like_it();
        lease.grow(bytes)?;
        Ok(lease)
    }

    /// Another one of the same kind, of nothing.
    pub(crate) fn empty_like_it(&self) -> Lease {
        Lease { inner: Arc::clone(&self.inner), kind: self.kind, bytes: 0 }
    }

    /// Where memory in one piece comes from.
    pub(crate) fn backing(&self) -> Backing {
        backing_of(self.inner.arena.backing())
    }

    /// A mapping of at least `bytes` that was kept, and the lease of the same kind that covers it.
    pub(crate) fn take_spare(&self, bytes: usize) -> Result<Option<(Mapping, Lease)>, OutOfBudget> {
        let Some(mapping) = self.inner.take_spare(self.kind, bytes)? else { return Ok(None) };
        let lease = Lease { inner: Arc::clone(&self.inner), kind: self.kind, bytes: mapping.bytes() as u64 };
        Ok(Some((mapping, lease)))
    }

    /// Gives a mapping back that it covers, and itself, or keeps both for who needs one next.
    pub(crate) fn give_back_with(mut self, mapping: Mapping) {
        if self.bytes == mapping.bytes() as u64 {
            match self.inner.keep_spare(self.kind, mapping) {
                // What it covered is covered as spare from now on.
                Ok(()) => self.bytes = 0,
                Err(mapping) => drop(mapping),
            }
        }
    }

    /// Covers `bytes` fewer (at most all of them).
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
