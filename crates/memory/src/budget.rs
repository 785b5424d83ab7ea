//! The memory budget: one limit, and an account of its use by kind.
//!
//! Invariants:
//! 1. free chunks + chunks held + chunks retired by leases = chunks of the budget, at every moment.
//! 2. A lease retires chunks for its bytes before its holder allocates them; all leases together
//!    retire the sum of their bytes, rounded up to whole chunks. A retired chunk's memory is
//!    returned to the system, so that arena and leased heap together never exceed the budget.
//! 3. Everything taken is returned on drop, on error paths too.
//! 4. A budget that was made smaller holds no more than its new limit; the memory above it was
//!    returned to the system.
//!
//! When few chunks are free, the budget calls the evictor, if there is one. When none is free, it
//! asks its lenders and then its reclaimers, such as the page pool. It refuses a request only if
//! they give none.

pub mod account;
pub(crate) mod bell;
pub mod chunk;
mod clear;
mod free;
mod lease;
mod reclaim;
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
pub use lease::Lease;
pub use reclaim::Reclaim;
pub use resize::ResizeError;
pub use usage::{Kind, OutOfBudget, Pressure, Usage};

/// The smallest budget: 16 MiB.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

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
    /// Holders of memory that would otherwise be free.
    lenders: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// A forked child returns nothing, because a thread that exists only in the parent may hold the
    /// lock.
    origin: Origin,
}

#[derive(Default)]
struct State {
    /// The free chunks. A chunk is taken from the back, where the most recently returned chunks
    /// are, because their bytes are still resident. Leases retire chunks from the front.
    free: Free,
    retired: Vec<u32>,
    /// Indexed by chunk: whether its memory was returned to the system, and the chunk was not taken
    /// since. Such a chunk is either retired or free.
    out: Vec<bool>,
    /// Chunks removed from the budget when it was made smaller.
    decommitted: Vec<u32>,
    /// Chunks from this number on were never in the budget.
    made: u32,
    leased_bytes: u64,
    /// Spare mappings, covered by leases of [`Kind::Spare`].
    spare: Vec<Mapping>,
    peak_chunks: usize,
    /// The evictor is called when fewer chunks than this are free.
    low_watermark: usize,
    /// Total chunks taken, including those of leases but not those of the page pool.
    taken: u64,
    /// Total times that holders other than the page pool and the object cache gave chunks back.
    given: u64,
    pressure: Pressure,
    /// Threads that wait for a chunk; at zero, no notification is needed.
    waiting: usize,
    /// Reservations that still succeed before one is refused on purpose.
    #[cfg(any(test, feature = "testing"))]
    fail_after: Option<u64>,
    /// Number of reservations refused from then on.
    #[cfg(any(test, feature = "testing"))]
    fail_count: u64,
}

impl Budget {
    /// Makes a budget of `limit_bytes`, rounded down to whole chunks. Memory is taken from the
    /// system at first touch.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn new(limit_bytes: u64, backing: Backing) -> io::Result<Self> {
        Self::with_ceiling(limit_bytes, limit_bytes, backing)
    }

    /// Makes a budget of `limit_bytes` that [`Budget::resize`] can raise to `ceiling_bytes`. The
    /// ceiling costs address space, not memory. If the system refuses that much address space, the
    /// ceiling is the limit.
    ///
    /// # Errors
    /// The system refuses the address space for `limit_bytes`.
    pub fn with_ceiling(
        limit_bytes: u64,
        ceiling_bytes: u64,
        backing: Backing,
    ) -> io::Result<Self> {
        let count = |bytes: u64| {
            u32::try_from(bytes / CHUNK_BYTES as u64).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, "a budget is below 256 TiB")
            })
        };
        let chunks = count(limit_bytes)?;
        let ceiling = count(ceiling_bytes)?.max(chunks);
        let arena = Arena::new(chunks, ceiling, backing)
            .or_else(|_| Arena::new(chunks, chunks, backing))?;
        let state = State {
            free: Free::fresh(0..chunks),
            out: vec![false; chunks as usize],
            made: chunks,
            ..State::default()
        };
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

    /// Whether this process is a forked child of the one that made the budget.
    pub(crate) fn is_foreign(&self) -> bool {
        self.inner.origin.is_foreign()
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.limit_bytes()
    }

    /// The highest limit that [`Budget::resize`] accepts.
    pub fn ceiling_bytes(&self) -> u64 {
        u64::from(self.inner.arena.ceiling()) * CHUNK_BYTES as u64
    }

    /// Changes the limit, in whole chunks (rounded down). Memory above a lower limit goes back to
    /// the system.
    ///
    /// # Errors
    /// [`ResizeError`]; the budget is as it was.
    pub fn resize(&self, limit_bytes: u64) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, &mut self.empty_lease(Kind::Pages), 0)
    }

    /// Like [`Budget::resize`]; also resizes `lease` to `leased_bytes`, atomically: no other thread
    /// can take the memory in between.
    pub(crate) fn resize_with(
        &self,
        limit_bytes: u64,
        lease: &mut Lease,
        leased_bytes: u64,
    ) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, lease, leased_bytes)
    }

    /// Upper bound on the system's page tables for the chunks of a budget of `limit_bytes`,
    /// including the chunks that it has had so far.
    pub(crate) fn page_table_bytes(&self, limit_bytes: u64) -> u64 {
        let chunks =
            usize::try_from(limit_bytes / CHUNK_BYTES as u64).unwrap_or(usize::MAX / CHUNK_BYTES);
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

    /// Takes one chunk if one is free. Asks no reclaimer, and does not count a failure as a
    /// refusal.
    pub fn try_take(&self, kind: Kind) -> Option<Chunk> {
        self.inner.take_free(self.inner.lock(), kind).ok()
    }

    /// Takes one chunk, waiting up to `timeout` for one to become free.
    ///
    /// # Errors
    /// [`OutOfBudget`] after that time; nothing is taken.
    pub fn take_waiting(&self, kind: Kind, timeout: Duration) -> Result<Chunk, OutOfBudget> {
        let mut waited = Duration::ZERO;
        loop {
            match self.inner.take(kind) {
                Ok(chunk) => return Ok(chunk),
                Err(refusal) if waited >= timeout => return Err(refusal),
                Err(_) => {
                    self.inner.lock().pressure.waits += u64::from(waited.is_zero());
                    // Wait in short steps, because a chunk may also become reclaimable without
                    // being returned (a pin is dropped).
                    let step = Duration::from_millis(5).min(timeout);
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

    /// Times that chunks were returned by holders other than the reclaimers.
    fn releases(&self) -> u64 {
        self.inner.lock().given
    }

    /// Waits up to `timeout` until [`Budget::releases`] exceeds `seen`.
    fn wait_for_release(&self, seen: u64, timeout: Duration) {
        let mut state = self.inner.lock();
        if state.given == seen {
            state.waiting += 1;
            let waited = self.inner.freed.wait_timeout(state, timeout);
            waited.expect("no code under this lock panics").0.waiting -= 1;
        }
    }

    fn note_wait(&self) {
        self.inner.lock().pressure.waits += 1;
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
    pub(crate) fn install_evictor(&self, bell: Arc<Bell>) {
        assert!(self.inner.bell.set(bell).is_ok(), "a budget has one evictor at most");
    }

    /// Sets the watermark: the evictor is called when fewer chunks than `low` are free.
    pub(crate) fn set_low_watermark(&self, low: usize) {
        self.inner.lock().low_watermark = low;
    }

    /// Whether fewer chunks are free than the low watermark.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.inner.lock();
        state.free.len() < state.low_watermark
    }

    /// Free chunks, and the total of chunks taken by others than the page pool.
    pub(crate) fn room(&self) -> (usize, u64) {
        let state = self.inner.lock();
        (state.free.len(), state.taken)
    }

    /// Lets `n` more reservations (chunks and growing leases) succeed, refuses one, then works
    /// normally. Returns whether a refusal set up by an earlier call was still pending.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_after(&self, n: u64) -> bool {
        self.fail_some_after(n, 1)
    }

    /// Like [`Budget::fail_after`], but refuses `count` reservations, one after the other.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_some_after(&self, n: u64, count: u64) -> bool {
        let mut state = self.inner.lock();
        state.fail_count = count;
        state.fail_after.replace(n).is_some()
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
                Err(state) => self
                    .reclaim(state, 1)
                    .map_err(|state| self.refusal(state, kind, CHUNK_BYTES as u64))?,
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

    /// Called after chunks were taken: calls the evictor if too few free chunks are left, or too
    /// few that are pre-faulted.
    fn note_taken(&self, mut state: MutexGuard<'_, State>) {
        let taken = self.chunks.load(Ordering::Relaxed) as usize - state.free.len();
        state.peak_chunks = state.peak_chunks.max(taken);
        let little = state.free.len() < state.low_watermark;
        let wants_clearing = self.wants_clearing(&state);
        drop(state);
        if little {
            self.ring(Cause::Chunks);
        } else if wants_clearing {
            self.ring(Cause::NeverTaken);
        }
    }

    fn ring(&self, cause: Cause) {
        if let Some(bell) = self.bell.get() {
            bell.ring(cause);
        }
    }

    pub(crate) fn release_chunk(&self, id: u32, kind: Kind) {
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

    fn usage(&self) -> Usage {
        self.usage_of(&self.lock())
    }

    fn usage_of(&self, state: &State) -> Usage {
        Usage {
            limit_bytes: self.limit_bytes(),
            free_bytes: (state.free.len() * CHUNK_BYTES) as u64,
            by_kind: Kind::ALL
                .map(|kind| (kind, self.by_kind[kind as usize].load(Ordering::Relaxed))),
            peak_bytes: (state.peak_chunks * CHUNK_BYTES) as u64,
        }
    }

    fn refusal(
        &self,
        mut state: MutexGuard<'_, State>,
        kind: Kind,
        needed_bytes: u64,
    ) -> OutOfBudget {
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
                self.fail_count = self.fail_count.saturating_sub(1);
                if self.fail_count == 0 {
                    self.fail_after = None;
                }
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
        }
    }
}
