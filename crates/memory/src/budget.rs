//! The one number, and who uses how much of it.
//!
//! Laws:
//! 1. free chunks + chunks held + chunks retired by leases = chunks of the arena, at every moment.
//! 2. A lease retires chunks for its bytes before its holder allocates them; all leases together retire the sum, rounded up. A retired
//!    chunk's memory is given back to the system, so that arena and leased heap together never exceed the budget.
//! 3. Whatever was taken is given back on drop, on error paths too.
//!
//! When no chunk is free the budget asks its reclaimers (the page pool first) for some, and only then refuses.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::arena::Arena;
pub use crate::arena::Backing;
use crate::chunk::{CHUNK_BYTES, Chunk};

/// The smallest budget: 16 MiB.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Frames of the page pool.
    Pages,
    /// The object cache.
    Objects,
    /// Memtables: commits that no run holds yet.
    Memtable,
    /// What open transactions have written.
    WriteSet,
    /// What open transactions have read.
    ReadSet,
    /// Records on their way to the log, and its tail.
    LogBuffer,
    /// Tables from GLSNs to places in the active segment.
    LogTable,
    /// Sorting: flush, compaction, bulk load.
    Sort,
    /// Bytes on their way to or from a file or a user.
    Staging,
    /// Descriptions of files, snapshots, keyspaces.
    Metadata,
}

impl Kind {
    /// Every kind, in the order of [`Usage::by_kind`].
    pub const ALL: [Kind; 10] = [
        Kind::Pages,
        Kind::Objects,
        Kind::Memtable,
        Kind::WriteSet,
        Kind::ReadSet,
        Kind::LogBuffer,
        Kind::LogTable,
        Kind::Sort,
        Kind::Staging,
        Kind::Metadata,
    ];
}

/// The budget has no room: who wanted how much, and who holds what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfBudget {
    /// Bytes that were wanted.
    pub needed_bytes: u64,
    /// What they were wanted for.
    pub kind: Kind,
    /// Who holds how much. Boxed, so that results which may carry it stay small.
    pub usage: Box<Usage>,
}

impl std::error::Error for OutOfBudget {}

impl fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.usage.limit_bytes;
        write!(
            f,
            "the memory budget is used up: {} bytes needed for {:?}, limit {limit}, held",
            self.needed_bytes, self.kind
        )?;
        for (kind, bytes) in self.usage.by_kind.iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, " {kind:?} {bytes}")?;
        }
        Ok(())
    }
}

/// Who holds how much, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The budget.
    pub limit_bytes: u64,
    /// Chunks that nobody holds.
    pub free_bytes: u64,
    /// Bytes by kind: whole chunks, and leases to the byte.
    pub by_kind: [(Kind, u64); Kind::ALL.len()],
    /// The most bytes that were ever held at once.
    pub peak_bytes: u64,
}

impl Usage {
    /// Bytes held for `kind`.
    pub fn of(&self, kind: Kind) -> u64 {
        self.by_kind[kind as usize].1
    }
}

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
    chunks: u32,
    state: Mutex<State>,
    freed: Condvar,
    by_kind: [AtomicU64; Kind::ALL.len()],
    reclaimers: Mutex<Vec<Weak<dyn Reclaim>>>,
}

#[derive(Default)]
struct State {
    /// Taken from the back, where those stand that were given back last: their bytes are resident already. Retired from the front.
    free: VecDeque<u32>,
    retired: Vec<u32>,
    /// By chunk: whether its memory was given back to the system since it was last taken. (A chunk that was never taken may be resident
    /// all the same: a huge page comes as a whole.)
    discarded: Vec<bool>,
    leased_bytes: u64,
    peak_chunks: usize,
    /// Reservations still to succeed before one is refused on purpose.
    fail_after: Option<u64>,
}

impl Budget {
    /// A budget of `limit_bytes`, rounded down to whole chunks. The memory is taken from the system as it is first touched.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn new(limit_bytes: u64, backing: Backing) -> io::Result<Self> {
        let chunks = u32::try_from(limit_bytes / CHUNK_BYTES as u64)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a budget is below 256 TiB"))?;
        let state =
            State { free: (0..chunks).rev().collect(), discarded: vec![false; chunks as usize], ..State::default() };
        let inner = Inner {
            arena: Arena::new(chunks, backing)?,
            chunks,
            state: Mutex::new(state),
            freed: Condvar::new(),
            by_kind: std::array::from_fn(|_| AtomicU64::new(0)),
            reclaimers: Mutex::new(Vec::new()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The budget in bytes.
    pub fn limit_bytes(&self) -> u64 {
        u64::from(self.inner.chunks) * CHUNK_BYTES as u64
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
        self.inner.take(kind, true)
    }

    /// One chunk if one is free; asks nobody.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn take_free(&self, kind: Kind) -> Result<Chunk, OutOfBudget> {
        self.inner.take(kind, false)
    }

    /// One chunk, waiting up to `patience` for one to become free.
    ///
    /// # Errors
    /// [`OutOfBudget`] after that time; nothing is taken.
    pub fn take_waiting(&self, kind: Kind, patience: Duration) -> Result<Chunk, OutOfBudget> {
        let mut waited = Duration::ZERO;
        loop {
            match self.inner.take(kind, true) {
                Ok(chunk) => return Ok(chunk),
                Err(refusal) if waited >= patience => return Err(refusal),
                Err(_) => {
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

    fn take(self: &Arc<Self>, kind: Kind, ask: bool) -> Result<Chunk, OutOfBudget> {
        let mut state = self.lock();
        if state.refuses_on_purpose() {
            drop(state);
            return Err(self.refusal(kind, CHUNK_BYTES as u64));
        }
        loop {
            if let Some(id) = state.free.pop_back() {
                state.discarded[id as usize] = false;
                state.note_peak(self.chunks);
                self.by_kind[kind as usize].fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
                drop(state);
                return Ok(Chunk::new(Arc::clone(self), id, kind));
            }
            drop(state);
            if !ask || !self.reclaim(1) {
                return Err(self.refusal(kind, CHUNK_BYTES as u64));
            }
            state = self.lock();
        }
    }

    pub(crate) fn give_back(&self, id: u32, kind: Kind) {
        let mut state = self.lock();
        self.by_kind[kind as usize].fetch_sub(CHUNK_BYTES as u64, Ordering::Relaxed);
        state.free.push_back(id);
        drop(state);
        self.freed.notify_one();
    }

    /// Asks for `chunks`; whether anybody gave any.
    fn reclaim(&self, chunks: usize) -> bool {
        let reclaimers: Vec<_> =
            self.reclaimers.lock().expect("a reclaimer never panics").iter().filter_map(Weak::upgrade).collect();
        reclaimers.iter().any(|reclaimer| reclaimer.reclaim(chunks) > 0)
    }

    fn grow_leases(&self, kind: Kind, bytes: u64) -> Result<(), OutOfBudget> {
        let mut state = self.lock();
        if state.refuses_on_purpose() {
            drop(state);
            return Err(self.refusal(kind, bytes));
        }
        loop {
            let wanted = (state.leased_bytes + bytes).div_ceil(CHUNK_BYTES as u64) as usize;
            let missing = wanted.saturating_sub(state.retired.len());
            if missing <= state.free.len() {
                for _ in 0..missing {
                    let id = state.free.pop_front().expect("counted above");
                    if !std::mem::replace(&mut state.discarded[id as usize], true) {
                        self.arena.discard(id);
                    }
                    state.retired.push(id);
                }
                state.leased_bytes += bytes;
                state.note_peak(self.chunks);
                self.by_kind[kind as usize].fetch_add(bytes, Ordering::Relaxed);
                return Ok(());
            }
            let short = missing - state.free.len();
            drop(state);
            if !self.reclaim(short) {
                return Err(self.refusal(kind, bytes));
            }
            state = self.lock();
        }
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

    fn usage(&self) -> Usage {
        let state = self.lock();
        Usage {
            limit_bytes: u64::from(self.chunks) * CHUNK_BYTES as u64,
            free_bytes: (state.free.len() * CHUNK_BYTES) as u64,
            by_kind: Kind::ALL.map(|kind| (kind, self.by_kind[kind as usize].load(Ordering::Relaxed))),
            peak_bytes: (state.peak_chunks * CHUNK_BYTES) as u64,
        }
    }

    fn refusal(&self, kind: Kind, needed_bytes: u64) -> OutOfBudget {
        OutOfBudget { needed_bytes, kind, usage: Box::new(self.usage()) }
    }
}

impl State {
    fn note_peak(&mut self, chunks: u32) {
        self.peak_chunks = self.peak_chunks.max(chunks as usize - self.free.len());
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
    fn a_waiter_gets_the_chunk_that_another_gives_back() {
        let budget = budget(1);
        let held = budget.take(Kind::Sort).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| budget.take_waiting(Kind::Sort, Duration::from_secs(10)).unwrap());
            drop(held);
        });
    }
}
