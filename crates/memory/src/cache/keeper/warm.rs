//! Warm restart of the cache: copies entries out, and takes them in again.
//!
//! Laws:
//! 1. Copying entries changes nothing about them, and holds the cache's lock for a few hundred of
//!    them at most.
//! 2. Taking an entry in evicts nothing, and replaces no present entry.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::entry::{Arrival, Placed};
use super::super::slot::{MAX_TOUCHES, Slot};
use super::super::{Cache, Queue, Shared};
use super::Keeper;

/// Entries visited per acquisition of the lock.
const LOOKS_AT_ONCE: usize = 256;

/// An entry's record so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is in the protected queue.
    Protected,
    /// It is in the probation queue.
    Probation,
}

impl Standing {
    fn queue(self) -> Queue {
        match self {
            Self::Protected => Queue::Protected,
            Self::Probation => Queue::Probation,
        }
    }
}

/// Counts of the entries in a part of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// All entries that can be copied.
    pub entries: u32,
    /// Their touches, up to three each.
    pub touches: u32,
}

/// Counters that change only when an entry comes, goes or moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Total entries inserted.
    pub entered: u64,
    /// Entries that were removed or replaced, without evictions.
    pub removed: u64,
    /// Entries that were evicted, and bytes that were moved.
    pub turned: u64,
}

/// An entry to be taken in; made by [`Cache::returning`].
#[derive(Debug)]
pub struct Returning<'a> {
    hash: u64,
    key: &'a [u8],
    parts: [&'a [u8]; 2],
    touches: u8,
}

/// Result of taking entries in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroughtBack {
    /// Entries that were inserted. Those whose key has an entry already, or that do not fit into
    /// this cache, are left out.
    pub entered: u64,
    /// Why the rest was not looked at.
    pub stopped: Option<Stopped>,
}

/// Why entries were not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// There is no room for the next one without an eviction.
    NoRoom,
    /// The caller's check found them out of date: none was taken in.
    NotCurrent,
}

/// Copies of entries.
#[derive(Debug)]
pub struct Copies {
    bytes: Vec<u8>,
    room: usize,
    /// For each entry: bytes of its key and of its value, and its touches.
    spans: Vec<(usize, usize, u8)>,
}

/// A copy of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Touches since it reached its place, up to three.
    pub touches: u8,
}

impl Copies {
    /// Room for this many bytes of keys and values. It takes as much memory, and half as much again
    /// at most.
    pub fn with_room(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            room: bytes,
            spans: Vec::with_capacity(LOOKS_AT_ONCE),
        }
    }

    /// Iterates over the copies.
    pub fn iter(&self) -> impl Iterator<Item = Copied<'_>> {
        let mut at = 0;
        self.spans.iter().map(move |&(key, value, touches)| {
            let (start, middle) = (at, at + key);
            at = middle + value;
            Copied { key: &self.bytes[start..middle], value: &self.bytes[middle..at], touches }
        })
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Returns false if there is no room left for it, but there would be in an empty buffer.
    fn push(&mut self, placed: &Placed<'_>, touches: u8) -> bool {
        let bytes = placed.header.key_bytes + placed.header.value_bytes;
        if bytes > self.room {
            return true;
        }
        if self.spans.len() == LOOKS_AT_ONCE || self.bytes.len() + bytes > self.room {
            return false;
        }
        self.bytes.extend_from_slice(placed.key());
        placed.pieces().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.spans.push((placed.header.key_bytes, placed.header.value_bytes, touches));
        true
    }
}

impl Cache {
    /// The range of places of the entries of a standing, the oldest first. A place is never reused
    /// for another key; entries keep theirs until they move to the young end of a queue.
    /// [`Cache::insert`] may write another value of the key there, [`Cache::replace`] does not.
    pub fn places(&self, standing: Standing) -> Range<u64> {
        let keeper = self.inner.lock();
        let ends = &keeper.ends[standing.queue() as usize];
        ends.old..ends.young
    }

    /// Counters that tell whether anything has changed.
    pub fn changes(&self) -> Changes {
        let counters = self.inner.lock().counters;
        Changes {
            entered: counters.insertions,
            removed: counters
                .insertions
                .wrapping_sub(counters.evictions)
                .wrapping_sub(counters.entries),
            turned: counters.evictions.wrapping_add(counters.moved_bytes),
        }
    }

    /// Copies entries in this range of places, from the first on, until `into`, which is emptied
    /// before, has no room for the next. An entry that exceeds all the room, or that expires, is
    /// left out.
    ///
    /// Returns the start of the next entry: at or behind the end of `places` if there is none.
    /// `places` begins at an entry: at the beginning of [`Cache::places`], or where an earlier call
    /// ended.
    pub fn copy_entries(&self, standing: Standing, places: Range<u64>, into: &mut Copies) -> u64 {
        into.clear();
        self.look_over(standing, places, &mut |placed, touches| into.push(placed, touches))
    }

    /// Counts the entries in this range of places of at most `largest` bytes; places as for
    /// [`Cache::copy_entries`].
    pub fn count_entries(
        &self,
        standing: Standing,
        places: Range<u64>,
        largest: usize,
    ) -> (Census, u64) {
        let mut census = Census::default();
        let next = self.look_over(standing, places, &mut |placed, touches| {
            let counts = placed.header.key_bytes + placed.header.value_bytes <= largest;
            census.entries += u32::from(counts);
            census.touches += u32::from(counts) * u32::from(touches);
            true
        });
        (census, next)
    }

    /// Calls `look` with the entries in this range of places until it returns false. Returns the
    /// place of the refused entry, or of the next behind all.
    fn look_over(
        &self,
        standing: Standing,
        places: Range<u64>,
        look: &mut dyn FnMut(&Placed<'_>, u8) -> bool,
    ) -> u64 {
        let queue = standing.queue();
        let mut at = places.start;
        loop {
            let keeper = self.inner.lock();
            // Entries that the old end has passed meanwhile are gone.
            at = at.max(keeper.ends[queue as usize].old);
            for _ in 0..LOOKS_AT_ONCE {
                if at >= places.end.min(keeper.ends[queue as usize].young) {
                    return at;
                }
                let (placed, touches) = keeper.stands_at(&self.inner.shared, queue, at);
                if let Some(touches) = touches
                    && !look(&placed, touches)
                {
                    return at;
                }
                at += placed.header.words();
            }
        }
    }

    /// Adds a few pages to the index for this many entries of this mean size, as far as there is
    /// room without an eviction: an index that grows while they come moves each of them several
    /// times. Returns whether to call it again, for more.
    pub fn expect_entries(&self, entries: u64, mean_bytes: u64) -> bool {
        // No more than fit: an entry has some words beside its key and value, and some bytes in the
        // index.
        let entries = entries.min(self.turnover().limit_bytes / (mean_bytes + 26));
        self.inner.lock().add_pages_for(&self.inner.shared, entries, mean_bytes)
    }

    /// Prepares an entry that this cache or another had before, its value in two parts, for
    /// [`Cache::bring_back`]. Prefetches its place in the index, which is a random access: several
    /// are to be prepared before the first is taken in.
    pub fn returning<'a>(&self, key: &'a [u8], parts: [&'a [u8]; 2], touches: u8) -> Returning<'a> {
        let shared = &self.inner.shared;
        let hash = shared.hash(key);
        shared.index.prefetch(&shared.segments, hash);
        Returning { hash, key, parts, touches: touches.min(MAX_TOUCHES) }
    }

    /// Inserts entries in the protected queue, one after the other, if there is room without an
    /// eviction and the key has none. None is inserted unless `is_current` returns true, as for
    /// [`Cache::insert_if`]. The cache's lock is held for all of them.
    pub fn bring_back(
        &self,
        entries: &[Returning<'_>],
        is_current: impl FnOnce() -> bool,
    ) -> BroughtBack {
        let shared = &self.inner.shared;
        // Before the cache's lock is taken, as in `Cache::insert_if`.
        entries.iter().for_each(|entry| self.inner.loads.supersede(entry.key));
        let mut keeper = self.inner.lock();
        if !is_current() {
            return BroughtBack { entered: 0, stopped: Some(Stopped::NotCurrent) };
        }
        let mut brought = BroughtBack::default();
        for Returning { hash, key, parts, touches } in entries {
            let arrival = Arrival { hash: *hash, key, value: parts, expires_at: None };
            match keeper.bring_back(shared, &arrival, *touches) {
                Some(entered) => brought.entered += u64::from(entered),
                None => return BroughtBack { stopped: Some(Stopped::NoRoom), ..brought },
            }
        }
        brought
    }
}

impl Keeper {
    /// The entry or filler at a place between the ends, and its touches if it is an entry that the
    /// index refers to and that does not expire.
    fn stands_at<'a>(&self, shared: &'a Shared, queue: Queue, at: u64) -> (Placed<'a>, Option<u8>) {
        let placed = self.ends[queue as usize].entry_at(&shared.segments, shared.ring(queue), at);
        if placed.header.is_filler() || placed.header.expires {
            return (placed, None);
        }
        let slot = Self::slot_of(shared, shared.hash(placed.key()), queue, at);
        (placed, slot.map(|slot| Slot(slot.load(Ordering::Relaxed)).touches()))
    }

    /// Whether the entry was inserted; `None` if there is no room for it without an eviction.
    fn bring_back(&mut self, shared: &Shared, arrival: &Arrival<'_>, touches: u8) -> Option<bool> {
        let header = arrival.header();
        if !self.fits(shared, header) || self.find(shared, arrival.hash, arrival.key).is_some() {
            return Some(false);
        }
        // One segment more than the entry needs, for a page of the index: with these nothing has to
        // be evicted.
        let wanted =
            self.ends[Queue::Protected as usize].segments_for(&shared.segments, header) + 1;
        if !self.has_room(shared, wanted) {
            return None;
        }
        let entered = self.place(shared, arrival, header, Queue::Protected, touches);
        Some(self.count_arrival(entered))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]
mod tests {
    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::CacheOptions;

    fn cache(bytes: u64) -> Cache {
        // Miri does not support mapped memory.
        let backing = if cfg!(miri) { Backing::Heap } else { Backing::Mapped };
        let budget = Budget::new(16 << 20, backing).unwrap();
        Cache::new(&budget, CacheOptions::of_bytes(bytes)).unwrap()
    }

    fn entries_of(cache: &Cache, standing: Standing) -> Vec<(Vec<u8>, Vec<u8>, u8)> {
        let mut copies = Copies::with_room(4096);
        let mut found = Vec::new();
        let mut places = cache.places(standing);
        while places.start < places.end {
            places.start = cache.copy_entries(standing, places.clone(), &mut copies);
            found.extend(
                copies.iter().map(|copy| (copy.key.to_vec(), copy.value.to_vec(), copy.touches)),
            );
        }
        found
    }

    fn all_of(cache: &Cache) -> Vec<(Vec<u8>, Vec<u8>, u8)> {
        let mut all = entries_of(cache, Standing::Protected);
        all.extend(entries_of(cache, Standing::Probation));
        all.sort();
        all
    }

    fn number(n: u32) -> [u8; 4] {
        n.to_be_bytes()
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn every_entry_is_copied_once_with_its_touches_and_what_is_gone_is_not() {
        let cache = cache(1 << 20);
        (0..2000).for_each(|n| assert!(cache.insert(&number(n), &[n as u8; 100])));
        (0..2000).step_by(2).for_each(|n| assert!(cache.get(&number(n)).is_some()));
        (0..2000).step_by(5).for_each(|n| assert!(cache.remove(&number(n))));
        cache.insert(b"too large for the copies", &[7; 9000]);
        let expected: Vec<_> = (0..2000u32)
            .filter(|n| !n.is_multiple_of(5))
            .map(|n| (number(n).to_vec(), vec![n as u8; 100], u8::from(n.is_multiple_of(2))))
            .collect();
        assert_eq!(all_of(&cache), expected);
        let standings = [Standing::Protected, Standing::Probation];
        let counts =
            standings.map(|standing| cache.count_entries(standing, cache.places(standing), 4096).0);
        assert_eq!(counts[0].entries + counts[1].entries, 1600);
        assert_eq!(counts[0].touches + counts[1].touches, 800);
        cache.check();
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn what_is_looked_over_while_entries_leave_are_those_that_stayed() {
        let cache = cache(256 << 10);
        (0..1000).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
        let before = cache.places(Standing::Protected);
        (1000..9000).for_each(|n| assert!(cache.insert(&number(n), &[2; 100])));
        let mut copies = Copies::with_room(4096);
        // From a place long gone.
        let next = cache.copy_entries(Standing::Protected, before, &mut copies);
        assert!(next >= cache.places(Standing::Protected).start);
        for (key, value, _) in all_of(&cache) {
            assert_eq!(cache.get(&key), Some(value));
        }
    }

    #[test]
    fn changes_are_told_and_hits_are_none() {
        let cache = cache(1 << 20);
        cache.insert(b"a", b"1");
        let before = cache.changes();
        assert!(cache.get(b"a").is_some());
        assert_eq!(cache.changes(), before);
        assert!(cache.replace(b"a", &[b"2"]));
        assert_eq!(
            (cache.changes().entered, cache.changes().removed),
            (before.entered + 1, before.removed + 1)
        );
        cache.insert(b"b", b"3");
        assert_eq!(cache.changes().removed, before.removed + 1);
        cache.clear();
        assert_eq!(cache.changes().removed, before.removed + 3);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn an_index_for_what_is_expected_does_not_grow_meanwhile_and_takes_no_room_from_entries() {
        let mut entered = Vec::new();
        for (expected, before) in [(0, 0), (5000, 0), (5000, 700), (u64::MAX, 700)] {
            let cache = cache(1 << 20);
            let pages = || cache.inner.lock().pages.len();
            (0..before).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
            while cache.expect_entries(expected, 104) {}
            cache.check();
            let added = pages();
            assert_eq!(added > 1, expected > 0, "{added}");
            (before..5000).for_each(|n| {
                cache.bring_back(&[cache.returning(&number(n), [&[1; 100], &[]], 0)], || true);
            });
            assert!(expected == 0 || pages() == added);
            cache.check();
            let stats = cache.stats();
            entered.push(stats.entries);
            assert_eq!(stats.evictions, 0, "{stats:?}");
            assert!(stats.entries * 100 >= entered[0] * 95, "as many as without: {entered:?}");
            // What was not needed is given up where entries need the room.
            (0..20_000).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
            cache.check();
            assert!(cache.stats().entries > 6000, "{:?}", cache.stats());
        }
    }

    #[test]
    fn a_group_is_taken_in_up_to_the_first_for_which_there_is_no_room() {
        let cache = cache(256 << 10);
        let value = [7; 6000];
        let keys: Vec<[u8; 4]> = (0..60).map(number).collect();
        let group: Vec<_> =
            keys.iter().map(|key| cache.returning(key, [b"head", &value], 1)).collect();
        let brought = cache.bring_back(&group, || true);
        assert!(
            (10..50).contains(&brought.entered) && brought.stopped == Some(Stopped::NoRoom),
            "{brought:?}"
        );
        let whole = [&b"head"[..], &value].concat();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(cache.get(key), ((at as u64) < brought.entered).then(|| whole.clone()));
        }
        cache.check();
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn what_comes_back_is_found_and_nobody_leaves_for_it() {
        let (full, other) = (cache(1 << 20), cache(256 << 10));
        (0..5000).for_each(|n| assert!(full.insert(&number(n), &[n as u8; 100])));
        other.insert(&number(3), b"newer");
        let all = all_of(&full);
        let returning = |(key, value, touches): &'_ (Vec<u8>, Vec<u8>, u8)| {
            // A group of one.
            other
                .bring_back(&[other.returning(key, [&value[..40], &value[40..]], *touches)], || {
                    true
                })
        };
        let (mut entered, mut ended) = (0, None);
        for (at, entry) in all.iter().enumerate() {
            let brought = returning(entry);
            assert_eq!(brought.entered, u64::from(brought.stopped.is_none() && at != 3), "{at}");
            (entered, ended) = (entered + brought.entered, brought.stopped);
        }
        assert_eq!(other.get(&number(3)).as_deref(), Some(&b"newer"[..]));
        assert!(entered > 1000 && ended == Some(Stopped::NoRoom), "{entered}");
        let stats = other.stats();
        assert_eq!((stats.evictions, stats.entries), (0, entered + 1));
        assert!(
            (0..5000u32).all(
                |n| n == 3 || other.get(&number(n)).is_none_or(|value| value == [n as u8; 100])
            )
        );
        other.check();
        let new = [other.returning(b"new", [b"x", b""], 0)];
        let refused = BroughtBack { entered: 0, stopped: Some(Stopped::NotCurrent) };
        assert_eq!((other.bring_back(&new, || false), other.get(b"new")), (refused, None));
    }
}
