//! Tests of the row cache against the pages: the race that would keep a stale value for ever,
//! moments, deletions, and all of these together.

mod concurrency;
mod lent_memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::Restored;
use plimsoll_memory::cache::Stopped::NotCurrent;
use plimsoll_memory::pool::Pool;

use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::Engine;
use crate::engine::open::open;
use crate::engine::work_steps;
use crate::index::sources::view::View;
use crate::read::point::find;
use crate::rowcache::large::LARGE_BYTES;
use crate::rowcache::warm::Row;
use crate::rowcache::{RowCache, share};
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::Keyspace;
use crate::types::options::Options;
use crate::types::version::Stored;

fn default(store: &Engine) -> Keyspace {
    store.reader.keyspaces.find("default").unwrap().0
}

fn store_in(dir: &tempfile::TempDir, options: Options) -> Arc<Engine> {
    open(&dir.path().join("store"), options).unwrap()
}

fn options() -> Options {
    Options::new().memory_bytes(64 << 20)
}

fn put(store: &Arc<Engine>, key: &[u8], value: &[u8]) -> u64 {
    let mut tx = Transaction::new(&store.committer);
    tx.put(&default(store), key, value).unwrap();
    tx.commit().unwrap().0
}

fn get(store: &Arc<Engine>, key: &[u8]) -> Option<Vec<u8>> {
    Snapshot::newest(store).get(&default(store), key).unwrap().map(|value| value.to_vec())
}

fn get_at(store: &Arc<Engine>, key: &[u8], at: u64) -> Option<Vec<u8>> {
    let snapshot = Snapshot::of(store, Moment::Glsn(Glsn(at))).unwrap();
    snapshot.get(&default(store), key).unwrap().map(|value| value.to_vec())
}

fn index_key(key: &[u8]) -> Vec<u8> {
    KeyBuffer::new(1, key).unwrap().get().to_vec()
}

/// The cached value of a key for the newest moment, ignoring memtables.
fn kept(store: &Arc<Engine>, key: &[u8]) -> Option<Vec<u8>> {
    let (key, at) = (index_key(key), AsOf::unexpiring(Glsn::MAX));
    let answer = store.reader.row_cache.handle().get(&key, at, &store.reader.budget).unwrap();
    answer.and_then(|answer| answer.noted(&key, at)).map(|(value, _)| value.to_vec())
}

/// Takes all free memory except this many bytes.
fn take_memory(store: &Engine, left_bytes: u64) -> plimsoll_memory::budget::Lease {
    let budget = &store.reader.budget;
    budget.lease(plimsoll_memory::budget::Kind::Sort, budget.free_bytes() - left_bytes).unwrap()
}

/// Reads a key with no page in memory, so that a row is inserted.
fn enter(store: &Arc<Engine>, key: &[u8]) {
    store.maintenance.pool.clear();
    let value = get(store, key);
    assert!(kept(store, key) == value, "it was loaded, so it is kept");
}

/// A read that has loaded the value to insert, and is suspended there.
struct Stopped {
    view: Arc<View>,
    missed: bool,
    glsn: Glsn,
    value: Vec<u8>,
}

impl Stopped {
    fn read(store: &Arc<Engine>, key: &[u8]) -> Self {
        store.maintenance.pool.clear();
        Self::read_as_it_is(store, key)
    }

    fn read_as_it_is(store: &Arc<Engine>, key: &[u8]) -> Self {
        let view = store.reader.index.sources.view();
        let hit = find(&view, &index_key(key), AsOf::unexpiring(store.visible())).unwrap().unwrap();
        assert!(hit.is_newest_in_runs());
        let mut value = Default::default();
        let missed =
            store.reader.load(hit.glsn(), hit.stored(), &mut value).unwrap() || hit.is_miss();
        let glsn = hit.glsn();
        drop(hit);
        Self { view, missed, glsn, value: value.to_vec() }
    }

    fn resume(self, store: &Arc<Engine>, key: &[u8]) {
        store.reader.row_cache.fill(
            (self.view.set, &self.view.rows),
            self.missed,
            &index_key(key),
            (self.glsn, None),
            &self.value,
        );
    }
}

#[test]
fn a_value_loaded_before_a_younger_one_entered_the_runs_is_not_cached() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    put(&store, b"k", b"old");
    store.flush().unwrap();
    // Load, commit, flush, insert.
    let stopped = Stopped::read(&store, b"k");
    put(&store, b"k", b"new");
    store.flush().unwrap();
    stopped.resume(&store, b"k");
    assert_eq!((kept(&store, b"k"), get(&store, b"k")), (None, Some(b"new".to_vec())));
    // Load, commit, insert, flush: the old value is inserted, is valid while the younger one is
    // above the runs, and is then replaced by it.
    let stopped = Stopped::read(&store, b"k");
    put(&store, b"k", b"newest");
    stopped.resume(&store, b"k");
    assert_eq!(
        (kept(&store, b"k"), get(&store, b"k")),
        (Some(b"new".to_vec()), Some(b"newest".to_vec()))
    );
    store.flush().unwrap();
    assert_eq!(
        (kept(&store, b"k"), get(&store, b"k")),
        (Some(b"newest".to_vec()), Some(b"newest".to_vec()))
    );
}

#[test]
fn fills_are_rejected_before_the_keys_are_superseded() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    put(&store, b"k", b"old");
    store.flush().unwrap();
    let (early, late) = (Stopped::read(&store, b"k"), Stopped::read(&store, b"k"));
    let next = early.view.set + 1;
    early.resume(&store, b"k");
    assert!(store.reader.row_cache.begin_runs(next), "there is an entry to supersede");
    store.reader.row_cache.supersede(
        &index_key(b"k"),
        Glsn(9),
        crate::types::version::Stored::Deleted,
    );
    late.resume(&store, b"k");
    assert_eq!(kept(&store, b"k"), None);
}

#[test]
fn a_row_of_an_image_is_not_restored_once_a_younger_version_entered_the_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    put(&store, b"k", b"old");
    store.flush().unwrap();
    let restore_entries = |view: &Arc<View>| {
        let keys = [index_key(b"j"), index_key(b"k"), index_key(b"l")];
        let row = |key| Row { key, glsn: Glsn(1), expiry: None, value: b"old", touches: 0 };
        let rows: Vec<_> = keys.iter().map(|key| row(key)).collect();
        store.reader.row_cache.restore_entries((view.set, &view.rows), &rows)
    };
    let view = store.reader.index.sources.view();
    assert_eq!(restore_entries(&view), Restored { entered: 3, stopped: None });
    assert_eq!(kept(&store, b"k"), Some(b"old".to_vec()));
    work_steps::drop_caches(&store);
    // Take the view, commit and flush, and then restore by that view.
    let view = store.reader.index.sources.view();
    put(&store, b"k", b"new");
    store.flush().unwrap();
    assert_eq!(restore_entries(&view), Restored { entered: 0, stopped: Some(NotCurrent) });
    assert_eq!((kept(&store, b"k"), get(&store, b"k")), (None, Some(b"new".to_vec())));
    assert_eq!(
        (kept(&store, b"j"), kept(&store, b"l")),
        (None, None),
        "all rows of a group or none"
    );
}

#[test]
fn a_moment_before_the_cached_version_is_answered_by_the_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let first = put(&store, b"k", b"first");
    put(&store, b"other", b"x");
    let second = put(&store, b"k", b"second");
    put(&store, b"other", b"y");
    store.flush().unwrap();
    enter(&store, b"k");
    let answers = [0, first, first + 1, second, second + 1].map(|at| get_at(&store, b"k", at));
    let [first, second] = [b"first".as_slice(), b"second"].map(|value| Some(value.to_vec()));
    assert_eq!(answers, [None, first.clone(), first, second.clone(), second]);
    assert_eq!(
        kept(&store, b"k").as_deref(),
        Some(&b"second"[..]),
        "reading an older moment has changed nothing"
    );
}

#[test]
fn reads_of_older_moments_insert_only_newest_versions() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let first = put(&store, b"k", b"first");
    store.flush().unwrap();
    put(&store, b"k", b"second");
    store.flush().unwrap();
    store.maintenance.pool.clear();
    assert_eq!(get_at(&store, b"k", first).as_deref(), Some(&b"first"[..]));
    assert_eq!(kept(&store, b"k"), None);
}

#[test]
fn values_changed_by_a_spilled_transaction_or_a_deletion_are_not_cached() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let value = |of: u8| vec![of; 900];
    let keys: Vec<[u8; 4]> = (0..20_000u32).map(u32::to_be_bytes).collect();
    put(&store, &keys[5], &value(1));
    put(&store, &keys[6], &value(1));
    store.flush().unwrap();
    enter(&store, &keys[5]);
    enter(&store, &keys[6]);
    let mut tx = Transaction::new(&store.committer);
    keys.iter().for_each(|key| tx.put(&default(&store), key, &value(2)).unwrap());
    tx.commit().unwrap();
    assert!(
        store.reader.index.stats().memtable_bytes < 2 << 20,
        "it was spilled, and its runs adopted"
    );
    assert_eq!(get(&store, &keys[5]), Some(value(2)), "while its runs are above the others");
    store.flush().unwrap();
    assert_eq!((kept(&store, &keys[5]), get(&store, &keys[5])), (None, Some(value(2))));
    enter(&store, &keys[6]);
    let mut tx = Transaction::new(&store.committer);
    tx.delete(&default(&store), &keys[6]).unwrap();
    tx.commit().unwrap();
    assert_eq!(get(&store, &keys[6]), None);
    store.flush().unwrap();
    assert_eq!((kept(&store, &keys[6]), get(&store, &keys[6])), (None, None));
}

#[test]
fn values_of_the_log_are_cached_whole_and_large_ones_are_charged_while_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let mut random = Random::new(7);
    let mut bytes = |count| (0..count).map(|_| random.below(256) as u8).collect::<Vec<_>>();
    let (middle, large) = (bytes(5000), bytes(100_000));
    put(&store, b"middle", &middle);
    put(&store, b"large", &large);
    store.flush().unwrap();
    enter(&store, b"middle");
    // A large share, so that a large row is within its limit.
    store.reader.row_cache.share_of(48);
    enter(&store, b"large");
    let before = store.reader.budget.usage().of(plimsoll_memory::budget::Kind::Staging);
    let value = Snapshot::newest(&store).get(&default(&store), b"large").unwrap().unwrap();
    assert_eq!(value, large[..]);
    let charged = store.reader.budget.usage().of(plimsoll_memory::budget::Kind::Staging) - before;
    assert!((large.len()..large.len() + (16 << 10)).contains(&(charged as usize)), "{charged}");
    let stats = store.reader.row_cache.stats().unwrap().0;
    assert!(stats.entries == 2, "{stats:?}");
}

#[test]
fn a_hit_is_counted_once_and_only_if_a_row_answered() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let hits = || store.reader.row_cache.stats().unwrap().0.hits;
    store.reader.row_cache.share_of(48);
    let first = put(&store, b"k", &[1; 100_000]);
    put(&store, b"k", &[2; 100_000]);
    store.flush().unwrap();
    store.maintenance.pool.clear();
    get(&store, b"k").unwrap();
    let before = hits();
    get(&store, b"k").unwrap();
    assert_eq!(hits(), before + 1, "memory for a large value is reserved between two accesses");
    assert_eq!(get_at(&store, b"k", first), Some(vec![1; 100_000]));
    assert_eq!(hits(), before + 1, "the row is younger than the moment");
    assert!(Snapshot::newest(&store).contains_key(&default(&store), b"k").unwrap());
    assert_eq!(hits(), before + 2);
}

#[test]
fn page_loads_of_other_threads_create_no_row_for_a_resident_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let mut tx = Transaction::new(&store.committer);
    (0..2000u32).for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &[7; 200]).unwrap());
    tx.commit().unwrap();
    store.flush().unwrap();
    let _taken = take_memory(&store, 4 << 20);
    store.maintenance.pool.clear();
    get(&store, &0u32.to_be_bytes()).unwrap();
    store.reader.row_cache.clear();
    let stopped = Stopped::read_as_it_is(&store, &0u32.to_be_bytes());
    let before = store.maintenance.pool.loads();
    let other = Arc::clone(&store);
    spawn("other", move || _ = get(&other, &1999u32.to_be_bytes()).unwrap())
        .unwrap()
        .join()
        .unwrap();
    assert!(
        store.maintenance.pool.loads() > before && kept(&store, &1999u32.to_be_bytes()).is_some()
    );
    stopped.resume(&store, &0u32.to_be_bytes());
    assert_eq!(kept(&store, &0u32.to_be_bytes()), None);
}

#[test]
fn a_value_evicts_only_a_small_part_of_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    let large = 600_000;
    put(&store, b"large", &vec![1; large]);
    let keys = 0..12_000u32;
    let mut tx = Transaction::new(&store.committer);
    keys.clone().for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &[7; 200]).unwrap());
    tx.commit().unwrap();
    store.flush().unwrap();
    let _taken = take_memory(&store, 4 << 20);
    let view = store.reader.index.sources.view();
    for key in keys {
        store.reader.row_cache.fill(
            (view.set, &view.rows),
            true,
            &index_key(&key.to_be_bytes()),
            (Glsn(1), None),
            &[7; 200],
        );
    }
    let before = store.reader.row_cache.stats().unwrap().0;
    assert!(before.evictions > 0, "they are full: {before:?}");
    store.maintenance.pool.clear();
    assert_eq!(get(&store, b"large").map(|value| value.len()), Some(large));
    let after = store.reader.row_cache.stats().unwrap().0;
    assert!(after.live_bytes > before.live_bytes / 16 * 15, "{before:?}, {after:?}");
}

#[test]
fn rows_regain_their_share_after_a_failed_reduction_of_the_budget() {
    let disk = LyingDisk::new(1);
    let world = options().background(false).memory_bytes(256 << 20).memtable_bytes(64 << 20);
    let world = world.world(Arc::new(disk.clone()), Arc::new(ManualClock::new(1)));
    let store = open(std::path::Path::new("/store"), world).unwrap();
    let limit = || store.reader.row_cache.stats().unwrap().0.limit_bytes;
    let before = limit();
    for first in (0..100_000u32).step_by(200) {
        let mut tx = Transaction::new(&store.committer);
        (first..first + 200)
            .for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &[7; 200]).unwrap());
        tx.commit().unwrap();
    }
    let stats = store.reader.index.stats();
    assert!(stats.memtable_bytes > 16 << 20, "{stats:?}");
    disk.fill_up(Some(0));
    assert!(
        crate::engine::memory::set(&store, 16 << 20).is_err(),
        "its memtables cannot be flushed"
    );
    assert_eq!((limit(), store.reader.budget.limit_bytes()), (before, 256 << 20));
    disk.fill_up(None);
    crate::engine::memory::set(&store, 16 << 20).unwrap();
    assert!(limit() < before);
}

#[test]
fn a_change_of_the_budget_is_no_evidence_and_statistics_continue() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false).memory_bytes(16 << 20));
    let mut tx = Transaction::new(&store.committer);
    (0..150_000u32)
        .for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &[7; 200]).unwrap());
    tx.commit().unwrap();
    store.flush().unwrap();
    let mut random = Random::new(3);
    for _ in 0..8000 {
        get(&store, &(random.below(150_000) as u32).to_be_bytes());
    }
    let stats = || store.reader.row_cache.stats().unwrap().0;
    let (before, [_, there_are]) = (stats(), store.reader.row_cache.returns());
    assert!(before.hits > 0 && there_are.0 > 0 && there_are.1 > 0, "{before:?}, {there_are:?}");
    let (key, other) = (0u32.to_be_bytes(), 1u32.to_be_bytes());
    let stopped = Stopped::read(&store, &key);
    let before = stats();
    // Large enough to need other tables: the cache is replaced then, and fills from old views are
    // rejected.
    crate::engine::memory::set(&store, 256 << 20).unwrap();
    let [weighed, there_are] = store.reader.row_cache.returns();
    assert_eq!(weighed, there_are);
    let after = stats();
    let counted = |stats: &plimsoll_memory::cache::CacheStats| {
        (stats.hits, stats.misses, stats.insertions, stats.returns)
    };
    assert_eq!((counted(&after), after.entries), (counted(&before), 0));
    stopped.resume(&store, &key);
    assert_eq!(kept(&store, &key), None);
    enter(&store, &other);
}

#[test]
fn without_rows_every_read_goes_to_the_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false).row_cache(false));
    put(&store, b"k", b"v");
    store.flush().unwrap();
    store.maintenance.pool.clear();
    assert_eq!(get(&store, b"k").as_deref(), Some(&b"v"[..]));
    assert_eq!((kept(&store, b"k"), store.reader.row_cache.stats().is_none()), (None, true));
}

#[test]
fn a_value_is_lent_from_every_kind_of_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    store.reader.row_cache.share_of(48);
    let lengths = [0, 1, 150, 1024, 5000, 60_000, 100_000];
    let value = |len: usize, of: u8| (0..len).map(|at| at as u8 ^ of).collect::<Vec<u8>>();
    let key = |len: usize| (len as u32).to_be_bytes();
    let lent = |len: usize, at: Glsn| {
        store
            .reader
            .get_with(&index_key(&key(len)), AsOf::unexpiring(at), |value| value.to_vec())
            .unwrap()
    };
    lengths.iter().for_each(|&len| _ = put(&store, &key(len), &value(len, 1)));
    let held = Snapshot::newest(&store);
    let then = held.at();
    lengths.iter().for_each(|&len| _ = put(&store, &key(len), &value(len, 2)));
    for place in ["memtables", "pages", "rows", "rows again"] {
        for &len in &lengths {
            assert_eq!(lent(len, store.visible()), Some(value(len, 2)), "{len} bytes in {place}");
            assert_eq!(lent(len, then), Some(value(len, 1)), "{len} bytes in {place}, earlier");
        }
        match place {
            "memtables" => store.flush().unwrap(),
            _ => store.maintenance.pool.clear(),
        }
    }
    assert!(
        lengths.iter().all(|&len| kept(&store, &key(len)) == Some(value(len, 2))),
        "all are rows in the end"
    );
    assert_eq!(
        store.reader.get_with(&index_key(b"none"), AsOf::unexpiring(then), |_| ()).unwrap(),
        None
    );
}

#[test]
fn a_read_of_the_newest_moment_retries_at_a_newer_one_if_its_own_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false));
    // Versions that only moments before the third need are dropped.
    let read = |at: AsOf<'_>| match at.glsn {
        asked @ Glsn(..3) => Err(crate::Error::trimmed(asked, Glsn(3))),
        at => Ok(at),
    };
    let asked = std::cell::Cell::new(0);
    let newest = || Ok(Glsn(asked.replace(asked.get() + 1)));
    assert_eq!(store.reader.at_newest(newest, read).unwrap(), Glsn(4), "read at 0, at 2 and at 4");
    let same = || Ok(Glsn(2));
    assert!(
        matches!(store.reader.at_newest(same, read), Err(crate::Error::Trimmed { .. })),
        "it would never end"
    );
}

#[test]
fn rows_shrink_with_the_budget_and_grow_again_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().background(false).memory_bytes(256 << 20));
    store.reader.row_cache.share_of(48);
    let mut tx = Transaction::new(&store.committer);
    (0..1000u32)
        .for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &key.to_le_bytes()).unwrap());
    tx.commit().unwrap();
    store.flush().unwrap();
    let view = store.reader.index.sources.view();
    for key in 0..1_500_000u32 {
        let value = key.to_le_bytes();
        store.reader.row_cache.fill(
            (view.set, &view.rows),
            true,
            &index_key(&key.to_be_bytes()),
            (Glsn(1), None),
            &value,
        );
    }
    let stats = store.reader.row_cache.stats().unwrap().0;
    assert!(stats.index_bytes > 12 << 20, "as much as the small budget has for them: {stats:?}");
    // The cache shrinks even while a view refers to it.
    crate::engine::memory::set(&store, 16 << 20).unwrap();
    drop(view);
    let stats = store.reader.row_cache.stats().unwrap().0;
    assert!(stats.memory_bytes <= 12 << 20 && stats.index_bytes < 4 << 20, "{stats:?}");
    enter(&store, &5u32.to_be_bytes());
    crate::engine::memory::set(&store, 256 << 20).unwrap();
    assert!(store.reader.row_cache.stats().unwrap().0.limit_bytes > 100 << 20);
    enter(&store, &7u32.to_be_bytes());
    assert_eq!(get(&store, &7u32.to_be_bytes()).as_deref(), Some(&7u32.to_le_bytes()[..]));
}

/// A read has loaded a large value and is about to cache it when a flush brings a younger version
/// of its key.
#[test]
fn a_large_value_cached_while_its_key_is_superseded_does_not_stay() {
    let budget = Budget::new(64 << 20, Backing::Heap).unwrap();
    let row_cache = RowCache::new(&budget, &Pool::new(&budget, 1 << 20).unwrap()).unwrap();
    let handle = row_cache.handle();
    row_cache.fill((0, &handle), true, b"other", (Glsn(1), None), b"a row");
    assert!(!row_cache.is_empty());
    let kept = row_cache.kept.as_ref().unwrap();
    let (row_cache, (is_asked, asked), (has_ended, ended)) = (&row_cache, channel(), channel());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            asked.recv().unwrap();
            row_cache.begin_runs(1);
            row_cache.supersede(b"key", Glsn(2), Stored::Deleted);
            let _ = has_ended.send(());
        });
        let is_current = || {
            let is_current = kept.runs.load(Ordering::Acquire) == 0;
            let _ = is_asked.send(());
            // The flush may complete before the value is cached, or wait for that.
            let _ = ended.recv_timeout(Duration::from_millis(300));
            is_current
        };
        kept.large.as_ref().unwrap().offer(b"key", (Glsn(1), None), &[1; LARGE_BYTES], is_current);
    });
    assert!(handle.large(b"key", Glsn(2)).is_none());
}
