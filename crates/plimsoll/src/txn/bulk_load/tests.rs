//! Tests of bulk loads: a load is one commit or nothing, whatever is loaded or refused.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk as _;

use super::*;
use crate::Db;
use crate::types::options::Options;
use crate::types::retention::Retention;
use crate::types::sizes::Sizes;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Runs of a few hundred rows, and tables of a few thousand.
fn options() -> Options {
    let sizes = Sizes { write_set_bytes: Some(64 << 10), table_bytes: 128 << 10, ..Sizes::USUAL };
    Options::new()
        .memory_bytes(16 << 20)
        .background(false)
        .retention(Retention::Forever)
        .sizes(sizes)
}

fn blob_files(store: &Path) -> usize {
    let names = plimsoll_disk::os::OsDisk::new().list(&store.join("log")).unwrap();
    names.iter().filter(|entry| entry.name.ends_with(".blob")).count()
}

fn rows_of(db: &Db) -> Rows {
    let keyspace = db.keyspace("default").unwrap();
    let all = db.snapshot().iter(&keyspace).unwrap();
    all.map(|row| row.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
}

/// Random rows; keys may repeat.
fn rows(random: &mut Random, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut row = |number: usize| {
        let key = random.below(count as u64).to_string().into_bytes();
        let bytes = match random.below(200) {
            0 => 1000 + random.below(4000),
            1 => 300_000 * u64::from(random.below(20) == 0),
            _ => random.below(60),
        };
        (key, vec![number as u8; bytes as usize])
    };
    (0..count).map(&mut row).collect()
}

#[test]
fn a_load_is_one_commit_in_which_the_last_row_of_a_key_wins() {
    let mut random = Random::new(3);
    for (count, background) in
        [(0, false), (1, false), (30, false), (2000, false), (20_000, false), (20_000, true)]
    {
        let options = || options().background(background);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let db = Db::open(&path, options()).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let mut expected = Rows::new();
        let mut tx = db.begin();
        for (key, value) in rows(&mut random, count / 2) {
            tx.put(&keyspace, &key, &value).unwrap();
            expected.insert(key, value);
        }
        tx.commit().unwrap();
        let before = (db.newest(), expected.clone());
        let loaded = rows(&mut random, count);
        let glsn = db.bulk_load(&keyspace, loaded.clone()).unwrap();
        assert_eq!(glsn.0, before.0.0 + u64::from(count > 0));
        expected.extend(loaded.iter().cloned());
        let check = |db: &Db| {
            assert_eq!(rows_of(db), expected, "{count}");
            let then = db.snapshot_at(crate::Moment::Glsn(before.0)).unwrap();
            let old = then
                .iter(&keyspace_of(db))
                .unwrap()
                .map(|row| row.map(|(key, value)| (key, value.to_vec())));
            assert_eq!(old.collect::<Result<Rows>>().unwrap(), before.1, "{count}");
        };
        check(&db);
        if count > 0 {
            let commit = db.log().commit(glsn).unwrap().unwrap();
            let changes = commit.changes().unwrap().map(|change| {
                let change = change.unwrap();
                (change.key().to_vec(), change.value().unwrap().unwrap().to_vec())
            });
            assert_eq!(changes.collect::<Rows>(), loaded.into_iter().collect::<Rows>(), "{count}");
        }
        drop(db);
        let db = Db::open(&path, options()).unwrap();
        check(&db);
        db.compact().unwrap();
        check(&db);
        db.close().unwrap();
        assert!(crate::verify(&path, options(), &mut |_| ()).unwrap().problems.is_empty());
    }
}

fn keyspace_of(db: &Db) -> Keyspace {
    db.keyspace("default").unwrap()
}

#[test]
fn ordered_rows_are_written_once_and_few_rows_need_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = keyspace_of(&db);
    db.bulk_load(&keyspace, [("b", "2"), ("a", "1"), ("b", "3")]).unwrap();
    assert_eq!(blob_files(&path), 0);
    let mut load = db.begin_bulk_load(&keyspace).unwrap();
    let value = [7; 100];
    for number in 0..30_000_u32 {
        load.put(number.to_be_bytes(), value).unwrap();
    }
    assert_eq!((load.runs.count(), load.len()), (0, 30_000));
    load.commit().unwrap();
    // Nothing was merged: a merge would have written the rows a second time. The bound allows for
    // the overhead of small tables.
    let bytes: u64 = 30_000 * (4 + 4 + 100);
    assert!(blob_bytes(&path) < bytes * 8 / 5, "{}", blob_bytes(&path));
    assert_eq!(rows_of(&db).len(), 30_002);
}

fn blob_bytes(store: &Path) -> u64 {
    let names = plimsoll_disk::os::OsDisk::new().list(&store.join("log")).unwrap();
    let blobs = names.iter().filter(|entry| entry.name.ends_with(".blob"));
    blobs.map(|entry| std::fs::metadata(store.join("log").join(&entry.name)).unwrap().len()).sum()
}

#[test]
fn a_dropped_or_late_load_leaves_nothing() {
    for background in [false, true] {
        leaves_nothing(&|| options().background(background));
    }
}

fn leaves_nothing(options: &dyn Fn() -> Options) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.create_keyspace("short-lived", Retention::Latest).unwrap();
    let fill = |load: &mut BulkLoad| {
        for number in (0..20_000_u32).rev() {
            load.put(
                number.to_be_bytes(),
                vec![1; 40 + 2000 * usize::from(number.is_multiple_of(500))],
            )
            .unwrap();
        }
    };
    let mut load = db.begin_bulk_load(&keyspace).unwrap();
    fill(&mut load);
    assert!(blob_files(&path) > 2);
    drop(load);
    assert_eq!(blob_files(&path), 0);
    let mut load = db.begin_bulk_load(&keyspace).unwrap();
    fill(&mut load);
    db.drop_keyspace(&keyspace).unwrap();
    assert!(load.commit().is_err());
    assert_eq!(blob_files(&path), 0);
    assert!(db.begin_bulk_load(&keyspace).is_err());
    db.close().unwrap();
    let db = Db::open(&path, options().read_only(true)).unwrap();
    assert!(matches!(db.begin_bulk_load(&keyspace_of(&db)), Err(Error::ReadOnly)));
}

#[test]
fn a_cancelled_load_leaves_nothing_and_others_continue() {
    use std::sync::atomic::Ordering;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = keyspace_of(&db);
    // Few rows, which need no file; rows whose runs are merged; and no rows.
    for (count, files) in [(10_u32, false), (20_000, true), (0, false)] {
        let flag = Arc::new(AtomicBool::new(false));
        let mut load = db.begin_bulk_load(&keyspace).unwrap();
        load.cancel_on(Arc::clone(&flag));
        for number in (0..count).rev() {
            load.put(number.to_be_bytes(), [1; 40]).unwrap();
        }
        assert_eq!(blob_files(&path) > 0, files);
        flag.store(true, Ordering::Relaxed);
        assert_eq!(load.commit(), Err(Error::Cancelled));
        assert_eq!((blob_files(&path), rows_of(&db).len()), (0, 0));
    }
    db.bulk_load(&keyspace, [("a", "1")]).unwrap();
    assert_eq!(rows_of(&db).len(), 1);
}

#[test]
fn a_row_that_is_too_long_does_not_end_the_load() {
    let db = Db::in_memory(options()).unwrap();
    let keyspace = keyspace_of(&db);
    let mut load = db.begin_bulk_load(&keyspace).unwrap();
    load.put("a", "1").unwrap();
    assert!(matches!(load.put(vec![0; 5000], "x"), Err(Error::InvalidInput(_))));
    load.put("b", "2").unwrap();
    load.commit().unwrap();
    assert_eq!(rows_of(&db).len(), 2);
}

#[test]
fn a_load_refused_at_any_reservation_is_whole_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = crate::engine::open::open(&path, options()).unwrap();
    let keyspace = store.reader.keyspaces.find("default").unwrap().0;
    let mut outcomes = [0; 2];
    for n in (0..150).step_by(5) {
        let files = blob_files(&path);
        let held = store.reader.budget.usage();
        store.reader.budget.fail_after(n);
        let loaded = (|| {
            let mut load = BulkLoad::new(&store.committer, &keyspace)?;
            for number in (0..9000_u32).rev() {
                if let Err(error) = load.put(number.to_be_bytes(), [n as u8; 60]) {
                    // The load stays spoiled even with free memory.
                    store.reader.budget.fail_after(u64::MAX);
                    assert!(matches!(load.put("more", "rows"), Err(Error::InvalidInput(_))), "{n}");
                    return Err(error);
                }
            }
            load.commit()
        })();
        store.reader.budget.fail_after(u64::MAX);
        outcomes[usize::from(loaded.is_ok())] += 1;
        if let Err(error) = loaded {
            assert!(matches!(error, Error::OutOfBudget(_)), "{n}: {error}");
            assert_eq!(blob_files(&path), files, "{n}");
        }
        let now = store.reader.budget.usage();
        assert_eq!(now.of(Kind::Sort), held.of(Kind::Sort), "{n}");
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}
