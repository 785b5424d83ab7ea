//! Counts the heap bytes of iterators that have begun and are then left alone: all of them are
//! charged to the budget, except for a constant.
#![allow(unsafe_code, reason = "a global allocator that counts")]
#![allow(clippy::disallowed_methods, reason = "a test with files of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll::{
    Db, Error, Glsn, Keyspace, MIN_MEMORY_BYTES, Options, Range, Snapshot, Transaction,
};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        LIVE.fetch_add(new, Ordering::Relaxed);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(block, layout, new) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Heap bytes that the store itself may allocate meanwhile, and the inaccuracy of the count.
const SLACK_BYTES: usize = 1 << 20;

/// The part of a chunk that an iterator uses for a key of 4 KiB.
const KEY_PIECE_BYTES: usize = 4096;

const KEYS: u32 = 2100;

/// A key of the maximum length.
fn key(number: u32) -> Vec<u8> {
    let mut key = vec![b'k'; 4096];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

fn walks_bytes(db: &Db) -> usize {
    let stats = db.stats();
    let (_, bytes) = stats
        .memory
        .by_kind
        .iter()
        .find(|(kind, _)| *kind == "iterators")
        .expect("`iterators` is one of the kinds");
    *bytes as usize
}

/// Calls `begin` and checks that its heap use is charged.
fn charged<T>(db: &Db, what: &str, long_keys: usize, begin: impl FnOnce() -> T) -> T {
    let (heap, charged) = (LIVE.load(Ordering::Relaxed), walks_bytes(db));
    let held = begin();
    let heap = LIVE.load(Ordering::Relaxed).saturating_sub(heap);
    let charged = walks_bytes(db) - charged;
    // In chunks, not on the heap, so that the allocator keeps nothing of it afterwards.
    let keys = long_keys * KEY_PIECE_BYTES;
    assert!(
        charged <= 2 * heap + keys + SLACK_BYTES,
        "{what}: {heap} bytes of heap, and {charged} are charged"
    );
    assert!(
        heap + keys <= charged + SLACK_BYTES,
        "{what}: {heap} bytes of heap, but {charged} - {keys} are charged"
    );
    held
}

fn write(db: &Db, keyspace: &Keyspace, round: u8) {
    for numbers in (0..KEYS).collect::<Vec<_>>().chunks(50) {
        let mut tx = db.begin();
        numbers.iter().for_each(|number| {
            tx.put(keyspace, &key(*number), &[round; 100]).expect("there is room")
        });
        tx.commit().expect("there is room");
    }
}

fn from<'t>(snapshot: &'t Snapshot, keyspace: &Keyspace, number: u32) -> Range<'t> {
    let first = key(number);
    snapshot.range(keyspace, (Bound::Included(&first[..]), Bound::Unbounded)).expect("a range")
}

fn step(range: &mut Range<'_>) -> Option<u32> {
    let (key, _) = range.advance().expect("a step")?;
    Some(u32::from_be_bytes(*key.first_chunk().expect("a key")))
}

/// One test at a time, because all share the heap.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn memory_of_idle_iterators_is_charged_and_writers_continue() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a folder");
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES))
        .expect("a store");
    let keyspace = db.keyspace("default").expect("a keyspace");
    (0..6).for_each(|round| write(&db, &keyspace, round));
    let snapshot = db.snapshot();
    let mut walks = charged(&db, "walks over keys of 4 KiB", 2000, || {
        let mut walks: Vec<_> =
            (0..2000).map(|number| from(&snapshot, &keyspace, number)).collect();
        assert!((0..).zip(&mut walks).all(|(number, walk)| step(walk) == Some(number)));
        walks
    });
    assert!(walks_bytes(&db) > 2000 * 4096, "each has its last key");
    assert!(
        walks_bytes(&db) < 2000 * 5500 + (1 << 20),
        "cursors, two keys for each run, were released: {}",
        walks_bytes(&db)
    );
    write(&db, &keyspace, 7);
    assert!((1..).zip(&mut walks).all(|(number, walk)| step(walk) == Some(number)));
    drop(walks);
    let back = charged(&db, "reverse iterators, midway", 500, || {
        let mut walks: Vec<_> =
            (0..500).map(|number| from(&snapshot, &keyspace, number).reverse()).collect();
        walks.iter_mut().for_each(|walk| (0..3).for_each(|_| assert!(step(walk).is_some())));
        walks
    });
    write(&db, &keyspace, 8);
    drop(back);
    let mut others = charged(&db, "histories and differences", 0, || {
        let histories: Vec<_> =
            (0..300).map(|number| db.history(&keyspace, &key(number)).expect("it")).collect();
        let until = snapshot.at();
        let diffs: Vec<_> = (0..300)
            .map(|number| db.diff(&keyspace, Glsn(1), until, &key(number)[..4]).expect("it"))
            .collect();
        (histories, diffs)
    });
    charged(&db, "histories and differences, begun", 0, || {
        others.0.iter_mut().for_each(|history| assert!(history.next().is_some()));
        others.1.iter_mut().for_each(|diff| assert!(diff.next().is_some()));
    });
    write(&db, &keyspace, 9);
    drop(others);
    assert!(walks_bytes(&db) < 256 << 10, "everything was released");
}

/// Commits until the memtables hold `bytes` bytes, without a flush.
fn fill_memtables(db: &Db, keyspace: &Keyspace, bytes: u64) {
    let held = || {
        let stats = db.stats();
        let of_memtables =
            stats.memory.by_kind.iter().filter(|(kind, _)| kind.starts_with("memtable"));
        of_memtables.map(|(_, bytes)| bytes).sum::<u64>()
    };
    for number in 0u64.. {
        if held() >= bytes {
            return;
        }
        db.put(keyspace, (1 << 60 | number).to_be_bytes(), [7; 900]).expect("there is room");
    }
}

#[test]
fn iterators_wait_for_memory_that_memtables_hold_as_writers_do() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options::new()
        .memory_bytes(MIN_MEMORY_BYTES)
        .memtable_bytes(9 << 20)
        .durability(plimsoll::Durability::Buffered);
    let db = Db::open(dir.path().join("store"), options).expect("a store");
    let (keyspace, filled) =
        (db.keyspace("default").expect("a keyspace"), db.keyspace("filled").expect("a keyspace"));
    write(&db, &keyspace, 1);
    db.flush().expect("there is room");
    fill_memtables(&db, &filled, 8 << 20);
    let snapshot = db.snapshot();
    // Together with the memtable they would exceed the budget.
    let mut walks: Vec<_> = (0..1500).map(|number| from(&snapshot, &keyspace, number)).collect();
    assert!((0..).zip(&mut walks).all(|(number, walk)| step(walk) == Some(number)));
    drop(walks);
    fill_memtables(&db, &filled, 8 << 20);
    let mut histories: Vec<_> = (0..1000)
        .map(|n| db.history(&keyspace, key(n)).unwrap_or_else(|e| panic!("{n}: {e}")))
        .collect();
    histories.iter_mut().for_each(|history| assert!(history.next().expect("a version").is_ok()));
}

#[test]
fn values_lent_by_iterators_are_charged_and_refused_beyond_the_budget() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a folder");
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES))
        .expect("a store");
    let keyspace = db.keyspace("default").expect("a keyspace");
    let mut tx = db.begin();
    (0..20u8)
        .for_each(|number| tx.put(&keyspace, &[number], &[number; 60_000]).expect("there is room"));
    tx.commit().expect("there is room");
    let snapshot = db.snapshot();
    let mut walks = Vec::new();
    let refusal = loop {
        let mut walk = snapshot.range(&keyspace, ..).expect("a range");
        match walk.advance() {
            Ok(pair) => assert_eq!(pair.expect("a first key").1.len(), 60_000),
            Err(error) => break error,
        }
        walks.push(walk);
    };
    assert!(
        matches!(&refusal, Error::OutOfBudget(_)) && refusal.to_string().contains("Iterators"),
        "{refusal}"
    );
    assert!((20..270).contains(&walks.len()), "{} of 60 KB each", walks.len());
    drop(walks);
    // An iterator gives its value away, so it holds none.
    let mut walks: Vec<_> =
        (0..500).map(|_| snapshot.range(&keyspace, ..).expect("a range")).collect();
    for walk in &mut walks {
        assert_eq!(walk.next().expect("a first key").expect("a step").1.len(), 60_000);
    }
    assert!(walks_bytes(&db) < 4 << 20);
}

/// The heap use of an open transaction is bounded and small: its list of reads, and the table of
/// its write set's chunks, both charged.
#[test]
fn an_open_transaction_with_few_writes_uses_little_heap() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a folder");
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES))
        .expect("a store");
    let keyspace = db.keyspace("default").expect("a keyspace");
    let mut open: Vec<Transaction> = Vec::with_capacity(5000);
    let before = LIVE.load(Ordering::Relaxed);
    for number in 0..5000_u32 {
        let mut tx = db.begin();
        assert!(tx.get(&keyspace, &number.to_be_bytes()).expect("a look").is_none());
        tx.put(&keyspace, &number.to_be_bytes(), &[7; 40]).expect("there is room");
        open.push(tx);
    }
    let each = LIVE.load(Ordering::Relaxed).saturating_sub(before) / open.len();
    assert!(each <= 512, "{each} bytes of heap each");
}
