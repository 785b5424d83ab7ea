//! A store whose manifest is damaged or missing, and whose log was trimmed: `salvage_from_index` takes an older manifest, or else the runs in the
//! folder, and names what neither holds.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{DamagedKeys, Db, Error, Glsn, IndexSource, Moment, rebuild, salvage_from_index, verify};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::repair::{Model, STORE, content, files, fill, manifests, mem_disk, options, segments};

const PAGE: u64 = 16 << 10;

/// A store with several runs, values of all kinds, and a trimmed log; its content, and the first GLSN of the log.
fn trimmed(disk: &Arc<dyn Disk>) -> (Vec<Model>, Glsn) {
    let db = Db::open(STORE, options(disk)).unwrap();
    // Keys that are written once, so that the log does not have them any more.
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

fn spoil(disk: &dyn Disk, path: &Path, at: u64) {
    disk.open(path, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[0x5a; 3], at).unwrap();
}

fn runs(disk: &dyn Disk) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut runs = files(disk, &Path::new(STORE).join("index"));
    runs.retain(|(path, _)| path.extension().is_some_and(|ending| ending == "run"));
    runs
}

/// Opens it, and looks whether it is sound; what it holds.
fn sound(disk: &Arc<dyn Disk>) -> Model {
    let report = verify(STORE, options(disk), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let db = Db::open(STORE, options(disk).create(false)).unwrap();
    let found = content(&db);
    // And it goes on.
    db.put(&db.keyspace("default").unwrap(), "new", "value").unwrap();
    db.compact().unwrap();
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    found
}

fn is_advised(disk: &Arc<dyn Disk>) {
    let before = files(&**disk, Path::new(STORE));
    let error = Db::open(STORE, options(disk)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(rebuild(STORE, options(disk), &mut |_, _| {}).is_err());
    assert!(files(&**disk, Path::new(STORE)) == before, "what was refused changed something");
    let report = verify(STORE, options(disk), &mut |_| {}).unwrap();
    let command = report.damage[0].command.as_deref();
    assert_eq!(command, Some("plimsoll salvage /store --from-index"), "{:?}", report.damage);
}

#[test]
fn a_damaged_manifest_that_is_not_the_newest_is_told_and_is_no_problem() {
    let disk = mem_disk();
    trimmed(&disk);
    let all = manifests(&*disk);
    assert!(all.len() > 1, "{all:?}");
    spoil(&*disk, &all[0], 70);
    let is_told = |notes: &[String]| notes.iter().any(|note| note.contains(all[0].to_str().unwrap()));
    let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty() && is_told(&report.notes), "{report:?}");
    // Also where the store does not open.
    spoil(&*disk, all.last().unwrap(), 70);
    let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
    assert!(!report.opens && is_told(&report.notes), "{report:?}");
}

#[test]
fn a_folder_without_a_store_is_left_as_it_is_by_a_salvage_from_the_index() {
    let disk = mem_disk();
    for folder in ["/other", "/other/index"] {
        disk.create_dir(Path::new(folder)).unwrap();
    }
    let error = salvage_from_index("/other", options(&disk)).unwrap_err();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    assert_eq!(disk.names(Path::new("/other")).unwrap(), ["index"]);
}

#[test]
fn a_damaged_manifest_beside_a_trimmed_log_is_replaced_by_an_older_one_and_nothing_is_lost() {
    let disk = mem_disk();
    let (models, first) = trimmed(&disk);
    let all = manifests(&*disk);
    spoil(&*disk, all.last().unwrap(), 70);
    is_advised(&disk);
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert!(matches!(report.index_from, Some(IndexSource::Manifest(_))), "{report:?}");
    assert_eq!((report.lost_count, report.lost_ranges.len(), report.unknown.len()), (0, 0, 0), "{report:?}");
    assert!(report.moved.iter().any(|path| path.ends_with(".cut")) && manifests(&*disk).last() > all.last());
    let newest = models.len() as u64 - 1;
    assert_eq!(report.glsn, newest);
    // The past is there as well.
    let db = Db::open(STORE, options(&disk)).unwrap();
    for at in [first.0, newest - 20] {
        db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap();
    }
    db.close().unwrap();
    assert!(sound(&disk) == *models.last().unwrap());
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
        let before = runs(&*disk).len() as u64;
        let report = salvage_from_index(STORE, options(&disk)).unwrap();
        assert_eq!(report.index_from, Some(IndexSource::Runs(before)));
        assert_eq!((report.lost_count, report.lost_ranges.len(), report.unknown.len()), (0, 0, 0), "{report:?}");
        assert!(report.readable_from > 1);
        let db = Db::open(STORE, options(&disk)).unwrap();
        let old = db.snapshot_at(Moment::Glsn(Glsn(report.readable_from.0 - 1)));
        let refused = old.and_then(|old| old.get(&db.keyspace("default")?, 7u64.to_be_bytes()).map(drop));
        assert!(matches!(refused, Err(Error::Trimmed { .. })), "{refused:?}");
        db.close().unwrap();
        assert!(sound(&disk) == *models.last().unwrap());
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
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert!(matches!(report.index_from, Some(IndexSource::Runs(_))), "{report:?}");
    let newest = models.last().unwrap();
    let found = sound(&disk);
    for (key, value) in newest {
        let is_lost = report.lost.contains(key);
        assert!(is_lost || found.get(key) == Some(value), "{key:?}");
        assert!(!is_lost || value.len() > plimsoll::INLINE_BYTES);
    }
    assert!(found.keys().all(|key| newest.contains_key(key)) && found.len() > newest.len() / 4);
}

/// The number of a keyspace, by its name in a report.
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
    (number(&range.keyspace), &range.first) <= key && key <= (number(&range.last_keyspace), &range.last)
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
        let report = salvage_from_index(STORE, options(&disk)).unwrap();
        let newest = models.last().unwrap();
        let mut found = Model::new();
        for ((keyspace, key), value) in sound(&disk) {
            // The record of keyspace `more`, the first one that was made, may be lost too.
            let is_renamed = report.recovered.contains(&keyspace);
            assert!(!is_renamed || keyspace == "recovered-16", "page {page}: {keyspace}");
            found.insert((if is_renamed { "more".to_owned() } else { keyspace }, key), value);
        }
        for (key, value) in &found {
            assert!(newest.get(key) == Some(value), "page {page}: {key:?} has another value");
        }
        for key in newest.keys().filter(|key| !found.contains_key(*key)) {
            let is_named = report.lost_ranges.iter().any(|range| holds(range, key));
            assert!(is_named || report.lost.contains(key), "page {page}: {key:?}: {report:?}");
            lost += 1;
        }
        renamed += report.recovered.len();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let fresh = db.keyspace("fresh").unwrap();
        assert!(db.snapshot().range(&fresh, ..).unwrap().next().is_none(), "page {page}");
        db.close().unwrap();
    }
    assert!(lost > 0, "no page held anything");
    assert!(renamed > 0, "no page held the record of a keyspace");
}

#[test]
fn a_new_manifest_that_is_cut_short_anywhere_is_made_by_the_next_call() {
    let lying = LyingDisk::new(3);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let (models, _) = trimmed(&disk);
    for manifest in manifests(&*disk) {
        disk.remove(&manifest).unwrap();
    }
    disk.sync_dir(&Path::new(STORE).join("index")).unwrap();
    for sync in 0.. {
        let lying = lying.snapshot();
        lying.reseed(sync);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        lying.cut_power_at_sync(lying.sync_count() + sync);
        let first = salvage_from_index(STORE, options(&disk));
        let was_cut = lying.power_is_cut();
        lying.restore_power();
        if was_cut {
            if Db::open(STORE, options(&disk).read_only(true)).is_err() {
                salvage_from_index(STORE, options(&disk)).unwrap_or_else(|error| panic!("sync {sync}: {error}"));
            }
        } else {
            first.unwrap();
        }
        assert!(sound(&disk) == *models.last().unwrap(), "sync {sync}");
        if !was_cut {
            assert!(sync > 3, "{sync}");
            return;
        }
    }
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
        assert!(matches!(&error, Error::Forked { message, .. } if message.contains("--from-index")), "{error}");
    }
    assert!(runs(&*disk) == before);
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert_eq!((report.lost_count, report.index_from), (0, Some(IndexSource::Runs(before.len() as u64))));
    assert!(sound(&disk) == *models.last().unwrap());
}
