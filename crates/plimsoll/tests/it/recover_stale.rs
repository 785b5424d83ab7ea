//! A recovery does not present an older value as the newest, or a key whose deletion is lost, if
//! the log and the index have lost different parts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, Retention};
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::recover::{
    STORE, files, manifests, mem_disk, options, recover, recovered, runs, segments, spoil,
};

const PAGE: u64 = 4096;

fn replace(disk: &dyn Disk, (path, bytes): &(PathBuf, Vec<u8>)) {
    if disk.entry(path).unwrap().is_some() {
        disk.remove(path).unwrap();
    }
    let file = disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
}

fn all_of(disk: &dyn Disk, folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    files(disk, &Path::new(STORE).join(folder))
}

/// Calls `before`, closes the store, calls `after`, closes it with everything in its index, and
/// restores the log that it had after the first close.
fn lose_log_after(disk: &Arc<dyn Disk>, before: &dyn Fn(&Db), after: &dyn Fn(&Db)) {
    let db = Db::open(STORE, options(disk)).unwrap();
    before(&db);
    db.close().unwrap();
    let log = all_of(&**disk, "log");
    let db = Db::open(STORE, options(disk)).unwrap();
    after(&db);
    db.flush().unwrap();
    db.close().unwrap();
    for segment in segments(&**disk) {
        disk.remove(&segment).unwrap();
    }
    log.iter().for_each(|file| replace(&**disk, file));
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn a_dropped_keyspace_reappears_only_if_the_report_names_it() {
    for (merged, again) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = mem_disk();
        let before = |db: &Db| {
            let more = db.keyspace("more").unwrap();
            (0..50).for_each(|n| _ = db.put(&more, key(n), [1u8; 900]).unwrap());
        };
        let after = |db: &Db| {
            db.drop_keyspace(&db.keyspace("more").unwrap()).unwrap();
            if again {
                db.keyspace("more").unwrap();
            }
            if merged {
                db.compact().unwrap();
            }
        };
        lose_log_after(&disk, &before, &after);
        for (path, bytes) in &runs(&*disk) {
            for page in 1..bytes.len() as u64 / PAGE - 1 {
                spoil(&*disk, path, page * PAGE + 100);
                let report = recover(&disk);
                let is_back = recovered(&disk).keys().any(|(name, _)| name == "more");
                let is_named = report.renamed.contains(&"more".to_owned())
                    || report.unresolved.iter().any(|what| what.contains("keyspace more may be"));
                assert!(!is_back || is_named, "{merged} {again} {page} {report:?}");
                replace(&*disk, &(path.clone(), bytes.clone()));
            }
        }
    }
}

#[test]
fn a_key_whose_deletion_only_the_index_knows_does_not_reappear() {
    for retention in [Retention::Latest, Retention::Forever] {
        let disk = mem_disk();
        let before = |db: &Db| {
            let more = db.create_keyspace("more", retention).unwrap();
            (0..50).for_each(|n| _ = db.put(&more, key(n), [1u8; 900]).unwrap());
        };
        let after = |db: &Db| {
            let more = db.keyspace("more").unwrap();
            (0..25).for_each(|n| _ = db.delete(&more, key(n)).unwrap());
            db.flush().unwrap();
            db.compact().unwrap();
        };
        lose_log_after(&disk, &before, &after);
        for (path, bytes) in &runs(&*disk) {
            for page in 1..bytes.len() as u64 / PAGE - 1 {
                spoil(&*disk, path, page * PAGE + 100);
                let report = recover(&disk);
                let found = recovered(&disk);
                for ((_, key), _) in found.iter().filter(|((name, _), _)| name == "more") {
                    assert!(key[..] >= 25u32.to_be_bytes()[..], "{path:?} {page} {report:?}");
                }
                replace(&*disk, &(path.clone(), bytes.clone()));
            }
        }
    }
}

#[test]
fn an_older_part_of_a_spilled_transaction_does_not_replace_the_newer_one() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    for round in 1..=2u8 {
        (0..100).for_each(|n| tx.put(&keyspace, key(n), [round; 900]).unwrap());
        let filler = u32::from(round) * 100_000;
        (filler..filler + 6_000).for_each(|n| tx.put(&keyspace, key(n), [0u8; 900]).unwrap());
    }
    tx.commit().unwrap();
    db.close().unwrap();
    let mut blobs = all_of(&*disk, "log");
    blobs.retain(|(path, _)| path.extension().is_some_and(|ending| ending == "blob"));
    assert!(blobs.len() > 1, "it has spilled");
    let mut parts = blobs;
    parts.extend(runs(&*disk));
    for part in &parts {
        disk.remove(&part.0).unwrap();
        let report = recover(&disk);
        for ((_, found), value) in recovered(&disk) {
            assert!(found > key(99) || value[0] == 2, "{} {found:?} {report:?}", part.0.display());
        }
        replace(&*disk, part);
    }
}

#[test]
fn if_a_run_of_the_newest_manifest_is_missing_no_older_value_is_served_unreported() {
    let disk = mem_disk();
    for round in 1..=3u8 {
        let db = Db::open(STORE, options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let keys = u32::from(round)..40; // Key n has the value of round n, at most 3.
        keys.for_each(|n| _ = db.put(&keyspace, key(n), [round; 900]).unwrap());
        db.flush().unwrap();
        db.close().unwrap();
    }
    let (log, index) = (all_of(&*disk, "log"), all_of(&*disk, "index"));
    let newest = manifests(&*disk).pop().unwrap();
    for lost_manifest in [false, true] {
        for (run, _) in runs(&*disk) {
            disk.remove(&run).unwrap();
            if lost_manifest {
                spoil(&*disk, &newest, 70);
            }
            for damage in ["none", "bit", "gone"] {
                for (segment, _) in
                    log.iter().filter(|(path, _)| path.extension().is_some_and(|it| it == "seg"))
                {
                    match damage {
                        "none" => {}
                        "bit" => spoil(&*disk, segment, 60_000),
                        _ => disk.remove(segment).unwrap(),
                    }
                }
                let report = recover(&disk);
                let is_named = !report.unresolved.is_empty() || !report.lost_commits.is_empty();
                for ((_, found), value) in recovered(&disk) {
                    let number = u32::from_be_bytes(found[..4].try_into().unwrap());
                    let newest = number.min(3) as u8;
                    assert!(value[0] == newest.max(1) || is_named, "{damage} {run:?} {report:?}");
                }
                log.iter().for_each(|file| replace(&*disk, file));
            }
            index.iter().for_each(|file| replace(&*disk, file));
        }
    }
}
