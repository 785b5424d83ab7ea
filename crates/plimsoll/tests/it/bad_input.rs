//! Invalid input gets a clear error, and nothing is lost.
#![allow(clippy::disallowed_methods, reason = "these tests put files where they do not belong")]

use std::fs;

use plimsoll::{Db, Error, Glsn, MAX_KEY_BYTES, Options};

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

#[test]
fn a_file_is_not_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, b"text").unwrap();
    let error = Db::open(&path, options()).unwrap_err();
    assert!(
        matches!(&error, Error::NotAStore { .. })
            && error.to_string().contains("a store is a folder"),
        "{error}"
    );
}

#[test]
fn a_folder_with_other_files_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), b"precious").unwrap();
    assert!(matches!(Db::open(dir.path(), options()), Err(Error::NotAStore { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_reader_does_not_create_a_missing_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nowhere");
    assert!(matches!(Db::open(&path, options().create(false)), Err(Error::NotAStore { .. })));
    assert!(matches!(Db::open(&path, options().read_only(true)), Err(Error::NotAStore { .. })));
    assert!(!path.exists());
}

#[test]
fn a_second_writer_is_told_who_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let error = Db::open(dir.path().join("store"), options()).unwrap_err();
    let Error::Locked { path, pid, who } = error else { panic!("{error}") };
    assert_eq!((path, pid), (dir.path().join("store"), Some(std::process::id())));
    assert!(who.contains("in this process already"), "{who}");
    db.close().unwrap();
    Db::open(dir.path().join("store"), options()).unwrap();
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_anything_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    assert!(matches!(
        Db::open(&path, Options::new().memory_bytes(1 << 20)),
        Err(Error::InvalidInput { .. })
    ));
    assert!(!path.exists());
}

#[test]
fn keys_and_metadata_that_are_too_long_are_refused_and_the_transaction_continues() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    assert!(matches!(tx.put(&ks, &[0; MAX_KEY_BYTES + 1], b""), Err(Error::InvalidInput { .. })));
    assert!(matches!(tx.set_metadata(&[0; (64 << 10) + 1]), Err(Error::InvalidInput { .. })));
    tx.put(&ks, &[7; MAX_KEY_BYTES], b"longest").unwrap();
    tx.put(&ks, b"", b"shortest").unwrap();
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.get(&ks, &[7; MAX_KEY_BYTES]).unwrap().unwrap(), b"longest");
    assert_eq!(snapshot.get(&ks, b"").unwrap().unwrap(), b"shortest");
    assert!(matches!(snapshot.get(&ks, &[0; MAX_KEY_BYTES + 1]), Err(Error::InvalidInput { .. })));
}

#[test]
fn a_bound_longer_than_a_key_works_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let longest = vec![7; MAX_KEY_BYTES];
    let (first, last) = (vec![7; MAX_KEY_BYTES - 1], vec![8]);
    for key in [&first, &longest, &last] {
        db.put(&ks, key, b"value").unwrap();
    }
    let behind = [&longest[..], b"\0"].concat();
    let (snapshot, mut tx) = (db.snapshot(), db.begin());
    let keys =
        |range: plimsoll::Range<'_>| range.map(|row| row.unwrap().0.to_vec()).collect::<Vec<_>>();
    assert_eq!(keys(snapshot.range(&ks, &behind..).unwrap()), std::slice::from_ref(&last));
    assert_eq!(keys(snapshot.range(&ks, ..&behind).unwrap()), [first.clone(), longest.clone()]);
    assert_eq!(
        keys(snapshot.range(&ks, ..=&behind).unwrap().reverse()),
        [longest.clone(), first.clone()]
    );
    assert_eq!(keys(snapshot.prefix(&ks, &behind).unwrap()), [[0; 0]; 0]);
    tx.put(&ks, &last, b"new").unwrap();
    assert_eq!(keys(tx.range(&ks, &behind..).unwrap()), std::slice::from_ref(&last));
    assert_eq!(keys(tx.prefix(&ks, &behind).unwrap()), [[0; 0]; 0]);
    assert_eq!(db.approximate_len(&ks, &behind..&behind).unwrap(), 0);
    assert!(db.diff(&ks, Glsn(0), db.newest(), &behind).unwrap().next().is_none());
    assert!(db.watch(&ks, &behind, Glsn(1)).is_ok());
}

#[test]
fn an_index_of_another_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let db = Db::open(dir.path().join(name), options()).unwrap();
        let ks = db.keyspace("default").unwrap();
        let mut tx = db.begin();
        tx.put(&ks, b"name", name.as_bytes()).unwrap();
        tx.commit().unwrap();
        db.close().unwrap();
    }
    fs::remove_dir_all(dir.path().join("one/index")).unwrap();
    fs::rename(dir.path().join("two/index"), dir.path().join("one/index")).unwrap();
    let error = Db::open(dir.path().join("one"), options()).unwrap_err();
    assert!(matches!(error, Error::Forked { .. }), "{error}");
    assert!(error.to_string().contains("plimsoll recover"), "{error}");
    // The log wins, and the index that does not belong to it is reported.
    let dest = dir.path().join("recovered");
    let report = Db::recover(dir.path().join("one"), &dest, options(), &mut |_, _| {}).unwrap();
    assert_eq!((report.glsn.0, report.unresolved.len()), (1, 1), "{report:?}");
    let db = Db::open(&dest, options()).unwrap();
    assert_eq!(
        db.snapshot().get(&db.keyspace("default").unwrap(), b"name").unwrap().unwrap(),
        b"one"
    );
}

#[test]
fn a_store_whose_log_is_gone_is_not_opened_as_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    db.keyspace("users").unwrap();
    db.close().unwrap();
    fs::remove_dir_all(path.join("log")).unwrap();
    fs::create_dir(path.join("log")).unwrap();
    let error = Db::open(&path, options()).unwrap_err();
    assert!(!matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_folder_whose_log_is_a_file_is_not_called_empty() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log"), "not ours").unwrap();
    for options in [options(), options().read_only(true)] {
        let error = Db::open(dir.path(), options).unwrap_err();
        assert!(
            matches!(&error, Error::NotAStore { what, .. } if what.contains("`log` is a file")),
            "{error}"
        );
    }
    assert_eq!(fs::read(dir.path().join("log")).unwrap(), b"not ours");
}

#[test]
fn a_damaged_manifest_is_reported_and_replaced_by_a_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"a", b"1").unwrap();
    tx.commit().unwrap();
    db.close().unwrap();
    let names = fs::read_dir(path.join("index")).unwrap().map(|entry| entry.unwrap().path());
    let manifest = names.filter(|path| path.to_str().unwrap().contains("MANIFEST.")).max().unwrap();
    let mut bytes = fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    let error = Db::open(&path, options()).unwrap_err();
    assert!(error.to_string().contains("verify"), "{error}");
    let dest = dir.path().join("recovered");
    assert!(Db::recover(&path, &dest, options(), &mut |_, _| {}).unwrap().is_whole());
    let db = Db::open(&dest, options()).unwrap();
    assert_eq!(db.snapshot().get(&db.keyspace("default").unwrap(), b"a").unwrap().unwrap(), b"1");
}
