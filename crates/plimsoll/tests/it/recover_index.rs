//! Recovery and opening of a store whose index has unexpected manifests and run files.

use std::path::Path;

use plimsoll::{Db, Error, IndexSource};
use plimsoll_disk::checksum::checksum;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::recover::{
    STORE, content, files, fill, is_whole_from, manifests, mem_disk, options, recover, recovered,
    run,
};

#[test]
fn a_store_whose_manifest_has_a_newer_format_is_left_unchanged() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 20, 900);
    db.flush().unwrap();
    db.close().unwrap();
    let manifest = manifests(&*disk).pop().unwrap();
    let (_, mut bytes) = files(&*disk, &Path::new(STORE).join("index"))
        .into_iter()
        .find(|(path, _)| *path == manifest)
        .unwrap();
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    let sum = checksum(0, &bytes[..48]);
    bytes[48..56].copy_from_slice(&sum.to_le_bytes());
    disk.open(&manifest, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&bytes, 0).unwrap();
    let before = files(&*disk, Path::new(STORE));
    let errors = [
        Db::open(STORE, options(&disk)).map(drop).unwrap_err(),
        run(&disk).map(drop).unwrap_err(),
        Db::recover_dry_run(STORE, options(&disk)).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(&error, Error::Format { message, .. } if message.contains("newer")),
            "{error}"
        );
    }
    assert!(files(&*disk, Path::new(STORE)) == before);
}

#[test]
fn a_new_index_after_a_removed_one_reuses_none_of_its_file_names() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let mut models = fill(&db, 300, 900);
    db.compact().unwrap();
    db.close().unwrap();
    let index = Path::new(STORE).join("index");
    let runs = |disk: &dyn Disk| {
        let names = disk.names(&index).unwrap().into_iter();
        names.filter(|name| name.ends_with(".run")).collect::<std::collections::BTreeSet<_>>()
    };
    let before = runs(&*disk);
    for name in disk.names(&index).unwrap() {
        disk.remove(&index.join(name)).unwrap();
    }
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == models.pop().unwrap());
    db.compact().unwrap();
    db.close().unwrap();
    let after = runs(&*disk);
    // If the names were the same, a stale page of the first index in the place of a page of the
    // second one would have a matching checksum.
    assert!(
        !before.is_empty() && !after.is_empty() && before.is_disjoint(&after),
        "{before:?} {after:?}"
    );
}

#[test]
fn a_file_with_a_name_that_no_run_can_have_is_ignored() {
    let disk = mem_disk();
    drop(Db::open(STORE, options(&disk)).unwrap());
    let stray = Path::new(STORE).join("index").join(format!("{:020}.run", u64::MAX));
    disk.open(&stray, Open::CreateNew, Caching::Buffered).unwrap();
    let mut models = Vec::new();
    for round in 0..3 {
        let db = Db::open(STORE, options(&disk)).unwrap();
        models = fill(&db, 100, 900 + round);
        db.compact().unwrap();
        db.close().unwrap();
    }
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == models.pop().unwrap());
    assert!(disk.open(&stray, Open::Read, Caching::Buffered).is_ok());
}

#[test]
fn an_older_manifest_does_not_replace_the_newest() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    for round in 0..4 {
        fill(&db, 200, 900 + round);
        db.compact().unwrap();
    }
    let expected = content(&db);
    db.close().unwrap();
    let newest = manifests(&*disk).pop().unwrap();
    assert_eq!(manifests(&*disk).len(), 3, "the last three are kept");
    let file = disk.open(&newest, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(&[0xff; 4], 100).unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    for read_only in [false, true] {
        let error = Db::open(STORE, options(&disk).read_only(read_only)).unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { .. }) && error.to_string().contains(name),
            "{error}"
        );
    }
    // Also if the newest manifest is gone: the one before it names runs that were merged away, or
    // is complete together with the log.
    disk.remove(&newest).unwrap();
    match Db::open(STORE, options(&disk)) {
        Ok(db) => assert!(content(&db) == expected),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
    is_whole_from(&recover(&disk), IndexSource::Log);
    assert!(recovered(&disk) == expected);
}
