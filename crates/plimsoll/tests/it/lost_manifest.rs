//! A store whose manifest is damaged or missing, and whose log was trimmed: a recovery uses an
//! older manifest, or otherwise the runs in the folder, and reports data that neither holds.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{DamagedKeys, Db, Error, Glsn, IndexSource, Moment, verify};
use plimsoll_disk::vfs::Disk;

use crate::recover::{
    DEST, Model, STORE, files, fill, is_whole_from, manifests, mem_disk, options, recover,
    recovered, runs, segments, spoil,
};

const PAGE: u64 = 16 << 10;

/// A store with several runs, values of all kinds, and a trimmed log; its content, and the first
/// GLSN of the log.
fn trimmed(disk: &Arc<dyn Disk>) -> (Vec<Model>, Glsn) {
    let db = Db::open(STORE, options(disk)).unwrap();
    // Keys that are written once, so that the log no longer holds them.
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    for number in 0..150 {
        tx.put(&keyspace, format!("once-{number:03}").as_bytes(), &[7; 700]).unwrap();
    }
    tx.commit().unwrap();
    let mut models = fill(&db, 300, 2500);
    db.compact().unwrap();
    let first = db.log().trim(Glsn(200)).unwrap();
    assert!(first > 1, "nothing was trimmed");
    models.extend(fill(&db, 300, 2500).split_off(models.len()));
    db.flush().unwrap();
    models.extend(fill(&db, 50, 2500).split_off(models.len()));
    db.close().unwrap();
    (models, first)
}

fn is_advised(disk: &Arc<dyn Disk>) {
    let before = files(&**disk, Path::new(STORE));
    let error = Db::open(STORE, options(disk)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(files(&**disk, Path::new(STORE)) == before, "the refused call changed something");
    let report = verify(STORE, options(disk), &mut |_| {}).unwrap();
    let command = report.damage[0].command.as_deref();
    assert_eq!(command, Some("plimsoll recover /store /store.recovered"), "{:?}", report.damage);
}

#[test]
fn a_damaged_older_manifest_is_reported_and_is_no_problem() {
    let disk = mem_disk();
    trimmed(&disk);
    let all = manifests(&*disk);
    assert!(all.len() > 1, "{all:?}");
    spoil(&*disk, &all[0], 70);
    let is_told =
        |notes: &[String]| notes.iter().any(|note| note.contains(all[0].to_str().unwrap()));
    let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty() && is_told(&report.notes), "{report:?}");
    // Also if the store does not open.
    spoil(&*disk, all.last().unwrap(), 70);
    let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
    assert!(!report.opens && is_told(&report.notes), "{report:?}");
}

#[test]
fn a_damaged_manifest_beside_a_trimmed_log_is_replaced_by_an_older_one_and_nothing_is_lost() {
    let disk = mem_disk();
    let (models, first) = trimmed(&disk);
    let all = manifests(&*disk);
    spoil(&*disk, all.last().unwrap(), 70);
    is_advised(&disk);
    let report = recover(&disk);
    is_whole_from(&report, IndexSource::Index);
    let newest = models.len() as u64 - 1;
    assert_eq!(report.glsn, newest);
    // Past versions are present as well.
    let db = Db::open(DEST, options(&disk)).unwrap();
    for at in [first.0, newest - 20] {
        db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap();
    }
    db.close().unwrap();
    assert!(recovered(&disk) == *models.last().unwrap());
}

#[test]
fn without_any_manifest_the_runs_in_the_folder_and_the_log_are_the_store() {
    for how in 0..2 {
        let disk = mem_disk();
        let (models, _) = trimmed(&disk);
        for manifest in manifests(&*disk) {
            if how == 0 { spoil(&*disk, &manifest, 70) } else { disk.remove(&manifest).unwrap() }
        }
        is_advised(&disk);
        let report = recover(&disk);
        assert_eq!((report.value_count, report.lost_ranges.len()), (0, 0), "{report:?}");
        // A missing run file could not be detected, and the report says so.
        let [what] = &report.unresolved[..] else { panic!("{report:?}") };
        assert!(what.contains("lists the runs"), "{what}");
        assert_eq!((report.index, report.lost_commits.len()), (IndexSource::LogAndRuns, 0));
        assert!(report.readable_from > 1);
        let db = Db::open(DEST, options(&disk)).unwrap();
        let old = db.snapshot_at(Moment::Glsn(Glsn(report.readable_from.0 - 1)));
        let refused =
            old.and_then(|old| old.get(&db.keyspace("default")?, 7u64.to_be_bytes()).map(drop));
        assert!(matches!(refused, Err(Error::Trimmed { .. })), "{refused:?}");
        db.close().unwrap();
        assert!(recovered(&disk) == *models.last().unwrap());
    }
}

#[test]
fn without_manifest_and_end_of_the_log_the_runs_are_kept() {
    let disk = mem_disk();
    let (models, _) = trimmed(&disk);
    let db = Db::open(STORE, options(&disk)).unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    for lost in manifests(&*disk).iter().chain(&segments(&*disk)) {
        disk.remove(lost).unwrap();
    }
    let report = recover(&disk);
    assert_eq!(report.index, IndexSource::LogAndRuns);
    let newest = models.last().unwrap();
    let found = recovered(&disk);
    for (key, value) in newest {
        let is_lost =
            report.values.iter().any(|lost| (&lost.keyspace, &lost.key) == (&key.0, &key.1));
        let is_here = found.get(key) == Some(value);
        assert!(
            is_here
                || (is_lost && value.len() > plimsoll::INLINE_BYTES && !found.contains_key(key)),
            "{key:?}"
        );
    }
    assert!(found.keys().all(|key| newest.contains_key(key)) && found.len() > newest.len() / 4);
}

/// The id of a keyspace, from its name in a report.
fn number(keyspace: &str) -> u32 {
    match keyspace {
        "(the store's own)" => 0,
        "default" => 1,
        "(the cursors)" => 2,
        "more" | "(number 16)" => 16,
        other => panic!("{other}"),
    }
}

/// Whether a range holds a key.
fn holds(range: &DamagedKeys, (keyspace, key): &(String, Vec<u8>)) -> bool {
    let key = (number(keyspace), key);
    (number(&range.keyspace), &range.first) <= key
        && key <= (number(&range.last_keyspace), &range.last)
}

#[test]
fn keys_of_a_lost_page_are_named_and_no_older_value_takes_their_place() {
    let (mut lost, mut renamed) = (0, 0);
    for page in 1..12 {
        let disk = mem_disk();
        let (models, _) = trimmed(&disk);
        for manifest in manifests(&*disk) {
            spoil(&*disk, &manifest, 70);
        }
        let (run, bytes) = runs(&*disk).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        spoil(&*disk, &run, (page * PAGE + 900).min(bytes.len() as u64 - 900));
        let report = recover(&disk);
        let newest = models.last().unwrap();
        let mut found = Model::new();
        for ((keyspace, key), value) in recovered(&disk) {
            // The record of keyspace `more`, the first one that was created, may be lost too.
            let is_renamed = report.renamed.contains(&keyspace);
            assert!(!is_renamed || keyspace == "recovered-16", "page {page}: {keyspace}");
            found.insert((if is_renamed { "more".to_owned() } else { keyspace }, key), value);
        }
        for (key, value) in &found {
            assert!(newest.get(key) == Some(value), "page {page}: {key:?} has another value");
        }
        for key in newest.keys().filter(|key| !found.contains_key(*key)) {
            let is_named = report.lost_ranges.iter().any(|range| holds(range, key));
            let is_lost =
                report.values.iter().any(|lost| (&lost.keyspace, &lost.key) == (&key.0, &key.1));
            assert!(is_named || is_lost, "page {page}: {key:?}: {report:?}");
            lost += 1;
        }
        renamed += report.renamed.len();
        let db = Db::open(DEST, options(&disk)).unwrap();
        let fresh = db.keyspace("fresh").unwrap();
        assert!(db.snapshot().range(&fresh, ..).unwrap().next().is_none(), "page {page}");
        db.close().unwrap();
    }
    assert!(lost > 0, "no page held a version");
    assert!(renamed > 0, "no page held the record of a keyspace");
}

#[test]
fn an_index_without_a_manifest_that_knows_more_than_the_log_is_not_swept() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 700, 900);
    db.compact().unwrap();
    db.close().unwrap();
    let segments = segments(&*disk);
    for lost in manifests(&*disk).iter().chain(&segments[1..]) {
        disk.remove(lost).unwrap();
    }
    let before = runs(&*disk);
    for read_only in [true, false] {
        let error = Db::open(STORE, options(&disk).read_only(read_only)).unwrap_err();
        assert!(
            matches!(&error, Error::Forked { message, .. } if message.contains("plimsoll recover")),
            "{error}"
        );
    }
    assert!(runs(&*disk) == before);
    let report = recover(&disk);
    assert_eq!((report.value_count, report.index), (0, IndexSource::LogAndRuns));
    assert!(recovered(&disk) == *models.last().unwrap());
}
