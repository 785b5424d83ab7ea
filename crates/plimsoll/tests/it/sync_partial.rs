//! Clones without the whole history.

use std::num::NonZeroU32;
use std::path::Path;

use plimsoll::{
    Branch, CloneDepth, CommitId, Db, Error, Glsn, InvalidInput, Keyspace, MergeOutcome, Moment,
    Options, Pulled, Retention, SyncConnection,
};

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn notes(db: &Db) -> Keyspace {
    db.keyspace("notes").unwrap()
}

/// Makes `count` commits.
fn put_numbers(notes: &Keyspace, branch: &Branch, count: u8) {
    for number in 0..count {
        branch.put(notes, [number, count], "x").unwrap();
    }
}

fn commits(count: u32) -> CloneDepth {
    CloneDepth::Commits(NonZeroU32::new(count).unwrap())
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(outcome: plimsoll::Result<T>) -> InvalidInput {
    match outcome {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

fn clone(from: &Path, to: &Path, depth: CloneDepth) -> Db {
    Db::clone_store_with(from.to_str().unwrap(), to, options(), depth).unwrap()
}

/// The ids of a branch's commits, newest first.
fn log(db: &Db, branch: &str) -> Vec<CommitId> {
    let commits = db.branch(branch).unwrap().log().unwrap();
    commits.filter_map(|commit| db.commit_id(commit.unwrap().glsn()).unwrap()).collect()
}

/// A hub with ten commits on main: the third to last merges the branch `side`. The branch `draft`
/// leaves main before the last commit, `old` after the second.
fn hub(path: &Path) -> Vec<CommitId> {
    let db = Db::open(path, options()).unwrap();
    let notes = notes(&db);
    let long = db.keyspace("long").unwrap();
    db.put(&notes, "0", "zero").unwrap();
    db.put(&long, "blob", vec![7; 400 << 10]).unwrap();
    db.create_branch("old", &db.main()).unwrap().put(&notes, "old", "1").unwrap();
    let side = db.create_branch("side", &db.main()).unwrap();
    for number in 1..6_u8 {
        db.put(&notes, [number], [number; 9]).unwrap();
        side.put(&notes, [100 + number], "side").unwrap();
    }
    db.merge(&side).run().unwrap();
    db.delete_branch("side").unwrap();
    let mut tx = db.begin();
    tx.delete(&notes, [1]).unwrap();
    tx.set_metadata(b"why").unwrap();
    tx.commit().unwrap();
    db.create_branch("draft", &db.main()).unwrap().put(&notes, "draft", "1").unwrap();
    db.put(&notes, "last", "1").unwrap();
    let ids = log(&db, "main");
    db.close().unwrap();
    ids
}

#[test]
fn a_clone_of_some_commits_has_their_ids_and_states() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let ids = hub(&source);
    for depth in [1, 2, 3, 4] {
        let copy = clone(&source, &dest, commits(depth));
        let hub = Db::open(&source, options().shared(true)).unwrap();
        assert_eq!(log(&copy, "main"), ids[..depth as usize]);
        assert_eq!(copy.main().tip().unwrap(), Some(ids[0]));
        assert_eq!(copy.branch("origin/main").unwrap().tip().unwrap(), Some(ids[0]));
        assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());
        assert!(copy.boundary_commits().unwrap().contains(&ids[depth as usize - 1]));
        for id in &ids[..depth as usize] {
            assert_eq!(copy.commit_parents(id).unwrap(), hub.commit_parents(id).unwrap());
            assert_eq!(copy.commit_time(id).unwrap(), hub.commit_time(id).unwrap());
            let find = |db: &Db| db.find_commit(id).unwrap().unwrap();
            let metadata =
                |db: &Db| db.log().commit(find(db)).unwrap().unwrap().metadata().unwrap().to_vec();
            assert_eq!(metadata(&copy), metadata(&hub));
            let state = |db: &Db| {
                let at = Moment::Glsn(find(db));
                db.snapshot_at(at).unwrap().state_hash().unwrap()
            };
            assert_eq!(state(&copy), state(&hub), "{id}");
        }
        for branch in ["draft", "old"] {
            let (ours, theirs) = (copy.branch(&format!("origin/{branch}")), hub.branch(branch));
            let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
            assert_eq!(ours.tip().unwrap(), theirs.tip().unwrap());
            assert_eq!(ours.state_hash().unwrap(), theirs.state_hash().unwrap());
        }
        assert!(!copy.branches().unwrap().iter().any(|it| it.name.starts_with("incoming/")));
        hub.close().unwrap();
        copy.close().unwrap();
        let copy = Db::open(&dest, options()).unwrap();
        assert_eq!(copy.main().tip().unwrap(), Some(ids[0]));
        assert!(copy.verify(&mut |_| {}).unwrap().problems.is_empty());
        copy.close().unwrap();
        std::fs::remove_dir_all(&dest).unwrap();
    }
}

#[test]
fn a_partial_clone_pulls_and_pushes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    for depth in [1, 4] {
        let copy = clone(&source, &dest, commits(depth));
        let hub = Db::open(&source, options().shared(true)).unwrap();
        // Later commits, with a merge of commits that the clone lacks.
        let old = hub.branch("old").unwrap();
        old.put(&notes(&hub), [depth as u8, 1], "old").unwrap();
        for number in 0..5_u8 {
            hub.put(&notes(&hub), "count", [number, depth as u8]).unwrap();
        }
        hub.merge(&old).run().unwrap();
        hub.put(&notes(&hub), "count", "end").unwrap();
        assert!(matches!(copy.pull("origin", "main").unwrap(), Pulled::FastForward(_)));
        assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());
        assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());
        assert_eq!(log(&copy, "main").len(), depth as usize + 7);
        assert!(matches!(copy.pull("origin", "main").unwrap(), Pulled::UpToDate));

        copy.put(&notes(&copy), "own", [depth as u8]).unwrap();
        assert_eq!(copy.push("origin", "main").unwrap().commits, 1);
        assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());

        // Both have new commits.
        copy.put(&notes(&copy), "own", [depth as u8, 2]).unwrap();
        hub.put(&notes(&hub), "count", "more").unwrap();
        assert!(matches!(
            invalid(copy.push("origin", "main")),
            InvalidInput::NotFastForward { .. }
        ));
        assert!(matches!(copy.pull("origin", "main").unwrap(), Pulled::Merged(_)));
        assert_eq!(copy.push("origin", "main").unwrap().commits, 2);
        assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());
        assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());

        // A branch of one's own is pushed, merged there, and comes back as part of main.
        let topic = copy.create_branch("topic", &copy.main()).unwrap();
        topic.put(&notes(&copy), "topic", [depth as u8]).unwrap();
        copy.push("origin", "topic").unwrap();
        hub.put(&notes(&hub), "count", "again").unwrap();
        hub.merge(&hub.branch("topic").unwrap()).run().unwrap();
        copy.pull("origin", "main").unwrap();
        assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());
        assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());
        assert!(matches!(copy.merge(&topic).run().unwrap(), MergeOutcome::UpToDate));
        hub.delete_branch("topic").unwrap();
        hub.close().unwrap();
        copy.close().unwrap();
        std::fs::remove_dir_all(&dest).unwrap();
    }
}

#[test]
fn a_branch_is_pushed_although_the_hub_has_gone_on() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    for depth in [1, 4] {
        let copy = clone(&source, &dest, commits(depth));
        let hub = Db::open(&source, options().shared(true)).unwrap();
        // The boundary commits are not among the samples that the hub offers.
        put_numbers(&notes(&hub), &hub.main(), 7);
        let topic = copy.create_branch("topic", &copy.main()).unwrap();
        topic.put(&notes(&copy), "topic", [depth as u8]).unwrap();
        assert_eq!(copy.push("origin", "topic").unwrap().commits, 1);
        assert_eq!(hub.branch("topic").unwrap().tip().unwrap(), topic.tip().unwrap());
        copy.put(&notes(&copy), "own", "1").unwrap();
        assert_eq!(copy.push_forced("origin", "main").unwrap().commits, 1);
        assert_eq!(hub.state_hash().unwrap(), copy.state_hash().unwrap());
        // Over a connection, and to a hub that fetches.
        put_numbers(&notes(&hub), &hub.main(), 9);
        topic.put(&notes(&copy), "topic", "more").unwrap();
        hub.delete_branch("topic").unwrap();
        hub.fetch_from(&copy, "topic", "fetched").unwrap();
        assert_eq!(hub.branch("fetched").unwrap().tip().unwrap(), topic.tip().unwrap());
        let (from_client, to_server) = std::io::pipe().unwrap();
        let (from_server, to_client) = std::io::pipe().unwrap();
        let served = hub.clone();
        let server = std::thread::spawn(move || served.serve_sync(from_client, to_client));
        let mut connection = SyncConnection::new(from_server, to_server).unwrap();
        hub.delete_branch("fetched").unwrap();
        copy.push_over(&mut connection, "topic").unwrap();
        drop(connection);
        server.join().unwrap().unwrap();
        assert_eq!(hub.branch("topic").unwrap().tip().unwrap(), topic.tip().unwrap());
        hub.delete_branch("topic").unwrap();
        hub.close().unwrap();
        copy.close().unwrap();
        std::fs::remove_dir_all(&dest).unwrap();
    }
}

#[test]
fn a_clone_of_a_commit_has_its_state_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let ids = hub(&source);
    let copy = clone(&source, &dest, CloneDepth::At(ids[4]));
    assert_eq!(log(&copy, "main"), [ids[4]]);
    assert_eq!(copy.boundary_commits().unwrap(), [ids[4]]);
    let branches: Vec<_> = copy.branches().unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(branches, ["origin/main"]);
    copy.pull("origin", "main").unwrap();
    assert_eq!(log(&copy, "main"), ids[..5]);
    copy.close().unwrap();

    let unknown: CommitId = "7".repeat(64).parse().unwrap();
    let other = dir.path().join("other");
    let refused =
        Db::clone_store_with(source.to_str().unwrap(), &other, options(), CloneDepth::At(unknown));
    assert!(matches!(invalid(refused), InvalidInput::NoCommitToClone { .. }));
    assert!(!other.exists());
}

#[test]
fn commits_below_the_boundary_are_asked_for_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    let copy = clone(&source, &dest, commits(2));
    // The common ancestor is below the boundary.
    let old = copy.branch("origin/old").unwrap();
    below(copy.merge(&old).run());
    below(copy.merge(&old).preview());
    // `draft` leaves main above it.
    let draft = copy.branch("origin/draft").unwrap();
    assert!(matches!(copy.merge(&draft).run().unwrap(), MergeOutcome::Merged(_)));
    // Another store lacks the boundary commit.
    let other = Db::in_memory(options()).unwrap();
    below(copy.push_to(&other, "main"));
    below(other.fetch_from(&copy, "main", "main"));
    // A store pushes commits whose parents the clone lacks.
    let hub = Db::open(&source, options().shared(true)).unwrap();
    let first = hub.find_commit(&log(&hub, "old")[2]).unwrap().unwrap();
    let topic = hub.create_branch_at("topic", &hub.main(), Moment::Glsn(first)).unwrap();
    topic.put(&notes(&hub), "topic", "1").unwrap();
    below(hub.push_to(&copy, "topic"));
    hub.close().unwrap();
    // A clone of the clone is partial, too.
    copy.close().unwrap();
    let again = clone(&dest, &dir.path().join("again"), commits(100));
    let copy = Db::open(&dest, options().shared(true)).unwrap();
    assert_eq!(again.main().tip().unwrap(), copy.main().tip().unwrap());
    assert_eq!(again.state_hash().unwrap(), copy.state_hash().unwrap());
    assert!(!again.boundary_commits().unwrap().is_empty());
    copy.close().unwrap();
    again.close().unwrap();
}

#[test]
fn a_clone_with_more_depth_than_commits_begins_with_the_first_one() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let db = Db::open(&source, options()).unwrap();
    put_numbers(&notes(&db), &db.main(), 4);
    let ids = log(&db, "main");
    db.close().unwrap();
    let copy = clone(&source, &dest, commits(9));
    assert_eq!(log(&copy, "main"), ids);
    assert_eq!(copy.boundary_commits().unwrap(), []);
    // All commits are there, so another store can get them.
    let other = Db::in_memory(options()).unwrap();
    assert_eq!(copy.push_to(&other, "main").unwrap().commits, 4);
    copy.close().unwrap();
}

#[test]
fn a_store_with_trimmed_history_is_cloned_from_what_it_retains() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let db = Db::open(&source, options().segment_bytes(1 << 20)).unwrap();
    let notes = db.create_keyspace("notes", Retention::Latest).unwrap();
    for number in 0..40_u8 {
        db.put(&notes, [number % 4], vec![number; 100_000]).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > Glsn(20), "{first}");
    db.put(&notes, "new", "1").unwrap();
    let (tip, hash) = (db.main().tip().unwrap(), db.state_hash().unwrap());
    db.close().unwrap();
    let full = Db::clone_store(source.to_str().unwrap(), dir.path().join("full"), options());
    assert!(matches!(invalid(full), InvalidInput::HistoryTrimmed { .. }));
    let copy = clone(&source, &dest, commits(u32::MAX));
    assert_eq!((copy.main().tip().unwrap(), copy.state_hash().unwrap()), (tip, hash));
    assert!(!copy.boundary_commits().unwrap().is_empty());
    copy.put(&copy.keyspace("notes").unwrap(), "own", "1").unwrap();
    assert_eq!(copy.push("origin", "main").unwrap().commits, 1);
    copy.close().unwrap();
}

#[test]
fn a_partial_clone_fetches_over_a_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    let copy = clone(&source, &dest, commits(2));
    let hub = Db::open(&source, options()).unwrap();
    let (from_client, to_server) = std::io::pipe().unwrap();
    let (from_server, to_client) = std::io::pipe().unwrap();
    let served = hub.clone();
    let server = std::thread::spawn(move || served.serve_sync(from_client, to_client));
    let mut connection = SyncConnection::new(from_server, to_server).unwrap();
    hub.put(&notes(&hub), "later", "1").unwrap();
    let moved = copy.fetch_over(&mut connection, "main", "theirs").unwrap();
    assert_eq!(moved.commits, 1);
    // A branch that does not descend from the clone's commits gets a boundary commit.
    let other = hub.create_branch("other", &hub.branch("old").unwrap()).unwrap();
    put_numbers(&notes(&hub), &other, 5);
    let boundaries = copy.boundary_commits().unwrap().len();
    let moved = copy.fetch_over(&mut connection, "other", "other").unwrap();
    assert_eq!(moved.commits, 5, "down to `old`, which the clone has");
    assert_eq!(copy.boundary_commits().unwrap().len(), boundaries);
    let far = hub.branch("old").unwrap();
    let fork = Moment::Glsn(hub.find_commit(&log(&hub, "old")[2]).unwrap().unwrap());
    let far = hub.create_branch_at("far", &far, fork).unwrap();
    put_numbers(&notes(&hub), &far, 3);
    copy.fetch_over(&mut connection, "far", "far").unwrap();
    assert_eq!(copy.boundary_commits().unwrap().len(), boundaries + 1);
    let found = copy.branch("far").unwrap();
    assert_eq!(found.tip().unwrap(), far.tip().unwrap());
    assert_eq!(found.state_hash().unwrap(), far.state_hash().unwrap());
    drop(connection);
    server.join().unwrap().unwrap();
    hub.close().unwrap();
    copy.close().unwrap();
}

#[track_caller]
fn below<T: std::fmt::Debug>(outcome: plimsoll::Result<T>) {
    let what = invalid(outcome);
    assert!(matches!(what, InvalidInput::BelowBoundary { .. }), "{what:?}");
}

#[test]
fn merges_are_received_by_a_clone_with_all_first_parents() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let db = Db::open(&source, options()).unwrap();
    put_numbers(&notes(&db), &db.main(), 3);
    db.close().unwrap();
    let linear = clone(&source, &dir.path().join("linear"), commits(9));
    let hub = Db::open(&source, options().shared(true)).unwrap();
    let side = hub.create_branch("side", &hub.main()).unwrap();
    side.put(&notes(&hub), "side", "1").unwrap();
    hub.put(&notes(&hub), "main", "1").unwrap();
    hub.merge(&side).run().unwrap();
    hub.put(&notes(&hub), "main", "2").unwrap();
    linear.pull("origin", "main").unwrap();
    assert_eq!(linear.main().tip().unwrap(), hub.main().tip().unwrap());
    assert_eq!(linear.state_hash().unwrap(), hub.state_hash().unwrap());
    let other = Db::in_memory(options()).unwrap();
    below(linear.push_to(&other, "main"));
    linear.close().unwrap();
    hub.delete_branch("side").unwrap();
    hub.close().unwrap();
    let copy = clone(&source, &dest, commits(99));
    let hub = Db::open(&source, options().shared(true)).unwrap();
    assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());
    assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());
    copy.close().unwrap();
    hub.close().unwrap();
}

#[test]
fn a_merge_whose_base_may_be_unknown_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let hub = Db::open(&source, options().shared(true)).unwrap();
    put_numbers(&notes(&hub), &hub.main(), 3);
    let topic = hub.create_branch("topic", &hub.main()).unwrap();
    topic.put(&notes(&hub), "topic", "first").unwrap();
    let merged = hub.put(&notes(&hub), "main", "1").and_then(|_| hub.merge(&topic).run()).unwrap();
    let MergeOutcome::Merged(merged) = merged else { panic!() };
    hub.revert(merged).run().unwrap();
    topic.put(&notes(&hub), "other", "second").unwrap();
    // The clone has `topic` below the merge, but not that main has merged it.
    let copy = clone(&source, &dest, commits(5));
    let before = copy.state_hash().unwrap();
    below(copy.merge(&copy.branch("origin/topic").unwrap()).run());
    assert_eq!(copy.state_hash().unwrap(), before);
    // A branch of one's own is merged.
    let own = copy.create_branch("own", &copy.main()).unwrap();
    own.put(&notes(&copy), "own", "1").unwrap();
    copy.put(&notes(&copy), "mine", "1").unwrap();
    assert!(matches!(copy.merge(&own).run().unwrap(), MergeOutcome::Merged(_)));
    copy.close().unwrap();
    hub.close().unwrap();
}

#[test]
fn the_changes_of_a_boundary_commit_are_not_undone_or_picked() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    let copy = clone(&source, &dest, commits(2));
    let boundary = copy.find_commit(&log(&copy, "main")[1]).unwrap().unwrap();
    let last = copy.find_commit(&log(&copy, "main")[0]).unwrap().unwrap();
    let before = copy.state_hash().unwrap();
    below(copy.revert(boundary).run());
    below(copy.revert(boundary).preview());
    let draft = copy.create_branch("draft", &copy.main()).unwrap();
    below(copy.cherry_pick(boundary).into(&draft).run());
    assert_eq!(copy.state_hash().unwrap(), before);
    assert!(matches!(copy.revert(last).run().unwrap(), MergeOutcome::Merged(_)));
    copy.close().unwrap();
}

#[test]
fn a_branch_that_was_reset_below_the_boundary_is_not_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    let ids = hub(&source);
    let copy = clone(&source, &dest, commits(2));
    let full = Db::clone_store(source.to_str().unwrap(), dir.path().join("full"), options());
    let full = full.unwrap();
    let first = full.find_commit(&ids[5]).unwrap().unwrap();
    let back = full.create_branch_at("back", &full.main(), Moment::Glsn(first)).unwrap();
    back.put(&notes(&full), "back", "1").unwrap();
    let hub = Db::open(&source, options().shared(true)).unwrap();
    let before = (copy.state_hash().unwrap(), copy.main().tip().unwrap());
    hub.fetch_from(&full, "back", "main").unwrap();
    below(copy.pull("origin", "main"));
    assert_eq!((copy.state_hash().unwrap(), copy.main().tip().unwrap()), before);
    hub.close().unwrap();
    full.close().unwrap();
    copy.close().unwrap();
}

#[test]
fn a_merge_of_commits_that_the_clone_has_deleted_is_received() {
    let dir = tempfile::tempdir().unwrap();
    let (source, dest) = (dir.path().join("hub"), dir.path().join("copy"));
    hub(&source);
    let copy = clone(&source, &dest, commits(2));
    let hub = Db::open(&source, options().shared(true)).unwrap();
    for name in ["origin/draft", "origin/old"] {
        copy.delete_branch(name).unwrap();
    }
    hub.merge(&hub.branch("draft").unwrap()).run().unwrap();
    hub.merge(&hub.branch("old").unwrap()).run().unwrap();
    copy.pull("origin", "main").unwrap();
    assert_eq!(copy.main().tip().unwrap(), hub.main().tip().unwrap());
    assert_eq!(copy.state_hash().unwrap(), hub.state_hash().unwrap());
    hub.close().unwrap();
    copy.close().unwrap();
}
