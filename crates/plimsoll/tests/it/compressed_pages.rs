//! Compressed pages of the index: the same answers as without compression, in less space, under a
//! small budget; and damage is found and survived.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::{Compression, Db, Glsn, Keyspace, Moment, Options, Retention, verify};

const BUDGET_BYTES: u64 = 16 << 20;

fn options() -> Options {
    Options::new().memory_bytes(BUDGET_BYTES).warm(false)
}

/// 100 bytes, of which half compress.
fn row(number: u32, round: u32) -> Vec<u8> {
    let mut state = u64::from(number) << 32 | u64::from(round) | 1;
    let next = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state as u8
    };
    (0..100).map(|at| if at < 50 { next(&mut state) } else { b'.' }).collect()
}

fn key(number: u32) -> String {
    format!("{:016x}", u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn set(db: &Db, compression: Compression) {
    for name in ["default", "latest", "plain"] {
        let compression = if name == "plain" { Compression::None } else { compression };
        let keyspace = match name {
            "default" => db.keyspace(name).unwrap(),
            _ => db.create_keyspace(name, Retention::Latest).unwrap(),
        };
        db.set_compression(&keyspace, compression).unwrap();
    }
}

fn spaces(db: &Db) -> [Keyspace; 3] {
    ["default", "latest", "plain"].map(|name| db.find_keyspace(name).unwrap().unwrap())
}

/// Rounds of puts, deletions and range deletions, with flushes and compactions in between.
fn write(db: &Db, rounds: std::ops::Range<u32>, rows: u32) {
    let [default, latest, plain] = spaces(db);
    for round in rounds {
        for first in (0..rows).step_by(1000) {
            let mut tx = db.begin();
            for number in (first..first + 1000).step_by(1 + round as usize % 3) {
                let value = row(number, round);
                tx.put(&latest, key(number), &value).unwrap();
                if number % 4 == 0 {
                    tx.put(&default, key(number), &value).unwrap();
                    tx.put(&plain, key(number), &value).unwrap();
                }
                if (number + round).is_multiple_of(13) {
                    tx.delete(&latest, key(number)).unwrap();
                }
            }
            tx.commit().unwrap();
        }
        let prefix = format!("{:02x}", round * 7);
        db.delete_prefix(&latest, prefix).unwrap();
        if round % 2 == 1 { db.compact().unwrap() } else { db.flush().unwrap() }
    }
}

/// Everything that a store answers.
fn answers(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for keyspace in spaces(db) {
        let snapshot = db.snapshot();
        let forward: Vec<_> = snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap).collect();
        let backward: Vec<_> =
            snapshot.range(&keyspace, ..).unwrap().rev().map(Result::unwrap).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        for (key, value) in forward.iter().step_by(17) {
            assert_eq!(snapshot.get(&keyspace, key).unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(snapshot.get(&keyspace, "not there").unwrap(), None);
        all.extend(forward.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    // An earlier moment, counted from the end: the settings take a different number of commits.
    let past = Glsn(db.newest().0.saturating_sub(25));
    let then = db.snapshot_at(Moment::Glsn(past)).unwrap();
    let walked = then.range(&spaces(db)[0], ..).unwrap().map(Result::unwrap);
    all.extend(walked.map(|(key, value)| (key.to_vec(), value.to_vec())));
    all
}

fn run_files(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.join("index")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "run")).collect()
}

fn run_bytes(store: &Path) -> u64 {
    run_files(store).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn compressions() -> Vec<Compression> {
    let mut all = vec![Compression::None, Compression::Lz4];
    if cfg!(feature = "zstd") {
        all.push(Compression::Zstd(3));
    }
    all
}

#[test]
fn compressed_stores_answer_like_uncompressed_ones_in_less_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = None;
    for compression in compressions() {
        let path = dir.path().join(compression.to_string());
        let db = Db::open(&path, options()).unwrap();
        set(&db, compression);
        write(&db, 0..6, 60_000);
        let open = answers(&db);
        db.close().unwrap();
        // All caches are empty again.
        let db = Db::open(&path, options()).unwrap();
        let found = answers(&db);
        assert!(found == open, "{compression}");
        let stats = db.stats();
        assert!(stats.memory.peak_bytes <= BUDGET_BYTES, "{:?}", stats.memory);
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{compression}: {:?}", report.problems);
        let files = run_bytes(&path);
        println!("{compression}: {files} of {} bytes", stats.index.page_bytes);
        let (uncompressed, answers) = expected.get_or_insert((files, open));
        assert!(found == *answers, "{compression}");
        if compression != Compression::None {
            assert!(files < *uncompressed * 7 / 10, "{files} of {uncompressed}");
            assert!(stats.index.runs.iter().sum::<u64>() < stats.index.page_bytes * 7 / 10);
        }
        // Copies have the same answers.
        let copy = dir.path().join(format!("copy of {compression}"));
        db.backup_copy(&copy).unwrap();
        db.close().unwrap();
        let recovered = dir.path().join(format!("recovered {compression}"));
        Db::recover(&path, &recovered, options(), &mut |_, _| {}).unwrap();
        for copy in [copy, recovered] {
            let db = Db::open(&copy, options()).unwrap();
            assert!(self::answers(&db) == found, "{}", copy.display());
        }
    }
}

#[test]
fn a_store_whose_compression_changes_reads_tables_of_both_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let (changing, constant) = (dir.path().join("changing"), dir.path().join("constant"));
    let [changing, constant] = [changing, constant].map(|path| {
        let db = Db::open(path, options()).unwrap();
        set(&db, Compression::None);
        db
    });
    let mut kinds = compressions();
    kinds.push(Compression::None);
    for (round, compression) in (0..).zip(kinds) {
        let [default, latest, _] = spaces(&changing);
        changing.set_compression(&default, compression).unwrap();
        changing.set_compression(&latest, compression).unwrap();
        for db in [&changing, &constant] {
            write(db, round..round + 1, 20_000);
        }
        let [ours, theirs] = [&changing, &constant].map(|db| {
            let snapshot = db.snapshot();
            spaces(db).map(|keyspace| {
                snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap).collect::<Vec<_>>()
            })
        });
        assert!(ours == theirs, "after {compression}");
        assert!(changing.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn a_reader_in_another_opening_reads_packed_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    set(&db, Compression::Lz4);
    write(&db, 0..3, 10_000);
    let beside = Db::open(&path, options().read_only(true)).unwrap();
    assert!(answers(&beside) == answers(&db));
}

#[test]
fn damage_in_packed_runs_is_reported_and_what_is_left_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    set(&db, Compression::Lz4);
    write(&db, 0..2, 10_000);
    let expected = answers(&db);
    db.close().unwrap();
    let runs = run_files(&path);
    let run = runs.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let sound = fs::read(run).unwrap();
    for at in [0, 5000, sound.len() / 3, sound.len() / 2, sound.len() - 20_000, sound.len() - 9] {
        let mut damaged = sound.clone();
        damaged[at] ^= 16;
        fs::write(run, &damaged).unwrap();
        let report = verify(&path, options(), &mut |_| {}).unwrap();
        let name = run.file_name().unwrap().to_str().unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains(name)), "byte {at}");
        let recovered = dir.path().join(format!("recovered {at}"));
        Db::recover(&path, &recovered, options(), &mut |_, _| {}).unwrap();
        // The log still has everything.
        let db = Db::open(&recovered, options()).unwrap();
        assert!(answers(&db) == expected, "byte {at}");
    }
}
