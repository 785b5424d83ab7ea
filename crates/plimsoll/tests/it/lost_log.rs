//! A store whose log is gone: its folder, the contents of the folder, or the segments alone. The
//! index has everything that was flushed, and a recovery keeps it.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Error, Glsn, Options, verify};
use plimsoll_disk::vfs::Disk;

use crate::recover::{
    Model, STORE, content, files, fill, mem_disk, options, recover, recovered, segments,
};

const LOG: &str = "/store/log";

/// A store with large values, all of them in the index; returns its content.
fn flushed(disk: &Arc<dyn Disk>) -> Model {
    let db = Db::open(STORE, options(disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    fill(&db, 50, 300);
    db.put(&keyspace, "large", vec![1; 200 << 10]).unwrap();
    db.delete(&keyspace, "large").unwrap();
    db.flush().unwrap();
    let content = content(&db);
    db.close().unwrap();
    content
}

fn remove(disk: &dyn Disk, is_lost: impl Fn(&Path) -> bool) {
    for (path, _) in files(disk, Path::new(LOG)) {
        if is_lost(&path) {
            disk.remove(&path).unwrap();
        }
    }
}

/// Checks that nothing opens the store or creates another log beside its index, that the error
/// names the remedy, and that the remedy works.
fn is_mended(disk: &Arc<dyn Disk>, file: &str, expected: &Model) {
    let before = files(&**disk, Path::new(STORE));
    for options in [options(disk), options(disk).read_only(true), options(disk).shared(true)] {
        let error = Db::open(STORE, options).unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt { file: Some(found), .. } if found.starts_with(file)),
            "{error:?}"
        );
    }
    assert!(files(&**disk, Path::new(STORE)) == before, "the refused call changed something");
    let report = verify(STORE, options(disk), &mut |_| {}).unwrap();
    let found = &report.damage[0].file;
    assert!(
        found.starts_with(file) && disk.entry(&Path::new(STORE).join(found)).unwrap().is_some(),
        "{report:?}"
    );
    assert_eq!(
        report.damage[0].command.as_deref(),
        Some("plimsoll recover /store /store.recovered"),
        "{report:?}"
    );
    assert!(!report.problems[0].contains("plimsoll verify"), "{report:?}");
    assert!(recover(disk).lost_commits.is_empty());
    assert_eq!(recovered(disk), *expected);
}

#[test]
fn a_log_without_files_is_distinguished_from_an_empty_folder() {
    let disk = mem_disk();
    let content = flushed(&disk);
    remove(&*disk, |_| true);
    is_mended(&disk, "log", &content);
}

#[test]
fn a_log_whose_segments_are_gone_names_a_file_that_is_left() {
    let disk = mem_disk();
    let content = flushed(&disk);
    remove(&*disk, |path| path.extension().is_some_and(|ending| ending == "seg"));
    is_mended(&disk, "", &content);
}

#[test]
fn a_lost_first_segment_is_not_taken_for_a_trimmed_one() {
    for trims in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        fill(&db, 2000, 900);
        db.flush().unwrap();
        if trims {
            assert!(db.log().trim(Glsn(600)).unwrap() > Glsn::FIRST);
        }
        db.close().unwrap();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let (content, first) = (content(&db), Glsn(if trims { 600 } else { 1 }));
        db.close().unwrap();
        disk.remove(&segments(&*disk)[0]).unwrap();
        let error = Db::open(STORE, options(&disk)).unwrap_err();
        assert!(error.to_string().contains("segments are missing"), "{error}");
        let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
        assert!(!report.opens && report.problems[0].contains("segments are missing"), "{report:?}");
        let lost = &recover(&disk).lost_entries;
        assert!(lost.first().is_some_and(|lost| *lost.start() == first), "{trims} {lost:?}");
        assert_eq!(recovered(&disk), content);
    }
}

#[test]
fn a_store_without_its_folder_of_the_log_gets_no_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || plimsoll::Options::new().memory_bytes(16 << 20);
    let db = Db::open(&path, options()).unwrap();
    db.put(&db.keyspace("default").unwrap(), "key", "value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("log")).unwrap();
    for is_read_only in [false, true] {
        let error = Db::open(&path, options().read_only(is_read_only)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        assert!(!path.join("log").exists());
    }
    let report = verify(&path, options(), &mut |_| {}).unwrap();
    let command = report.damage[0].command.as_deref();
    assert!(command.is_some_and(|command| command.starts_with("plimsoll recover")), "{report:?}");
    let dest = dir.path().join("recovered");
    Db::recover(&path, &dest, options(), &mut |_, _| {}).unwrap();
    let db = Db::open(&dest, options()).unwrap();
    assert_eq!(db.get(&db.keyspace("default").unwrap(), "key").unwrap().unwrap(), b"value");
}

#[test]
fn a_commit_is_not_acknowledged_once_the_log_was_removed_or_moved() {
    for (is_shared, is_moved) in [(true, false), (true, true), (false, false), (false, true)] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let db = Db::open(&store, Options::new().memory_bytes(16 << 20).shared(is_shared)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        db.put(&keyspace, "a", "1").unwrap();
        match is_moved {
            true => std::fs::rename(store.join("log"), store.join("elsewhere")).unwrap(),
            false => std::fs::remove_dir_all(store.join("log")).unwrap(),
        }
        let error = db.put(&keyspace, "b", "2").unwrap_err();
        assert!(
            error.to_string().contains("removed"),
            "shared: {is_shared}, moved: {is_moved}: {error}"
        );
    }
}
