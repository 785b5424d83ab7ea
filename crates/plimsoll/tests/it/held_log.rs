//! A log that is trimmed automatically, and values that pin it: they are moved into blob files,
//! which are removed when they are no longer needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;

/// Too long for a leaf and too short for a blob file of its own, so it is in the log.
const VALUE_BYTES: usize = 3000;

/// A MiB of them: more than the eight segments that values may pin.
const FILLING: usize = 350;

fn options(disk: &MemDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options =
        Options::new().memory_bytes(16 << 20).segment_bytes(64 << 10).memtable_bytes(64 << 10);
    options.background(false).world(Arc::new(disk.clone()), clock)
}

fn put(db: &Db, keyspace: &Keyspace, key: &str, fill: u8) {
    db.put(keyspace, key, [fill; VALUE_BYTES]).unwrap();
}

/// Overwrites a few keys until the log is long.
fn write_much(db: &Db, keyspace: &Keyspace) {
    for number in 0..FILLING {
        put(db, keyspace, &format!("key {:02}", number % 10), b'k');
    }
}

fn first(db: &Db) -> Glsn {
    db.log().bounds().first
}

fn blob_files(disk: &MemDisk) -> Vec<PathBuf> {
    let names = disk.names(Path::new("/store/log")).unwrap();
    names.into_iter().filter(|name| name.ends_with(".blob")).map(PathBuf::from).collect()
}

#[test]
fn one_compaction_frees_the_log_that_an_old_value_pins() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Forever).unwrap();
    put(&db, &keys, "old", b'o');
    write_much(&db, &keys);
    db.close().unwrap();
    // As `plimsoll compact` does: a process that is started after the log grew, and ends
    // afterwards.
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    db.set_retention(&keys, Retention::Latest).unwrap();
    db.compact().unwrap();
    assert!(first(&db) > Glsn(300), "{}", first(&db));
    assert_eq!(db.get(&keys, "old").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
}

#[test]
fn blob_files_of_moved_values_are_removed_while_the_store_is_open() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    let (mut moved, mut most) = (0, 0);
    for round in 0..8 {
        for number in 0..10 {
            put(&db, &keys, &format!("old {number}"), round);
        }
        let before = blob_files(&disk);
        write_much(&db, &keys);
        db.compact().unwrap();
        moved += usize::from(blob_files(&disk).iter().any(|file| !before.contains(file)));
        most = most.max(blob_files(&disk).len());
        for number in 0..10 {
            assert_eq!(
                db.get(&keys, format!("old {number}")).unwrap().unwrap(),
                [round; VALUE_BYTES]
            );
        }
    }
    assert!(moved >= 6, "values were moved {moved} times");
    assert!(most <= 3, "{most} blob files at once, all but one of values that were overwritten");
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    assert_eq!(db.get(&keys, "old 3").unwrap().unwrap(), [7; VALUE_BYTES]);
}

#[test]
fn values_in_a_held_part_of_the_log_are_moved_once_the_hold_ends() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    put(&db, &keys, "old", b'o');
    let hold = db.hold_log(Glsn(2)).unwrap();
    for _ in 0..3 {
        write_much(&db, &keys);
        db.compact().unwrap();
        // Moving would free nothing, because the log stays.
        assert_eq!((first(&db), blob_files(&disk)), (Glsn(1), vec![]));
        assert_eq!(db.log().trim(db.newest().next()).unwrap(), Glsn(1));
        assert_eq!(blob_files(&disk), [] as [PathBuf; 0]);
    }
    drop(hold);
    db.compact().unwrap();
    assert!(first(&db) > Glsn(1000), "{}", first(&db));
    assert_eq!(blob_files(&disk).len(), 1);
    assert_eq!(db.get(&keys, "old").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
}

#[test]
fn a_damaged_value_that_would_be_moved_stops_no_merge() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    put(&db, &keys, "old", b'o');
    write_much(&db, &keys);
    // In another block.
    put(&db, &keys, "other", b'p');
    let segment = Path::new("/store/log/00000000000000000001.seg");
    let file = disk.open(segment, Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(100).position(|window| window == [b'o'; 100]).unwrap();
    file.write_at(b"x", at as u64 + 50).unwrap();
    db.drop_pages();
    for _ in 0..3 {
        write_much(&db, &keys);
        db.compact().unwrap();
    }
    assert_eq!(db.stats().index.last_error, None);
    assert_eq!(first(&db), Glsn(1), "an unreadable value is not dropped either");
    let warnings = db.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("pins the log")), "{warnings:?}");
    assert!(matches!(db.get(&keys, "old"), Err(Error::Corrupt { .. })));
    assert_eq!(db.get(&keys, "other").unwrap().unwrap(), [b'p'; VALUE_BYTES]);
    assert_eq!(db.get(&keys, "key 03").unwrap().unwrap(), [b'k'; VALUE_BYTES]);
    // An explicit trim returns the error.
    assert!(matches!(db.log().trim(db.newest()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_completely_live_log_is_left_unchanged() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    for number in 0..2 * FILLING {
        put(&db, &keys, &format!("key {number}"), b'k');
    }
    db.compact().unwrap();
    assert!(blob_files(&disk).is_empty(), "copying all of it frees nothing");
    // Once most of it is overwritten, the rest is moved.
    (0..4).for_each(|_| write_much(&db, &keys));
    (100..2 * FILLING).for_each(|number| _ = db.delete(&keys, format!("key {number}")).unwrap());
    db.compact().unwrap();
    assert_eq!(blob_files(&disk).len(), 1);
    assert!(first(&db) > Glsn(2 * FILLING as u64), "{}", first(&db));
    assert_eq!(db.get(&keys, "key 77").unwrap().unwrap(), [b'k'; VALUE_BYTES]);
}

/// Values in the log and values in leaves, none of them overwritten.
#[test]
fn a_live_log_is_left_unchanged_if_most_versions_are_in_leaves() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let [small, large] =
        ["small", "large"].map(|name| db.create_keyspace(name, Retention::Latest).unwrap());
    for number in 0..2000 {
        db.put(&small, format!("key {number}"), [b's'; 900]).unwrap();
        if number % 3 == 0 {
            put(&db, &large, &format!("key {number}"), b'l');
        }
    }
    db.compact().unwrap();
    assert_eq!(blob_files(&disk), Vec::<PathBuf>::new());
}

#[test]
fn one_compaction_frees_the_log_where_values_were_flushed_before_they_were_overwritten() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    put(&db, &keys, "old", b'o');
    for _ in 0..6 {
        (0..300).for_each(|number| put(&db, &keys, &format!("key {number}"), b'k'));
        db.flush().unwrap();
    }
    db.compact().unwrap();
    assert!(first(&db) > Glsn(1500), "{}", first(&db));
    assert_eq!(db.get(&keys, "old").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
}

/// A failed automatic move does not stop merges.
#[test]
fn a_failed_move_leaves_the_runs_merged_and_the_log_unchanged() {
    for is_full in [true, false] {
        let disk = LyingDisk::new(1);
        let open = || {
            let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
            let options = Options::new()
                .memory_bytes(16 << 20)
                .segment_bytes(64 << 10)
                .memtable_bytes(64 << 10);
            let db =
                Db::open("/store", options.background(false).world(Arc::new(disk.clone()), clock))
                    .unwrap();
            let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
            (db, keys)
        };
        drop(open());
        if !is_full {
            // From now on no blob file can be created.
            let last = Path::new("/store/log").join(BlobId::LAST.file_name());
            disk.open(&last, Open::CreateNew, Caching::Buffered).unwrap();
        }
        let (db, keys) = open();
        (0..100).for_each(|number| put(&db, &keys, &format!("old {number}"), b'o'));
        for _ in 0..4 {
            write_much(&db, &keys);
            db.flush().unwrap();
        }
        assert!(db.stats().index.runs.len() > 1);
        disk.fill_up(is_full.then_some(160 << 10));
        let compacted = db.compact();
        assert_eq!(compacted.is_err(), is_full, "{compacted:?}");
        assert_eq!(db.stats().index.runs.len(), 1);
        assert_eq!(first(&db), Glsn(1));
        disk.fill_up(None);
        for _ in 0..2 {
            write_much(&db, &keys);
            db.compact().unwrap();
            assert_eq!(db.stats().index.runs.len(), 1);
        }
        assert_eq!(first(&db) > Glsn(1000), is_full, "{}", first(&db));
        assert_eq!(db.get(&keys, "old 50").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
    }
}

#[test]
fn overwritten_large_values_are_freed_although_their_records_are_small() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let space = db.keyspace("default").unwrap();
    let (keys, bytes) = (8u64, 300_000u64);
    for round in 0..40u64 {
        for key in 0..keys {
            db.put(&space, key.to_be_bytes(), vec![round as u8; bytes as usize]).unwrap();
        }
    }
    // Automatic moves bound the space that is used.
    let (live, all) = (keys * bytes, 40 * keys * bytes);
    let begun = Instant::now();
    loop {
        let by_itself = db.stats().disk_bytes;
        if by_itself < all / 3 {
            break;
        }
        // On a busy machine the threads may lag behind the writer.
        let is_late = begun.elapsed() > Duration::from_secs(60);
        assert!(
            !is_late,
            "{by_itself} bytes on disk of {all} that were written, {live} of them live"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // After an explicit compaction, hardly more than the live bytes remain.
    db.flush().unwrap();
    db.compact().unwrap();
    db.log().trim(db.newest().next()).unwrap();
    let on_disk = db.stats().disk_bytes;
    assert!(on_disk < live + (4 << 20), "{on_disk} bytes on disk, {live} of them live");
    for key in 0..keys {
        assert_eq!(db.get(&space, key.to_be_bytes()).unwrap().unwrap(), vec![39; bytes as usize]);
    }
}

#[test]
fn a_compaction_frees_deleted_large_values_without_a_later_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("default").unwrap();
    db.put(&space, "stays", "here").unwrap();
    for number in 0..3 {
        db.put(&space, format!("large {number}"), vec![number; 8 << 20]).unwrap();
    }
    for number in 0..3 {
        db.delete(&space, format!("large {number}")).unwrap();
    }
    let newest = db.newest();
    // As by one command after the other.
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    db.compact().unwrap();
    assert!(db.stats().disk_bytes < 1 << 20, "{} bytes on disk", db.stats().disk_bytes);
    for is_reopened in [false, true] {
        let db = if is_reopened { Db::open(&path, options()).unwrap() } else { db.clone() };
        let space = db.keyspace("default").unwrap();
        assert_eq!((db.newest(), first(&db)), (newest, newest.next()));
        // The time of the newest commit is known, although its entry is gone.
        for now in [Moment::Newest, Moment::Time(SystemTime::now()), Moment::Glsn(newest)] {
            let snapshot = db.snapshot_at(now).unwrap();
            assert_eq!((snapshot.at(), snapshot.len(&space).unwrap()), (newest, 1));
            assert_eq!(snapshot.get(&space, "stays").unwrap().unwrap(), b"here");
        }
        let long_ago = SystemTime::now() - Duration::from_secs(86400);
        let Err(Error::TimeTrimmed { since, first }) = db.snapshot_at(Moment::Time(long_ago))
        else {
            panic!()
        };
        for moment in [Moment::Time(since), Moment::Glsn(first)] {
            assert_eq!(db.snapshot_at(moment).unwrap().len(&space).unwrap(), 1, "{moment:?}");
        }
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
        db.close().unwrap();
    }
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("default").unwrap();
    assert_eq!(db.put(&space, "later", "too").unwrap(), newest.next());
    assert_eq!(db.get(&space, "stays").unwrap().unwrap(), b"here");
}

#[test]
fn repeatedly_loaded_rows_use_their_space_once_after_a_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let space = db.keyspace("default").unwrap();
    let rows = || (0..40_000u32).map(|key| (key.to_be_bytes(), [7; 100]));
    for _ in 0..5 {
        db.bulk_load(&space, rows()).unwrap();
    }
    db.compact().unwrap();
    assert!(
        db.stats().disk_bytes < 8 << 20,
        "{} bytes on disk for 4,160,000",
        db.stats().disk_bytes
    );
    assert_eq!(db.snapshot().len(&space).unwrap(), 40_000);
}

/// Overwrites values of 20 kB in random order, in a store that keeps only the newest ones.
fn write_in_any_order(db: &Db, space: &Keyspace, random: &mut Random, count: u64) {
    for _ in 0..count {
        let (key, fill) = (random.below(400), random.below(256) as u8);
        db.put(space, (key as u32).to_be_bytes(), [fill; 20_000]).unwrap();
    }
}

#[test]
fn values_overwritten_in_any_order_take_little_more_than_their_space_after_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let space = db.keyspace("default").unwrap();
    for key in 0..400u32 {
        db.put(&space, key.to_be_bytes(), [7; 20_000]).unwrap();
    }
    let mut random = Random::new(7);
    for _ in 0..12 {
        write_in_any_order(&db, &space, &mut random, 150);
        let values = |db: &Db| -> Vec<_> {
            db.snapshot().range(&space, ..).unwrap().map(|row| row.unwrap().1.to_vec()).collect()
        };
        let before = values(&db);
        db.compact().unwrap();
        let bytes = db.stats().disk_bytes;
        assert!(bytes < 21_000_000, "{bytes} bytes on disk for 8,000,000");
        assert!(values(&db) == before);
    }
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_damaged_value_in_a_blob_file_stays_there_and_stops_no_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("default").unwrap();
    for key in 0..400u32 {
        db.put(&space, key.to_be_bytes(), [7; 20_000]).unwrap();
    }
    db.log().trim(db.newest().next()).unwrap();
    db.close().unwrap();
    let blobs = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(path.join("log")).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "blob")).collect()
    };
    let [blob] = &blobs()[..] else { panic!("one compaction moves values into one file") };
    let mut bytes = std::fs::read(blob).unwrap();
    let damaged = bytes.len() / 2;
    bytes[damaged] ^= 1;
    std::fs::write(blob, bytes).unwrap();
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("default").unwrap();
    for key in (0..400u32).filter(|key| !(190..210).contains(key)) {
        db.put(&space, key.to_be_bytes(), [8; 20_000]).unwrap();
    }
    for _ in 0..2 {
        db.compact().unwrap();
        let read = (0..400u32).map(|key| db.get(&space, key.to_be_bytes()));
        let errors: Vec<_> = read.filter_map(Result::err).collect();
        assert!(
            matches!(&errors[..], [Error::Corrupt { .. }] | [Error::Corrupt { .. }, _]),
            "{errors:?}"
        );
        db.put(&space, "another", vec![9; 2_000_000]).unwrap();
    }
}

#[test]
fn a_moment_after_the_last_freed_commit_is_found_by_its_time() {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000);
    let options =
        Options::new().memory_bytes(16 << 20).retention(Retention::Time(Duration::from_secs(3600)));
    let options =
        options.background(false).world(Arc::new(MemDisk::new()), Arc::clone(&clock) as _);
    let db = Db::open("/store", options).unwrap();
    let space = db.keyspace("default").unwrap();
    db.put(&space, "key", vec![1; 2 << 20]).unwrap();
    let old = db.put(&space, "key", "old").unwrap();
    clock.advance(Duration::from_secs(7200));
    db.compact().unwrap();
    assert_eq!(first(&db), old.next());
    clock.advance(Duration::from_secs(120));
    let between = begin + Duration::from_secs(7260);
    db.put(&space, "key", "new").unwrap();
    let snapshot = db.snapshot_at(Moment::Time(between)).unwrap();
    assert_eq!(
        (snapshot.at(), snapshot.get(&space, "key").unwrap().unwrap().to_vec()),
        (old, b"old".to_vec())
    );
    assert!(matches!(
        db.snapshot_at(Moment::Time(begin - Duration::from_secs(1))),
        Err(Error::TimeTrimmed { .. })
    ));
}

#[test]
fn the_log_of_a_store_stays_after_a_compaction_that_would_free_only_records() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let space = db.keyspace("default").unwrap();
    db.put(&space, "large and current", vec![1; 5 << 20]).unwrap();
    db.compact().unwrap();
    assert_eq!(first(&db), Glsn(1));
}

#[test]
fn the_log_of_a_small_store_stays_after_a_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    db.put(&db.keyspace("default").unwrap(), "key", "value").unwrap();
    db.compact().unwrap();
    assert_eq!(first(&db), Glsn(1));
}

#[test]
fn a_compaction_moves_a_value_below_the_threshold_of_automatic_moves() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk).segment_bytes(1 << 20)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    put(&db, &keys, "old", b'o');
    for _ in 0..4 {
        write_much(&db, &keys);
    }
    let bytes_of =
        |folder| disk.list(Path::new(folder)).unwrap().iter().map(|entry| entry.len).sum::<u64>();
    let before = bytes_of("/store/log");
    db.compact().unwrap();
    let after = bytes_of("/store/log");
    assert!(before > 3 << 20 && after < 2 << 20, "{before} bytes before, {after} after");
    assert_eq!(db.get(&keys, "old").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
}

#[test]
fn a_compaction_frees_the_blob_files_of_overwritten_large_commits() {
    for is_shared in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let options =
            Options::new().memory_bytes(64 << 20).retention(Retention::Latest).shared(is_shared);
        let db = Db::open(&path, options).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let mut random = Random::new(1);
        for _ in 0..20 {
            let mut tx = db.begin();
            for key in 0..2000_u32 {
                let value =
                    Vec::from_iter((0..188).flat_map(|_| random.below(u64::MAX).to_le_bytes()));
                tx.put(&keyspace, key.to_be_bytes(), value).unwrap();
            }
            tx.commit().unwrap();
        }
        let before = db.get(&keyspace, 7_u32.to_be_bytes()).unwrap();
        db.compact().unwrap();
        let bytes: u64 = ["log", "index"].iter().map(|part| bytes_in(&path.join(part))).sum();
        assert!(bytes < 3 * 3_000_000, "shared: {is_shared}: {bytes} bytes for 3 MB");
        assert_eq!(db.get(&keyspace, 7_u32.to_be_bytes()).unwrap(), before);
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    }
}

fn bytes_in(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}
