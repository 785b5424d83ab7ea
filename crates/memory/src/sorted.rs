//! A sorted map in chunks, read without locks while one writer inserts: memtables and write sets are made of it.
//!
//! Entries are ordered by key (as bytes), and for one key by `order`, highest first. Nothing is ever removed; all goes when the map
//! is dropped. This file holds the writer: who may insert, and what memory it takes; [`entries`] holds the bytes and links.
//!
//! Laws:
//! 1. A reader takes no lock and sees each entry whole or not at all.
//! 2. An insert that fails leaves the map as it was.
//! 3. What [`SortedMap::reserve`] promised is kept: so many bytes of entries find room whatever happens to the budget.
//! 4. What was deferred counts in `len` and is found once it is settled, in the same order as if it had been inserted at once.
#![allow(unsafe_code, reason = "the list trusts its one writer; the lock that makes it the one is here")]

mod deferred;
mod entries;
mod link;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::budget::{Budget, Kind, Lease, OutOfBudget};
use crate::chunk::{CHUNK_BYTES, Chunk};
use deferred::Deferred;
pub use entries::Position;
use entries::{DESCENTS, Entries, Gap, HEADER_BYTES, LINK_BYTES, MAX_CHUNKS, MAX_HEIGHT, Place, Probe};

/// Links that each insert earns for its tower and those after it; four thirds are needed on average.
const LINKS_EARNED: usize = 2;

/// The most links that can be saved up.
const LINKS_SAVED_MAX: usize = 64;

/// From this size on an entry pays for the room that it may leave unused at the end of the chunk before it.
const LARGE_BYTES: usize = CHUNK_BYTES / 16 - MAX_HEIGHT * LINK_BYTES;

/// A map of fewer entries stays in the processor's caches: there, linking each at once costs nothing worth saving.
const DEFER_FROM: usize = if cfg!(test) { 16 } else { 1024 };

/// A map of fewer entries is in the processor's caches anyway.
const FETCHED_FROM: usize = if cfg!(test) { 16 } else { 4096 };

/// Entries to be linked are asked for so many ahead.
const FETCHED_AHEAD: usize = 8;

/// A concurrent skip list in chunks of the budget.
pub struct SortedMap {
    budget: Budget,
    kind: Kind,
    entries: Entries,
    len: AtomicUsize,
    held_bytes: AtomicU64,
    used_bytes: AtomicU64,
    writer: Mutex<Writer>,
}

/// What only the one who inserts needs.
struct Writer {
    chunks: Vec<Chunk>,
    /// For the table of chunks and `chunks` itself.
    tables: Option<Lease>,
    /// The chunk that is being filled, and how far.
    current: usize,
    filled: usize,
    /// Bytes reserved and not inserted yet.
    promised: usize,
    links_saved: usize,
    random: u64,
    /// The gap behind what was inserted last: where the next entry of an ascending series goes.
    gap: Gap,
    /// What was written and is not linked yet.
    deferred: Deferred,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Orders entries of one key, highest first.
    pub order: u64,
    /// The value.
    pub value: &'a [u8],
}

impl SortedMap {
    /// The longest key plus value that fits.
    pub const MAX_ENTRY_BYTES: usize = 32 * 1024;

    /// An empty map; it takes its first chunk with the first insert or reserve.
    pub fn new(budget: &Budget, kind: Kind) -> Self {
        Self {
            budget: budget.clone(),
            kind,
            entries: Entries::new(),
            len: AtomicUsize::new(0),
            held_bytes: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            writer: Mutex::new(Writer::new()),
        }
    }

    /// Takes so many chunks now that entries of [`SortedMap::entry_bytes`] adding up to `bytes` can be inserted without failing.
    /// Promises add up; each insert uses up its share, [`SortedMap::unreserve`] gives back one that is not going to be used.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    pub fn reserve(&self, bytes: usize) -> Result<(), OutOfBudget> {
        let mut writer = self.lock();
        let promised = writer.promised + bytes;
        let held = writer.chunks.len();
        while !writer.has_room_for(promised) {
            if let Err(refusal) = self.add_chunk(&mut writer) {
                self.drop_chunks(&mut writer, held);
                return Err(refusal);
            }
        }
        writer.promised = promised;
        Ok(())
    }

    /// Takes back a promise of `bytes` that [`SortedMap::reserve`] made; the chunks stay for later entries.
    pub fn unreserve(&self, bytes: usize) {
        let mut writer = self.lock();
        writer.promised = writer.promised.saturating_sub(bytes);
    }

    /// The most bytes that an entry can take in a map (header, tower, padding, waste at a chunk's end included).
    pub fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        // Padding of up to one link's size on each side, and at least eight bytes behind the header.
        let own = LINKS_EARNED * LINK_BYTES + HEADER_BYTES + (key_bytes + value_bytes).max(8) + 2 * LINK_BYTES;
        // A chunk is closed when an entry does not fit. If that one is small, the chunk is 15/16 full, and an eighth more on each
        // of its own entries pays for the rest; if it is large, it pays itself, with no more than its size.
        let for_a_chunk_before = if own > LARGE_BYTES { own + MAX_HEIGHT * LINK_BYTES } else { 0 };
        own + own.div_ceil(8) + for_a_chunk_before
    }

    /// Inserts an entry; one with the same key and order is kept as it is and the new one is ignored. Writers queue on a lock.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn insert(&self, key: &[u8], order: u64, value: &[u8]) -> Result<(), OutOfBudget> {
        assert!(key.len() + value.len() <= Self::MAX_ENTRY_BYTES, "an entry of {} + {} bytes", key.len(), value.len());
        let mut guard = self.lock();
        let writer = &mut *guard;
        if self.entries.find_gap(&mut writer.gap, &Probe::new(key, order)) {
            let height = writer.draw_height();
            let place = self.place(writer, height, key.len() + value.len())?;
            // SAFETY: the lock makes this the only writer; the place was just cut from a chunk of the table and the gap found.
            unsafe {
                let entry = self.entries.write(place, key, order, value);
                self.entries.link_in(entry, &mut writer.gap);
            }
            writer.pay_for(height);
            // Release: pairs with the Acquire in `len`, so that whoever is told of an entry finds it.
            self.len.fetch_add(1, Ordering::Release);
        }
        writer.promised = writer.promised.saturating_sub(Self::entry_bytes(key.len(), value.len()));
        Ok(())
    }

    /// Inserts an entry that nobody looks for before [`SortedMap::settle`]: linking many in the order of their keys is several times
    /// cheaper than one by one in any other. No key and order may come twice.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn defer(&self, key: &[u8], order: u64, value: &[u8]) -> Result<(), OutOfBudget> {
        assert!(key.len() + value.len() <= Self::MAX_ENTRY_BYTES, "an entry of {} + {} bytes", key.len(), value.len());
        let mut guard = self.lock();
        let writer = &mut *guard;
        if self.len.load(Ordering::Relaxed) < DEFER_FROM || !self.can_defer(writer) {
            self.link_deferred(writer);
            drop(guard);
            return self.insert(key, order, value);
        }
        let height = writer.draw_height();
        let place = self.place(writer, height, key.len() + value.len())?;
        // SAFETY: the lock makes this the only writer; the place was just cut from a chunk of the table.
        let entry = unsafe { self.entries.write(place, key, order, value) };
        writer.deferred.push(key, entry);
        writer.pay_for(height);
        self.len.fetch_add(1, Ordering::Release);
        writer.promised = writer.promised.saturating_sub(Self::entry_bytes(key.len(), value.len()));
        Ok(())
    }

    /// Links what was deferred: from now on it is found.
    pub fn settle(&self) {
        self.link_deferred(&mut self.lock());
    }

    fn can_defer(&self, writer: &mut Writer) -> bool {
        let held = writer.deferred.held_bytes();
        let has_room = writer.deferred.has_room(&self.budget, self.kind);
        self.held_bytes.fetch_add(writer.deferred.held_bytes() - held, Ordering::Relaxed);
        has_room
    }

    fn link_deferred(&self, writer: &mut Writer) {
        let Writer { deferred, gap, .. } = writer;
        // SAFETY: what is deferred was written under the lock that is held.
        let entry_of = |entry| unsafe { self.entries.unlinked(entry) };
        deferred.sort(entry_of);
        for at in 0.. {
            let Some(entry) = deferred.get(at) else { break };
            if let Some(ahead) = deferred.get(at + FETCHED_AHEAD) {
                self.entries.fetch(ahead.at());
            }
            let Entry { key, order, .. } = entry_of(entry);
            let is_new = self.entries.find_gap(gap, &Probe::new(key, order));
            assert!(is_new, "no key and order is deferred twice");
            // SAFETY: the lock makes this the only writer; the list of those not linked goes when all are; the gap was just found.
            unsafe { self.entries.link_in(entry, gap) };
        }
        deferred.clear();
    }

    /// Brings what inserts of these keys, in ascending order, are going to touch into the processor's caches, all at the same time instead
    /// of one after the other. Changes nothing. For large maps, and a handful of keys at a time. Keys that go right behind what was
    /// inserted last need nothing.
    pub fn fetch(&self, keys: &[&[u8]]) {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return };
        if self.len() < FETCHED_FROM || self.entries.is_in_gap(&self.lock().gap, first, last) {
            return;
        }
        keys.chunks(DESCENTS).for_each(|keys| self.entries.fetch_paths(keys));
    }

    /// Number of entries; whoever asks finds at least so many of those that are settled.
    pub fn len(&self) -> usize {
        // Acquire: pairs with the Release in `insert`.
        self.len.load(Ordering::Acquire)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the chunks held, and of the list of what is deferred.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes used by entries.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The first entry at or behind (`key`, `order`); `order` = `u64::MAX` finds the first of the key.
    pub fn seek(&self, key: &[u8], order: u64) -> Option<Position> {
        self.entries.around(&Probe::new(key, order)).1
    }

    /// The last entry before (`key`, `order`).
    pub fn seek_before(&self, key: &[u8], order: u64) -> Option<Position> {
        self.entries.around(&Probe::new(key, order)).0
    }

    /// The first entry.
    pub fn first(&self) -> Option<Position> {
        self.entries.first()
    }

    /// The last entry.
    pub fn last(&self) -> Option<Position> {
        self.entries.last()
    }

    /// The entry behind.
    pub fn next(&self, position: Position) -> Option<Position> {
        self.entries.next(position)
    }

    /// The entry before.
    pub fn prev(&self, position: Position) -> Option<Position> {
        let Entry { key, order, .. } = self.at(position);
        self.seek_before(key, order)
    }

    /// The entry itself.
    pub fn at(&self, position: Position) -> Entry<'_> {
        self.entries.entry(position)
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("an insert does not panic half way")
    }

    /// Cuts room for an entry from the current chunk or the next.
    fn place(&self, writer: &mut Writer, height: usize, payload_bytes: usize) -> Result<Place, OutOfBudget> {
        loop {
            if writer.current < writer.chunks.len()
                && let Some((place, end)) = Place::fit(writer.current, writer.filled, height, payload_bytes)
            {
                self.used_bytes.fetch_add((end - writer.filled) as u64, Ordering::Relaxed);
                writer.filled = end;
                return Ok(place);
            }
            let next = if writer.chunks.is_empty() { 0 } else { writer.current + 1 };
            if next == writer.chunks.len() {
                self.add_chunk(writer)?;
            }
            (writer.current, writer.filled) = (next, 0);
        }
    }

    fn add_chunk(&self, writer: &mut Writer) -> Result<(), OutOfBudget> {
        let index = writer.chunks.len();
        if index == MAX_CHUNKS {
            let needed_bytes = CHUNK_BYTES as u64;
            return Err(OutOfBudget { needed_bytes, kind: self.kind, usage: Box::new(self.budget.usage()) });
        }
        let chunk = self.budget.take(self.kind)?;
        let room = self.entries.segment_missing(index);
        if room > 0 {
            let bytes = (Entries::segment_bytes(room) + room * size_of::<Chunk>()) as u64;
            match &mut writer.tables {
                Some(tables) => tables.grow(bytes)?,
                none => *none = Some(self.budget.lease(self.kind, bytes)?),
            }
            writer.chunks.reserve_exact(room);
        }
        self.entries.enter_chunk(index, &chunk);
        writer.chunks.push(chunk);
        self.held_bytes.fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back the chunks from `keep` on, none of which was written to.
    fn drop_chunks(&self, writer: &mut Writer, keep: usize) {
        for index in keep..writer.chunks.len() {
            self.entries.forget_chunk(index);
        }
        let dropped = writer.chunks.drain(keep..).count();
        self.held_bytes.fetch_sub((dropped * CHUNK_BYTES) as u64, Ordering::Relaxed);
    }
}

impl Writer {
    fn new() -> Self {
        Self {
            chunks: Vec::new(),
            tables: None,
            current: 0,
            filled: 0,
            promised: 0,
            links_saved: LINKS_SAVED_MAX,
            random: 0x9e37_79b9_7f4a_7c15,
            gap: Gap::whole(),
            deferred: Deferred::default(),
        }
    }

    /// An entry has earned its links and spent `height` of them.
    fn pay_for(&mut self, height: usize) {
        self.links_saved = (self.links_saved + LINKS_EARNED).min(LINKS_SAVED_MAX + height) - height;
    }

    /// Whether entries adding up to `promised` fit into what is held, however they are cut and however tall their towers are.
    fn has_room_for(&self, promised: usize) -> bool {
        // Saved links may all be spent at once.
        let needed = promised + LINKS_SAVED_MAX * LINK_BYTES * 9 / 8;
        let started = usize::from(self.filled > 0);
        let rest = started * (CHUNK_BYTES - self.filled);
        // Either all of it fits behind the last entry, or the spare chunks suffice without that rest.
        needed <= rest || needed <= (self.chunks.len() - self.current - started) * CHUNK_BYTES
    }

    /// One level more with a chance of one in four each, as far as the links saved allow.
    fn draw_height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let drawn = 1 + (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).trailing_zeros() as usize / 2;
        drawn.min(MAX_HEIGHT).min(self.links_saved + LINKS_EARNED)
    }
}

impl fmt::Debug for SortedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SortedMap({} entries, {} of {} bytes used)", self.len(), self.used_bytes(), self.held_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use super::*;
    use crate::budget::Backing;

    fn budget(chunks: u64) -> Budget {
        Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap()
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % bound
        }

        /// Short and alike, so that prefixes, equal keys and neighbours all occur.
        fn key(&mut self) -> Vec<u8> {
            let length = self.below(12);
            (0..length).map(|_| [0, 1, 255][self.below(3)]).collect()
        }
    }

    fn all(map: &SortedMap) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
        std::iter::successors(map.first(), |at| map.next(*at))
            .map(|at| map.at(at))
            .map(|entry| (entry.key.to_vec(), entry.order, entry.value.to_vec()))
            .collect()
    }

    #[test]
    fn what_goes_right_behind_the_last_insert_is_known_without_a_search() {
        let map = SortedMap::new(&budget(4), Kind::Memtable);
        let in_gap = |first: &[u8], last: &[u8]| map.entries.is_in_gap(&map.lock().gap, first, last);
        assert!(in_gap(b"", b"z"), "an empty map is one gap");
        for key in [b"b", b"m", b"d"] {
            map.insert(key, 1, b"").unwrap();
        }
        // The last insert went between "b" and "m".
        assert!(in_gap(b"e", b"e") && in_gap(b"dd", b"lz"));
        assert!(!in_gap(b"a", b"e") && !in_gap(b"b", b"e") && !in_gap(b"d", b"e"));
        assert!(!in_gap(b"e", b"m") && !in_gap(b"e", b"n"));
    }

    #[test]
    fn it_answers_like_a_tree_of_the_same_entries() {
        for seed in 1..=if cfg!(miri) { 2 } else { 30 } {
            let mut random = Random(seed);
            let budget = budget(16);
            let map = SortedMap::new(&budget, Kind::Memtable);
            let mut model = BTreeMap::new();
            for round in 0..if cfg!(miri) { 60 } else { 3000u32 } {
                let (key, order) = (random.key(), random.below(4) as u64);
                map.insert(&key, order, &round.to_le_bytes()).unwrap();
                model.entry((key, Reverse(order))).or_insert(round.to_le_bytes());
            }
            let expected: Vec<_> =
                model.iter().map(|((key, order), value)| (key.clone(), order.0, value.to_vec())).collect();
            assert_eq!(all(&map), expected, "seed {seed}");
            assert_eq!(map.len(), model.len());
            for _ in 0..if cfg!(miri) { 30 } else { 1000 } {
                let (key, order) = (random.key(), random.below(5) as u64);
                let probe = (key.clone(), Reverse(order));
                let pair = |at: Position| (map.at(at).key.to_vec(), Reverse(map.at(at).order));
                let at_or_behind = model.range(probe.clone()..).next().map(|(key, _)| key.clone());
                let before = model.range(..probe).next_back().map(|(key, _)| key.clone());
                assert_eq!(map.seek(&key, order).map(pair), at_or_behind, "seed {seed}");
                assert_eq!(map.seek_before(&key, order).map(pair), before, "seed {seed}");
            }
            let mut backward: Vec<_> =
                std::iter::successors(map.last(), |at| map.prev(*at)).map(|at| map.at(at).key).collect();
            backward.reverse();
            assert!(backward.into_iter().eq(model.keys().map(|(key, _)| &key[..])), "seed {seed}");
        }
    }

    #[test]
    fn what_is_deferred_is_found_once_it_is_settled_as_if_it_had_been_inserted() {
        for seed in 1..=if cfg!(miri) { 2 } else { 100 } {
            let mut random = Random(seed);
            let budget = budget(16);
            let map = SortedMap::new(&budget, Kind::WriteSet);
            let (mut model, mut settled) = (BTreeMap::new(), BTreeMap::new());
            let mut ascending = 0u64;
            for order in 0..if cfg!(miri) { 150 } else { 1500u64 } {
                // Series with and without order, some far apart and some close together.
                let spread = 1 << random.below(20);
                ascending += random.below(spread) as u64;
                let key = if random.below(2) == 0 { ascending.to_be_bytes().to_vec() } else { random.key() };
                let value = order.to_le_bytes();
                model.insert((key.clone(), Reverse(order)), value);
                if random.below(8) == 0 {
                    map.insert(&key, order, &value).unwrap();
                    settled.insert((key, Reverse(order)), value);
                } else {
                    map.defer(&key, order, &value).unwrap();
                }
                if random.below(40) == 0 {
                    map.settle();
                    settled.clone_from(&model);
                    assert_eq!(all(&map).len(), model.len());
                }
                assert_eq!(map.len(), model.len());
                map.fetch(&[&random.key(), &random.key()]);
                let probe = (random.key(), Reverse(random.below(1500) as u64));
                if let Some((expected, _)) = settled.range(probe.clone()..).next() {
                    let found = map.at(map.seek(&probe.0, probe.1.0).unwrap());
                    let found = (found.key.to_vec(), Reverse(found.order));
                    // One that waits may be linked before it must be.
                    assert!(found >= probe && found <= *expected && model.contains_key(&found), "seed {seed}");
                }
            }
            map.settle();
            let expected: Vec<_> =
                model.iter().map(|((key, order), value)| (key.clone(), order.0, value.to_vec())).collect();
            assert_eq!(all(&map), expected, "seed {seed}");
        }
    }

    #[test]
    fn a_budget_without_room_for_what_is_deferred_loses_nothing() {
        let (refusals, entries) = if cfg!(miri) { (3, 60) } else { (12, 300u64) };
        for refused in 0..refusals {
            let budget = budget(24);
            let map = SortedMap::new(&budget, Kind::WriteSet);
            budget.fail_after(refused);
            let mut inserted = 0;
            for at in 0..entries {
                let key = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                inserted += usize::from(map.defer(&key, at, &[1; 2000]).is_ok());
            }
            assert!(inserted as u64 >= entries - 1, "the next operation works");
            map.settle();
            assert_eq!((map.len(), all(&map).len()), (inserted, inserted));
            assert!(map.held_bytes() > budget.usage().of(Kind::WriteSet) - 2 * CHUNK_BYTES as u64);
            drop(map);
            assert_eq!(budget.free_bytes(), budget.limit_bytes());
        }
    }

    #[test]
    fn the_first_value_of_a_key_and_order_stays() {
        let budget = budget(2);
        let map = SortedMap::new(&budget, Kind::WriteSet);
        for value in [b"old", b"new"] {
            map.insert(b"key", 7, value).unwrap();
        }
        assert_eq!(all(&map), [(b"key".to_vec(), 7, b"old".to_vec())]);
    }

    #[test]
    fn a_full_budget_refuses_an_entry_and_leaves_the_map_as_it_was() {
        let budget = budget(4);
        let map = SortedMap::new(&budget, Kind::Memtable);
        let value = [7; 5000];
        let mut inserted = 0u32;
        while map.insert(&inserted.to_be_bytes(), 1, &value).is_ok() {
            inserted += 1;
        }
        // One chunk is retired for the table.
        assert_eq!(inserted as usize, 3 * (CHUNK_BYTES / 5024));
        assert_eq!(map.len(), inserted as usize);
        assert!(all(&map).iter().map(|(key, ..)| key.clone()).eq((0..inserted).map(|key| key.to_be_bytes())));
        drop(map);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn every_refusal_at_every_moment_leaves_the_map_and_the_budget_in_order() {
        for refused in 0..if cfg!(miri) { 5 } else { 20 } {
            let budget = budget(24);
            let map = SortedMap::new(&budget, Kind::Memtable);
            budget.fail_after(refused);
            let (mut inserted, mut refusals) = (0, 0);
            for key in 0..if cfg!(miri) { 40 } else { 400u32 } {
                // Every other entry is announced.
                let reserved = key % 2 == 0 || map.reserve(SortedMap::entry_bytes(4, 2000)).is_ok();
                let done = reserved && map.insert(&key.to_be_bytes(), 0, &[1; 2000]).is_ok();
                inserted += usize::from(done);
                refusals += usize::from(!done);
                assert_eq!(
                    map.held_bytes(),
                    budget.usage().of(Kind::Memtable) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64
                );
            }
            assert!(refusals <= 1, "the next operation works");
            assert_eq!((map.len(), all(&map).len()), (inserted, inserted));
            drop(map);
            assert_eq!(budget.free_bytes(), budget.limit_bytes());
            assert_eq!(budget.usage().of(Kind::Memtable), 0);
        }
    }

    #[test]
    fn what_was_reserved_finds_room_in_a_used_up_budget() {
        for seed in 1..=if cfg!(miri) { 2 } else { 200 } {
            let mut random = Random(seed);
            let budget = budget(64);
            let map = SortedMap::new(&budget, Kind::Memtable);
            for _ in 0..random.below(50) {
                map.insert(&random.key(), random.below(9) as u64, &[1; 100]).unwrap();
            }
            let largest = [30, 300, 3000, SortedMap::MAX_ENTRY_BYTES][random.below(4)];
            let sizes: Vec<_> = (0..random.below(if cfg!(miri) { 20 } else { 2000 }))
                .map(|_| random.below(largest))
                .scan(0, |sum, size| {
                    *sum += SortedMap::entry_bytes(16, size.min(SortedMap::MAX_ENTRY_BYTES - 16));
                    (*sum < 40 * CHUNK_BYTES).then_some(size.min(SortedMap::MAX_ENTRY_BYTES - 16))
                })
                .collect();
            for size in &sizes {
                map.reserve(SortedMap::entry_bytes(16, *size)).unwrap();
            }
            let held = map.held_bytes();
            let _rest: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
            for (at, size) in sizes.iter().enumerate() {
                let key =
                    [(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), (at as u64).to_be_bytes()].concat();
                map.insert(&key, 3, &vec![2; *size])
                    .unwrap_or_else(|refusal| panic!("seed {seed}, entry {at}: {refusal}"));
            }
            assert_eq!(map.held_bytes(), held);
        }
    }

    #[test]
    fn a_refused_reservation_takes_nothing() {
        let budget = budget(8);
        let map = SortedMap::new(&budget, Kind::Memtable);
        map.insert(b"a", 0, b"").unwrap();
        let held = map.held_bytes();
        assert!(map.reserve(20 * CHUNK_BYTES).is_err());
        assert_eq!(map.held_bytes(), held);
        assert_eq!(budget.free_bytes() + held + CHUNK_BYTES as u64, budget.limit_bytes());
        map.reserve(2 * CHUNK_BYTES).unwrap();
        map.unreserve(2 * CHUNK_BYTES);
        map.reserve(2 * CHUNK_BYTES).unwrap();
        assert_eq!(map.held_bytes(), held + 3 * CHUNK_BYTES as u64);
    }

    #[test]
    fn a_small_entry_costs_less_than_56_bytes() {
        let budget = budget(64);
        let map = SortedMap::new(&budget, Kind::Memtable);
        let count = if cfg!(miri) { 300 } else { 40_000u64 };
        for at in 0..count {
            let key = [&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..], &[0; 4]].concat();
            map.insert(&key, at, &[0; 8]).unwrap();
        }
        assert!(map.used_bytes() < 44 * count, "{} bytes each", map.used_bytes() as f64 / count as f64);
        assert!(map.used_bytes() <= count * SortedMap::entry_bytes(12, 8) as u64);
        assert!(SortedMap::entry_bytes(12, 8) < 56);
    }

    #[test]
    fn the_largest_entry_and_the_empty_one_fit() {
        let budget = budget(4);
        let map = SortedMap::new(&budget, Kind::Memtable);
        map.insert(&[9; SortedMap::MAX_ENTRY_BYTES], 1, b"").unwrap();
        map.insert(b"", 1, b"").unwrap();
        map.insert(b"", 2, &[8; SortedMap::MAX_ENTRY_BYTES]).unwrap();
        let sizes: Vec<_> = all(&map).into_iter().map(|(key, order, value)| (key.len(), order, value.len())).collect();
        let max = SortedMap::MAX_ENTRY_BYTES;
        assert_eq!(sizes, [(0, 2, max), (0, 1, 0), (max, 1, 0)]);
    }

    #[test]
    #[should_panic(expected = "a position is valid for the map that gave it")]
    fn a_position_of_another_map_is_refused() {
        let budget = budget(4);
        let [one, other] = [(); 2].map(|()| SortedMap::new(&budget, Kind::Memtable));
        one.insert(b"a", 0, b"").unwrap();
        other.insert(b"a", 0, b"").unwrap();
        other.at(one.first().unwrap());
    }

    #[test]
    fn readers_see_each_entry_whole_and_in_order_while_writers_insert() {
        let budget = budget(128);
        let map = SortedMap::new(&budget, Kind::Memtable);
        let count = if cfg!(miri) { 40 } else { 20_000u64 };
        let scramble = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let map = &map;
                scope.spawn(move || {
                    for at in (writer..count).step_by(2) {
                        map.insert(&scramble(at), at, &at.to_le_bytes()).unwrap();
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while seen < count {
                        let least = map.len() as u64;
                        let entries = all(&map);
                        assert!(entries.is_sorted());
                        assert!(
                            entries
                                .iter()
                                .all(|(key, order, value)| *key == scramble(*order) && *value == order.to_le_bytes())
                        );
                        assert!(entries.len() as u64 >= least);
                        seen = entries.len() as u64;
                        if let Some(at) = seen.checked_sub(1) {
                            let known = &entries[at as usize / 2];
                            assert_eq!(map.at(map.seek(&known.0, known.1).unwrap()).key, known.0);
                        }
                    }
                });
            }
        });
    }
}
