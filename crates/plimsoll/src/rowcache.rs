//! Values that stand in runs, kept as objects: where memory is short, one hot value rather than the page that it stands in.
//!
//! An entry says: *of all versions of this key that are in runs, the newest is of GLSN v, and these are its bytes*. So it answers every moment from v
//! on, provided that nothing above the runs (memtables, adopted runs) has a version of the key for that moment, which is looked at first. What
//! changes an entry is not a commit but the flush that brings younger versions into the runs; merging and moving runs changes none.
//!
//! Laws:
//! 1. A fill is registered before it loads: by the view that it reads, which carries the number of its set of runs.
//! 2. Before runs with younger versions can be seen, the fills of all views before them are closed, and then each key that
//!    they hold is replaced or removed ([`Objects::begin_runs`]). So a value that was loaded before enters before, and is found by that, or
//!    not at all.
//! 3. An entry is only believed for a moment that is not older than its version.
//! 4. Dropping all entries at any moment changes no answer.
//!
//! A value enters if its read had to load a page: what pages in memory can answer is not kept twice. Walks over ranges do not come here.

pub(crate) mod share;
#[cfg(test)]
mod tests;
pub(crate) mod warm;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, OutOfBudget};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::cache::{Cache, CacheOptions, CacheStats};
use plimsoll_memory::pool::Pool;

use crate::rowcache::share::{Balance, MAX_SHARE, WHOLE};
use crate::types::value::{Value, is_free, room_for};
use crate::types::version::Stored;

/// The largest object, as a part of them all: what one read brings displaces no more than that.
const LARGEST_PART: f64 = 1.0 / 64.0;

/// Bytes of the GLSN that stands before each value.
const GLSN_BYTES: usize = 8;

/// So many fills lie between two looks at how memory is divided.
const FILLS_BETWEEN_LOOKS: u64 = 64;

/// The objects of a store, or none where they are switched off.
pub(crate) struct Objects {
    kept: Option<Kept>,
}

struct Kept {
    /// Exchanged where it cannot become as small or as large as it has to; views carry the one that goes with them.
    shelf: Mutex<Shelf>,
    /// What those counted that stood there before.
    earlier: Mutex<CacheStats>,
    budget: Budget,
    pool: Arc<Pool>,
    /// The number of the set of runs from which fills are taken.
    runs: AtomicU64,
    fills: AtomicU64,
    balance: Balance,
}

/// Where the objects of a view stand; nowhere if they are switched off. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Shelf {
    cache: Option<Arc<Cache>>,
}

/// Pages that this thread had to load or wait for until a read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadsSeen(u64);

/// What has to be done so that objects become as many as they should be.
pub(crate) struct Exchange {
    new: Arc<Cache>,
}

impl Objects {
    /// No objects: every read goes to the pages.
    pub(crate) fn none() -> Arc<Self> {
        Arc::new(Self { kept: None })
    }

    /// Objects that share the budget with `pool`.
    ///
    /// # Errors
    /// The budget has no room for the cache's tables.
    pub(crate) fn new(budget: &Budget, pool: &Arc<Pool>) -> Result<Arc<Self>, OutOfBudget> {
        let bytes = budget.limit_bytes();
        let cache = Arc::new(Cache::new(budget, options_of(bytes))?);
        let balance = Balance::default();
        balance.begin(&cache, pool, bytes);
        let kept = Kept {
            shelf: Mutex::new(Shelf { cache: Some(cache) }),
            earlier: Mutex::new(CacheStats::default()),
            budget: budget.clone(),
            pool: Arc::clone(pool),
            runs: AtomicU64::new(0),
            fills: AtomicU64::new(0),
            balance,
        };
        Ok(Arc::new(Self { kept: Some(kept) }))
    }

    /// Where objects stand now.
    pub(crate) fn shelf(&self) -> Shelf {
        self.kept.as_ref().map(|kept| kept.shelf().clone()).unwrap_or_default()
    }

    /// To be asked before a read goes to the runs.
    pub(crate) fn loads(&self) -> LoadsSeen {
        LoadsSeen(Pool::absences())
    }

    /// Keeps the newest version that a view's set of runs has of a key, if this thread had to load pages since `before`, and if no younger
    /// versions have come into the runs since. `registered` is what the view carried.
    pub(crate) fn fill(&self, registered: (u64, &Shelf), before: LoadsSeen, key: &[u8], glsn: Glsn, value: &[u8]) {
        let (runs, Shelf { cache: Some(cache) }) = registered else { return };
        let Some(kept) = &self.kept else { return };
        if Pool::absences() == before.0 {
            return;
        }
        // Acquire: pairs with the Release in `begin_runs`; the order that counts is that of the cache's lock, see there.
        cache.insert_if(key, &[&glsn.0.to_le_bytes(), value], || kept.runs.load(Ordering::Acquire) == runs);
        // Relaxed: a lone number.
        if kept.fills.fetch_add(1, Ordering::Relaxed).is_multiple_of(FILLS_BETWEEN_LOOKS) {
            kept.balance.look(&kept.cache(), &kept.pool, kept.budget.free_bytes());
        }
    }

    /// Fills of earlier sets of runs than `runs` are refused from now on. Called before [`Objects::supersede`], and both before anybody
    /// sees these runs. Returns whether there is anything to supersede.
    pub(crate) fn begin_runs(&self, runs: u64) -> bool {
        let Some(kept) = &self.kept else { return false };
        // Release, before the cache's lock is taken to replace: a fill that has the lock after us sees it; one that had it before is found.
        kept.runs.store(runs, Ordering::Release);
        !kept.cache().is_empty()
    }

    /// A younger version of this key comes into the runs: the newest that they will have.
    pub(crate) fn supersede(&self, key: &[u8], glsn: Glsn, stored: Stored<'_>) {
        let Some(kept) = &self.kept else { return };
        let cache = kept.cache();
        match stored {
            Stored::Inline(value) => cache.replace(key, &[&glsn.0.to_le_bytes(), value]),
            Stored::Deleted | Stored::InLog { .. } | Stored::InBlob { .. } | Stored::Dropped { .. } => {
                cache.remove(key)
            }
        };
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        if let Some(kept) = &self.kept {
            kept.cache().clear();
        }
    }

    /// The store's budget is, or is going to be, `bytes`: the objects' share of it is theirs from now on. Where their index has become too large
    /// for that, or their tables are far too small, they have to begin anew: that is returned, for [`Objects::exchange`].
    pub(crate) fn resize(&self, bytes: u64) -> Option<Exchange> {
        let kept = self.kept.as_ref()?;
        let cache = kept.cache();
        let wanted = kept.balance.begin(&cache, &kept.pool, bytes);
        let turnover = cache.turnover();
        let too_large = turnover.limit_bytes > 2 * wanted;
        let too_small = cache.max_bytes() < most_of(bytes) / 2;
        if !too_large && !too_small {
            return None;
        }
        // Without room for new tables it stays as it is.
        let new = Arc::new(Cache::new(&kept.budget, options_of(bytes)).ok()?);
        kept.balance.begin(&new, &kept.pool, bytes);
        Some(Exchange { new })
    }

    /// Objects begin anew, empty, for views from now on. Returns the shelf that is not used any more, to be emptied once no view leads there.
    pub(crate) fn exchange(&self, exchange: Exchange) -> Shelf {
        let kept = self.kept.as_ref().expect("what is switched off is not exchanged");
        let new = Shelf { cache: Some(exchange.new) };
        let before = std::mem::replace(&mut *kept.shelf(), new);
        let counted = before.cache.as_ref().map(|cache| cache.stats()).unwrap_or_default();
        let mut earlier = kept.earlier();
        *earlier = sum_of(&earlier, counted);
        before
    }

    /// For tests: objects have so many parts of the whole from now on.
    #[cfg(test)]
    fn share_of(&self, parts: u64) {
        let kept = self.kept.as_ref().expect("they are not switched off");
        kept.balance.set_share(parts);
        kept.balance.begin(&kept.cache(), &kept.pool, kept.budget.limit_bytes());
    }

    /// For tests: ghost hits of objects and of pages, those that were weighed already, and those that there were.
    #[cfg(test)]
    fn returns(&self) -> [(u64, u64); 2] {
        let kept = self.kept.as_ref().expect("they are not switched off");
        [kept.balance.seen(), (kept.cache().turnover().returns, kept.pool.turnover().returns)]
    }

    /// Counters of the caches that there were, sizes of the one that there is, and how memory was divided; `None` where objects are switched off.
    pub(crate) fn stats(&self) -> Option<(CacheStats, share::Moves)> {
        let kept = self.kept.as_ref()?;
        Some((sum_of(&kept.earlier(), kept.cache().stats()), kept.balance.moves()))
    }
}

impl Shelf {
    /// The value of an index key as of `at`, if it is kept. Nothing above the runs has a version for that moment.
    pub(crate) fn get(&self, key: &[u8], at: Glsn, budget: &Budget) -> Result<Option<Value>, OutOfBudget> {
        let Some(cache) = &self.cache else { return Ok(None) };
        // Memory for a large one is had first, and not while the cache keeps the entry in its place.
        let see = |entry: plimsoll_memory::cache::Value<'_>, room: Option<Buffer>| {
            let len = entry.len() - GLSN_BYTES;
            (version_of(entry) <= at).then(|| match room {
                Some(room) if len <= room.capacity() => Seen::Value(copy(entry, room)),
                None if is_free(len as u64) => Seen::Value(copy(entry, Vec::with_capacity(len).into())),
                _ => Seen::Large(len as u64),
            })
        };
        let mut seen = cache.read_if(key, |entry| see(entry, None));
        loop {
            match seen {
                None => return Ok(None),
                Some(Seen::Value(bytes)) => return Ok(Some(Value::new(bytes))),
                Some(Seen::Large(len)) => {
                    let room = room_for(budget, len)?;
                    // The second look of the same read.
                    seen = cache.peek(key, |entry| see(entry, Some(room))).flatten();
                }
            }
        }
    }

    /// Whether a value of an index key as of `at` is kept; as for [`Shelf::get`].
    pub(crate) fn contains(&self, key: &[u8], at: Glsn) -> bool {
        let is_kept = |entry: plimsoll_memory::cache::Value<'_>| (version_of(entry) <= at).then_some(());
        self.cache.as_ref().is_some_and(|cache| cache.read_if(key, is_kept).is_some())
    }

    /// Gives back all that can be given back: for one that is not used any more but by views of the past.
    pub(crate) fn empty(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
            cache.set_memory(0);
        }
    }
}

impl Kept {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn earlier(&self) -> MutexGuard<'_, CacheStats> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> Arc<Cache> {
        let shelf = self.shelf();
        Arc::clone(shelf.cache.as_ref().expect("there is one wherever objects are not switched off"))
    }
}

/// The most that objects may ever take of a budget.
fn most_of(budget_bytes: u64) -> u64 {
    (budget_bytes / WHOLE * MAX_SHARE).min(64 << 30)
}

/// A cache for objects of a budget of so many bytes.
fn options_of(budget_bytes: u64) -> CacheOptions {
    let mut options = CacheOptions::of_bytes(most_of(budget_bytes));
    options.largest_part = LARGEST_PART;
    options
}

/// What was counted by an earlier cache and by the one that there is; sizes are those of the latter.
fn sum_of(earlier: &CacheStats, mut now: CacheStats) -> CacheStats {
    now.hits += earlier.hits;
    now.misses += earlier.misses;
    now.insertions += earlier.insertions;
    now.refusals += earlier.refusals;
    now.evictions += earlier.evictions;
    now.returns += earlier.returns;
    now.moved_bytes += earlier.moved_bytes;
    now
}

/// What a look at an entry came to.
enum Seen {
    Value(Buffer),
    /// So many bytes, for which memory has to be had first.
    Large(u64),
}

fn version_of(entry: plimsoll_memory::cache::Value<'_>) -> Glsn {
    let mut bytes = [0; GLSN_BYTES];
    let mut filled = 0;
    for piece in entry.pieces() {
        let fits = piece.len().min(GLSN_BYTES - filled);
        bytes[filled..filled + fits].copy_from_slice(&piece[..fits]);
        filled += fits;
        if filled == GLSN_BYTES {
            break;
        }
    }
    Glsn(u64::from_le_bytes(bytes))
}

fn copy(entry: plimsoll_memory::cache::Value<'_>, mut bytes: Buffer) -> Buffer {
    let mut skip = GLSN_BYTES;
    for piece in entry.pieces() {
        let skipped = skip.min(piece.len());
        bytes.extend_from_slice(&piece[skipped..]);
        skip -= skipped;
    }
    bytes
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.cache.is_some() { "Shelf" } else { "Shelf(none)" })
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kept.is_some() { "Objects" } else { "Objects(off)" })
    }
}
