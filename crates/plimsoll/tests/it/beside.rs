//! Readers beside a writer that flushes, merges and trims: each read returns the right value or
//! that the moment is no longer retained, and never reports damage.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{
    Db, Durability, Error, Glsn, Keyspace, Moment, Options, Result, Retention, Snapshot,
};

const KEYS: u32 = 40;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).segment_bytes(64 << 10).background(false)
}

fn open_reader(path: &Path) -> Db {
    Db::open(path, options().read_only(true)).unwrap()
}

/// Some values are in the log, some in the index.
fn value(key: u32, round: u32) -> Vec<u8> {
    let bytes = if key.is_multiple_of(2) { 3000 } else { 100 };
    vec![(key + 31 * round) as u8; bytes]
}

fn write(db: &Db, keyspace: &Keyspace, round: u32) {
    for key in 0..KEYS {
        let mut tx = db.begin();
        tx.put(keyspace, &key.to_be_bytes(), &value(key, round)).unwrap();
        tx.commit().unwrap();
    }
}

/// The result, unless the moment is no longer retained.
fn unless_trimmed<T>(answer: Result<T>, what: &str) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(Error::Trimmed { .. }) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Makes every kind of read at a reader's own moment; returns the number of successful reads.
fn ask(
    reader: &Db,
    snapshot: &Snapshot,
    keyspace: &Keyspace,
    round: impl Fn(u32) -> Option<u32>,
) -> u32 {
    let is_right = |key: u32, found: Option<&[u8]>| {
        let is_right = match round(key) {
            Some(round) => found == Some(&value(key, round)[..]),
            None => found.is_some_and(|found| found.len() == value(key, 0).len()),
        };
        assert!(is_right, "key {key}: {:?}", found.map(|bytes| (bytes.len(), bytes[0])));
    };
    let mut answers = 0;
    for key in 0..KEYS {
        if let Some(found) = unless_trimmed(snapshot.get(keyspace, &key.to_be_bytes()), "get") {
            is_right(key, found.as_deref());
            answers += 1;
        }
        if let Some(found) =
            unless_trimmed(snapshot.get_reader(keyspace, &key.to_be_bytes()), "get_reader")
        {
            let mut bytes = Vec::new();
            if found.unwrap().read_to_end(&mut bytes).is_ok() {
                is_right(key, Some(&bytes));
            }
        }
        if let Some(history) =
            unless_trimmed(reader.history(keyspace, &key.to_be_bytes()), "history")
        {
            history.for_each(|version| {
                assert!(unless_trimmed(version, "history").is_none_or(|version| version.glsn > 0))
            });
        }
    }
    for reverse in [false, true] {
        let Some(range) = unless_trimmed(snapshot.range(keyspace, ..), "range") else { continue };
        let range = if reverse { range.reverse() } else { range };
        for row in range {
            if let Some((key, found)) = unless_trimmed(row, "range") {
                is_right(u32::from_be_bytes(key[..].try_into().unwrap()), Some(&found));
                answers += 1;
            }
        }
    }
    let half = Glsn(snapshot.at().0 / 2);
    if let Some(diff) = unless_trimmed(reader.diff(keyspace, half, snapshot.at(), b""), "diff") {
        diff.for_each(|change| drop(unless_trimmed(change, "diff")));
    }
    let log = reader.log();
    for glsn in [Glsn(1), half, snapshot.at()] {
        unless_trimmed(log.read(glsn), "log.read");
        let commit = unless_trimmed(log.commit(glsn), "log.commit").flatten();
        let changes =
            commit.as_ref().and_then(|commit| unless_trimmed(commit.changes(), "commit.changes"));
        for change in changes.into_iter().flatten() {
            let change = unless_trimmed(change, "changes.next");
            drop(change.and_then(|change| unless_trimmed(change.value(), "change.value")));
        }
    }
    if let Some(mut scan) = unless_trimmed(log.scan(log.bounds().first.., None), "log.scan") {
        while let Some(entry) = scan.next() {
            if unless_trimmed(entry, "log.scan").is_none() {
                break;
            }
        }
    }
    answers
}

#[test]
fn a_reader_still_reads_its_first_moment_if_every_version_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    write(&db, &keyspace, 0);
    db.flush().unwrap();
    write(&db, &keyspace, 1);
    let reader = open_reader(&path);
    let seen = reader.keyspace("default").unwrap();
    let snapshot = reader.snapshot();
    let mut walk = snapshot.range(&seen, ..).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().1, &value(0, 1)[..]);
    let mut half_read = snapshot.get_reader(&seen, &0u32.to_be_bytes()).unwrap().unwrap();
    half_read.read_exact(&mut [0; 1000]).unwrap();
    for round in 2..5 {
        write(&db, &keyspace, round);
        db.compact().unwrap();
    }
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > snapshot.at(), "the reader's whole log is gone: {first}");
    reader.drop_caches();
    assert_eq!(walk.count() as u32, KEYS - 1);
    let mut rest = Vec::new();
    half_read.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, vec![value(0, 1)[0]; 2000]);
    // Every key by a get, and by a scan in each direction.
    assert_eq!(ask(&reader, &snapshot, &seen, |_| Some(1)), 3 * KEYS);
    assert!(matches!(reader.log().read(Glsn(1)), Err(Error::Trimmed { .. })));
    assert_eq!(reader.history(&seen, &3u32.to_be_bytes()).unwrap().count(), 2);
    assert_eq!(reader.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_new_keyspace_is_no_damage_for_a_reader_that_has_loaded_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    write(&db, &keyspace, 0);
    db.flush().unwrap();
    let reader = open_reader(&path);
    let seen = reader.keyspace("default").unwrap();
    write(&db, &db.keyspace("later").unwrap(), 0);
    write(&db, &keyspace, 1);
    db.compact().unwrap();
    db.log().trim(db.newest()).unwrap();
    // Its run and its log are gone, so it reads the newest manifest.
    reader.drop_caches();
    assert_eq!(ask(&reader, &reader.snapshot(), &seen, |_| Some(0)), 3 * KEYS);
    assert_eq!(reader.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_moment_that_the_writer_has_dropped_is_no_longer_retained_for_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.create_keyspace("latest", Retention::Latest).unwrap();
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
    write(&db, &keyspace, 0);
    db.flush().unwrap();
    let reader = open_reader(&path);
    let seen = reader.keyspace("latest").unwrap();
    let snapshot = reader.snapshot();
    for round in 1..4 {
        write(&db, &keyspace, round);
        db.compact().unwrap();
    }
    db.log().trim(db.newest()).unwrap();
    reader.drop_caches();
    ask(&reader, &snapshot, &seen, |_| Some(0));
    let gone = snapshot.get(&seen, &0u32.to_be_bytes()).unwrap_err();
    assert!(matches!(gone, Error::Trimmed { .. }), "{gone}");
    assert_eq!(reader.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_missing_file_without_a_newer_manifest_is_damage_for_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    (0..4).for_each(|round| write(&db, &keyspace, round));
    db.flush().unwrap();
    db.close().unwrap();
    let reader = open_reader(&path);
    let seen = reader.keyspace("default").unwrap();
    let names = std::fs::read_dir(path.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|kind| kind == "seg")).collect();
    segments.sort();
    std::fs::remove_file(&segments[1]).unwrap();
    reader.drop_caches();
    let of = |glsn: u64, key: u32| {
        reader.snapshot_at(Moment::Glsn(Glsn(glsn)))?.get(&seen, &key.to_be_bytes())
    };
    let damaged =
        (1..=reader.newest().0).flat_map(|glsn| (0..KEYS).step_by(2).map(move |key| (glsn, key)));
    let damaged = damaged.map(|(glsn, key)| of(glsn, key));
    let errors: Vec<_> = damaged.filter_map(std::result::Result::err).collect();
    assert!(
        !errors.is_empty() && errors.iter().all(|error| matches!(error, Error::Corrupt { .. })),
        "{errors:?}"
    );
}

#[test]
fn short_lived_readers_beside_a_trimming_writer_never_report_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options().durability(Durability::Buffered)).unwrap();
    let keyspace = db.create_keyspace("latest", Retention::Latest).unwrap();
    let forever = db.keyspace("default").unwrap();
    write(&db, &keyspace, 0);
    write(&db, &forever, 0);
    // A reader sees durable commits only, and each key must have a value before the first reader
    // opens the store.
    db.flush().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 1;
            while !stop.load(Ordering::Relaxed) {
                write(&db, &keyspace, round);
                write(&db, &forever, round % 4);
                match round % 3 {
                    0 => db.flush().unwrap(),
                    _ => db.compact().unwrap(),
                }
                db.log().trim(db.newest()).unwrap();
                round += 1;
            }
            round
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut answers = 0;
                    for _ in 0..15 {
                        let reader = open_reader(&path);
                        let snapshot = reader.snapshot();
                        for name in ["latest", "default"] {
                            answers +=
                                ask(&reader, &snapshot, &reader.keyspace(name).unwrap(), |_| None);
                        }
                        let report = reader.verify(&mut |_| {}).unwrap();
                        assert_eq!(report.problems, Vec::<String>::new());
                    }
                    answers
                })
            })
            .collect();
        let answers: Vec<_> =
            readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 1);
        assert!(answers.into_iter().all(|answers| answers.unwrap() > 0));
    });
}

/// Makes rounds after which the files that a reader opened are gone: runs merged away, segments
/// trimmed.
fn leave_behind(db: &Db, keyspace: &Keyspace) {
    for round in 1..4 {
        write(db, keyspace, round);
        db.compact().unwrap();
    }
    db.log().trim(db.newest()).unwrap();
}

#[test]
fn a_backup_by_a_reader_whose_files_are_gone_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    db.set_retention(&keyspace, Retention::Latest).unwrap();
    write(&db, &keyspace, 0);
    db.flush().unwrap();
    let (reader, well_read) = (open_reader(&path), open_reader(&path));
    leave_behind(&db, &keyspace);
    // A reader that has loaded the younger manifest has a log that ends before it.
    let seen = well_read.keyspace("default").unwrap();
    well_read.drop_caches();
    for key in 0..KEYS {
        let _ = well_read.snapshot().get(&seen, &key.to_be_bytes());
    }
    for (name, reader) in [("first", &reader), ("second", &well_read)] {
        for copy in [false, true] {
            let dest = dir.path().join(format!("{name}-{copy}"));
            let made = if copy { reader.backup_copy(&dest) } else { reader.backup(&dest) };
            let error = made.unwrap_err();
            assert!(matches!(error, Error::Trimmed { .. }), "{name}, copy {copy}: {error}");
            assert_eq!(
                std::fs::read_dir(&dest).map_or(0, Iterator::count),
                0,
                "{name}, copy {copy}"
            );
            // A store that is reopened can be backed up to the same place.
            let fresh = open_reader(&path);
            if copy {
                fresh.backup_copy(&dest).unwrap()
            } else {
                fresh.backup(&dest).unwrap()
            };
            let backup = open_reader(&dest);
            assert_eq!(backup.newest(), db.newest());
            assert_eq!(backup.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
            let kept = backup.keyspace("default").unwrap();
            assert_eq!(ask(&backup, &backup.snapshot(), &kept, |_| Some(3)), 3 * KEYS);
        }
    }
}
