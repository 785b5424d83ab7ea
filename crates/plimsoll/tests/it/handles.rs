//! Keyspace handles: every call that takes a handle rejects one of another store or of an earlier
//! opening.

use plimsoll::{Db, Error, Glsn, InvalidInput, Keyspace, Options, Result, Retention};

fn open(path: &std::path::Path) -> Db {
    Db::open(path, Options::new().memory_bytes(16 << 20).background(false)).unwrap()
}

/// Makes every call that takes a keyspace; each must fail with the keyspace's name.
fn refuses_everything(db: &Db, handle: &Keyspace) {
    let refused = |call: &str, error: Option<Error>| match error {
        Some(Error::InvalidInput(InvalidInput::ForeignKeyspace { name }))
            if name == handle.name() => {}
        other => panic!("{call}: {other:?}"),
    };
    let newest = db.newest();
    let mut tx = db.begin();
    refused("put", tx.put(handle, b"k", b"theirs").err());
    refused("put_reader", tx.put_reader(handle, b"k", &mut &b"theirs"[..]).err());
    refused("delete", tx.delete(handle, b"k").err());
    refused("get", tx.get(handle, b"k").err());
    refused("get_reader", tx.get_reader(handle, b"k").err());
    refused("contains_key", tx.contains_key(handle, b"k").err());
    refused("range", tx.range(handle, ..).err());
    refused("prefix", tx.prefix(handle, b"").err());
    // The rejected calls changed nothing, so there is nothing to commit.
    assert_eq!(tx.commit().unwrap(), newest);
    let snapshot = db.snapshot();
    refused("snapshot.get", snapshot.get(handle, b"k").err());
    refused("snapshot.get_reader", snapshot.get_reader(handle, b"k").err());
    refused("snapshot.contains_key", snapshot.contains_key(handle, b"k").err());
    refused("snapshot.range", snapshot.range(handle, ..).err());
    refused("snapshot.prefix", snapshot.prefix(handle, b"").err());
    refused("history", db.history(handle, b"k").err());
    refused("diff", db.diff(handle, Glsn(0), newest, b"").err());
    refused("set_retention", db.set_retention(handle, Retention::Latest).err());
    assert_eq!(db.newest(), newest);
}

fn put(db: &Db, keyspace: &Keyspace, value: &[u8]) -> Result<Glsn> {
    let mut tx = db.begin();
    tx.put(keyspace, b"k", value)?;
    tx.commit()
}

#[test]
fn a_handle_of_another_store_is_refused_and_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (open(&dir.path().join("ours")), open(&dir.path().join("theirs")));
    let (users, orders) = (ours.keyspace("users").unwrap(), theirs.keyspace("orders").unwrap());
    put(&ours, &users, b"ours").unwrap();
    refuses_everything(&ours, &orders);
    assert_eq!(ours.snapshot().get(&users, b"k").unwrap().unwrap(), b"ours");
    // The keyspace that every store has is rejected as well.
    refuses_everything(&ours, &theirs.keyspace("default").unwrap());
    assert_ne!(users, theirs.keyspace("users").unwrap());
}

#[test]
fn a_commit_with_a_handle_of_another_store_does_not_appear_in_a_later_keyspace() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (open(&dir.path().join("ours")), open(&dir.path().join("theirs")));
    let orders = theirs.keyspace("orders").unwrap();
    assert!(matches!(put(&ours, &orders, b"theirs"), Err(Error::InvalidInput { .. })));
    let made_later = ours.keyspace("made later").unwrap();
    assert_eq!(ours.snapshot().get(&made_later, b"k").unwrap(), None);
}

#[test]
fn a_handle_of_an_earlier_opening_is_refused_and_one_of_a_clone_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = open(&path);
    let before = db.keyspace("users").unwrap();
    let clone = db.clone();
    assert_eq!(before, clone.keyspace("users").unwrap());
    put(&clone, &before, b"1").unwrap();
    drop(clone);
    db.close().unwrap();
    let db = open(&path);
    refuses_everything(&db, &before);
    assert_eq!(db.snapshot().get(&db.keyspace("users").unwrap(), b"k").unwrap().unwrap(), b"1");
}

#[test]
fn an_existing_keyspace_is_not_created_with_another_retention() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let made = db.create_keyspace("sessions", Retention::Glsns(10)).unwrap();
    assert_eq!(db.create_keyspace("sessions", Retention::Glsns(10)).unwrap(), made);
    let newest = db.newest();
    let refusal = db.create_keyspace("sessions", Retention::Latest).unwrap_err();
    let message = refusal.to_string();
    assert!(matches!(refusal, Error::InvalidInput { .. }));
    assert!(message.contains("with retention 10glsns, not latest"), "{message}");
    assert!(matches!(
        db.create_keyspace("default", Retention::Latest),
        Err(Error::InvalidInput { .. })
    ));
    let infos = db.keyspaces();
    assert_eq!((infos[1].retention, db.newest()), (Retention::Glsns(10), newest));
}

#[test]
fn a_retention_that_was_set_survives_reopening_with_other_options() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let retentions = |db: &Db| db.keyspaces().iter().map(|info| info.retention).collect::<Vec<_>>();
    let options = || Options::new().memory_bytes(16 << 20).background(false);
    let long = Retention::Time(std::time::Duration::MAX);
    let db = Db::open(&path, options().retention(Retention::Latest)).unwrap();
    let default = db.keyspace("default").unwrap();
    let sessions = db.create_keyspace("sessions", long).unwrap();
    // Setting the retention of the options is recorded, too: it remains even if later options
    // differ.
    db.set_retention(&default, Retention::Latest).unwrap();
    let newest = db.newest();
    db.set_retention(&default, Retention::Latest).unwrap();
    assert_eq!(db.newest(), newest, "setting the same retention commits nothing");
    db.set_retention(&sessions, Retention::Glsns(5)).unwrap();
    assert_eq!(retentions(&db), [Retention::Latest, Retention::Glsns(5)]);
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(retentions(&db), [Retention::Latest, Retention::Glsns(5)]);
    db.set_retention(&db.keyspace("sessions").unwrap(), long).unwrap();
    db.close().unwrap();
    let db = Db::open(&path, options().read_only(true)).unwrap();
    db.create_keyspace("sessions", long).unwrap();
    let sessions = db.keyspace("sessions").unwrap();
    assert_eq!(db.set_retention(&sessions, Retention::Latest), Err(Error::ReadOnly));
}
