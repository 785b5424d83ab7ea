//! Writes the image of rows: one file for each MiB of a cache queue, rewritten only after changes.
//!
//! The cache stores entries sequentially in two queues, where they keep their places until they
//! move to the young end of a queue. So a full part of a queue only ever loses entries. Its file is
//! written once, and again when an eighth of its rows are gone, when its rows were accessed often
//! since it was written, or when it has become stale. It is stale if a merge has put an eighth of
//! its rows into tables with younger versions, or a younger deletion was dropped from its
//! keyspaces. Entries that leave the cache later do no harm: see `validation`.
//!
//! Rows in lent memory (`rowcache::share`) are left out: the image holds only as many rows as fit
//! into their share of the memory. These are the oldest of each queue, because the files of these
//! stay unchanged.
//!
//! Each process writes its own *generation* next to the files that it found. When it has written
//! all of its own once, it removes the others.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::{Kind as Memory, Lease};
use plimsoll_memory::cache::{Cache, Census, Changes, Copies, QueueKind};

use crate::borders::{Border, hit};
use crate::rowcache::past::is_of_the_past;
use crate::rowcache::warm::{Row, parts_of};
use crate::types::error::Result;
use crate::types::index_key::IndexKey;
use crate::warm::image::{self, Name, NewFile, RowsName, SEGMENT_BYTES_MAX};
use crate::warm::rows::{BodyWriter, Note, OBJECT_BYTES_MAX, Round as Rounds};
use crate::warm::segment::{HEADER_BYTES, Header, Kind, seal};
use crate::warm::validation::shares_table_with_younger;
use crate::warm::{Context, Counts, nanos};

/// If rows become due within this time after pages, they are saved together with them.
const TOGETHER_NANOS: u64 = 1_000_000_000;

/// The part of a queue that one file holds, in words of 8 bytes: together 1 MiB.
const PLACES_OF_A_FILE: u64 = (1 << 20) / 8;

/// Divisor of the number of a file's rows: the file is rewritten when more rows than the quotient
/// are gone or, in a sample, stale.
const GONE_PART: u32 = 8;

/// Divisor of the number of a file's rows: the file is rewritten when its rows were accessed more
/// often than the quotient since it was written.
const TOUCHED_PART: u32 = 2;

/// Sampling interval when estimating how much of a file is stale.
const SAMPLE: usize = 16;

/// The most keyspaces tracked for a file; a file with more counts as having all keyspaces.
const KEYSPACES_MAX: usize = 8;

/// Set in the file numbers of the probation queue.
const NEW: u32 = 1 << 31;

/// The most parts of a queue that a step examines.
const PARTS_AT_ONCE: u64 = 16;

/// Bytes charged to the allowance for examining a part.
const EXAMINED_PART_BYTES: u64 = 128 << 10;

/// The schedule of the image of rows, and the known state of the one on disk.
#[derive(Debug)]
pub(super) struct RowsSaver {
    due: u64,
    own: Option<Own>,
    round: Option<Round>,
}

/// The files that this process has written.
#[derive(Debug)]
struct Own {
    /// The cache that they were written from; with another cache the image starts again.
    cache: Weak<Cache>,
    generation: u32,
    /// By number.
    files: BTreeMap<u32, OnDisk>,
    /// Files of other generations, the least valuable last.
    others: Vec<(RowsName, u64)>,
    /// The cache's change counts, the manifest number and the position at the end of the last
    /// complete round.
    complete: Option<(Changes, u64, Position)>,
    lease: Lease,
}

/// A file that was written.
#[derive(Clone, Debug)]
struct OnDisk {
    /// The places that it covers.
    places: Range<u64>,
    /// Counts of its contents.
    census: Census,
    at: Glsn,
    bytes: u64,
    /// The keyspaces of its keys; `None` if there are many.
    keyspaces: Option<Vec<u32>>,
}

/// A pass over the cache in progress.
#[derive(Debug)]
struct Round {
    cache: Arc<Cache>,
    changes: Changes,
    manifest: u64,
    position: Position,
    /// The remaining part of each queue.
    left: [(QueueKind, Range<u64>); 2],
    seen: Vec<u32>,
    wrote: bool,
}

/// The result for a file.
enum Made {
    /// The file on disk is current, or there is nothing to write.
    Same,
    /// It was written; its bytes.
    Wrote(u64),
}

/// Bytes leased for each file's metadata.
const BYTES_OF_A_FILE: u64 = 256;

impl RowsSaver {
    /// The first round is due at `due`, by the monotonic clock.
    pub(super) fn new(due: u64) -> Self {
        Self { due, own: None, round: None }
    }

    /// The time at which the next work is due.
    pub(super) fn due(&self) -> u64 {
        if self.round.is_some() { 0 } else { self.due }
    }

    /// Called when pages are saved. If rows would be due a little later, makes them due now, so
    /// that their thread wakes once for both.
    pub(super) fn bring_forward(&mut self, now: u64) {
        if self.due.saturating_sub(now) < TOGETHER_NANOS {
            self.due = self.due.min(now);
        }
    }

    /// Starts a round, or continues one until a file was written; returns the bytes charged to the
    /// allowance.
    pub(super) fn step(&mut self, context: &Context, counts: &Counts, now: u64) -> Result<u64> {
        let used = self.run_step(context, counts);
        if self.round.is_none() {
            self.due = now.saturating_add(nanos(context.interval));
        }
        used
    }

    /// Writes the changes as long as `is_time` returns true; remaining parts keep their files.
    pub(super) fn finish(
        &mut self,
        context: &Context,
        counts: &Counts,
        is_time: &dyn Fn() -> bool,
    ) -> Result<()> {
        // Discard the round in progress, because its position is older than that of a new one.
        self.round = None;
        loop {
            self.run_step(context, counts)?;
            if self.round.is_none() || !is_time() {
                return Ok(());
            }
        }
    }

    fn run_step(&mut self, context: &Context, counts: &Counts) -> Result<u64> {
        let used = self.make_some(context, counts);
        if used.is_err() {
            // Make the next step read the files on disk again.
            (self.own, self.round) = (None, None);
        }
        used
    }

    fn make_some(&mut self, context: &Context, counts: &Counts) -> Result<u64> {
        // If the cache was replaced or emptied, the rest of the round has nothing to examine.
        let is_over = |round: &mut Round| {
            let now = context.row_cache.warm_cache();
            now.is_none_or(|now| !Arc::ptr_eq(&now, &round.cache)) || round.cache.is_empty()
        };
        self.round.take_if(is_over);
        if self.round.is_none() {
            self.round = self.begin(context)?;
        }
        let (Some(round), Some(own)) = (&mut self.round, &mut self.own) else { return Ok(0) };
        for looks in 1..=PARTS_AT_ONCE {
            let Some((number, queue_kind, places)) = round.next() else {
                own.end(context, round)?;
                self.round = None;
                return Ok(looks * EXAMINED_PART_BYTES);
            };
            if let Made::Wrote(bytes) = own.make(context, round, number, queue_kind, places)? {
                round.wrote = true;
                counts
                    .segments
                    .fetch_add(bytes.div_ceil(SEGMENT_BYTES_MAX as u64), Ordering::Relaxed);
                counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                return Ok(bytes + looks * EXAMINED_PART_BYTES);
            }
        }
        Ok(PARTS_AT_ONCE * EXAMINED_PART_BYTES)
    }

    /// Decides whether a round is needed.
    fn begin(&mut self, context: &Context) -> Result<Option<Round>> {
        // Read the position before the cache is looked up: the current cache was notified of every
        // flush up to this position. A cache that was replaced is not notified any more.
        let told = context.index.runs.rows_invalidated_upto(context.sequencer.applied())?;
        let (position, manifest) = (told, context.index.runs.manifest_number());
        #[cfg(test)]
        tests::between();
        let (Some(position), Some(cache)) = (position, context.row_cache.warm_cache()) else {
            return Ok(None);
        };
        let changes = cache.changes();
        if position.glsn == Glsn::NONE || cache.is_empty() {
            return Ok(None);
        }
        let there = image::list_rows(&*context.disk, &context.dir)?;
        if self
            .own
            .as_ref()
            .is_none_or(|own| !std::ptr::eq(own.cache.as_ptr(), Arc::as_ptr(&cache)))
        {
            image::remove_unfinished(&*context.disk, &context.dir)?;
            self.own = Some(Own::new(context, &cache, &there)?);
        }
        let own = self.own.as_mut().expect("it was just made");
        own.compare_with_disk(&there);
        if own.complete == Some((changes, manifest, position)) {
            return Ok(None);
        }
        let mut words = context.row_cache.share_bytes() / 8;
        let left = [QueueKind::Protected, QueueKind::Probation].map(|queue_kind| {
            let places = cache.places(queue_kind);
            let end = places.end.min(places.start + words);
            words -= end - places.start;
            (queue_kind, places.start..end)
        });
        Ok(Some(Round { cache, changes, manifest, position, left, seen: Vec::new(), wrote: false }))
    }
}

impl Round {
    /// The next part of a queue: the number of its file, and its places.
    fn next(&mut self) -> Option<(u32, QueueKind, Range<u64>)> {
        let (queue_kind, left) = self.left.iter_mut().find(|(_, left)| left.start < left.end)?;
        let part = left.start / PLACES_OF_A_FILE;
        let places = left.start..left.end.min((part + 1) * PLACES_OF_A_FILE);
        let number =
            part as u32 & (NEW - 1) | if *queue_kind == QueueKind::Probation { NEW } else { 0 };
        Some((number, *queue_kind, places))
    }

    /// Records that a part of a queue was examined; the first entry after the part begins at
    /// `next`.
    fn pass(&mut self, queue_kind: QueueKind, next: u64) {
        let of = |(left, _): &&mut (QueueKind, Range<u64>)| *left == queue_kind;
        let (_, left) = self.left.iter_mut().find(of).expect("there are two");
        left.start = next;
    }
}

impl Own {
    fn new(context: &Context, cache: &Arc<Cache>, there: &[(RowsName, u64)]) -> Result<Self> {
        let newest = there.iter().map(|(name, _)| name.generation).max();
        let generation = newest.map_or(0, |newest| newest.wrapping_add(1));
        let lease = context.budget.lease(Memory::Metadata, there.len() as u64 * BYTES_OF_A_FILE)?;
        Ok(Self {
            cache: Arc::downgrade(cache),
            generation,
            files: BTreeMap::new(),
            others: there.to_vec(),
            complete: None,
            lease,
        })
    }

    fn name(&self, number: u32) -> RowsName {
        RowsName { generation: self.generation, number }
    }

    /// Forgets files that are no longer on disk as written.
    fn compare_with_disk(&mut self, there: &[(RowsName, u64)]) {
        let before = self.files.len();
        let generation = self.generation;
        self.files
            .retain(|&number, file| is_there(there, RowsName { generation, number }, file.bytes));
        let gone = before - self.files.len();
        if gone > 0 {
            self.complete = None;
            self.lease.shrink(gone as u64 * BYTES_OF_A_FILE);
        }
    }

    /// Makes the file for a part of a queue current.
    fn make(
        &mut self,
        context: &Context,
        round: &mut Round,
        number: u32,
        queue_kind: QueueKind,
        places: Range<u64>,
    ) -> Result<Made> {
        let (census, next) =
            round.cache.count_entries(queue_kind, places.clone(), OBJECT_BYTES_MAX);
        round.pass(queue_kind, next);
        if census.entries == 0 {
            return Ok(Made::Same);
        }
        round.seen.push(number);
        let places = places.start..next;
        if let Some(file) = self.files.get(&number)
            && file.is_recent_enough(&places, census)
            && (file.at >= round.position.glsn || !file.is_stale(context, round, queue_kind)?)
        {
            return Ok(Made::Same);
        }
        let before = self.files.get(&number).map_or(0, |file| file.bytes);
        if !self.make_room(context, places.end - places.start, before)? {
            return Ok(Made::Same);
        }
        if !self.files.contains_key(&number) {
            self.lease.grow(BYTES_OF_A_FILE)?;
        }
        let file = write(context, round, self.name(number), queue_kind, places, census)?;
        let bytes = file.bytes;
        self.files.insert(number, file);
        Ok(Made::Wrote(bytes))
    }

    /// Removes files of other generations until the disk share has room for a file for this many
    /// places, replacing one of `before` bytes: all files together never exceed the budget. Returns
    /// false if there is no room.
    fn make_room(&mut self, context: &Context, places: u64, before: u64) -> io::Result<bool> {
        // Allow for unused space, because a segment ends before the first row that does not fit.
        let wanted = places * 8 / 4 * 5 + 2 * SEGMENT_BYTES_MAX as u64;
        let own: u64 = self.files.values().map(|file| file.bytes).sum();
        let mut others: u64 = self.others.iter().map(|(_, bytes)| bytes).sum();
        while own - before + others + wanted > context.budget.limit_bytes() {
            let Some((name, bytes)) = self.others.pop() else { return Ok(false) };
            image::remove(&*context.disk, &context.dir, Name::Rows(name))?;
            others -= bytes;
        }
        Ok(true)
    }

    /// Ends a complete round: removes files that are no longer needed.
    fn end(&mut self, context: &Context, round: &mut Round) -> io::Result<()> {
        round.seen.sort_unstable();
        let is_gone = |number: &u32| round.seen.binary_search(number).is_err();
        let gone: Vec<_> =
            self.files.keys().copied().filter(is_gone).map(|number| self.name(number)).collect();
        self.files.retain(|number, _| !is_gone(number));
        self.lease.shrink(gone.len() as u64 * BYTES_OF_A_FILE);
        if round.wrote {
            // Sync the names before other files are removed, because a power failure may keep the
            // removals and lose the renames.
            context.disk.sync_dir(&context.dir)?;
        }
        let others = self.others.drain(..).map(|(name, _)| name);
        for name in gone.into_iter().chain(others) {
            image::remove(&*context.disk, &context.dir, Name::Rows(name))?;
            round.wrote = true;
        }
        if round.wrote {
            context.disk.sync_dir(&context.dir)?;
        }
        self.complete = Some((round.changes, round.manifest, round.position));
        Ok(())
    }
}

/// Whether a list of files, as [`image::list_rows`] sorts it, has this file with this length.
fn is_there(there: &[(RowsName, u64)], name: RowsName, bytes: u64) -> bool {
    let key = |name: &RowsName| (std::cmp::Reverse(name.generation), name.number);
    let at = there.binary_search_by_key(&key(&name), |(name, _)| key(name));
    at.is_ok_and(|at| there[at].1 == bytes)
}

impl OnDisk {
    /// Whether a large part of the file would be skipped if it were restored now. Reads no page.
    fn is_stale(&self, context: &Context, round: &Round, queue_kind: QueueKind) -> Result<bool> {
        let view = context.index.sources.view();
        let dropped = match &self.keyspaces {
            Some(keyspaces) => {
                keyspaces.iter().map(|&keyspace| view.deletions_dropped_in(keyspace)).max()
            }
            None => view.limits.deletions_dropped_in.iter().map(|(_, glsn)| *glsn).max(),
        };
        if dropped.is_some_and(|dropped| dropped > self.at) {
            return Ok(true);
        }
        if view.runs.iter().all(|run| run.max_glsn() <= self.at) {
            return Ok(false);
        }
        let _lease = context.budget.lease(Memory::Staging, SEGMENT_BYTES_MAX as u64 * 3 / 2)?;
        let mut copies = Copies::with_room(SEGMENT_BYTES_MAX);
        let (mut asked, mut stale) = (0, 0);
        let mut at = self.places.start;
        while at < self.places.end {
            at = round.cache.copy_entries(queue_kind, at..self.places.end, &mut copies);
            for copied in copies.iter().step_by(SAMPLE).filter(|copied| !is_of_the_past(copied.key))
            {
                let Some((version, ..)) =
                    parts_of(copied.value).filter(|(version, ..)| *version <= self.at)
                else {
                    continue;
                };
                asked += 1;
                stale += u32::from(shares_table_with_younger(&view, copied.key, version, self.at));
            }
        }
        Ok(stale > asked / GONE_PART)
    }

    /// Whether the file is still good enough for these places, given their current contents.
    fn is_recent_enough(&self, places: &Range<u64>, now: Census) -> bool {
        let of = self.census;
        let gone = of.entries.saturating_sub(now.entries);
        let warmed = now.touches.saturating_sub(of.touches);
        self.places.end == places.end
            && self.places.start <= places.start
            && now.entries <= of.entries
            && gone <= of.entries / GONE_PART
            && warmed <= of.entries / TOUCHED_PART
    }
}

/// Writes a file.
fn write(
    context: &Context,
    round: &Round,
    name: RowsName,
    queue_kind: QueueKind,
    places: Range<u64>,
    census: Census,
) -> Result<OnDisk> {
    let disk = &*context.disk;
    let chunk = context.budget.take(Memory::Staging)?;
    let _lease = context.budget.lease(Memory::Staging, SEGMENT_BYTES_MAX as u64 * 3 / 2)?;
    let header = Header {
        kind: Kind::Rows,
        log_id: context.log.id(),
        position: round.position,
        entries: 0,
        note: 0,
    };
    let mut writer = FileWriter {
        file: NewFile::begin(disk, &context.dir, Name::Rows(name))?,
        name,
        header,
        chunk,
        filled: 0,
        place: 0,
        bytes: 0,
    };
    let mut keyspaces = Some(Vec::new());
    let mut copies = Copies::with_room(SEGMENT_BYTES_MAX);
    for when in Rounds::ALL {
        writer.header.note = Note { share: context.row_cache.share() as u8, round: when }.encode();
        let mut at = places.start;
        while at < places.end {
            // Load the view before the copy, because rows that a range deletion hides leave the
            // cache before the range deletion leaves the view.
            let view = context.index.sources.view();
            let next = round.cache.copy_entries(queue_kind, at..places.end, &mut copies);
            for copied in copies.iter().filter(|copied| Rounds::of(copied.touches) == when) {
                let Some((glsn, expiry, value)) = parts_of(copied.value) else { continue };
                let bytes = copied.key.len() + copied.value.len();
                // Leave out a row that a flush after this file's position has put into the cache,
                // and a row that a range deletion hides, because the range deletion may be gone
                // when the row is restored.
                if glsn > round.position.glsn
                    || view.ranges.newest_over(copied.key, Glsn::MAX) > glsn
                    || bytes > OBJECT_BYTES_MAX
                    || copied.key.len() < 4
                    || is_of_the_past(copied.key)
                {
                    continue;
                }
                note_keyspace(&mut keyspaces, copied.key);
                let (key, touches) = (copied.key, copied.touches);
                writer.push(&Row { key, glsn, expiry, value, touches })?;
            }
            at = next;
        }
        writer.end_segment(when.next().is_none())?;
    }
    hit(Border::ImageMade);
    let bytes = writer.bytes;
    if bytes == 0 {
        writer.file.forget(disk)?;
    } else {
        writer.file.finish(disk)?;
    }
    Ok(OnDisk { places, census, at: round.position.glsn, bytes, keyspaces })
}

fn note_keyspace(keyspaces: &mut Option<Vec<u32>>, key: &[u8]) {
    let Some(known) = keyspaces else { return };
    let Some((keyspace, _)) = IndexKey::new(key).split() else { return };
    if !known.contains(&keyspace) {
        known.push(keyspace);
        if known.len() > KEYSPACES_MAX {
            *keyspaces = None;
        }
    }
}

/// A file that is being written, segment by segment.
struct FileWriter {
    file: NewFile,
    name: RowsName,
    header: Header,
    chunk: plimsoll_memory::chunk::Chunk,
    /// Bytes of the body written so far.
    filled: usize,
    place: u32,
    bytes: u64,
}

impl FileWriter {
    fn push(&mut self, row: &Row<'_>) -> io::Result<()> {
        let push = |chunk: &mut [u8], filled| {
            BodyWriter::new(&mut chunk[HEADER_BYTES..], filled).push(row)
        };
        let filled = match push(&mut self.chunk, self.filled) {
            Some(filled) => filled,
            None => {
                self.end_segment(false)?;
                push(&mut self.chunk, 0).expect("a row that is kept fits into an empty segment")
            }
        };
        self.filled = filled;
        self.header.entries += 1;
        Ok(())
    }

    /// Writes the segment, if it is not empty: at full size, unless it is the last of its file.
    fn end_segment(&mut self, is_last: bool) -> io::Result<()> {
        if self.header.entries == 0 {
            return Ok(());
        }
        let len = if is_last { HEADER_BYTES + self.filled } else { SEGMENT_BYTES_MAX };
        self.chunk[HEADER_BYTES + self.filled..len].fill(0);
        seal(&self.header, self.name.segment_number(self.place), &mut self.chunk[..len]);
        self.file.write(&self.chunk[..len], u64::from(self.place) * SEGMENT_BYTES_MAX as u64)?;
        self.bytes = u64::from(self.place) * SEGMENT_BYTES_MAX as u64 + len as u64;
        self.place += 1;
        (self.filled, self.header.entries) = (0, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use plimsoll_disk::lying::LyingDisk;

    use super::*;
    use crate::api::snapshot::Snapshot;
    use crate::engine::Engine;
    use crate::txn::transaction::Transaction;
    use crate::warm::test_store::{default, open};

    thread_local! {
        /// Run once by this thread between reading the log position and looking up the cache.
        static BETWEEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn between() {
        if let Some(act) = BETWEEN.take() {
            act();
        }
    }

    fn put(store: &Arc<Engine>, value: &[u8]) {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&default(store), b"key", value).unwrap();
        tx.commit().unwrap();
        store.flush().unwrap();
    }

    fn get(store: &Arc<Engine>) -> Vec<u8> {
        Snapshot::newest(store).get(&default(store), b"key").unwrap().unwrap().to_vec()
    }

    /// Writes an image of rows; returns the bytes written.
    fn save(store: &Arc<Engine>) -> u64 {
        let core = &store.maintenance.warm.as_ref().unwrap().core;
        let before = core.counts.bytes.load(Ordering::Relaxed);
        RowsSaver::new(0).finish(&core.context, &core.counts, &|| true).unwrap();
        core.counts.bytes.load(Ordering::Relaxed) - before
    }

    /// Restarts after a kill; returns the value of the key under test and the number of restored
    /// rows.
    fn after_a_kill(disk: &LyingDisk) -> (Vec<u8>, u64) {
        let store = open(&disk.snapshot());
        let warm = store.maintenance.warm.as_ref().unwrap();
        warm.step();
        (get(&store), warm.stats().rows_restored)
    }

    #[test]
    fn a_cache_replaced_before_the_flush_of_the_images_position_is_not_saved() {
        let disk = LyingDisk::new(1);
        let store = open(&disk);
        put(&store, b"old");
        store.maintenance.pool.clear();
        assert_eq!(get(&store), b"old");
        assert!(save(&store) > 0);
        assert_eq!(after_a_kill(&disk), (b"old".to_vec(), 1), "a saved row is restored");
        image::remove_rows(&disk, Path::new("/store/warm")).unwrap();

        let (other, before) = (Arc::clone(&store), store.reader.row_cache.warm_cache().unwrap());
        BETWEEN.set(Some(Box::new(move || {
            // The cache is replaced, and then younger versions arrive, of which the old cache is
            // not notified. It is emptied only later (`resize_row_cache`).
            let exchange =
                other.reader.row_cache.resize(256 << 20).expect("the tables are far too small");
            let _not_emptied_yet = other.reader.row_cache.exchange(exchange);
            assert!(!Arc::ptr_eq(&other.reader.row_cache.warm_cache().unwrap(), &before));
            put(&other, b"new");
        })));
        assert_eq!(save(&store), 0, "the new cache has nothing to save");
        assert!(BETWEEN.take().is_none(), "the hook was called");
        assert_eq!(after_a_kill(&disk), (b"new".to_vec(), 0));
    }

    #[test]
    fn a_row_that_a_range_deletion_hides_is_not_saved() {
        let disk = LyingDisk::new(1);
        let store = open(&disk);
        let space = default(&store);
        let commit = |act: &dyn Fn(&mut Transaction)| {
            let mut tx = Transaction::new(&store.committer);
            act(&mut tx);
            tx.commit().unwrap();
            store.flush().unwrap();
        };
        commit(&|tx| {
            (0..200u8).for_each(|number| tx.put(&space, [b'k', number], b"old").unwrap());
        });
        let read = |store: &Arc<Engine>, number: u8| {
            let space = default(store);
            Snapshot::newest(store).get(&space, &[b'k', number]).unwrap().is_some()
        };
        store.maintenance.pool.clear();
        assert!(read(&store, 7));
        store.maintenance.pool.clear();
        assert!(read(&store, 190));
        assert_eq!(store.reader.row_cache.warm_cache().unwrap().stats().entries, 2);
        commit(&|tx| tx.delete_range(&space, [b'k', 0]..[b'k', 180]).unwrap());
        commit(&|tx| tx.put(&space, b"elsewhere", b"").unwrap());
        assert_eq!(store.reader.index.sources.view().ranges.len(), 1, "it is not absorbed");
        assert!(save(&store) > 0);
        store.reader.index.compaction.run_all(Glsn::MAX).unwrap();
        assert!(store.reader.index.sources.view().ranges.is_empty(), "it is absorbed");

        let store = open(&disk.snapshot());
        let warm = store.maintenance.warm.as_ref().unwrap();
        warm.step();
        assert_eq!((read(&store, 7), read(&store, 190)), (false, true));
        assert_eq!(warm.stats().rows_restored, 1);
    }
}
