//! Handles of keyspaces that another member has dropped, or dropped and created again under the
//! same name.

use std::path::Path;

use plimsoll::{Db, Error, InvalidInput, Options, Retention};

fn open(path: &Path) -> Db {
    Db::open(path, Options::new().memory_bytes(16 << 20).shared(true)).unwrap()
}

#[test]
fn an_old_handle_neither_drops_nor_changes_a_keyspace_recreated_by_another_member() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let old = one.create_keyspace("notes", Retention::Latest).unwrap();
    let drop_in_two = || two.drop_keyspace(&two.keyspace("notes").unwrap()).map(|_| ()).unwrap();
    drop_in_two();
    let is_refused = |done: Result<(), Error>| {
        assert!(
            matches!(done, Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. }))),
            "{done:?}"
        );
    };
    is_refused(one.drop_keyspace(&old).map(|_| ()));
    for change in [true, false] {
        let old = one.create_keyspace("notes", Retention::Latest).unwrap();
        drop_in_two();
        let new = two.create_keyspace("notes", Retention::Latest).unwrap();
        two.put(&new, "key", "value").unwrap();
        is_refused(match change {
            true => one.set_retention(&old, Retention::Forever),
            false => one.drop_keyspace(&old).map(|_| ()),
        });
        for db in [&one, &two] {
            // Requesting another retention is an error.
            let found = db.create_keyspace("notes", Retention::Latest).unwrap();
            assert_eq!(db.get(&found, "key").unwrap().unwrap(), b"value");
        }
        drop_in_two();
    }
}

/// So many keys that the commit which drops them is a run of the index rather than a list of
/// operations.
#[test]
fn the_drop_of_a_large_keyspace_is_known_to_all_members() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let old = one.create_keyspace("notes", Retention::Latest).unwrap();
    let mut tx = one.begin();
    for number in 0..20_000_u32 {
        tx.put(&old, [&[7; 100][..], &number.to_be_bytes()].concat(), b"").unwrap();
    }
    tx.commit().unwrap();
    two.drop_keyspace(&two.keyspace("notes").unwrap()).unwrap();
    let refused = one.put(&old, b"row", b"value");
    assert!(
        matches!(refused, Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. }))),
        "{refused:?}"
    );
    let retention = one.set_retention(&old, Retention::Forever);
    assert!(
        matches!(retention, Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. }))),
        "{retention:?}"
    );
    let anew = one.keyspace("notes").unwrap();
    one.put(&anew, b"row", b"value").unwrap();
    assert_eq!(
        two.get(&two.keyspace("notes").unwrap(), b"row").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    assert!(one.keyspaces().iter().filter(|info| info.name == "notes").count() == 1);
}
