//! Tests of free memory that is lent to rows.

use super::*;

/// A store with this many rows of 200 bytes, all in runs.
fn store_of_rows(dir: &tempfile::TempDir, rows: u32) -> Arc<Engine> {
    let store = store_in(dir, options().background(false));
    for first in (0..rows).step_by(1000) {
        let mut tx = Transaction::new(&store.committer);
        (first..first + 1000)
            .for_each(|key| tx.put(&default(&store), &key.to_be_bytes(), &[7; 200]).unwrap());
        tx.commit().unwrap();
    }
    store.flush().unwrap();
    store
}

fn get_all(store: &Arc<Engine>, rows: u32) {
    (0..rows)
        .for_each(|key| assert_eq!(get(store, &key.to_be_bytes()).as_deref(), Some(&[7; 200][..])));
}

#[test]
fn resident_values_are_not_cached_twice_while_memory_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_rows(&dir, 5000);
    let _taken = take_memory(&store, 4 << 20);
    get_all(&store, 5000);
    store.reader.row_cache.clear();
    get_all(&store, 5000);
    assert_eq!(
        store.reader.row_cache.stats().unwrap().0.entries,
        0,
        "the pages answered all of them"
    );
}

#[test]
fn free_memory_is_lent_to_rows_of_resident_pages_and_returned() {
    const ROWS: u32 = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_rows(&dir, ROWS);
    let stats = || store.reader.row_cache.stats().unwrap().0;
    // The first pass detects that memory is free, the next ones insert; the fourth finds all rows.
    (0..3).for_each(|_| get_all(&store, ROWS));
    let filled = stats();
    assert!(filled.entries > u64::from(ROWS) / 10 * 9, "{filled:?}");
    assert!(
        filled.live_bytes > store.reader.budget.limit_bytes() / share::WHOLE * share::MIN_SHARE * 2,
        "{filled:?}"
    );
    assert!(store.reader.budget.free_bytes() > store.reader.budget.limit_bytes() / 8);
    let hits = stats().hits;
    get_all(&store, ROWS);
    assert!(stats().hits - hits > u64::from(ROWS) / 10 * 9, "rows answer");
    assert_eq!(store.reader.row_cache.returns()[0].0, 0, "nothing was weighed");
    // Once other uses take the memory, rows return lent memory as reads load pages, down to their
    // share.
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(take_memory(&store, 1 << 20));
        for key in (0..ROWS).step_by(50).take(700) {
            store.maintenance.pool.clear();
            store.reader.row_cache.clear_key(&index_key(&key.to_be_bytes()));
            get(&store, &key.to_be_bytes());
        }
    }
    let after = stats();
    assert!(after.memory_bytes < filled.memory_bytes / 3, "{filled:?}, {after:?}");
    assert_eq!(get(&store, &7u32.to_be_bytes()).as_deref(), Some(&[7; 200][..]));
}

#[test]
fn the_second_resident_read_of_a_key_creates_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_rows(&dir, 5000);
    let entries = || store.reader.row_cache.stats().unwrap().0.entries;
    get_all(&store, 5000);
    let once = entries();
    get_all(&store, 5000);
    let twice = entries();
    assert!(once < 1000 && twice > 4500, "{once}, {twice}");
}

#[test]
fn a_flush_keeps_rows_of_resident_pages_valid() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_rows(&dir, 5000);
    (0..3).for_each(|_| get_all(&store, 5000));
    // A flush completes between the load and the insertion of a value that a resident page
    // answered.
    let key = 17u32.to_be_bytes();
    store.reader.row_cache.clear();
    let stopped = Stopped::read_as_it_is(&store, &key);
    assert!(!stopped.missed);
    put(&store, &key, b"new");
    store.flush().unwrap();
    stopped.resume(&store, &key);
    assert_eq!((kept(&store, &key), get(&store, &key)), (None, Some(b"new".to_vec())));
    get(&store, &key);
    assert_eq!(kept(&store, &key), Some(b"new".to_vec()), "memory is free");
}

#[test]
fn a_store_without_reads_returns_lent_memory_in_its_upkeep() {
    const ROWS: u32 = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_rows(&dir, ROWS);
    let (budget, stats) = (&store.reader.budget, || store.reader.row_cache.stats().unwrap().0);
    (0..3).for_each(|_| get_all(&store, ROWS));
    let filled = stats();
    store.reader.index.env.context.row_cache.return_lent();
    assert_eq!(stats().entries, filled.entries, "memory is free");
    let _taken = take_memory(&store, 1 << 20);
    while work_steps::step(&store).unwrap() {}
    let after = stats();
    let kept = budget.limit_bytes() / 8;
    assert!(after.memory_bytes < filled.memory_bytes, "{filled:?}, {after:?}");
    assert!(
        budget.free_bytes() + (1 << 20) >= kept || after.memory_bytes <= (4 << 20),
        "{after:?}"
    );
}
