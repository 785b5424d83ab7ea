//! The store's own records on damaged pages: keyspaces are named again, each row stays in its keyspace, and a log with streams of the user is
//! not trimmed by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, DropTarget, Glsn, IndexSource, Retention, salvage_drop, salvage_from_index, verify};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::repair::{Model, STORE, content, files, manifests, mem_disk, options, segments};

const PAGE: usize = 16 << 10;

/// The key of the record that the log carries streams of the user: it stands on the first leaf.
const STREAMS: &[u8] = b"\x01streams";

fn put(db: &Db, keyspace: &str, numbers: std::ops::Range<u32>) {
    let keyspace = db.keyspace(keyspace).unwrap();
    for number in numbers {
        let row = format!("{}-{number:06}", keyspace.name());
        db.put(&keyspace, row.as_bytes(), row.repeat(50)).unwrap();
    }
}

/// A store with the keyspace `zoo` (number 16) and entries of a stream of the user, whose records are in the index alone; the record of `later`
/// is in the log as well. With `replaced`, the past has another record of `zoo`. What the store holds.
fn build(disk: &Arc<dyn Disk>, later: &str, replaced: bool) -> Model {
    let db = Db::open(STORE, options(disk)).unwrap();
    put(&db, "zoo", 0..200);
    db.log().append(7, &[b"early"]).unwrap();
    if replaced {
        db.set_retention(&db.keyspace("zoo").unwrap(), Retention::Glsns(1 << 40)).unwrap();
    }
    put(&db, "default", 0..600);
    db.compact().unwrap();
    assert!(db.log().trim(db.newest()).unwrap() > 201, "too little was trimmed");
    db.log().append(7, &[b"late"]).unwrap();
    put(&db, later, 0..10);
    db.flush().unwrap();
    let model = content(&db);
    db.close().unwrap();
    model
}

fn runs(disk: &dyn Disk) -> Vec<(PathBuf, Vec<u8>)> {
    let mut runs = files(disk, &Path::new(STORE).join("index"));
    runs.retain(|(path, _)| path.extension().is_some_and(|ending| ending == "run"));
    runs
}

fn spoil(disk: &dyn Disk, path: &Path, at: usize) {
    let file = disk.open(path, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(&[0x5a; 3], at as u64).unwrap();
    file.sync().unwrap();
}

/// Damages the page with the record of the streams, and so the one of `zoo`.
fn lose_records(disk: &dyn Disk) {
    let place = |bytes: &[u8]| bytes.windows(STREAMS.len()).position(|bytes| bytes == STREAMS);
    let (run, at) = runs(disk).into_iter().find_map(|(run, bytes)| Some((run, place(&bytes)?))).unwrap();
    spoil(disk, &run, at);
}

/// Whether the log loses nothing by itself, although no keyspace keeps its past; the store is no other afterwards.
fn keeps_its_log(disk: &Arc<dyn Disk>) -> bool {
    let db = Db::open(STORE, options(disk)).unwrap();
    for info in db.keyspaces() {
        db.set_retention(&db.keyspace(&info.name).unwrap(), Retention::Latest).unwrap();
    }
    let first = db.log().bounds().first;
    put(&db, "default", 0..900);
    db.compact().unwrap();
    let keeps = db.log().bounds().first == first;
    db.close().unwrap();
    keeps
}

fn is_sound(disk: &Arc<dyn Disk>, told: &str) -> Model {
    let report = verify(STORE, options(disk), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{told}: {:?}", report.problems);
    let db = Db::open(STORE, options(disk).create(false)).unwrap();
    let found = content(&db);
    db.close().unwrap();
    found
}

/// Each row is where it was, or in the keyspace `name` if it was in `zoo`; how many there are of `zoo`.
fn are_in_their_places(found: &Model, model: &Model, name: &str, told: &str) -> usize {
    for ((keyspace, key), value) in found {
        let was = if keyspace == name { "zoo" } else { keyspace };
        assert_eq!(model.get(&(was.to_owned(), key.clone())), Some(value), "{told}: {keyspace}, {key:?}");
    }
    found.keys().filter(|(keyspace, _)| keyspace == name).count()
}

fn losses(disk: &dyn Disk) -> String {
    let mut lists = files(disk, Path::new(STORE));
    lists.retain(|(path, _)| path.parent() == Some(Path::new(STORE)) && path.to_str().unwrap().contains("losses"));
    lists.into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect()
}

#[test]
fn a_log_that_the_user_has_streams_in_is_trimmed_only_by_the_user() {
    // What the other tests look at.
    let disk = mem_disk();
    build(&disk, "later", false);
    assert!(keeps_its_log(&disk));
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    put(&db, "default", 0..600);
    db.close().unwrap();
    assert!(!keeps_its_log(&disk));
}

#[test]
fn records_that_are_lost_are_written_again_by_a_salvage_by_dropping_that_was_cut_short_anywhere() {
    let lying = LyingDisk::new(7);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    // Its record is in the log, so only the salvaged store knows that the name is taken.
    let model = build(&disk, "recovered-16", false);
    lose_records(&*disk);
    for sync in 0.. {
        let lying = lying.snapshot();
        lying.reseed(sync);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let drop = || salvage_drop(STORE, options(&disk), &[DropTarget::Damaged], false);
        lying.cut_power_at_sync(lying.sync_count() + sync);
        let first = drop();
        let was_cut = lying.power_is_cut();
        lying.restore_power();
        let told = format!("sync {sync}");
        if was_cut {
            drop().unwrap_or_else(|error| panic!("{told}: {error}"));
        } else {
            assert_eq!(first.unwrap().recovered, ["recovered-16-again"]);
        }
        let found = is_sound(&disk, &told);
        let rows = are_in_their_places(&found, &model, "recovered-16-again", &told);
        assert!(rows > 100, "{told}: {rows}");
        assert!(losses(&*disk).contains("\"recovered-16-again\""), "{told}: {}", losses(&*disk));
        assert!(keeps_its_log(&disk), "{told}");
        if !was_cut {
            assert!(sync > 8, "{sync}");
            return;
        }
    }
}

#[test]
fn streams_are_recorded_again_also_beside_damage_that_stays() {
    let disk = mem_disk();
    build(&disk, "later", false);
    let db = Db::open(STORE, options(&disk)).unwrap();
    put(&db, "default", 600..1000);
    db.flush().unwrap();
    db.close().unwrap();
    lose_records(&*disk);
    // Before the only entry of a stream.
    spoil(&*disk, &segments(&*disk)[0], 7 * PAGE + 900);
    let target = DropTarget::Key { keyspace: "default".to_owned(), key: b"a".to_vec() };
    let report = salvage_drop(STORE, options(&disk), &[target], false).unwrap();
    assert_eq!(report.recovered, ["recovered-16"]);
    let problems = verify(STORE, options(&disk), &mut |_| {}).unwrap().problems;
    assert!(!problems.is_empty() && problems.iter().all(|problem| problem.starts_with("log/")), "{problems:?}");
    assert!(keeps_its_log(&disk));
}

#[test]
fn a_keyspace_of_which_only_a_record_that_was_replaced_is_left_keeps_its_name() {
    let disk = mem_disk();
    let model = build(&disk, "later", true);
    lose_records(&*disk);
    let drop = |dry_run| salvage_drop(STORE, options(&disk), &[DropTarget::Damaged], dry_run).unwrap();
    let told = drop(true);
    let report = drop(false);
    assert_eq!(told.recovered, report.recovered);
    assert_eq!(report.recovered, ["zoo"]);
    assert!(losses(&*disk).contains("its name is \"zoo\" now"), "{}", losses(&*disk));
    assert!(are_in_their_places(&is_sound(&disk, ""), &model, "zoo", "") > 100);
}

#[test]
fn records_that_are_lost_with_the_manifest_are_written_again_where_the_log_has_the_rest() {
    let disk = mem_disk();
    let model = build(&disk, "recovered-16", false);
    lose_records(&*disk);
    manifests(&*disk).iter().for_each(|manifest| disk.remove(manifest).unwrap());
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert!(matches!(report.index_from, Some(IndexSource::Runs(_))), "{report:?}");
    assert_eq!(report.recovered, ["recovered-16-again"]);
    assert!(are_in_their_places(&is_sound(&disk, ""), &model, "recovered-16-again", "") > 100);
    assert!(losses(&*disk).contains("\"recovered-16-again\""), "{}", losses(&*disk));
    assert!(keeps_its_log(&disk));
}

/// A store whose log lost its end, and whose manifests are lost; what it held. The front of the log has `a` (number 16), which was dropped, and
/// another `a` (17); it has `b` (18), which was dropped in the part that is lost, where another `b` was made. Records fill several pages.
fn without_the_end(disk: &Arc<dyn Disk>) -> Model {
    let db = Db::open(STORE, options(disk)).unwrap();
    let make = |name: &str| {
        put(&db, name, 0..30);
        db.keyspace(name).unwrap()
    };
    db.drop_keyspace(&make("a")).unwrap();
    make("a");
    let b = make("b");
    db.log().append(7, &[b"early"]).unwrap();
    for number in 0..150 {
        db.keyspace(&format!("A{number:0200}")).unwrap();
    }
    put(&db, "default", 0..900);
    let dropped = db.drop_keyspace(&b).unwrap().glsn;
    make("b");
    put(&db, "default", 900..1000);
    db.compact().unwrap();
    let model = content(&db);
    db.close().unwrap();
    let first = |segment: &PathBuf| Glsn(segment.file_stem().unwrap().to_str().unwrap().parse().unwrap());
    let all = segments(&**disk);
    let cut = all.iter().rposition(|segment| first(segment) <= dropped).unwrap();
    assert!(cut > 0, "{all:?}");
    for lost in all[cut..].iter().chain(&manifests(&**disk)) {
        disk.remove(lost).unwrap();
    }
    model
}

#[test]
fn records_that_only_the_front_of_the_log_has_come_back_and_replace_none() {
    let (mut renamed, mut lost) = (0, 0);
    for page in 1..8 {
        let disk = mem_disk();
        let model = without_the_end(&disk);
        let (run, bytes) = runs(&*disk).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        spoil(&*disk, &run, page * PAGE + 900);
        // That is also the page with the records of dropped keyspaces.
        let is_first = bytes[page * PAGE..][..PAGE].windows(STREAMS.len()).any(|bytes| bytes == STREAMS);
        let report = salvage_from_index(STORE, options(&disk)).unwrap();
        let told = format!("page {page}: {report:?}");
        let found = is_sound(&disk, &told);
        for ((keyspace, key), value) in &found {
            // The rows say where they belong.
            let home = key.split(|byte| *byte == b'-').next().unwrap();
            assert!(keyspace.as_bytes() == home || keyspace.starts_with("recovered-"), "{told}: {keyspace}, {key:?}");
            let was = (String::from_utf8(home.to_vec()).unwrap(), key.clone());
            assert_eq!(model.get(&was), Some(value), "{told}: {keyspace}, {key:?}");
        }
        for name in ["a", "b"] {
            let rows = found.keys().filter(|(_, key)| key.starts_with(format!("{name}-").as_bytes())).count();
            assert!(rows == 30 || !is_first, "{told}: {rows} rows of {name}");
            lost += 30 - rows;
        }
        renamed += report.recovered.len();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let fresh = db.keyspace("fresh").unwrap();
        assert!(db.snapshot().range(&fresh, ..).unwrap().next().is_none(), "{told}");
        db.close().unwrap();
        assert!(keeps_its_log(&disk), "{told}");
    }
    assert!(renamed > 0, "no record was lost whose name was taken");
    assert!(lost < 60, "the page of the rows was lost each time");
}
