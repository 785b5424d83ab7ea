//! Warm restart of the cache: copies entries out, and describes entries to be restored.
//!
//! Invariants:
//! 1. Copying entries changes nothing about them, and holds the cache's lock for a few hundred of
//!    them at most.
//! 2. Restoring an entry evicts nothing, and replaces no present entry.

use std::ops::Range;

use super::entries::Entries;
use super::entry::Placed;
use super::inner::Inner;
use super::policy::Queue;
use super::queues::Located;
use super::shared::Shared;

/// Entries visited per acquisition of the lock.
const ENTRIES_PER_LOCK: usize = 256;

/// The queue that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueKind {
    /// The protected queue.
    Protected,
    /// The probation queue.
    Probation,
}

impl QueueKind {
    pub(super) fn queue(self) -> Queue {
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

/// Counters that change only when an entry is inserted, removed, evicted or moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Total entries inserted.
    pub entered: u64,
    /// Total entries removed or replaced, not counting evictions.
    pub removed: u64,
    /// Total entries evicted plus bytes moved.
    pub turned: u64,
}

/// An entry to be restored; made by [`Cache::restorable`](super::Cache::restorable).
#[derive(Debug)]
pub struct Restorable<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a [u8],
    pub(super) parts: [&'a [u8]; 2],
    pub(super) touches: u8,
}

/// Result of restoring entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Entries that were inserted. An entry is skipped if its key already has one, or if it does
    /// not fit into this cache.
    pub entered: u64,
    /// Why the remaining entries were not tried.
    pub stopped: Option<Stopped>,
}

/// Why entries were not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// There is no room for the next one without an eviction.
    NoRoom,
    /// The caller's check found the entries out of date, so none was restored.
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
    /// Touches since it was written to its present place, up to three.
    pub touches: u8,
}

impl Copies {
    /// Makes a buffer for this many bytes of keys and values. It takes at most one and a half times
    /// as much memory.
    pub fn with_room(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            room: bytes,
            spans: Vec::with_capacity(ENTRIES_PER_LOCK),
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

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Adds a copy of an entry. Skips an entry that is larger than the whole buffer. Returns false
    /// if the entry does not fit into the rest of the buffer.
    pub(super) fn push(&mut self, placed: &Placed<'_>, touches: u8) -> bool {
        let bytes = placed.header.key_bytes + placed.header.value_bytes;
        if bytes > self.room {
            return true;
        }
        if self.spans.len() == ENTRIES_PER_LOCK || self.bytes.len() + bytes > self.room {
            return false;
        }
        self.bytes.extend_from_slice(placed.key());
        placed.pieces().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.spans.push((placed.header.key_bytes, placed.header.value_bytes, touches));
        true
    }
}

/// Calls `visit` with the entries in this range of places, and their touches, until it returns
/// false. Returns the place of the refused entry, or of the first entry after the range.
pub(super) fn scan(
    inner: &Inner,
    queue_kind: QueueKind,
    places: Range<u64>,
    visit: &mut dyn FnMut(&Placed<'_>, u8) -> bool,
) -> u64 {
    let queue = queue_kind.queue();
    let mut at = places.start;
    loop {
        let writer = inner.lock();
        let ends = writer.entries.queues.ends(queue);
        // Entries that the old end has passed meanwhile are gone.
        at = at.max(ends.old);
        for _ in 0..ENTRIES_PER_LOCK {
            if at >= places.end.min(ends.young) {
                return at;
            }
            let (placed, touches) = live_at(&inner.shared, &writer.entries, queue, at);
            if let Some(touches) = touches
                && !visit(&placed, touches)
            {
                return at;
            }
            at += placed.header.words();
        }
    }
}

/// The entry or filler at a place between the ends, and its touches if it is an entry that the
/// index refers to and that does not expire.
fn live_at<'a>(
    shared: &'a Shared,
    entries: &Entries,
    queue: Queue,
    position: u64,
) -> (Placed<'a>, Option<u8>) {
    let placed = entries.queues.entry_at(shared, queue, position);
    if placed.header.is_filler() || placed.header.expires {
        return (placed, None);
    }
    let hash = shared.hash(placed.key());
    let slot = shared.slot_of(hash, queue, position);
    (placed, slot.map(|slot| Located { slot, hash, position, placed }.word().touches()))
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    fn cache(bytes: u64) -> Cache {
        // Miri does not support mapped memory.
        let backing = if cfg!(miri) { Backing::Heap } else { Backing::Mapped };
        let budget = Budget::new(16 << 20, backing).unwrap();
        Cache::new(&budget, CacheOptions::of_bytes(bytes)).unwrap()
    }

    fn entries_of(cache: &Cache, queue_kind: QueueKind) -> Vec<(Vec<u8>, Vec<u8>, u8)> {
        let mut copies = Copies::with_room(4096);
        let mut found = Vec::new();
        let mut places = cache.places(queue_kind);
        while places.start < places.end {
            places.start = cache.copy_entries(queue_kind, places.clone(), &mut copies);
            found.extend(
                copies.iter().map(|copy| (copy.key.to_vec(), copy.value.to_vec(), copy.touches)),
            );
        }
        found
    }

    fn all_of(cache: &Cache) -> Vec<(Vec<u8>, Vec<u8>, u8)> {
        let mut all = entries_of(cache, QueueKind::Protected);
        all.extend(entries_of(cache, QueueKind::Probation));
        all.sort();
        all
    }

    fn number(n: u32) -> [u8; 4] {
        n.to_be_bytes()
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn copy_entries_visits_each_live_entry_once() {
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
        let queue_kinds = [QueueKind::Protected, QueueKind::Probation];
        let counts = queue_kinds
            .map(|queue_kind| cache.count_entries(queue_kind, cache.places(queue_kind), 4096).0);
        assert_eq!(counts[0].entries + counts[1].entries, 1600);
        assert_eq!(counts[0].touches + counts[1].touches, 800);
        cache.check();
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn copy_entries_skips_entries_evicted_meanwhile() {
        let cache = cache(256 << 10);
        (0..1000).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
        let before = cache.places(QueueKind::Protected);
        (1000..9000).for_each(|n| assert!(cache.insert(&number(n), &[2; 100])));
        let mut copies = Copies::with_room(4096);
        // Begin at a place that the old end has passed.
        let next = cache.copy_entries(QueueKind::Protected, before, &mut copies);
        assert!(next >= cache.places(QueueKind::Protected).start);
        for (key, value, _) in all_of(&cache) {
            assert_eq!(cache.get(&key), Some(value));
        }
    }

    #[test]
    fn changes_count_inserts_and_removals_but_not_hits() {
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
    fn expect_entries_preallocates_the_index() {
        let mut entered = Vec::new();
        for (expected, before) in [(0, 0), (5000, 0), (5000, 700), (u64::MAX, 700)] {
            let cache = cache(1 << 20);
            let pages = || cache.inner.lock().entries.index_pages();
            (0..before).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
            while cache.expect_entries(expected, 104) {}
            cache.check();
            let added = pages();
            assert_eq!(added > 1, expected > 0, "{added}");
            (before..5000).for_each(|n| {
                cache
                    .restore_entries(&[cache.restorable(&number(n), [&[1; 100], &[]], 0)], || true);
            });
            assert!(expected == 0 || pages() == added);
            cache.check();
            let stats = cache.stats();
            entered.push(stats.entries);
            assert_eq!(stats.evictions, 0, "{stats:?}");
            assert!(
                stats.entries * 100 >= entered[0] * 95,
                "as many entries as without: {entered:?}"
            );
            // Unused pages are given up when entries need the room.
            (0..20_000).for_each(|n| assert!(cache.insert(&number(n), &[1; 100])));
            cache.check();
            assert!(cache.stats().entries > 6000, "{:?}", cache.stats());
        }
    }

    #[test]
    fn restore_entries_stops_at_the_first_entry_without_room() {
        let cache = cache(256 << 10);
        let value = [7; 6000];
        let keys: Vec<[u8; 4]> = (0..60).map(number).collect();
        let group: Vec<_> =
            keys.iter().map(|key| cache.restorable(key, [b"head", &value], 1)).collect();
        let brought = cache.restore_entries(&group, || true);
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
    fn restore_entries_evicts_nothing() {
        let (full, other) = (cache(1 << 20), cache(256 << 10));
        (0..5000).for_each(|n| assert!(full.insert(&number(n), &[n as u8; 100])));
        other.insert(&number(3), b"newer");
        let all = all_of(&full);
        let restorable = |(key, value, touches): &'_ (Vec<u8>, Vec<u8>, u8)| {
            // A group of one entry.
            other.restore_entries(
                &[other.restorable(key, [&value[..40], &value[40..]], *touches)],
                || true,
            )
        };
        let (mut entered, mut ended) = (0, None);
        for (at, entry) in all.iter().enumerate() {
            let brought = restorable(entry);
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
        let new = [other.restorable(b"new", [b"x", b""], 0)];
        let refused = Restored { entered: 0, stopped: Some(Stopped::NotCurrent) };
        assert_eq!((other.restore_entries(&new, || false), other.get(b"new")), (refused, None));
    }
}
