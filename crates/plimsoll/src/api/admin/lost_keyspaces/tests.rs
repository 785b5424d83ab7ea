//! Keyspaces without records in a store that is open.

use std::path::Path;

use super::*;
use crate::engine::keyspace_commits;
use crate::engine::open::open;
use crate::types::options::Options;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

/// Puts a row into the keyspace with this number, whether or not it has a record.
fn put(store: &Arc<Engine>, id: u32) {
    let keyspace = store.reader.keyspaces.handle(id, "unknown".into());
    let mut tx = Transaction::new(&store.committer);
    tx.put(&keyspace, b"row", b"value").unwrap();
    tx.commit().unwrap();
}

/// Between a member's reads of the log and of the manifest, the keeper may write both.
#[test]
fn a_keyspace_newer_than_the_applied_commits_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = &dir.path().join("store");
    let join = |read_only| open(path, options().shared(true).read_only(read_only)).unwrap();
    let keeper = join(false);
    let (member, reader) = (join(false), join(true));
    for (number, follower) in [&member, &reader].into_iter().enumerate() {
        let at = follower.visible();
        let made = keyspace_commits::open(&keeper, &format!("made-{number}")).unwrap();
        let mut tx = Transaction::new(&keeper.committer);
        tx.put(&made, b"row", b"value").unwrap();
        tx.commit().unwrap();
        keeper.flush().unwrap();
        follower.reader.index.memtables.refresh().unwrap();
        assert_eq!(unnamed(follower, at).unwrap(), BTreeSet::new(), "{number}");
        follower.committer.fresh().unwrap();
        assert_eq!(unnamed(follower, follower.visible()).unwrap(), BTreeSet::new(), "{number}");
    }
    put(&keeper, 40);
    keeper.flush().unwrap();
    for follower in [&member, &reader] {
        follower.committer.fresh().unwrap();
        assert_eq!(unnamed(follower, follower.visible()).unwrap(), BTreeSet::from([40]));
    }
}

#[test]
fn a_new_keyspace_gets_no_id_that_a_memtable_uses() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"), options()).unwrap();
    let number = |name: &str| {
        keyspace_commits::open(&store, name).unwrap();
        store.reader.keyspaces.find(name).unwrap().1.id
    };
    assert_eq!(number("first"), FIRST_ID);
    put(&store, 40);
    assert_eq!(number("second"), 41);
    store.flush().unwrap();
    assert_eq!(number("third"), 42);
}

#[test]
fn a_keyspace_gets_the_name_that_is_known_if_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"), options()).unwrap();
    let _ = ["taken", "recovered-41"].map(|name| keyspace_commits::open(&store, name).unwrap());
    for id in 40..45 {
        put(&store, id);
    }
    let known = [(40, "free"), (41, "taken"), (42, "free"), (43, "\u{2}no name")];
    let known = known.map(|(id, name)| (id, name.to_owned())).into();
    let names = without_record(&store, &BTreeSet::from([16, 60]), &known).unwrap();
    let told = [
        "recovered-40",
        "recovered-41-again",
        "free",
        "recovered-43",
        "recovered-44",
        "recovered-60",
    ];
    assert!(names.values().eq(told.iter()), "{names:?}");
    write_records(&store, &names).unwrap();
    assert_eq!(unnamed(&store, store.visible()).unwrap(), BTreeSet::new());
}
