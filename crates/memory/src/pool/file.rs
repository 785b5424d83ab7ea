//! A file of pages in the pool: requests for its pages, and pages that were just written.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::budget::{Kind, OutOfBudget};
use crate::page::PAGE_BYTES;
use crate::pool::frame::{Heat, PageKey, Pin};
use crate::pool::pinned::Filling;
use crate::pool::{LoadError, Page, PageSource, Pool, Step, Touch, resident_only};

/// A file whose pages the pool may hold. Its pages are forgotten when the last clone is dropped.
#[derive(Clone)]
pub struct PoolFile {
    pub(super) file: Arc<File>,
}

/// A file that is attached to a pool.
pub(super) struct File {
    pub(super) pool: Arc<Pool>,
    pub(super) id: u64,
    pub(super) source: Arc<dyn PageSource>,
    /// Upper bound (exclusive) on the page numbers that were ever in the pool.
    pages: AtomicU64,
}

impl PoolFile {
    /// A file of this pool, under an id that no other file has.
    pub(super) fn new(pool: &Arc<Pool>, id: u64, source: Arc<dyn PageSource>) -> Self {
        let pool = Arc::clone(pool);
        Self { file: Arc::new(File { pool, id, source, pages: AtomicU64::new(0) }) }
    }

    /// Returns page `number`, from its frame or loaded; concurrent requests share one load.
    ///
    /// # Errors
    /// The source's error, or no frame is available (all are pinned and the budget has none to
    /// give). While [`ResidentOnly`](crate::pool::ResidentOnly) is entered: the page is not found
    /// without a lock.
    #[inline]
    pub fn get(&self, number: u32, touch: Touch) -> Result<Page, LoadError> {
        let pool = &self.file.pool;
        let key = self.key(number);
        match pool.frames.hold(key, touch) {
            Some((frame, pin)) => Ok(pool.found(frame, pin)),
            None => self.get_under_lock(key, touch),
        }
    }

    /// Returns page `number` if it is found without a lock. For callers that will need it soon but
    /// do not want to wait for it.
    #[inline]
    pub fn find(&self, number: u32, touch: Touch) -> Option<Page> {
        let pool = &self.file.pool;
        pool.frames.hold(self.key(number), touch).map(|(frame, pin)| pool.found(frame, pin))
    }

    /// Prefetches the first `len` bytes of page `number` into the processor's caches, if it is
    /// found without a lock, and the slot of the page table for the next page. Does not count as an
    /// access.
    #[inline]
    pub fn fetch(&self, number: u32, len: usize) {
        let frames = &self.file.pool.frames;
        frames.prefetch(self.key(number), len);
        frames.prefetch_slot(self.key(number.wrapping_add(1)));
    }

    #[cold]
    fn get_under_lock(&self, key: PageKey, touch: Touch) -> Result<Page, LoadError> {
        resident_only::check_may_load()?;
        let pool = &self.file.pool;
        let mut pressed = false;
        loop {
            match pool.begin(key, touch) {
                Step::Found(page) => return Ok(page),
                Step::Wait(frame, load) => {
                    return load.wait().map(|()| Page::new(pool, frame, Pin::Counted).after_miss());
                }
                Step::Fill(filling) => return self.fill(filling, key.number),
                Step::TakeChunk => match pool.budget.take(Kind::Pages) {
                    Ok(chunk) => pool.adopt(chunk),
                    // A reclaimer may have released pages.
                    Err(_) if !std::mem::replace(&mut pressed, true) => {}
                    Err(refusal) => return Err(LoadError::OutOfBudget(refusal)),
                },
                Step::Refused if !std::mem::replace(&mut pressed, true) => {
                    pool.budget.reclaim_once()
                }
                Step::Refused => {
                    let usage = Box::new(pool.budget.usage());
                    let needed_bytes = PAGE_BYTES as u64;
                    return Err(LoadError::OutOfBudget(OutOfBudget {
                        needed_bytes,
                        kind: Kind::Pages,
                        usage,
                    }));
                }
            }
        }
    }

    pub(super) fn fill(&self, mut filling: Filling<'_>, number: u32) -> Result<Page, LoadError> {
        match self.file.source.load(number, filling.bytes()) {
            Ok(()) => {
                self.note_page(number);
                Ok(filling.finish(true).after_miss())
            }
            Err(error) => {
                filling.fail(&error);
                Err(error)
            }
        }
    }

    /// Whether page `number` is resident. Without a lock and without an access; a page that moves
    /// meanwhile may be missed.
    pub fn is_resident(&self, number: u32) -> bool {
        let key = self.key(number);
        self.file
            .pool
            .frames
            .find(key, |frame| frame.key() == key && frame.state().is_resident())
            .is_some()
    }

    /// Puts a page that was just written into the pool (hot if `hot`), if a frame is available
    /// without waiting; otherwise does nothing.
    ///
    /// # Panics
    /// `bytes` is not a page long.
    pub fn put(&self, number: u32, bytes: &[u8], hot: bool) {
        assert_eq!(bytes.len(), PAGE_BYTES);
        let pool = &self.file.pool;
        let key = self.key(number);
        let mut replacement = pool.lock();
        if pool.frames.find_any(key).is_some() {
            return;
        }
        let inline_before = replacement.inline_evictions();
        let Some(at) = replacement.frame(&pool.frames, &pool.budget) else { return };
        let mut filling = pool.begin_at(at, key, if hot { Heat::Hot } else { Heat::Cold });
        pool.call_if_short(replacement, inline_before);
        filling.bytes().copy_from_slice(bytes);
        self.note_page(number);
        filling.finish(false);
    }

    /// Like [`PoolFile::put`] of a page that is not hot, but evicts nothing and leaves one part in
    /// [`LEFT_FREE`](crate::pool::LEFT_FREE) of the budget free.
    ///
    /// # Panics
    /// `bytes` is not a page long.
    pub fn put_if_free(&self, number: u32, bytes: &[u8]) {
        // If other threads take the free chunks first, `put` evicts a cold page.
        if self.file.pool.has_free_memory() {
            self.put(number, bytes, false);
        }
    }

    /// The source of the file's pages, for reads that bypass the pool.
    pub fn source(&self) -> &Arc<dyn PageSource> {
        &self.file.source
    }

    /// Whether page `number` is resident and hot. Compaction uses this to make the pages that it
    /// writes hot as well.
    pub fn is_hot(&self, number: u32) -> bool {
        let frames = &self.file.pool.frames;
        let _keeper = self.file.pool.lock();
        frames
            .find_any(self.key(number))
            .map(|at| frames.get(at).state())
            .is_some_and(|state| state.is_resident() && state.heat() >= Heat::Hot)
    }

    pub(super) fn key(&self, number: u32) -> PageKey {
        PageKey { file: self.file.id, number }
    }

    pub(super) fn note_page(&self, number: u32) {
        self.file.pages.fetch_max(u64::from(number) + 1, Ordering::Relaxed);
    }
}

impl fmt::Debug for PoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolFile({})", self.file.id)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.pool.budget.is_foreign() {
            // Do nothing in a forked child, because a thread that exists only in the parent may
            // hold the lock. For the same reason, never drop the pool.
            std::mem::forget(Arc::clone(&self.pool));
            return;
        }
        self.pool.forget(self.id, *self.pages.get_mut());
    }
}
