//! The evictor: a background job that keeps memory free ahead of demand, so that callers seldom
//! evict inline.
//!
//! It keeps two kinds of room between a low and a high watermark ([`room`]): free frames for page
//! misses, and free chunks of the budget for everything else (memtables, write sets, leases). A
//! caller that takes room below the low watermark rings the evictor's bell ([`crate::budget`]). The
//! evictor then works in batches of 16 to 64 victims until the high watermark is reached, and
//! sleeps. It never polls. A caller that still finds no room evicts inline, as it would without an
//! evictor; the statistics count that.
//!
//! While some chunks were never taken, nothing has to be evicted, and the evictor's thread
//! pre-faults some of them instead ([`Budget::clear_block`]).
//!
//! Invariants:
//! 1. Nothing is evicted while the pool can still grow, nor beyond the high watermark.
//! 2. Evicted memory becomes room: free frames + frames with a page = frames, before and after.
//! 3. An evictor that can free nothing sleeps; it does not spin over pinned pages.

mod room;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::thread::spawn;

use crate::budget::Budget;
use crate::budget::bell::{Bell, Cause};
use crate::budget::chunk::CHUNK_BYTES;
use crate::page::PAGE_BYTES;
use crate::pool::{EvictorStats, Pool};
use room::{BATCH_PAGES_MAX, BATCH_PAGES_MIN, Demand, Watermarks, batch};

const PAGES_PER_CHUNK: usize = CHUNK_BYTES / PAGE_BYTES;

/// Batch size in chunks: the least, and the most.
const BATCH_CHUNKS_MIN: usize = BATCH_PAGES_MIN / PAGES_PER_CHUNK;
const BATCH_CHUNKS_MAX: usize = BATCH_PAGES_MAX / PAGES_PER_CHUNK;

/// The evictor keeps free at most one in this many of the pool's own frames, even if that is less
/// than two batches.
const FRAMES_PART_MAX: usize = 8;

/// Whether a step found something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Memory was freed; there may be more to do.
    Worked,
    /// There is enough room, or nothing can be evicted.
    Idle,
}

/// The evictor. Run it with [`EvictorThread`], or call [`Evictor::step`] from a scheduler.
pub struct Evictor {
    pool: Arc<Pool>,
    budget: Budget,
    clock: Arc<dyn Clock>,
    bell: Arc<Bell>,
    frames: Demand,
    chunks: Demand,
    /// Time of the wake-up call, until the first room is made.
    called_at_nanos: Option<u64>,
    stats: EvictorStats,
    on_batch: Option<fn(Batch)>,
}

/// Memory freed by one batch of the evictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Pages evicted.
    pub pages: u64,
    /// Bytes freed.
    pub bytes: u64,
}

impl Evictor {
    /// The evictor of a pool and of its budget.
    ///
    /// # Panics
    /// The pool or its budget has an evictor already.
    pub fn new(pool: &Arc<Pool>, clock: Arc<dyn Clock>) -> Self {
        let bell = Arc::new(Bell::new(Arc::clone(&clock)));
        let budget = pool.budget().clone();
        budget.install_evictor(Arc::clone(&bell));
        pool.install_evictor(Arc::clone(&bell));
        let (frames, chunks) = (Demand::default(), Demand::default());
        let mut evictor = Self {
            pool: Arc::clone(pool),
            budget,
            clock,
            bell,
            frames,
            chunks,
            called_at_nanos: None,
            stats: EvictorStats::default(),
            on_batch: None,
        };
        evictor.set_watermarks();
        evictor
    }

    /// Calls `f` after each batch, without a lock.
    pub fn on_batch(self, f: fn(Batch)) -> Self {
        Self { on_batch: Some(f), ..self }
    }

    /// Evicts one batch for each kind of room that is short.
    pub fn step(&mut self) -> Progress {
        let (frames, chunks) = self.set_watermarks();
        let victims = self.stats.victims;
        let made = match self.reclaim_lent(chunks, frames) {
            0 => self.free_chunks(chunks) + self.free_frames(frames),
            lent => lent,
        };
        if made > 0 {
            self.stats.rounds += 1;
            self.note_reaction();
        }
        self.pool.note_evictor(self.stats);
        if let Some(on_batch) = self.on_batch.filter(|_| made > 0) {
            on_batch(Batch { pages: self.stats.victims - victims, bytes: made });
        }
        if made > 0 { Progress::Worked } else { Progress::Idle }
    }

    /// Measures the demand since the last step, and derives the watermarks.
    fn set_watermarks(&mut self) -> (Watermarks, Watermarks) {
        let now = self.clock.monotonic_nanos();
        let limit_chunks = (self.budget.limit_bytes() / CHUNK_BYTES as u64) as usize;
        let pool = self.pool.room();
        self.frames.note_taken(pool.taken, now);
        self.chunks.note_taken(self.budget.room().1, now);
        let chunks = self.chunks.watermarks(BATCH_CHUNKS_MIN, limit_chunks);
        let frames = self.frames.watermarks(BATCH_PAGES_MIN, limit_chunks * PAGES_PER_CHUNK);
        let high = frames.high.min(pool.frames / FRAMES_PART_MAX);
        let frames = Watermarks { low: high / 2, high };
        self.pool.set_watermarks(frames.low, chunks.high);
        self.budget.set_low_watermark(chunks.low);
        (self.stats.high_frames, self.stats.high_chunks) = (frames.high as u64, chunks.high as u64);
        (frames, chunks)
    }

    /// Reclaims memory from lenders if chunks are short, or if the pool would otherwise have to
    /// evict pages. Returns the bytes freed.
    fn reclaim_lent(&mut self, chunks: Watermarks, frames: Watermarks) -> u64 {
        let mut wanted =
            batch(self.budget.room().0, chunks.high, BATCH_CHUNKS_MIN, BATCH_CHUNKS_MAX);
        if wanted == 0 && self.pool.room().free < frames.high && !self.pool.can_grow() {
            wanted = BATCH_CHUNKS_MIN;
        }
        let given = if wanted == 0 { 0 } else { self.budget.reclaim_lent(wanted) };
        let bytes = (given * CHUNK_BYTES) as u64;
        self.stats.chunk_bytes += bytes;
        self.stats.bytes += bytes;
        bytes
    }

    /// Takes chunks back from the pool. Returns the bytes freed.
    fn free_chunks(&mut self, watermarks: Watermarks) -> u64 {
        let free = self.budget.room().0;
        let wanted = batch(free, watermarks.high, BATCH_CHUNKS_MIN, BATCH_CHUNKS_MAX);
        if wanted == 0 {
            return 0;
        }
        let (given, victims) = self.pool.release_chunks(wanted);
        if given == 0 {
            // Nothing can be evicted, so callers that take more chunks need not ring. Callers that
            // evict inline still ring.
            self.budget.set_low_watermark(watermarks.low.min(free / 2));
        }
        let bytes = (given * CHUNK_BYTES) as u64;
        self.stats.victims += victims;
        self.stats.chunk_bytes += bytes;
        self.stats.bytes += bytes;
        bytes
    }

    /// Evicts pages, so that loads find free frames. Returns the bytes freed.
    fn free_frames(&mut self, watermarks: Watermarks) -> u64 {
        let room = self.pool.room();
        let wanted = batch(room.free, watermarks.high, BATCH_PAGES_MIN, BATCH_PAGES_MAX);
        if wanted == 0 || self.pool.can_grow() {
            return 0;
        }
        let victims = self.pool.free_frames(wanted);
        if victims == 0 {
            self.pool
                .set_watermarks(watermarks.low.min(room.free / 2), self.stats.high_chunks as usize);
        }
        let bytes = victims * PAGE_BYTES as u64;
        self.stats.victims += victims;
        self.stats.bytes += bytes;
        bytes
    }

    fn note_reaction(&mut self) {
        if let Some(at) = self.called_at_nanos.take() {
            let nanos = self.clock.monotonic_nanos().saturating_sub(at);
            self.frames.note_reaction(nanos);
            self.chunks.note_reaction(nanos);
            let mean = self.stats.reaction_nanos;
            self.stats.reaction_nanos = mean - mean / 8 + nanos / 8;
        }
    }

    /// Whether room is below a low watermark now.
    fn is_short(&self) -> bool {
        self.budget.is_short() || self.pool.is_short()
    }

    /// Pre-faults a block if that is due. Returns whether it did.
    fn clears_a_block(&self) -> bool {
        self.budget.wants_clearing() && self.budget.clear_block() > 0
    }

    fn run(&mut self) {
        while !self.bell.is_closing() {
            while (self.step() == Progress::Worked || self.clears_a_block())
                && !self.bell.is_closing()
            {}
            self.bell.arm();
            if self.is_short() || self.budget.wants_clearing() {
                self.bell.disarm();
                continue;
            }
            let Some((cause, at_nanos)) = self.bell.wait() else { return };
            self.called_at_nanos = Some(at_nanos);
            match cause {
                Cause::Frames => self.stats.woken_for_frames += 1,
                Cause::Chunks => self.stats.woken_for_chunks += 1,
                Cause::Inline => self.stats.woken_inline += 1,
                Cause::NeverTaken => self.called_at_nanos = None,
            }
        }
    }
}

impl fmt::Debug for Evictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats.fmt(f)
    }
}

/// An evictor in its own thread, which ends when this is dropped.
#[derive(Debug)]
pub struct EvictorThread {
    bell: Arc<Bell>,
    handle: Option<JoinHandle<()>>,
}

impl EvictorThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(mut evictor: Evictor) -> io::Result<Self> {
        let bell = Arc::clone(&evictor.bell);
        let handle = spawn("plimsoll-evict", move || evictor.run())?;
        Ok(Self { bell, handle: Some(handle) })
    }
}

impl Drop for EvictorThread {
    fn drop(&mut self) {
        self.bell.close();
        if let Some(handle) = self.handle.take() {
            // A panic of the thread was reported already; without the evictor, callers evict
            // inline.
            let _ = handle.join();
        }
    }
}
