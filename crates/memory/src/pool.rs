//! The page pool: pages of immutable files in frames, evicted by a clock.
//!
//! A hit takes no lock. It writes no memory that other threads write, unless it makes the page
//! hotter: a table locates the frame ([`frame`]), and the thread publishes its use of the frame in
//! a hazard line of its own ([`hazard`]). Everything else happens under one lock, which is never
//! held while a page is read from its file. [`replacement`] decides which pages stay.
//!
//! Invariants:
//! 1. Concurrent requests for a page share one load. An error reaches all of them; the next request
//!    tries again.
//! 2. A page in use keeps its address and its bytes, even if the pool is dropped first.
//! 3. Evicting everything at any moment changes no answer.
//! 4. Lock order: a sorted map's lock, the pool's lock, the budget's lock. The budget holds no lock
//!    while it asks for chunks.

mod evictor_stats;
mod file;
mod frame;
mod frames;
mod ghosts;
mod hazard;
mod hits;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod known_bugs;
mod load;
mod pinned;
mod queues;
mod read_ahead;
mod recent_pages;
mod replacement;
mod resident_only;
mod resize;
mod slots;
mod table;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
mod warm;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::io_cause::IoCause;

use crate::budget::bell::{Bell, Cause};
use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind, Lease, OutOfBudget, Reclaim};
use crate::page::PAGE_BYTES;
use crate::sync::{Mutex, MutexGuard};
use crate::turnover::Turnover;
pub use evictor_stats::EvictorStats;
pub use file::PoolFile;
use frame::{Heat, PageKey, Pin};
use frames::{FRAMES_PER_CHUNK, Frames};
use hits::Hits;
use load::Load;
use pinned::Filling;
pub use pinned::Page;
pub use read_ahead::ReaderThreads;
pub use recent_pages::RecentPages;
use replacement::{Replacement, Room};
pub use resident_only::ResidentOnly;
use resize::table_bytes;
pub use warm::{Resident, Warmed};

/// The most chunks of a budget with a pool: 16 TiB, so that the table's slots can be counted in 32
/// bits.
const MAX_CHUNKS: u64 = 1 << 28;

/// A pool without an evictor leaves this fraction of the budget's chunks free for others, and no
/// fewer than `MIN_HEADROOM_CHUNKS`.
const HEADROOM_PART: usize = 32;
const MIN_HEADROOM_CHUNKS: usize = 8;

/// Newly written pages enter the pool while more than one part in this many of the budget is free.
const LEFT_FREE: u64 = 8;

/// Batch size when the pages of a closed file are forgotten. The lock is released between batches.
const PAGES_FORGOTTEN_AT_ONCE: u64 = 256;

/// Why a page, or the pool itself, is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The file could not be read, or the system refuses address space.
    Io {
        /// Kind of the system's error.
        kind: io::ErrorKind,
        /// The system's message, with the file's path.
        message: String,
        /// The system's error, where there is one.
        source: Option<IoCause>,
    },
    /// The bytes read differ from the bytes written.
    Corrupt {
        /// The damage, with file and page.
        message: String,
    },
    /// No frame is available.
    OutOfBudget(OutOfBudget),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { message, .. } | Self::Corrupt { message } => f.write_str(message),
            Self::OutOfBudget(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => source.as_ref().map(|source| source as _),
            _ => None,
        }
    }
}

impl From<OutOfBudget> for LoadError {
    fn from(refusal: OutOfBudget) -> Self {
        Self::OutOfBudget(refusal)
    }
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io {
            kind: error.kind(),
            message: error.to_string(),
            source: Some(IoCause::new(error)),
        }
    }
}

/// A file of pages, as the pool sees it.
pub trait PageSource: Send + Sync {
    /// Reads page `number` into `page` ([`crate::page::PAGE_BYTES`] long, aligned for direct reads)
    /// and checks it.
    ///
    /// # Errors
    /// [`LoadError::Io`] or [`LoadError::Corrupt`]; every thread that waits for this page receives
    /// it.
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError>;

    /// Reads the pages from `first` on into `pages` (whole pages, aligned for direct reads) and
    /// checks them. Used for sequential reads that bypass the pool, and for
    /// [`PoolFile::read_ahead`]. A source that can read several pages at once overrides it.
    ///
    /// # Errors
    /// As for [`PageSource::load`].
    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        (first..)
            .zip(pages.chunks_exact_mut(PAGE_BYTES))
            .try_for_each(|(number, page)| self.load(number, page))
    }

    /// Whether a page in memory still has the bytes that were loaded, by its checksum. Called
    /// before the page's content is written elsewhere under a new checksum. A source without
    /// checksums returns true.
    fn is_sound(&self, number: u32, page: &[u8]) -> bool {
        let _ = (number, page);
        true
    }

    /// Checks the bytes of the file that belong to no page, if there are any.
    ///
    /// # Errors
    /// As for [`PageSource::load`].
    fn check_rest(&self) -> Result<(), LoadError> {
        Ok(())
    }
}

/// The kind of access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// By a point read or a short scan: a second access makes the page hot.
    Point,
    /// By a long scan: this access never makes the page hot, and a page that only scans accessed is
    /// evicted first.
    Scan,
    /// A repeated access by one operation ([`RecentPages`]): does not make the page hotter, and a
    /// page evicted in between is reloaded cold.
    Again,
}

fn whole_chunks(bytes: u64) -> usize {
    (bytes / CHUNK_BYTES as u64) as usize
}

/// Chunks that hold `min_bytes`, at least one.
fn floor_chunks(min_bytes: u64) -> usize {
    usize::try_from(min_bytes.div_ceil(CHUNK_BYTES as u64)).unwrap_or(usize::MAX).max(1)
}

/// Chunks that a new pool takes at once; it takes the others as it reads pages. A store therefore
/// opens equally fast under any budget.
const FIRST_CHUNKS: usize = 64;

fn headroom(chunks: usize) -> usize {
    (chunks / HEADROOM_PART).max(MIN_HEADROOM_CHUNKS)
}

/// The pool. One per budget.
pub struct Pool {
    budget: Budget,
    next_file: AtomicU64,
    /// This field and the next two outlive the pool if pages are held when the pool is dropped.
    frames: ManuallyDrop<Frames>,
    replacement: ManuallyDrop<Mutex<Replacement>>,
    /// Covers the tables for the largest number of frames currently possible, and the system's page
    /// tables: 0.65 % of the budget. Locked while that number changes.
    tables: ManuallyDrop<Mutex<Lease>>,
    hits: Hits,
    bell: OnceLock<Arc<Bell>>,
    evictor: Mutex<EvictorStats>,
    ahead: OnceLock<Arc<read_ahead::Waiting>>,
    /// Pages read ahead.
    read_ahead: AtomicU64,
    /// Pages read from their file.
    loads: AtomicU64,
}

/// Counters since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages found.
    pub hits: u64,
    /// Pages read from their file.
    pub loads: u64,
    /// The part of `loads` that was read ahead of a scan.
    pub read_ahead: u64,
    /// Waits for a load by another thread.
    pub waits: u64,
    /// Pages evicted, for any reason.
    pub evictions: u64,
    /// The part of `evictions` that a thread made inline because it needed a frame at once.
    pub inline_evictions: u64,
    /// Frames held now.
    pub frames: u64,
    /// Frames with a page now.
    pub resident: u64,
    /// Frames pinned now.
    pub pinned: u64,
}

impl Pool {
    /// Makes a pool that takes its frames from `budget`, four to a chunk. It takes `min_bytes`
    /// (rounded up to chunks, at least one) at once, but no more than 4 MiB of them. It keeps at
    /// least `min_bytes` once it has them. It registers itself as a reclaimer, and gives the rest
    /// back when the budget asks.
    ///
    /// # Errors
    /// [`LoadError::OutOfBudget`]: the budget cannot give the first chunks and the tables.
    /// [`LoadError::Io`]: the system refuses address space for the tables of the largest possible
    /// pool.
    ///
    /// # Panics
    /// The budget is above 16 TiB.
    pub fn new(budget: &Budget, min_bytes: u64) -> Result<Arc<Pool>, LoadError> {
        assert!(
            budget.ceiling_bytes() / CHUNK_BYTES as u64 <= MAX_CHUNKS,
            "a budget with a pool is at most 16 TiB"
        );
        let (chunks, ceiling) =
            (whole_chunks(budget.limit_bytes()), whole_chunks(budget.ceiling_bytes()));
        let min_chunks = floor_chunks(min_bytes);
        let table_bytes = table_bytes(chunks) + budget.page_table_bytes(budget.limit_bytes());
        let tables = budget.lease(Kind::Pages, table_bytes)?;
        let frames = Frames::new(chunks, ceiling, budget.backing())?;
        let mut replacement = Replacement::new(chunks, min_chunks, headroom(chunks));
        for _ in 0..min_chunks.min(FIRST_CHUNKS) {
            replacement.adopt(&frames, budget.take(Kind::Pages)?);
        }
        let pool = Arc::new(Self {
            budget: budget.clone(),
            next_file: AtomicU64::new(0),
            frames: ManuallyDrop::new(frames),
            replacement: ManuallyDrop::new(Mutex::new(replacement)),
            tables: ManuallyDrop::new(Mutex::new(tables)),
            hits: Hits::new(),
            bell: OnceLock::new(),
            evictor: Mutex::new(EvictorStats::default()),
            ahead: OnceLock::new(),
            read_ahead: AtomicU64::new(0),
            loads: AtomicU64::new(0),
        });
        let reclaimer = Arc::downgrade(&pool);
        budget.add_reclaimer(reclaimer);
        Ok(pool)
    }

    /// Attaches a file under a new id, which is never reused.
    pub fn attach(self: &Arc<Self>, source: Arc<dyn PageSource>) -> PoolFile {
        let id = self.next_file.fetch_add(1, Ordering::Relaxed);
        PoolFile::new(self, id, source)
    }

    /// Evicts every page that is not pinned.
    pub fn clear(&self) {
        self.lock().clear(&self.frames);
    }

    /// The number of pages read from their file since the pool was made. Takes no lock.
    #[inline]
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Whether enough of the budget is free for newly written pages to enter the pool before they
    /// are read.
    pub fn has_free_memory(&self) -> bool {
        self.budget.free_bytes() > self.budget.limit_bytes() / LEFT_FREE
    }

    /// Takes a chunk if [`Pool::has_free_memory`]: for buffers that work better if large.
    pub fn take_if_free(&self, kind: Kind) -> Option<Chunk> {
        if self.has_free_memory() { self.budget.try_take(kind) } else { None }
    }

    /// The size of the pool, and the hits that a larger pool would have had.
    pub fn turnover(&self) -> Turnover {
        self.lock().turnover()
    }

    /// Counters.
    pub fn stats(&self) -> PoolStats {
        let replacement = self.lock();
        let slots = replacement.slots.len();
        let mut stats = PoolStats {
            hits: self.hits.sum(),
            loads: self.loads(),
            read_ahead: self.read_ahead.load(Ordering::Relaxed),
            waits: replacement.waits,
            evictions: replacement.evictions(),
            inline_evictions: replacement.inline_evictions(),
            frames: (replacement.slots.held() * FRAMES_PER_CHUNK) as u64,
            ..PoolStats::default()
        };
        drop(replacement);
        let mut held = Vec::new();
        hazard::note_held(&self.frames.addresses(), &mut held);
        for frame in self.frames.of_chunks(slots) {
            let state = frame.state();
            stats.resident += u64::from(state.is_resident());
            let is_held = held.binary_search(&frame.address()).is_ok() && state.is_resident();
            stats.pinned += u64::from(state.is_pinned() || is_held);
        }
        stats
    }

    /// The evictor's counters; all zeros if there is none.
    pub fn evictor_stats(&self) -> EvictorStats {
        *self.evictor.lock().expect("no code under this lock panics")
    }

    pub(crate) fn note_evictor(&self, stats: EvictorStats) {
        *self.evictor.lock().expect("no code under this lock panics") = stats;
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Installs the evictor, which is called when free frames become few.
    pub(crate) fn install_evictor(&self, bell: Arc<Bell>) {
        assert!(self.bell.set(bell).is_ok(), "a pool has one evictor at most");
    }

    pub(crate) fn room(&self) -> Room {
        self.lock().room()
    }

    pub(crate) fn set_watermarks(&self, low_frames: usize, headroom: usize) {
        self.lock().set_watermarks(low_frames, headroom);
    }

    pub(crate) fn is_short(&self) -> bool {
        self.lock().is_short(&self.budget)
    }

    pub(crate) fn can_grow(&self) -> bool {
        self.lock().can_grow(&self.budget)
    }

    /// Evicts up to `wanted` pages, releasing the lock between batches. Returns how many it
    /// evicted.
    pub(crate) fn free_frames(&self, wanted: usize) -> u64 {
        let (mut freed, mut looks) = (0, 0);
        loop {
            let mut replacement = self.lock();
            let (more, looked) = replacement.free_frames(&self.frames, wanted - freed);
            freed += more;
            looks += looked;
            if freed == wanted || looked == 0 || looks >= replacement.looks_max() {
                return freed as u64;
            }
        }
    }

    /// Gives up to `wanted` chunks back to the budget. Returns the numbers of chunks given and
    /// pages evicted.
    pub(crate) fn release_chunks(&self, wanted: usize) -> (usize, u64) {
        let (mut given, mut victims) = (0, 0);
        while given < wanted {
            let mut replacement = self.lock();
            let before = replacement.evictions();
            let one = replacement.release_chunks(&self.frames, 1);
            victims += replacement.evictions() - before;
            if one == 0 {
                break;
            }
            given += one;
        }
        (given, victims)
    }

    /// Releases the lock, then calls the evictor if free frames are few.
    fn call_if_short(&self, replacement: MutexGuard<'_, Replacement>, inline_before: u64) {
        let Some(bell) = self.bell.get().filter(|bell| bell.is_armed()) else { return };
        let cause = match replacement.inline_evictions() > inline_before {
            true => Cause::Inline,
            false if replacement.is_short(&self.budget) => Cause::Frames,
            false => return,
        };
        drop(replacement);
        bell.ring(cause);
    }

    fn lock(&self) -> MutexGuard<'_, Replacement> {
        self.replacement.lock().expect("no code under this lock panics")
    }

    #[inline]
    fn found(self: &Arc<Self>, at: u32, pin: Pin) -> Page {
        self.hits.note();
        Page::new(self, at, pin)
    }

    /// Decides the next step for a page that was not found without the lock.
    fn begin(self: &Arc<Self>, key: PageKey, touch: Touch) -> Step<'_> {
        let mut replacement = self.lock();
        if let Some(at) = self.frames.find_any(key) {
            let frame = self.frames.get(at);
            if let Some(pin) = frame.try_hold(key, touch) {
                return Step::Found(self.found(at, pin));
            }
            frame.join(touch);
            replacement.waits += 1;
            return Step::Wait(at, replacement.waited_for.of(at));
        }
        let inline_before = replacement.inline_evictions();
        match replacement.frame(&self.frames, &self.budget) {
            None if replacement.slots.has_room() => Step::TakeChunk,
            None => Step::Refused,
            Some(at) => {
                let heat = replacement.first_heat(key, touch);
                let filling = self.begin_at(at, key, heat);
                self.call_if_short(replacement, inline_before);
                Step::Fill(filling)
            }
        }
    }

    /// Assigns a free frame to a page. Under the lock.
    fn begin_at(self: &Arc<Self>, at: u32, key: PageKey, heat: Heat) -> Filling<'_> {
        self.frames.get(at).begin(key, heat);
        self.frames.enter(at);
        Filling::new(self, at)
    }

    /// Adds a chunk to the pool. If other threads filled the tables meanwhile, the chunk goes back
    /// to the budget.
    fn adopt(&self, chunk: Chunk) {
        let mut replacement = self.lock();
        if replacement.slots.has_room() {
            replacement.adopt(&self.frames, chunk);
        }
    }

    /// Publishes the page of a loading frame.
    fn finish(&self, at: u32, loaded: bool) {
        let mut replacement = self.lock();
        self.frames.get(at).finish();
        replacement.filled(&self.frames, at);
        let waiters = replacement.waited_for.take(at);
        drop(replacement);
        // Relaxed: a thread that compares two readings of the counter has itself read the page in
        // between.
        self.loads.fetch_add(u64::from(loaded), Ordering::Relaxed);
        waiters.notify(Ok(()));
    }

    /// Releases a loading frame whose load failed.
    fn fail(&self, at: u32, error: &LoadError) {
        let mut replacement = self.lock();
        self.frames.forget(at);
        self.frames.get(at).fail();
        replacement.release(at);
        let waiters = replacement.waited_for.take(at);
        drop(replacement);
        waiters.notify(Err(error));
    }

    /// Discards the pages of a dropped file.
    fn forget(&self, file: u64, pages: u64) {
        for first in (0..pages).step_by(PAGES_FORGOTTEN_AT_ONCE as usize) {
            let mut replacement = self.lock();
            for number in first..pages.min(first + PAGES_FORGOTTEN_AT_ONCE) {
                if let Some(at) = self.frames.find_any(PageKey { file, number: number as u32 }) {
                    replacement.discard(&self.frames, at);
                }
            }
        }
    }
}

/// The next step of a request.
enum Step<'a> {
    Found(Page),
    /// Another thread is loading the page; the frame is pinned if that succeeds.
    Wait(u32, Arc<Load>),
    Fill(Filling<'a>),
    /// No frame is available without asking the budget.
    TakeChunk,
    /// No frame is available: all are pinned, and the tables have room for no more.
    Refused,
}

impl Reclaim for Pool {
    fn reclaim(&self, chunks: usize) -> usize {
        self.lock().release_chunks(&self.frames, chunks)
    }
}

impl Drop for Pool {
    #[allow(unsafe_code, reason = "moves out of a value that is being dropped")]
    fn drop(&mut self) {
        // If pages are held, their chunks and the tables stay until the pages are released. All
        // other chunks go back now.
        if hazard::is_any_held(&self.frames.addresses()) {
            self.lock().release_all(&self.frames);
        }
        // SAFETY: nothing reads them after this.
        let memory = unsafe {
            (
                ManuallyDrop::take(&mut self.frames),
                ManuallyDrop::take(&mut self.replacement),
                ManuallyDrop::take(&mut self.tables),
            )
        };
        hazard::retire(memory.0.addresses(), Box::new(memory));
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}
