//! Transfers to stores that keep only the newest versions.

use plimsoll::{Db, Keyspace, Moment, Options, Retention};

fn store(dir: &tempfile::TempDir, name: &str) -> Db {
    let options = Options::new().memory_bytes(16 << 20).background(false);
    Db::open(dir.path().join(name), options).unwrap()
}

/// A keyspace that keeps only the newest versions.
fn latest(db: &Db) -> Keyspace {
    db.create_keyspace("notes", Retention::Latest).unwrap()
}

/// Drops all versions that are not retained.
fn drop_past(db: &Db) {
    db.flush().unwrap();
    db.compact().unwrap();
}

#[test]
fn an_unrelated_history_is_readable_beside_dropped_versions() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (store(&dir, "source"), store(&dir, "target"));
    source.put(&latest(&source), "a", "theirs").unwrap();
    let notes = latest(&target);
    for value in ["one", "two", "three"] {
        target.put(&notes, "a", value).unwrap();
        drop_past(&target);
    }
    target.fetch_from(&source, "main", "theirs").unwrap();
    let theirs = target.branch("theirs").unwrap();
    assert_eq!(theirs.get(&notes, "a").unwrap().unwrap(), b"theirs");
    assert_eq!(theirs.snapshot().len(&notes).unwrap(), 1);
    assert_eq!(theirs.state_hash().unwrap(), source.state_hash().unwrap());
    drop_past(&target);
    assert_eq!(theirs.get(&notes, "a").unwrap().unwrap(), b"theirs");
    assert_eq!(target.get(&notes, "a").unwrap().unwrap(), b"three");
}

#[test]
fn commits_are_placed_where_the_state_of_their_parent_is_retained() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (store(&dir, "source"), store(&dir, "target"));
    let theirs = source.create_keyspace("notes", Retention::Forever).unwrap();
    let first = source.put(&theirs, "a", "one").unwrap();
    let notes = latest(&target);
    let draft = target.create_branch_at("draft", &target.main(), Moment::Newest).unwrap();
    target.fetch_from(&source, "main", "main").unwrap();
    // The branch has the commit, too.
    target.catch_up("draft", "main").unwrap();
    assert_eq!(draft.tip().unwrap(), target.main().tip().unwrap());
    source.put(&theirs, "a", "two").unwrap();
    target.fetch_from(&source, "main", "main").unwrap();
    drop_past(&target);
    // Main is no longer readable at the commit.
    let side = source.create_branch_at("side", &source.main(), Moment::Glsn(first)).unwrap();
    side.put(&theirs, "b", "side").unwrap();
    target.fetch_from(&source, "side", "side").unwrap();
    let received = target.branch("side").unwrap();
    assert_eq!(received.get(&notes, "a").unwrap().unwrap(), b"one");
    assert_eq!(received.state_hash().unwrap(), side.state_hash().unwrap());
}

#[test]
fn the_last_commit_of_a_branch_is_forked_although_only_newest_states_are_retained() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (store(&dir, "source"), store(&dir, "target"));
    let (theirs, notes) = (latest(&source), latest(&target));
    source.put(&theirs, "a", "one").unwrap();
    source.put(&theirs, "a", "two").unwrap();
    target.fetch_from(&source, "main", "main").unwrap();
    let draft = target.create_branch("draft", &target.main()).unwrap();
    draft.put(&notes, "b", "draft").unwrap();
    drop_past(&target);
    target.delete_branch("draft").unwrap();
    drop_past(&target);
    target.fetch_from(&source, "main", "copy").unwrap();
    let copy = target.branch("copy").unwrap();
    assert_eq!(copy.tip().unwrap(), source.main().tip().unwrap());
    assert_eq!(copy.state_hash().unwrap(), source.state_hash().unwrap());
    // A branch with other commits becomes equal to it, too.
    draft_of(&target, &notes);
    target.fetch_from(&source, "main", "other").unwrap();
    let other = target.branch("other").unwrap();
    assert_eq!(other.state_hash().unwrap(), source.state_hash().unwrap());
}

/// Creates the branch `other` with a commit of its own, and drops the past.
fn draft_of(db: &Db, notes: &Keyspace) {
    let other = db.create_branch("other", &db.main()).unwrap();
    other.put(notes, "c", "other").unwrap();
    drop_past(db);
}
