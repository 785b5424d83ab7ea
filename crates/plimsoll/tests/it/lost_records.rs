//! The store's own records on damaged pages: keyspaces get names again, each row stays in its
//! keyspace, and a log with streams of the user is not trimmed automatically.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll::{Db, Glsn, IndexSource, Retention};
use plimsoll_disk::vfs::Disk;

use crate::recover::{
    DEST, Model, STORE, content, manifests, mem_disk, options, recover, recovered, runs, segments,
    spoil,
};

const PAGE: usize = 16 << 10;

/// The key of the record that the log has streams of the user; it is on the first leaf.
const STREAMS: &[u8] = b"\x01streams";

fn put(db: &Db, keyspace: &str, numbers: std::ops::Range<u32>) {
    let keyspace = db.keyspace(keyspace).unwrap();
    for number in numbers {
        let row = format!("{}-{number:06}", keyspace.name());
        db.put(&keyspace, row.as_bytes(), row.repeat(50)).unwrap();
    }
}

/// A store with the keyspace `zoo` (number 16) and entries of a stream of the user, whose records
/// are in the index alone; the record of `later` is in the log as well. With `replaced`, there is
/// an older record of `zoo` as well. Returns the contents of the store.
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

/// Damages the page with the record of the streams and that of `zoo`.
fn lose_records(disk: &dyn Disk) {
    let place = |bytes: &[u8]| bytes.windows(STREAMS.len()).position(|bytes| bytes == STREAMS);
    let (run, at) =
        runs(disk).into_iter().find_map(|(run, bytes)| Some((run, place(&bytes)?))).unwrap();
    spoil(disk, &run, at as u64);
}

/// Whether the log is not freed automatically although no keyspace keeps its past; the store is
/// unchanged afterwards.
fn keeps_its_log(disk: &Arc<dyn Disk>, path: &str) -> bool {
    let db = Db::open(path, options(disk)).unwrap();
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

/// Checks that each row is in its place, or in the keyspace `name` if it was in `zoo`; returns the
/// number of rows of `zoo`.
fn are_in_their_places(found: &Model, model: &Model, name: &str, told: &str) -> usize {
    for ((keyspace, key), value) in found {
        let was = if keyspace == name { "zoo" } else { keyspace };
        assert_eq!(
            model.get(&(was.to_owned(), key.clone())),
            Some(value),
            "{told}: {keyspace}, {key:?}"
        );
    }
    found.keys().filter(|(keyspace, _)| keyspace == name).count()
}

#[test]
fn a_log_with_streams_of_the_user_is_trimmed_only_by_the_user() {
    // The property that the other tests check.
    let disk = mem_disk();
    build(&disk, "later", false);
    assert!(keeps_its_log(&disk, STORE));
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    put(&db, "default", 0..600);
    db.close().unwrap();
    assert!(!keeps_its_log(&disk, STORE));
}

#[test]
fn records_that_are_lost_are_written_again_with_or_without_a_manifest() {
    for has_manifest in [true, false] {
        let disk = mem_disk();
        // Its record is in the log, so only the recovered store knows that the name is taken.
        let model = build(&disk, "recovered-16", false);
        lose_records(&*disk);
        if !has_manifest {
            manifests(&*disk).iter().for_each(|manifest| disk.remove(manifest).unwrap());
        }
        let report = recover(&disk);
        assert_eq!(
            (report.index, &report.renamed[..]),
            (IndexSource::LogAndRuns, &["recovered-16-again".to_owned()][..])
        );
        let told = format!("manifest: {has_manifest}");
        let rows = are_in_their_places(&recovered(&disk), &model, "recovered-16-again", &told);
        assert!(rows > 100, "{told}: {rows}");
        assert!(keeps_its_log(&disk, DEST), "{told}");
    }
}

#[test]
fn streams_are_recorded_again_even_if_the_log_is_damaged() {
    let disk = mem_disk();
    build(&disk, "later", false);
    let db = Db::open(STORE, options(&disk)).unwrap();
    put(&db, "default", 600..1000);
    db.flush().unwrap();
    db.close().unwrap();
    lose_records(&*disk);
    // Before the only entry of a stream.
    spoil(&*disk, &segments(&*disk)[0], 7 * (16 << 10) + 900);
    let report = recover(&disk);
    assert_eq!(report.renamed, ["recovered-16"]);
    assert!(!report.lost_entries.is_empty());
    assert!(keeps_its_log(&disk, DEST));
}

#[test]
fn a_keyspace_with_only_a_superseded_record_left_keeps_its_name() {
    let disk = mem_disk();
    let model = build(&disk, "later", true);
    lose_records(&*disk);
    let foreseen = Db::recover_dry_run(STORE, options(&disk)).unwrap();
    let report = recover(&disk);
    assert_eq!(
        (&foreseen.renamed[..], &report.renamed[..]),
        (&["zoo".to_owned()][..], &["zoo".to_owned()][..])
    );
    assert!(are_in_their_places(&recovered(&disk), &model, "zoo", "") > 100);
}

/// A store whose manifests and the end of whose log are lost; returns its former contents. The
/// front of the log has `a` (number 16), which was dropped, another `a` (17), and `b` (18). In the
/// lost part, `b` was dropped and another `b` was created. The records fill several pages.
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
    let first =
        |segment: &PathBuf| Glsn(segment.file_stem().unwrap().to_str().unwrap().parse().unwrap());
    let all = segments(&**disk);
    let cut = all.iter().rposition(|segment| first(segment) <= dropped).unwrap();
    assert!(cut > 0, "{all:?}");
    for lost in all[cut..].iter().chain(&manifests(&**disk)) {
        disk.remove(lost).unwrap();
    }
    model
}

#[test]
fn records_only_in_the_front_of_the_log_are_restored_and_replace_none() {
    let (mut renamed, mut lost) = (0, 0);
    for page in 1..8 {
        let disk = mem_disk();
        let model = without_the_end(&disk);
        let (run, bytes) = runs(&*disk).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        spoil(&*disk, &run, (page * PAGE + 900) as u64);
        // That page also has the records of dropped keyspaces.
        let is_first =
            bytes[page * PAGE..][..PAGE].windows(STREAMS.len()).any(|bytes| bytes == STREAMS);
        let report = recover(&disk);
        let told = format!("page {page}: {report:?}");
        let db = Db::open(DEST, options(&disk)).unwrap();
        let found = content(&db);
        db.close().unwrap();
        for ((keyspace, key), value) in &found {
            // The key of each row names its keyspace.
            let home = key.split(|byte| *byte == b'-').next().unwrap();
            assert!(
                keyspace.as_bytes() == home || keyspace.starts_with("recovered-"),
                "{told}: {keyspace}, {key:?}"
            );
            let was = (String::from_utf8(home.to_vec()).unwrap(), key.clone());
            assert_eq!(model.get(&was), Some(value), "{told}: {keyspace}, {key:?}");
        }
        for name in ["a", "b"] {
            let rows = found
                .keys()
                .filter(|(_, key)| key.starts_with(format!("{name}-").as_bytes()))
                .count();
            assert!(rows == 30 || !is_first, "{told}: {rows} rows of {name}");
            lost += 30 - rows;
        }
        renamed += report.renamed.len();
        let db = Db::open(DEST, options(&disk)).unwrap();
        let fresh = db.keyspace("fresh").unwrap();
        assert!(db.snapshot().range(&fresh, ..).unwrap().next().is_none(), "{told}");
        db.close().unwrap();
        assert!(keeps_its_log(&disk, DEST), "{told}");
    }
    assert!(renamed > 0, "no record was lost whose name was taken");
    assert!(lost < 60, "the page of the rows was lost each time");
}
