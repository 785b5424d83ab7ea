//! The row cache: hot values of runs, kept as single rows instead of the pages that hold them.
//!
//! An entry states: *of all versions of this key that are in runs, the newest has GLSN v, and these
//! are its bytes*. So it answers every moment from v on, provided that nothing above the runs
//! (memtables, adopted runs) has a version of the key for that moment; those are searched first. An
//! entry is invalidated not by a commit but by the flush that brings younger versions into the
//! runs. Merging and moving runs invalidates none.
//!
//! Invariants:
//! 1. A fill is identified before it loads, by the view that it reads, which carries the number of
//!    its set of runs.
//! 2. Before runs with younger versions become visible, fills of all earlier views are rejected,
//!    and then each key of the new runs is replaced or removed in the cache
//!    ([`RowCache::begin_runs`]). So a value that was loaded earlier is either inserted before the
//!    replacement, which then finds it, or not inserted.
//! 3. An entry is used only for a moment that is not older than its version. If its value expires,
//!    each reader compares the expiry with the time of its own moment. From the expiry on, the key
//!    has no value, although the entry stays. A merge may even have dropped the version.
//! 4. Dropping all entries at any time changes no result.
//!
//! There are also large values, each in one contiguous piece ([`large`]), and past rows ([`past`]),
//! for moments before the newest version.
//!
//! A value is inserted if its read had to load a page. A value that resident pages answer is cached
//! twice only while memory is free ([`share`]), and from the second read of its key on. Finding a
//! row is faster than finding a page and the row in it, but inserting a row takes as long as one or
//! two reads of the page. Range scans do not use the cache.

mod large;
pub(crate) mod past;
pub(crate) mod share;
#[cfg(test)]
mod tests;
pub(crate) mod warm;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_disk::checksum::checksum;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, OutOfBudget};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::cache::{Cache, CacheOptions, CacheStats};
use plimsoll_memory::doorkeeper::Doorkeeper;
use plimsoll_memory::pool::Pool;

use crate::borders::{Border, hit};
use crate::rowcache::large::{LARGE_BYTES, LargeValues};
use crate::rowcache::past::is_of_the_past;
use crate::rowcache::share::{Balance, MAX_SHARE, WHOLE};
use crate::types::as_of::AsOf;
use crate::types::expiry::Expiry;
use crate::types::value::{Value, is_free, room_for};
use crate::types::version::Stored;

/// The largest row, as a fraction of the cache, so that a single read evicts no more than that.
const LARGEST_PART: f64 = 1.0 / 64.0;

/// Bytes of a GLSN, or of an expiry, in front of each value.
const WORD_BYTES: usize = 8;

/// Set in the first GLSN of an entry whose value expires: the expiry follows the GLSNs. No GLSN is
/// as large.
const EXPIRES: u64 = 1 << 63;

/// Bytes of the budget per slot of the doorkeeper; a slot is one byte.
const BUDGET_BYTES_A_SLOT: u64 = 512;

/// The number of fills between two checks of how memory is divided.
const FILLS_PER_CHECK: u64 = 64;

/// The row cache of a store; empty if it is disabled.
pub(crate) struct RowCache {
    kept: Option<Kept>,
}

struct Kept {
    /// Replaced if the cache cannot be resized in place; each view carries its own.
    handle: Mutex<RowHandle>,
    large: Option<Arc<LargeValues>>,
    /// The counters of earlier caches.
    earlier: Mutex<CacheStats>,
    budget: Budget,
    pool: Arc<Pool>,
    /// The number of the set of runs from which fills are accepted.
    runs: AtomicU64,
    fills: AtomicU64,
    /// Reads that found a past row of another moment.
    reads_of_others: AtomicU64,
    balance: Balance,
    /// Whether there was memory to lend at the last check.
    is_lent: AtomicBool,
}

/// A view's handle of the row cache; empty if it is disabled. Clones share the cache.
#[derive(Clone, Default)]
pub(crate) struct RowHandle {
    cache: Option<Arc<Cache>>,
    /// Filter of the keys that resident pages have answered once; `None` if there was no memory for
    /// it. Replaced with the cache.
    doorkeeper: Option<Arc<Doorkeeper>>,
    large: Option<Arc<LargeValues>>,
}

/// A new cache that is to replace the current one.
pub(crate) struct Exchange {
    new: Arc<Cache>,
    doorkeeper: Option<Arc<Doorkeeper>>,
}

impl RowCache {
    /// A disabled row cache: every read goes to the pages.
    pub(crate) fn none() -> Arc<Self> {
        Arc::new(Self { kept: None })
    }

    /// A row cache that shares the budget with `pool`.
    ///
    /// # Errors
    /// The budget has no room for the cache's tables.
    pub(crate) fn new(budget: &Budget, pool: &Arc<Pool>) -> Result<Arc<Self>, OutOfBudget> {
        let bytes = budget.limit_bytes();
        let cache = Arc::new(Cache::new(budget, options_of(bytes))?);
        let balance = Balance::default();
        balance.begin(&cache, pool, bytes);
        let large = LargeValues::new(budget);
        let kept = Kept {
            handle: Mutex::new(RowHandle {
                cache: Some(cache),
                doorkeeper: doorkeeper_of(budget, bytes),
                large: large.clone(),
            }),
            large,
            earlier: Mutex::new(CacheStats::default()),
            budget: budget.clone(),
            pool: Arc::clone(pool),
            runs: AtomicU64::new(0),
            fills: AtomicU64::new(0),
            reads_of_others: AtomicU64::new(0),
            balance,
            is_lent: AtomicBool::new(false),
        };
        Ok(Arc::new(Self { kept: Some(kept) }))
    }

    /// The current cache.
    pub(crate) fn handle(&self) -> RowHandle {
        self.kept.as_ref().map(|kept| kept.handle().clone()).unwrap_or_default()
    }

    /// Inserts the newest version of a key in a view's set of runs, if its read `missed` a page or
    /// memory is free, and if no younger versions have entered the runs since. `registered` is the
    /// number and the handle that the view carries.
    pub(crate) fn fill(
        &self,
        registered: (u64, &RowHandle),
        missed: bool,
        key: &[u8],
        version: (Glsn, Option<Expiry>),
        value: &[u8],
    ) {
        let (runs, handle) = registered;
        let Some(kept) = &self.kept else { return };
        // Acquire: pairs with the Release in `begin_runs`. The cache's lock decides the order; see
        // there.
        let is_current = || kept.runs.load(Ordering::Acquire) == runs;
        if let Some(large) = handle.large.as_ref().filter(|_| value.len() >= LARGE_BYTES)
            && large.offer(key, version, value, is_current)
        {
            return;
        }
        let head = HeadBytes::new([version.0], version.1);
        kept.fill(handle, missed, key, &[head.get(), value], is_current);
    }

    /// Returns lent memory if too little of the budget is free. Reads that insert rows do so as
    /// well; a store that only writes or scans has no such reads.
    pub(crate) fn return_lent(&self) {
        let Some(kept) = &self.kept else { return };
        kept.large.iter().for_each(|large| large.release());
        let cache = kept.cache();
        while kept.balance.return_lent(&cache, &kept.budget) {}
    }

    /// Whether it contains no row.
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |kept: &Kept| {
            kept.cache().is_empty() && kept.large.as_ref().is_none_or(|large| large.is_empty())
        };
        self.kept.as_ref().is_none_or(is_empty)
    }

    /// Rejects fills from sets of runs before `runs` from now on. Called before
    /// [`RowCache::supersede`], and both before these runs become visible. Returns whether there
    /// may be entries to supersede.
    pub(crate) fn begin_runs(&self, runs: u64) -> bool {
        let Some(kept) = &self.kept else { return false };
        // Release, before the cache's lock is taken to replace entries: a fill that takes the lock
        // later sees the new number, and the entry of an earlier fill is found.
        kept.runs.store(runs, Ordering::Release);
        // Take the lock of the large values, too, even if there are no rows, because from here on
        // they are looked up without it.
        let no_large = kept.large.as_ref().is_none_or(|large| large.is_empty());
        !(no_large && kept.cache().is_empty())
    }

    /// Replaces or removes the entry of a key, because a younger version enters the runs. `glsn`
    /// and `stored`: the newest version that the runs will have.
    pub(crate) fn supersede(&self, key: &[u8], glsn: Glsn, stored: Stored<'_>) {
        let Some(kept) = &self.kept else { return };
        kept.large.iter().for_each(|large| large.remove(key));
        let cache = kept.cache();
        match stored.value() {
            Stored::Inline(value) => {
                cache.replace(key, &[HeadBytes::new([glsn], stored.expiry()).get(), value])
            }
            Stored::Deleted
            | Stored::InLog { .. }
            | Stored::InBlob { .. }
            | Stored::Expiring(_)
            | Stored::Dropped { .. } => cache.remove(key),
        };
    }

    /// Drops the entries that `is_stale` selects by their key and the GLSN of their version,
    /// because the deletion that hides these versions is about to be forgotten. Called after
    /// [`RowCache::begin_runs`].
    pub(crate) fn drop_stale(&self, is_stale: impl Fn(&[u8], Glsn) -> bool) {
        let Some(kept) = &self.kept else { return };
        kept.cache().remove_if(|key, entry| {
            let [first] = words_of(entry, 0);
            !is_of_the_past(key) && is_stale(key, glsn_of(first))
        });
        kept.large.iter().for_each(|large| large.drop_stale(&is_stale));
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        if let Some(kept) = &self.kept {
            kept.cache().clear();
            kept.large.iter().for_each(|large| large.clear());
        }
    }

    /// Adapts to a store budget that is, or is about to become, `bytes`, by giving the row cache
    /// its share. If its index is too large for that, or its tables are far too small, it has to be
    /// replaced. Then returns the replacement, for [`RowCache::exchange`].
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
        // If there is no room for new tables, the cache stays unchanged.
        let new = Arc::new(Cache::new(&kept.budget, options_of(bytes)).ok()?);
        kept.balance.begin(&new, &kept.pool, bytes);
        Some(Exchange { new, doorkeeper: doorkeeper_of(&kept.budget, bytes) })
    }

    /// Makes an empty cache current for views from now on. Returns the old one, to be emptied once
    /// no view refers to it.
    pub(crate) fn exchange(&self, exchange: Exchange) -> RowHandle {
        let kept = self.kept.as_ref().expect("a disabled row cache is never replaced");
        let Exchange { new, doorkeeper } = exchange;
        let new = RowHandle { cache: Some(new), doorkeeper, large: kept.large.clone() };
        let before = std::mem::replace(&mut *kept.handle(), new);
        let counted = before.cache.as_ref().map(|cache| cache.stats()).unwrap_or_default();
        let mut earlier = kept.earlier();
        *earlier = sum_of(&earlier, counted);
        before
    }

    /// For tests: sets the row cache's share, in parts of [`share::WHOLE`].
    #[cfg(test)]
    fn share_of(&self, parts: u64) {
        let kept = self.kept.as_ref().expect("the row cache is enabled");
        kept.balance.set_share(parts);
        kept.balance.begin(&kept.cache(), &kept.pool, kept.budget.limit_bytes());
    }

    /// For tests: drops an entry.
    #[cfg(test)]
    fn clear_key(&self, key: &[u8]) {
        self.kept.as_ref().expect("the row cache is enabled").cache().remove(key);
    }

    /// For tests: ghost hits of rows and of pages, the weighed ones and the total.
    #[cfg(test)]
    fn returns(&self) -> [(u64, u64); 2] {
        let kept = self.kept.as_ref().expect("the row cache is enabled");
        [kept.balance.seen(), (kept.cache().turnover().returns, kept.pool.turnover().returns)]
    }

    /// Counters of all caches so far, sizes of the current one, and the moves of memory; `None` if
    /// the row cache is disabled.
    pub(crate) fn stats(&self) -> Option<(CacheStats, share::Moves)> {
        let kept = self.kept.as_ref()?;
        let mut stats = sum_of(&kept.earlier(), kept.cache().stats());
        kept.large.iter().for_each(|large| large.count_in(&mut stats));
        Some((stats, kept.balance.moves()))
    }
}

impl RowHandle {
    /// The cached value of an index key as of `at`. The caller has checked that nothing above the
    /// runs has a version for that moment.
    pub(crate) fn get(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
    ) -> Result<Option<Answer<Value>>, OutOfBudget> {
        if let Some(answer) = self.find::<Newest>(key, at, budget)? {
            return Ok(Some(answer));
        }
        let Some(entry) = self.large(key, at.glsn) else { return Ok(None) };
        if has_expired(entry.expiry(), at) {
            return Ok(Some(Answer::Expired));
        }
        let value = Value::of_len(budget, entry.value().len() as u64, |bytes| {
            bytes.extend_from_slice(entry.value());
            Ok(())
        })?;
        Ok(Some(Answer::Value(value, entry.expiry())))
    }

    fn large(&self, key: &[u8], at: Glsn) -> Option<Arc<large::Entry>> {
        self.large.as_ref()?.find(key, at)
    }

    /// As [`RowHandle::get`], but calls `look` with the value, without a copy if it is contiguous.
    /// Takes `look` out of the option only if there is a value.
    pub(crate) fn get_with<T>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
        look: &mut Option<impl FnOnce(&[u8]) -> T>,
    ) -> Result<Option<Answer<T>>, OutOfBudget> {
        if let Some(answer) = self.lend::<Newest, T>(key, at, budget, look)? {
            return Ok(Some(answer));
        }
        let Some(entry) = self.large(key, at.glsn) else { return Ok(None) };
        if has_expired(entry.expiry(), at) {
            return Ok(Some(Answer::Expired));
        }
        Ok(look.take().map(|look| Answer::Value(look(entry.value()), entry.expiry())))
    }

    /// Whether an index key has a value as of `at`; `None` if no row answers that. As for
    /// [`RowHandle::get`], the caller has checked that nothing above the runs has a version for
    /// that moment.
    pub(crate) fn contains(&self, key: &[u8], at: AsOf<'_>) -> Option<Answer<()>> {
        let expiry_in = |entry: Entry<'_>| Some(Newest::open(entry, at.glsn)?.expiry);
        let kept = self.cache.as_ref().and_then(|cache| cache.read_if(key, expiry_in));
        let expiry = kept.or_else(|| self.large(key, at.glsn).map(|entry| entry.expiry()))?;
        Some(if has_expired(expiry, at) { Answer::Expired } else { Answer::Value((), expiry) })
    }

    fn find<H: Head>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
    ) -> Result<Option<Answer<Value>>, OutOfBudget> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let seen = cache.read_if(key, |entry| see::<H>(entry, at, None));
        value_of::<H>(seen, cache, key, at, budget)
    }

    fn lend<H: Head, T>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
        look: &mut Option<impl FnOnce(&[u8]) -> T>,
    ) -> Result<Option<Answer<T>>, OutOfBudget> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let lent = cache.read_if(key, |entry| {
            let Some(whole) = entry.pieces().next().filter(|first| first.len() == entry.len())
            else {
                return see::<H>(entry, at, None).map(Err);
            };
            let head = H::open(entry, at.glsn)?;
            if has_expired(head.expiry, at) {
                return Some(Ok(Answer::Expired));
            }
            look.take().map(|look| Ok(Answer::Value(look(&whole[head.bytes..]), head.expiry)))
        });
        match lent {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(seen)) => match value_of::<H>(Some(seen), cache, key, at, budget)? {
                Some(Answer::Value(value, expiry)) => {
                    Ok(look.take().map(|look| Answer::Value(look(&value), expiry)))
                }
                Some(Answer::Expired) => Ok(Some(Answer::Expired)),
                None => Ok(None),
            },
        }
    }

    /// Releases as much memory as possible: for a cache that only old views still use.
    pub(crate) fn empty(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
            cache.set_memory(0);
        }
    }
}

impl Kept {
    /// Inserts an entry if its read `missed` a page, or if memory is free and the key is not read
    /// for the first time.
    fn fill(
        &self,
        handle: &RowHandle,
        missed: bool,
        key: &[u8],
        parts: &[&[u8]],
        is_current: impl FnOnce() -> bool,
    ) {
        let Some(cache) = &handle.cache else { return };
        if missed {
            cache.insert_if(key, parts, is_current);
        // Relaxed: a stale value costs one row more or less.
        } else if self.is_lent.load(Ordering::Relaxed) {
            if handle
                .doorkeeper
                .as_ref()
                .is_some_and(|doorkeeper| !doorkeeper.has_seen(checksum(0, key)))
            {
                return;
            }
            cache.offer(key, parts, is_current);
        } else if !is_sampled(key) {
            return;
        }
        // Relaxed: an independent counter.
        if self.fills.fetch_add(1, Ordering::Relaxed).is_multiple_of(FILLS_PER_CHECK) {
            self.large.iter().for_each(|large| large.release());
            let is_lent = self.balance.rebalance(&self.cache(), &self.pool, &self.budget);
            self.is_lent.store(is_lent, Ordering::Relaxed);
        }
    }

    fn handle(&self) -> MutexGuard<'_, RowHandle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn earlier(&self) -> MutexGuard<'_, CacheStats> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> Arc<Cache> {
        let handle = self.handle();
        Arc::clone(handle.cache.as_ref().expect("there is one unless the row cache is disabled"))
    }
}

/// Whether a read that inserts nothing counts as a fill, so that newly free memory is detected.
/// Only the reads of some keys are counted, because counting all of them would make every reader
/// write to one memory location.
fn is_sampled(key: &[u8]) -> bool {
    checksum(0, key).is_multiple_of(FILLS_PER_CHECK)
}

/// The largest part of a budget that the row cache may ever use.
fn most_of(budget_bytes: u64) -> u64 {
    (budget_bytes / WHOLE * MAX_SHARE).min(64 << 30)
}

/// A doorkeeper for a budget of this many bytes.
fn doorkeeper_of(budget: &Budget, budget_bytes: u64) -> Option<Arc<Doorkeeper>> {
    Doorkeeper::new(budget, budget_bytes / BUDGET_BYTES_A_SLOT).map(Arc::new)
}

/// The options of a row cache for a budget of this many bytes.
fn options_of(budget_bytes: u64) -> CacheOptions {
    let mut options = CacheOptions::of_bytes(most_of(budget_bytes));
    options.largest_part = LARGEST_PART;
    options
}

/// The counters of an earlier cache plus the current one's; sizes are the current one's.
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

type Entry<'a> = plimsoll_memory::cache::Value<'a>;

/// The answer of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    /// The key has this value, which may expire later.
    Value(T, Option<Expiry>),
    /// The value has expired, so the key has none.
    Expired,
}

impl<T> Answer<T> {
    /// The value, if there is one. Also records in `at` that the read of `key` depends on the
    /// expiry, or has found an expired value.
    pub(crate) fn noted(self, key: &[u8], at: AsOf<'_>) -> Option<(T, Option<Expiry>)> {
        match self {
            Answer::Value(value, expiry) => {
                if let Some(expiry) = expiry {
                    hit(Border::ExpiringRowRead);
                    at.note_expiry(key, expiry);
                }
                Some((value, expiry))
            }
            Answer::Expired => {
                hit(Border::ExpiredRowRead);
                at.note_missed();
                None
            }
        }
    }
}

fn has_expired(expiry: Option<Expiry>, at: AsOf<'_>) -> bool {
    expiry.is_some_and(|expiry| expiry.has_passed(at.micros()))
}

/// The head of an entry, which precedes its value: GLSNs, and the expiry if there is one.
trait Head {
    /// Reads the head, if the entry holds the version as of `at`.
    fn open(entry: Entry<'_>, at: Glsn) -> Option<OpenHead>;
}

/// A head that was read.
struct OpenHead {
    /// Its length.
    bytes: usize,
    expiry: Option<Expiry>,
}

impl OpenHead {
    /// The head of an entry with this many GLSNs, of which `first` is the first as it is stored.
    fn of(entry: Entry<'_>, glsns: usize, first: u64) -> Option<Self> {
        let bytes = glsns * WORD_BYTES;
        if first & EXPIRES == 0 {
            return Some(Self { bytes, expiry: None });
        }
        let [micros] = words_of(entry, bytes);
        Some(Self { bytes: bytes + WORD_BYTES, expiry: Some(Expiry::from_micros(micros)?) })
    }
}

/// The head of a key's newest value: the GLSN of its version.
struct Newest;

impl Head for Newest {
    #[inline]
    fn open(entry: Entry<'_>, at: Glsn) -> Option<OpenHead> {
        let [first] = words_of(entry, 0);
        if glsn_of(first) <= at { OpenHead::of(entry, 1, first) } else { None }
    }
}

/// A head as it is stored.
struct HeadBytes {
    bytes: [u8; 3 * WORD_BYTES],
    len: usize,
}

impl HeadBytes {
    fn new<const N: usize>(glsns: [Glsn; N], expiry: Option<Expiry>) -> Self {
        let mut head = Self { bytes: [0; 3 * WORD_BYTES], len: 0 };
        let flag = if expiry.is_some() { EXPIRES } else { 0 };
        for (number, glsn) in glsns.iter().enumerate() {
            head.push(if number == 0 { glsn.0 | flag } else { glsn.0 });
        }
        expiry.iter().for_each(|expiry| head.push(expiry.micros()));
        head
    }

    fn push(&mut self, word: u64) {
        self.bytes[self.len..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
        self.len += WORD_BYTES;
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The result of accessing an entry.
enum Seen {
    Value(Buffer, Option<Expiry>),
    /// A large value of this many bytes; memory for it has to be reserved first.
    Large(u64),
    Expired,
}

/// Copies the value of an entry, if it is the value as of `at`. Memory for a large value has to be
/// reserved before (`room`), because the cache pins the entry during the call.
fn see<H: Head>(entry: Entry<'_>, at: AsOf<'_>, room: Option<Buffer>) -> Option<Seen> {
    let OpenHead { bytes, expiry } = H::open(entry, at.glsn)?;
    if has_expired(expiry, at) {
        return Some(Seen::Expired);
    }
    let len = entry.len() - bytes;
    Some(match room {
        Some(room) if len <= room.capacity() => Seen::Value(copy(entry, bytes, room), expiry),
        None if is_free(len as u64) => {
            Seen::Value(copy(entry, bytes, Vec::with_capacity(len).into()), expiry)
        }
        _ => Seen::Large(len as u64),
    })
}

/// The value that was found; a large one is accessed again once memory is reserved.
fn value_of<H: Head>(
    mut seen: Option<Seen>,
    cache: &Cache,
    key: &[u8],
    at: AsOf<'_>,
    budget: &Budget,
) -> Result<Option<Answer<Value>>, OutOfBudget> {
    loop {
        match seen {
            None => return Ok(None),
            Some(Seen::Value(bytes, expiry)) => {
                return Ok(Some(Answer::Value(Value::new(bytes), expiry)));
            }
            Some(Seen::Expired) => return Ok(Some(Answer::Expired)),
            Some(Seen::Large(len)) => {
                let room = room_for(budget, len)?;
                // The second access of the same read.
                seen = cache.peek(key, |entry| see::<H>(entry, at, Some(room))).flatten();
            }
        }
    }
}

/// The GLSN in the first word of an entry.
fn glsn_of(first: u64) -> Glsn {
    Glsn(first & !EXPIRES)
}

/// The words of an entry after the first `skip` bytes.
#[inline]
fn words_of<const N: usize>(entry: Entry<'_>, mut skip: usize) -> [u64; N] {
    let mut bytes = [[0; WORD_BYTES]; N];
    let (flat, mut filled) = (bytes.as_flattened_mut(), 0);
    for piece in entry.pieces() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let piece = &piece[skipped..];
        let fits = piece.len().min(flat.len() - filled);
        flat[filled..filled + fits].copy_from_slice(&piece[..fits]);
        filled += fits;
        if filled == flat.len() {
            break;
        }
    }
    bytes.map(u64::from_le_bytes)
}

/// Appends the bytes after the first `skip` bytes of an entry.
fn copy(entry: Entry<'_>, mut skip: usize, mut bytes: Buffer) -> Buffer {
    for piece in entry.pieces() {
        let skipped = skip.min(piece.len());
        bytes.extend_from_slice(&piece[skipped..]);
        skip -= skipped;
    }
    bytes
}

impl fmt::Debug for RowHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.cache.is_some() { "RowHandle" } else { "RowHandle(none)" })
    }
}

impl fmt::Debug for RowCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kept.is_some() { "RowCache" } else { "RowCache(off)" })
    }
}
