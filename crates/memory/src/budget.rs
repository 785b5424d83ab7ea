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

mod usage;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::arena::Arena;
pub use crate::arena::Backing;
use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::evictor::bell::{Bell, Cause};
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
pub use usage::{Kind, OutOfBudget, Pressure, Usage};

/// The smallest budget: 16 MiB.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

/// Why a budget could not be made larger or smaller; it is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// More than the address space that was reserved when it was made (or nothing at all).
    BeyondCeiling {
        /// What was asked for.
        wanted_bytes: u64,
        /// The most there can be.
        ceiling_bytes: u64,
    },
    /// So much is held that cannot be evicted.
    Held {
        /// What is missing.
        missing_bytes: u64,
        /// Who holds how much.
        usage: Box<Usage>,
    },
    /// The system gives no memory.
    Refused {
        /// What it said.
        message: String,
    },
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeyondCeiling { wanted_bytes, ceiling_bytes } => write!(
                f,
                "a budget of {wanted_bytes} bytes cannot be had while running: 64 KiB to {ceiling_bytes} bytes can"
            ),
            Self::Held { missing_bytes, usage } => {
                write!(f, "the budget cannot be made so small: {missing_bytes} bytes are in use, {usage}")
            }
            Self::Refused { message } => write!(f, "the system refuses a larger budget: {message}"),
        }
    }
}

impl std::error::Error for ResizeError {}

/// Whoever needs many chunks asks for so many at a time, so that others get at the pool in between.
const RECLAIMED_AT_ONCE: usize = 16;

/// A budget that becomes smaller gives so many chunks to the system under one turn of the lock.
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
    free: VecDeque<u32>,
    retired: Vec<u32>,
    /// By chunk: whether its memory was given to the system and not taken again since. A free one may be: it is taken last.
    out: Vec<bool>,
    /// Chunks that were of the budget before it was made smaller.
    withdrawn: Vec<u32>,
    /// Chunks from this one on were never of the budget.
    made: u32,
    leased_bytes: u64,
    peak_chunks: usize,
    /// With fewer free chunks the evictor is called.
    low_mark: usize,
    /// Chunks taken since ever, by leases too, but not by the page pool.
    taken: u64,
    pressure: Pressure,
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
        let state = State {
            free: (0..chunks).rev().collect(),
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

    /// As [`Budget::resize`]; of what it wins, `more` bytes go to `lease` before anybody else can have them.
    pub(crate) fn resize_with(&self, limit_bytes: u64, lease: &mut Lease, more: u64) -> Result<(), ResizeError> {
        self.inner.resize(limit_bytes, lease, more)
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
                    let state = self.inner.lock();
                    if state.free.is_empty() {
                        drop(self.inner.freed.wait_timeout(state, step));
                    }
                    waited += step;
                }
            }
        }
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

    /// For tests: lets `n` more reservations (chunks and growing leases) succeed, refuses one, then goes on as before.
    pub fn fail_after(&self, n: u64) {
        self.inner.lock().fail_after = Some(n);
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
        drop(state);
        self.freed.notify_one();
    }

    /// Lets go of the lock, asks for `chunks`, and takes the lock again: `Err` if nobody gave any and none is free.
    fn reclaim<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        chunks: usize,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
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
                self.retire(&mut state, kind, bytes);
                self.note_taken(state);
                return Ok(());
            }
            let short = missing - state.free.len();
            state =
                self.reclaim(state, short.min(RECLAIMED_AT_ONCE)).map_err(|state| self.refusal(state, kind, bytes))?;
        }
    }

    /// Retires as many chunks as `bytes` more need; they are free.
    fn retire(&self, state: &mut State, kind: Kind, bytes: u64) {
        let missing = state.missing_for(bytes);
        for _ in 0..missing {
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
        if !std::mem::replace(&mut state.out[id as usize], true) {
            self.arena.withdraw(id);
        }
        Some(id)
    }

    fn shrink_leases(&self, kind: Kind, bytes: u64) {
        let mut state = self.lock();
        state.leased_bytes -= bytes;
        let wanted = state.leased_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        let keep = wanted.min(state.retired.len());
        let spare = state.retired.split_off(keep);
        let any = !spare.is_empty();
        spare.into_iter().for_each(|id| state.free.push_front(id));
        self.by_kind[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        drop(state);
        if any {
            self.freed.notify_all();
        }
    }

    fn resize(&self, limit_bytes: u64, lease: &mut Lease, more: u64) -> Result<(), ResizeError> {
        let ceiling_bytes = u64::from(self.arena.ceiling()) * CHUNK_BYTES as u64;
        let wanted = limit_bytes / CHUNK_BYTES as u64;
        match u32::try_from(wanted) {
            Ok(wanted) if wanted > 0 && wanted <= self.arena.ceiling() => self.resize_to(wanted, lease, more),
            _ => Err(ResizeError::BeyondCeiling { wanted_bytes: limit_bytes, ceiling_bytes }),
        }
    }

    fn resize_to(&self, wanted: u32, lease: &mut Lease, more: u64) -> Result<(), ResizeError> {
        let _turn = self.resizing.lock().expect("no code under this lock panics");
        let mut state = self.lock();
        let before = self.chunks.load(Ordering::Relaxed);
        loop {
            let over = self.chunks.load(Ordering::Relaxed).saturating_sub(wanted) as usize;
            let short = self.short_for(&state, wanted, more);
            state = match (over, short) {
                (0, 0) => break,
                (1.., _) if !state.free.is_empty() => self.withdraw_some(state, over.min(WITHDRAWN_AT_ONCE)),
                _ => match self.reclaim(state, short.min(RECLAIMED_AT_ONCE)) {
                    Ok(state) => state,
                    Err(state) => return Err(self.resize_back(state, before, short)),
                },
            };
        }
        self.enlarge(&mut state, wanted).map_err(|error| ResizeError::Refused { message: error.to_string() })?;
        self.retire(&mut state, lease.kind, more);
        lease.bytes += more;
        state.peak_chunks = wanted as usize - state.free.len();
        drop(state);
        self.freed.notify_all();
        Ok(())
    }

    /// Chunks that are missing for a budget of `wanted` chunks with `more` bytes leased than now.
    fn short_for(&self, state: &State, wanted: u32, more: u64) -> usize {
        let needed = state.missing_for(more) + self.chunks.load(Ordering::Relaxed) as usize;
        needed.saturating_sub(state.free.len() + wanted as usize)
    }

    /// Withdraws up to `count` free chunks from the budget, and lets others have the lock.
    fn withdraw_some<'a>(&'a self, mut state: MutexGuard<'a, State>, count: usize) -> MutexGuard<'a, State> {
        for _ in 0..count {
            let Some(id) = self.withdraw_one(&mut state) else { break };
            state.withdrawn.push(id);
            self.chunks.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.lock()
    }

    /// Makes the budget what it was before it could not become smaller: `short` chunks are missing.
    fn resize_back(&self, mut state: MutexGuard<'_, State>, before: u32, short: usize) -> ResizeError {
        self.enlarge(&mut state, before).expect("these chunks were of the budget a moment ago");
        let usage = Box::new(self.usage_of(&state));
        drop(state);
        self.freed.notify_all();
        ResizeError::Held { missing_bytes: (short * CHUNK_BYTES) as u64, usage }
    }

    /// Adds chunks until there are `wanted`: those that were withdrawn, then new ones. On an error none is added.
    fn enlarge(&self, state: &mut State, wanted: u32) -> io::Result<()> {
        let more = wanted - self.chunks.load(Ordering::Relaxed);
        let fresh = more.saturating_sub(state.withdrawn.len() as u32);
        if fresh > 0 {
            self.arena.grow(state.made + fresh)?;
        }
        let keep = state.withdrawn.len() - (more - fresh) as usize;
        let again = state.withdrawn.split_off(keep);
        again.into_iter().for_each(|id| state.free.push_front(id));
        (state.made..state.made + fresh).for_each(|id| state.free.push_front(id));
        state.made += fresh;
        let made = state.made as usize;
        state.out.resize(made, false);
        self.chunks.store(wanted, Ordering::Relaxed);
        Ok(())
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
        let wanted = (self.leased_bytes + bytes).div_ceil(CHUNK_BYTES as u64) as usize;
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

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    fn budget(chunks: u64) -> Budget {
        Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap()
    }

    #[test]
    fn what_was_taken_is_given_back() {
        let budget = budget(4);
        let chunks: Vec<_> = (0..4).map(|_| budget.take(Kind::Sort).unwrap()).collect();
        let refusal = budget.take(Kind::Pages).unwrap_err();
        assert_eq!(refusal.usage.of(Kind::Sort), 4 * CHUNK_BYTES as u64);
        drop(chunks);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
        assert_eq!(budget.usage().of(Kind::Sort), 0);
        assert_eq!(budget.usage().peak_bytes, budget.limit_bytes());
    }

    #[test]
    fn leases_together_retire_the_sum_rounded_up() {
        let budget = budget(4);
        let mut first = budget.lease(Kind::Metadata, 10).unwrap();
        let second = budget.lease(Kind::Metadata, 10).unwrap();
        assert_eq!(budget.free_bytes(), 3 * CHUNK_BYTES as u64);
        first.grow(CHUNK_BYTES as u64).unwrap();
        assert_eq!(budget.free_bytes(), 2 * CHUNK_BYTES as u64);
        assert!(first.grow(3 * CHUNK_BYTES as u64).is_err());
        assert_eq!(first.bytes(), CHUNK_BYTES as u64 + 10);
        drop((first, second));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn a_reservation_can_be_made_to_fail_once() {
        let budget = budget(4);
        budget.fail_after(1);
        let kept = budget.take(Kind::Sort).unwrap();
        assert!(budget.lease(Kind::Sort, 1).is_err());
        assert!(budget.lease(Kind::Sort, 1).is_ok());
        drop(kept);
    }

    #[test]
    fn who_can_do_without_a_chunk_is_not_refused_one() {
        let budget = budget(2);
        budget.fail_after(0);
        let held = budget.try_take(Kind::Staging).unwrap();
        assert!(budget.take(Kind::Sort).is_err(), "the refusal on purpose is for who cannot");
        let other = budget.take(Kind::Sort).unwrap();
        let before = budget.pressure();
        assert!(budget.try_take(Kind::Pages).is_none());
        assert_eq!(budget.pressure(), before);
        drop((held, other));
    }

    /// Law 1, as far as it can be seen from outside.
    fn assert_books_balance(budget: &Budget) {
        let usage = budget.usage();
        let held: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(held.next_multiple_of(CHUNK_BYTES as u64) + usage.free_bytes, usage.limit_bytes, "{usage:?}");
    }

    fn chunks_of(budget: &Budget, kind: Kind) -> Vec<Chunk> {
        std::iter::from_fn(|| budget.take(kind).ok()).collect()
    }

    #[test]
    fn a_budget_grows_and_shrinks_while_chunks_and_leases_are_held() {
        const CHUNK: u64 = CHUNK_BYTES as u64;
        let budget = Budget::with_ceiling(8 * CHUNK, 32 * CHUNK, Backing::Heap).unwrap();
        assert_eq!((budget.limit_bytes(), budget.ceiling_bytes()), (8 * CHUNK, 32 * CHUNK));
        let mut held = vec![budget.take(Kind::Sort).unwrap()];
        held[0].fill(7);
        let lease = budget.lease(Kind::Metadata, CHUNK + 1).unwrap();
        for chunks in [32, 8, 20, 3, 3, 32, 4, 5] {
            budget.resize(chunks * CHUNK + 100).unwrap();
            assert_eq!(budget.limit_bytes(), chunks * CHUNK);
            assert_books_balance(&budget);
            let rest = chunks_of(&budget, Kind::Memtable);
            assert_eq!(rest.len() as u64, chunks - 3);
        }
        assert!(held[0].iter().all(|&byte| byte == 7));
        drop((held, lease));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn a_budget_that_cannot_shrink_is_as_it_was_and_says_who_holds_how_much() {
        const CHUNK: u64 = CHUNK_BYTES as u64;
        let budget = budget(16);
        let held: Vec<_> = (0..6).map(|_| budget.take(Kind::WriteSet).unwrap()).collect();
        let error = budget.resize(4 * CHUNK).unwrap_err();
        assert!(matches!(&error, ResizeError::Held { missing_bytes, .. } if *missing_bytes == 2 * CHUNK), "{error}");
        assert!(error.to_string().contains("WriteSet 393216"), "{error}");
        assert_eq!(budget.limit_bytes(), 16 * CHUNK);
        assert_eq!(chunks_of(&budget, Kind::Sort).len(), 10);
        assert_books_balance(&budget);
        for beyond in [0, 17 * CHUNK, u64::MAX] {
            assert!(matches!(budget.resize(beyond), Err(ResizeError::BeyondCeiling { .. })));
        }
        drop(held);
        budget.resize(4 * CHUNK).unwrap();
    }

    #[test]
    fn the_books_balance_after_any_sequence_of_takes_leases_and_resizes() {
        for seed in 1..=if cfg!(miri) { 2 } else { 60u64 } {
            let mut state = seed;
            let mut below = |bound: u64| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) % bound
            };
            let ceiling = 4 + below(40);
            let budget = Budget::with_ceiling((1 + below(ceiling)) << 16, ceiling << 16, Backing::Heap).unwrap();
            let (mut chunks, mut leases) = (Vec::new(), Vec::new());
            for _ in 0..if cfg!(miri) { 60 } else { 500 } {
                match below(10) {
                    0 => _ = budget.resize(below(ceiling + 2) << 16),
                    1 => budget.fail_after(below(4)),
                    2..5 => chunks.extend(budget.take(Kind::ALL[below(10) as usize])),
                    5 => leases.extend(budget.lease(Kind::ALL[below(10) as usize], below(200_000))),
                    6 if !leases.is_empty() => {
                        let at = below(leases.len() as u64) as usize;
                        let lease: &mut Lease = &mut leases[at];
                        let bytes = lease.bytes();
                        match lease.grow(below(100_000)) {
                            Ok(()) => lease.shrink(below(300_000)),
                            Err(_) => assert_eq!(lease.bytes(), bytes, "a lease that was refused is as it was"),
                        }
                    }
                    7 if !leases.is_empty() => drop(leases.swap_remove(below(leases.len() as u64) as usize)),
                    _ if !chunks.is_empty() => drop(chunks.swap_remove(below(chunks.len() as u64) as usize)),
                    _ => {}
                }
                let usage = budget.usage();
                let leased: u64 = leases.iter().map(Lease::bytes).sum();
                let held = ((chunks.len() * CHUNK_BYTES) as u64) + leased.next_multiple_of(CHUNK_BYTES as u64);
                assert_eq!(held + usage.free_bytes, usage.limit_bytes, "seed {seed}: {usage:?}");
                let kinds: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
                assert_eq!(kinds, (chunks.len() * CHUNK_BYTES) as u64 + leased, "seed {seed}: {usage:?}");
            }
            drop((chunks, leases));
            assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}");
        }
    }

    /// Leaves when it is asked, and its chunk with it.
    struct Leaving {
        itself: Mutex<Option<Arc<Self>>>,
        _chunk: Chunk,
    }

    impl Reclaim for Leaving {
        fn reclaim(&self, _: usize) -> usize {
            drop(self.itself.lock().unwrap().take());
            0
        }
    }

    #[test]
    fn a_reclaimer_that_leaves_while_it_is_asked_gives_back_what_it_held() {
        let budget = budget(1);
        let leaving = Arc::new(Leaving { itself: Mutex::new(None), _chunk: budget.take(Kind::Pages).unwrap() });
        *leaving.itself.lock().unwrap() = Some(Arc::clone(&leaving));
        let reclaimer = Arc::downgrade(&leaving);
        drop(leaving);
        budget.add_reclaimer(reclaimer);
        assert!(budget.take(Kind::Sort).is_ok());
    }

    /// Holds chunks, gives what it is asked for, and remembers how much that was at most.
    struct Giving(Mutex<(Vec<Chunk>, usize)>);

    impl Reclaim for Giving {
        fn reclaim(&self, chunks: usize) -> usize {
            let mut state = self.0.lock().unwrap();
            state.1 = state.1.max(chunks);
            let keep = state.0.len().saturating_sub(chunks);
            state.0.drain(keep..).len()
        }
    }

    #[test]
    fn a_large_lease_takes_back_few_chunks_at_a_time() {
        let budget = budget(100);
        let giving = Arc::new(Giving(Mutex::new((chunks_of(&budget, Kind::Pages), 0))));
        let reclaimer = Arc::downgrade(&giving);
        budget.add_reclaimer(reclaimer);
        let lease = budget.lease(Kind::Sort, 100 * CHUNK_BYTES as u64).unwrap();
        assert_eq!((lease.bytes(), budget.free_bytes()), (budget.limit_bytes(), 0));
        assert_eq!(giving.0.lock().unwrap().1, RECLAIMED_AT_ONCE);
    }

    #[test]
    fn two_who_resize_at_once_leave_a_budget_whose_books_balance() {
        const CHUNK: u64 = CHUNK_BYTES as u64;
        let rounds = if cfg!(miri) { 3 } else { 300 };
        let budget = Budget::with_ceiling(8 * CHUNK, 400 * CHUNK, Backing::Heap).unwrap();
        let held: Vec<_> = (0..6).map(|_| budget.take(Kind::Sort).unwrap()).collect();
        std::thread::scope(|scope| {
            for chunks in [200, 400] {
                let budget = &budget;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        budget.resize(chunks * CHUNK).unwrap();
                        assert!(budget.resize(4 * CHUNK).is_err());
                    }
                });
            }
        });
        drop(held);
        assert_books_balance(&budget);
        assert_eq!(chunks_of(&budget, Kind::Sort).len() as u64, budget.limit_bytes() / CHUNK);
    }

    #[test]
    fn a_waiter_gets_the_chunk_that_another_gives_back() {
        let budget = budget(1);
        let held = budget.take(Kind::Sort).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| budget.take_waiting(Kind::Sort, Duration::from_secs(10)).unwrap());
            drop(held);
        });
    }
}
