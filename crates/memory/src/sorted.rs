//! A sorted map in chunks: one writer at a time, lock-free readers. Memtables and write sets are
//! built on it.
//!
//! Entries are ordered by key (as bytes), and within a key by `order`, highest first. Entries are
//! never removed; dropping the map frees all of them. This file serialises inserts, [`writer`]
//! accounts for their memory, and [`entries`] holds the bytes and links.
//!
//! Invariants:
//! 1. A reader takes no lock and sees each entry whole or not at all.
//! 2. An insert that fails leaves the map as it was.
//! 3. A reservation made by [`SortedMap::reserve`] is kept: entries of that many bytes fit even if
//!    the budget is exhausted later.
//! 4. A deferred entry counts in `len` at once and is found once it is settled, in the same order
//!    as if it had been inserted at once.
#![allow(
    unsafe_code,
    reason = "the list requires a single writer, which the lock in this file ensures"
)]

mod deferred;
mod entries;
mod link;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::chunk::CHUNK_BYTES;
use crate::budget::{Budget, Kind, OutOfBudget};
use crate::pieces::Pieces;
pub use entries::Position;
use entries::{DESCENTS, Entries, MAX_CHUNKS, Placement, Probe};
use writer::{Holding, Writer};

/// Sizes at which a map changes its strategy.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// A map with fewer entries stays in the processor's caches, and deferring links saves nothing.
    defer_from: usize,
    /// A map with fewer entries is in the processor's caches, and prefetching saves nothing.
    fetched_from: usize,
    /// Capacity for deferred entries: the initial one, and the maximum.
    deferred: [usize; 2],
}

impl Thresholds {
    const DEFAULT: Self =
        Self { defer_from: 1024, fetched_from: 4096, deferred: [2048, 32 * 1024] };
}

/// Minimum sample of an estimate, which limits the error to about an eighth.
const SAMPLE_LEAST: usize = 64;

/// Prefetch distance, in entries, when deferred entries are linked.
const FETCHED_AHEAD: usize = 8;

/// With more entries than this per deferred entry, the search paths are prefetched.
const DEFERRED_FEW: usize = 64;

/// A concurrent skip list in chunks of the budget.
pub struct SortedMap {
    budget: Budget,
    kind: Kind,
    /// Sources of the first memory, before whole chunks.
    small: Arc<[Pieces]>,
    thresholds: Thresholds,
    entries: Entries,
    len: AtomicUsize,
    held_bytes: AtomicU64,
    used_bytes: AtomicU64,
    writer: Mutex<Writer>,
}

/// Inserts entries into a [`SortedMap`]; other writers wait until it is dropped, readers do not.
pub struct Inserter<'m> {
    map: &'m SortedMap,
    writer: MutexGuard<'m, Writer>,
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
        Self::beginning_small(budget, kind, &Arc::default())
    }

    /// An empty map that stores its first entries in one piece from each of `small`, in this order,
    /// and later entries in chunks. It does not support reservations.
    pub fn beginning_small(budget: &Budget, kind: Kind, small: &Arc<[Pieces]>) -> Self {
        Self {
            budget: budget.clone(),
            kind,
            small: Arc::clone(small),
            thresholds: Thresholds::DEFAULT,
            entries: Entries::new(),
            len: AtomicUsize::new(0),
            held_bytes: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            writer: Mutex::new(Writer::new()),
        }
    }

    /// Takes enough chunks now so that entries whose [`SortedMap::entry_bytes`] add up to `bytes`
    /// can be inserted without failing. Reservations add up. Each insert uses up its share;
    /// [`SortedMap::unreserve`] releases a share that will not be used.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// The map begins small.
    pub fn reserve(&self, bytes: usize) -> Result<(), OutOfBudget> {
        assert!(self.small.is_empty(), "room is reserved in whole chunks");
        let mut writer = self.lock();
        let promised = writer.promised + bytes;
        let held = writer.chunks.len();
        while !writer.has_room_for(promised) {
            if let Err(refusal) = self.add_chunk(&mut writer, CHUNK_BYTES) {
                self.drop_chunks(&mut writer, held);
                return Err(refusal);
            }
        }
        writer.promised = promised;
        Ok(())
    }

    /// Releases `bytes` reserved with [`SortedMap::reserve`]; the chunks stay for later entries.
    pub fn unreserve(&self, bytes: usize) {
        // Accept a poisoned lock, because this also runs while a panicked writer unwinds.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.promised = writer.promised.saturating_sub(bytes);
    }

    /// Whether an entry with this many bytes of key and value fits without more memory.
    pub fn has_room(&self, payload_bytes: usize) -> bool {
        let writer = self.lock();
        let fits = |holding: &Holding| {
            Placement::fit(0, holding.bytes(), writer.filled, entries::MAX_HEIGHT, payload_bytes)
                .is_some()
        };
        writer.chunks.get(writer.current).is_some_and(fits)
    }

    /// Upper bound on the bytes that an entry takes in a map (header, tower, padding and waste at a
    /// chunk's end included).
    pub fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        writer::room_of(key_bytes + value_bytes)
    }

    /// Excludes other writers until the result is dropped. For many inserts in a row.
    pub fn inserter(&self) -> Inserter<'_> {
        Inserter { map: self, writer: self.lock() }
    }

    /// Like [`Inserter::insert`], for one entry.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn insert(&self, key: &[u8], order: u64, value: &[u8]) -> Result<(), OutOfBudget> {
        self.inserter().insert(key, order, [value, &[]])
    }

    /// Like [`Inserter::defer`], for one entry.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn defer(&self, key: &[u8], order: u64, value: &[u8]) -> Result<(), OutOfBudget> {
        self.inserter().defer(key, order, [value, &[]])
    }

    /// Links the deferred entries: from now on they are found.
    pub fn settle(&self) {
        self.link_deferred(&mut self.lock());
    }

    /// Like [`SortedMap::settle`]; also frees the list of deferred entries. For a map that is kept
    /// but unlikely to get another deferred entry.
    pub fn stop_deferring(&self) {
        let mut writer = self.lock();
        self.link_deferred(&mut writer);
        let deferred = std::mem::take(&mut writer.deferred);
        self.held_bytes.fetch_sub(deferred.held_bytes(), Ordering::Relaxed);
    }

    fn can_defer(&self, writer: &mut Writer) -> bool {
        let held = writer.deferred.held_bytes();
        let has_room = writer.deferred.has_room(&self.budget, self.kind, self.thresholds.deferred);
        self.held_bytes.fetch_add(writer.deferred.held_bytes() - held, Ordering::Relaxed);
        has_room
    }

    fn link_deferred(&self, writer: &mut Writer) {
        let Writer { deferred, gap, .. } = writer;
        // SAFETY: deferred entries were written under the lock that is held.
        let entry_of = |entry| unsafe { self.entries.unlinked(entry) };
        deferred.sort(entry_of);
        // The search paths of so few entries have next to nothing in common.
        let are_few = deferred.len() * DEFERRED_FEW < self.len();
        for at in 0.. {
            let Some(entry) = deferred.get(at) else { break };
            if are_few && at.is_multiple_of(DESCENTS) {
                let keys: [&[u8]; DESCENTS] = std::array::from_fn(|i| {
                    deferred.get(at + i).map_or(&[][..], |entry| entry_of(entry).key)
                });
                self.entries.fetch_paths(&keys[..DESCENTS.min(deferred.len() - at)]);
            } else if let Some(ahead) = deferred.get(at + FETCHED_AHEAD) {
                self.entries.fetch(ahead.at());
            }
            let Entry { key, order, .. } = entry_of(entry);
            if !self.entries.find_gap(gap, &Probe::new(key, order)) {
                // As in `insert`, the existing entry wins.
                self.len.fetch_sub(1, Ordering::Release);
                continue;
            }
            // SAFETY: the lock makes this the only writer; the list of unlinked entries is cleared
            // once all are linked; the gap was just found.
            unsafe { self.entries.link_in(entry, gap) };
        }
        deferred.clear();
    }

    /// Number of entries. A reader that sees this count then finds at least that many entries,
    /// except for deferred ones.
    pub fn len(&self) -> usize {
        // Acquire: pairs with the Release in `insert`.
        self.len.load(Ordering::Acquire)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the chunks held and of the list of deferred entries.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes used by entries.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The first entry at or after (`key`, `order`). `order` = `u64::MAX` finds the first entry of
    /// the key.
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

    /// The next entry.
    pub fn next(&self, position: Position) -> Option<Position> {
        self.entries.next(position)
    }

    /// The previous entry.
    pub fn prev(&self, position: Position) -> Option<Position> {
        let Entry { key, order, .. } = self.at(position);
        self.seek_before(key, order)
    }

    /// The entry itself.
    pub fn at(&self, position: Position) -> Entry<'_> {
        self.entries.entry(position)
    }

    /// Estimates a sum over the entries from (`key`, `order`) `from` up to `to` (`None`: to the
    /// end): calls `weigh` with a sample of them and scales the results. A sum of equal weights
    /// over the whole map is exact; over a part with many entries, the error is about an eighth.
    /// Takes time in proportion to the logarithm of their number.
    pub fn estimate(
        &self,
        from: (&[u8], u64),
        to: Option<(&[u8], u64)>,
        mut weigh: impl FnMut(Entry<'_>) -> f64,
    ) -> f64 {
        let to = to.map(|(key, order)| Probe::new(key, order));
        let mut sum = 0.0;
        let each =
            self.entries.sample(&Probe::new(from.0, from.1), to.as_ref(), SAMPLE_LEAST, |at| {
                sum += weigh(self.at(at))
            });
        sum * each
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no code under this lock panics")
    }

    /// Cuts room for an entry from the current chunk or the next.
    fn place(
        &self,
        writer: &mut Writer,
        height: usize,
        payload_bytes: usize,
    ) -> Result<Placement, OutOfBudget> {
        loop {
            if let Some(holding) = writer.chunks.get(writer.current)
                && let Some((place, end)) = Placement::fit(
                    writer.current,
                    holding.bytes(),
                    writer.filled,
                    height,
                    payload_bytes,
                )
            {
                self.used_bytes.fetch_add((end - writer.filled) as u64, Ordering::Relaxed);
                writer.filled = end;
                return Ok(place);
            }
            let next = if writer.chunks.is_empty() { 0 } else { writer.current + 1 };
            if next == writer.chunks.len() {
                let (_, bytes) = Placement::fit(0, CHUNK_BYTES, 0, height, payload_bytes)
                    .expect("an entry fits a chunk");
                self.add_chunk(writer, bytes)?;
            }
            (writer.current, writer.filled) = (next, 0);
        }
    }

    /// Adds a chunk, or for a small map a piece that has `needed` bytes.
    fn add_chunk(&self, writer: &mut Writer, needed: usize) -> Result<(), OutOfBudget> {
        let index = writer.chunks.len();
        if index == MAX_CHUNKS {
            let needed_bytes = CHUNK_BYTES as u64;
            return Err(OutOfBudget {
                needed_bytes,
                kind: self.kind,
                usage: Box::new(self.budget.usage()),
            });
        }
        let holding = match self.small.get(index).filter(|pieces| needed <= pieces.piece_bytes()) {
            Some(pieces) => Holding::Piece(pieces.take()?),
            None => Holding::Chunk(self.budget.take(self.kind)?),
        };
        let room = self.entries.segment_missing(index);
        if room > 0 {
            let bytes = (Entries::segment_bytes(room) + room * size_of::<Holding>()) as u64;
            match &mut writer.tables {
                Some(tables) => tables.grow(bytes)?,
                none => *none = Some(self.budget.lease(self.kind, bytes)?),
            }
            writer.chunks.reserve_exact(room);
        }
        self.entries.enter_chunk(index, holding.address());
        self.held_bytes.fetch_add(holding.bytes() as u64, Ordering::Relaxed);
        writer.chunks.push(holding);
        Ok(())
    }

    /// Releases the chunks from `keep` on, none of which was written to.
    fn drop_chunks(&self, writer: &mut Writer, keep: usize) {
        for index in keep..writer.chunks.len() {
            self.entries.forget_chunk(index);
        }
        let dropped: usize = writer.chunks.drain(keep..).map(|holding| holding.bytes()).sum();
        self.held_bytes.fetch_sub(dropped as u64, Ordering::Relaxed);
    }
}

impl Inserter<'_> {
    /// Inserts an entry; its value is given in two parts. If the map has an entry with the same key
    /// and order, it keeps that entry and ignores the new one.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn insert(&mut self, key: &[u8], order: u64, value: [&[u8]; 2]) -> Result<(), OutOfBudget> {
        let (map, writer) = (self.map, &mut *self.writer);
        let bytes = payload_bytes(key, value);
        if map.entries.find_gap(&mut writer.gap, &Probe::new(key, order)) {
            let height = writer.draw_height();
            let place = map.place(writer, height, bytes)?;
            // SAFETY: the lock makes this the only writer; the place was just cut from a chunk of
            // the table, and the gap was just found.
            unsafe {
                let entry = map.entries.write(place, key, order, value);
                map.entries.link_in(entry, &mut writer.gap);
            }
            writer.pay_for(height);
            // Release: pairs with the Acquire in `len`, so that a reader that sees the count finds
            // the entry.
            map.len.fetch_add(1, Ordering::Release);
        }
        writer.promised = writer.promised.saturating_sub(writer::room_of(bytes));
        Ok(())
    }

    /// Inserts an entry that is not found before [`SortedMap::settle`]. Linking many entries at
    /// once, in key order, is several times cheaper than linking them one by one in any other
    /// order. A duplicate of an entry in the map, or of another deferred entry, is dropped when the
    /// entries are settled; until then it counts in `len`.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortedMap::MAX_ENTRY_BYTES`].
    pub fn defer(&mut self, key: &[u8], order: u64, value: [&[u8]; 2]) -> Result<(), OutOfBudget> {
        let (map, writer) = (self.map, &mut *self.writer);
        if map.len.load(Ordering::Relaxed) < map.thresholds.defer_from || !map.can_defer(writer) {
            map.link_deferred(writer);
            return self.insert(key, order, value);
        }
        let bytes = payload_bytes(key, value);
        let height = writer.draw_height();
        let place = map.place(writer, height, bytes)?;
        // SAFETY: the lock makes this the only writer; the place was just cut from a chunk of the
        // table.
        let entry = unsafe { map.entries.write(place, key, order, value) };
        writer.deferred.push(key, entry);
        writer.pay_for(height);
        map.len.fetch_add(1, Ordering::Release);
        writer.promised = writer.promised.saturating_sub(writer::room_of(bytes));
        Ok(())
    }

    /// Prefetches the memory that inserts of these keys, in ascending order, are going to touch,
    /// for all keys in parallel. Changes nothing. Intended for large maps and a handful of keys at
    /// a time. Keys right after the last insert need no prefetch.
    pub fn fetch(&self, keys: &[&[u8]]) {
        let (map, gap) = (self.map, &self.writer.gap);
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return };
        if map.len() < map.thresholds.fetched_from || map.entries.is_in_gap(gap, first, last) {
            return;
        }
        keys.chunks(DESCENTS).for_each(|keys| map.entries.fetch_paths(keys));
    }
}

/// Bytes of a key and the parts of its value.
fn payload_bytes(key: &[u8], [head, body]: [&[u8]; 2]) -> usize {
    let bytes = key.len() + head.len() + body.len();
    assert!(
        bytes <= SortedMap::MAX_ENTRY_BYTES,
        "an entry of {} + {} bytes",
        key.len(),
        bytes - key.len()
    );
    bytes
}

impl fmt::Debug for SortedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SortedMap({} entries, {} of {} bytes used)",
            self.len(),
            self.used_bytes(),
            self.held_bytes()
        )
    }
}
