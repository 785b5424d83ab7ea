//! Commit ids, and fetch, push, pull and clone between stores.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{
    Branch, CommitId, Db, Error, Glsn, InvalidInput, Keyspace, MergeOutcome, MergeRule, Moment,
    Options, Overflow, Pulled, Retention, Ttl,
};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

fn store() -> Db {
    Db::in_memory(options()).unwrap()
}

fn notes(db: &Db) -> Keyspace {
    db.keyspace("notes").unwrap()
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(outcome: plimsoll::Result<T>) -> InvalidInput {
    match outcome {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_same(a: &Branch, b: &Branch) {
    assert_eq!(a.tip().unwrap(), b.tip().unwrap());
    assert_eq!(a.state_hash().unwrap(), b.state_hash().unwrap());
}

fn ids(db: &Db) -> BTreeSet<CommitId> {
    let all = 1..=db.newest().0;
    all.filter_map(|glsn| db.commit_id(Glsn(glsn)).unwrap()).collect()
}

#[test]
fn a_push_transfers_every_kind_of_change() {
    let (here, there) = (store(), store());
    let notes = notes(&here);
    let numbers = here.keyspace("numbers").unwrap();
    let mut tx = here.begin();
    tx.put(&notes, "a", "one").unwrap();
    tx.put(&numbers, "a", vec![7; 3 << 20]).unwrap();
    tx.put(&numbers, "b", vec![8; 100_000]).unwrap();
    tx.set_metadata(b"by Ada").unwrap();
    tx.commit().unwrap();
    here.add(&numbers, "count", 3, Overflow::Checked).unwrap();
    here.append(&notes, "text", b"and ").unwrap();
    here.append(&notes, "text", b"so on").unwrap();
    here.put_with_ttl(&notes, "soon", "gone", Duration::from_secs(3600)).unwrap();
    here.bulk_load(&numbers, (0..500_u32).map(|n| (n.to_be_bytes(), "x"))).unwrap();
    here.transact(|tx| {
        tx.delete_range(&numbers, 10_u32.to_be_bytes()..300_u32.to_be_bytes())?;
        tx.put(&numbers, 20_u32.to_be_bytes(), "kept")
    })
    .unwrap();
    here.delete_prefix(&notes, "te").unwrap();
    here.delete(&notes, "a").unwrap();
    let gone = here.keyspace("gone").unwrap();
    here.bulk_load(&gone, (0..500_u32).map(|n| (n.to_be_bytes(), "x"))).unwrap();
    here.drop_keyspace(&gone).unwrap();

    let moved = here.push_to(&there, "main").unwrap();
    assert_same(&here.main(), &there.main());
    assert_eq!(ids(&here), ids(&there));
    assert_eq!(moved.commits, ids(&here).len() as u64);
    assert!(here.push_to(&there, "main").unwrap().is_up_to_date());
    let there_notes = there.keyspace("notes").unwrap();
    let expires = |db: &Db, notes: &Keyspace| match db.ttl(notes, "soon").unwrap() {
        Ttl::Expires { at, .. } => at,
        other => panic!("{other:?}"),
    };
    assert_eq!(expires(&there, &there_notes), expires(&here, &notes));
    // Metadata is that of the commit.
    let first = *here
        .commit_id(Glsn(1))
        .iter()
        .flatten()
        .next()
        .unwrap_or(&(1..20).find_map(|glsn| here.commit_id(Glsn(glsn)).unwrap()).unwrap());
    let glsn = there.find_commit(&first).unwrap().unwrap();
    let commit = there.log().commit(glsn).unwrap().unwrap();
    assert_eq!(commit.metadata().unwrap(), b"by Ada");

    // A third store, from the second one: through a side branch, where ranges are deleted key by
    // key, and on from there.
    let third = store();
    third.fetch_from(&there, "main", "theirs").unwrap();
    assert_same(&third.branch("theirs").unwrap(), &here.main());
    let fourth = store();
    fourth.fetch_from(&third, "theirs", "main").unwrap();
    assert_same(&fourth.main(), &here.main());
    assert_eq!(ids(&fourth), ids(&here));
}

#[test]
fn stores_with_different_keyspace_numbers_have_the_same_ids() {
    let (here, there) = (store(), store());
    for name in ["z", "y"] {
        there.keyspace(name).unwrap();
    }
    let (y, z) = (here.keyspace("y").unwrap(), here.keyspace("z").unwrap());
    here.transact(|tx| {
        tx.put(&y, "a", "1")?;
        tx.put(&z, "a", "2")
    })
    .unwrap();
    here.push_to(&there, "main").unwrap();
    let third = store();
    there.push_to(&third, "main").unwrap();
    assert_same(&here.main(), &third.main());
}

#[test]
fn diverged_stores_merge_and_push() {
    let (hub, ada, alan) = (store(), store(), store());
    let [hub_notes, ada_notes, alan_notes] = [&hub, &ada, &alan].map(notes);
    hub.put(&hub_notes, "base", "0").unwrap();
    for db in [&ada, &alan] {
        db.fetch_from(&hub, "main", "main").unwrap();
        db.fetch_from(&hub, "main", "origin/main").unwrap();
        assert_same(&db.main(), &hub.main());
    }
    ada.put(&ada_notes, "ada", "1").unwrap();
    ada.push_to(&hub, "main").unwrap();
    alan.put(&alan_notes, "alan", "1").unwrap();
    let refused = invalid(alan.push_to(&hub, "main"));
    assert_eq!(refused, InvalidInput::NotFastForward { branch: "main".into() });
    assert_same(&ada.main(), &hub.main());

    alan.fetch_from(&hub, "main", "origin/main").unwrap();
    assert_same(&alan.branch("origin/main").unwrap(), &hub.main());
    let theirs = alan.branch("origin/main").unwrap();
    assert!(matches!(alan.merge(&theirs).run().unwrap(), MergeOutcome::Merged(_)));
    alan.put(&alan_notes, "after", "1").unwrap();
    alan.push_to(&hub, "main").unwrap();
    assert_same(&alan.main(), &hub.main());
    assert_eq!(hub.snapshot().len(&hub_notes).unwrap(), 4);
    // The log of a branch begins with the commit that its tip is, also if that changed no keys.
    let newest = |db: &Db| db.main().log().unwrap().next().unwrap().unwrap().glsn();
    for db in [&hub, &alan] {
        assert_eq!(db.commit_id(newest(db)).unwrap(), db.main().tip().unwrap());
    }

    // Ada, who is behind, gets all of it.
    ada.fetch_from(&hub, "main", "main").unwrap();
    assert_same(&ada.main(), &hub.main());
    // And goes on from there.
    ada.put(&ada_notes, "again", "2").unwrap();
    assert_eq!(ada.push_to(&hub, "main").unwrap().commits, 1);
    alan.fetch_from(&hub, "main", "main").unwrap();
    assert_same(&alan.main(), &hub.main());
    // A new store gets the whole history.
    let late = store();
    late.fetch_from(&hub, "main", "main").unwrap();
    assert_same(&late.main(), &hub.main());
    assert!(ids(&late).is_superset(&ids(&ada)));
    // A forced push replaces the state.
    late.put(&notes(&late), "mine", "3").unwrap();
    hub.put(&hub_notes, "lost", "4").unwrap();
    assert!(late.push_to(&hub, "main").is_err());
    late.push_forced_to(&hub, "main").unwrap();
    assert_same(&late.main(), &hub.main());
    assert_eq!(hub.get(&hub_notes, "lost").unwrap(), None);
}

#[test]
fn a_clone_pulls_and_pushes_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [hub, ada, alan] = ["hub", "ada", "alan"].map(|name| dir.path().join(name));
    let address = hub.to_str().unwrap().to_owned();
    let db = Db::open(&hub, options()).unwrap();
    let old = db.create_keyspace("old", Retention::Glsns(10_000)).unwrap();
    db.put(&old, "a", "1").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    draft.put(&old, "b", "2").unwrap();
    db.close().unwrap();

    let ada = Db::clone_store(&format!("file://{address}"), &ada, options()).unwrap();
    let alan = Db::clone_store(&address, &alan, options()).unwrap();
    assert!(ada.keyspaces().iter().any(|it| it.retention == Retention::Glsns(10_000)));
    let names: Vec<_> = ada.branches().unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["origin/draft", "origin/main"]);
    let ada_old = ada.keyspace("old").unwrap();
    assert_eq!(ada.branch("origin/draft").unwrap().len(&ada_old).unwrap(), 2);
    let taken = dir.path().join("ada");
    let reserved = InvalidInput::TemporaryBranch { name: "incoming/x".into() };
    assert_eq!(invalid(ada.create_branch("incoming/x", &ada.main())), reserved);
    assert_eq!(invalid(ada.rename_branch("origin/draft", "incoming/x")), reserved);
    let refused = invalid(Db::clone_store(&address, &taken, options()));
    assert_eq!(refused, InvalidInput::CloneTarget { path: taken });

    ada.put(&ada_old, "ada", "1").unwrap();
    assert_eq!(ada.push("origin", "main").unwrap().commits, 1);
    let pulled = alan.pull("origin", "main").unwrap();
    assert!(matches!(pulled, Pulled::FastForward(moved) if moved.commits == 1), "{pulled:?}");
    assert_same(&alan.main(), &ada.main());
    assert!(matches!(alan.pull("origin", "main").unwrap(), Pulled::UpToDate));

    // Both go on.
    let alan_old = alan.keyspace("old").unwrap();
    alan.put(&alan_old, "alan", "1").unwrap();
    ada.put(&ada_old, "ada", "2").unwrap();
    ada.push("origin", "main").unwrap();
    assert!(matches!(alan.push("origin", "main"), Err(Error::InvalidInput(_))));
    assert!(matches!(alan.pull("origin", "main").unwrap(), Pulled::Merged(_)));
    alan.push("origin", "main").unwrap();
    assert!(matches!(ada.pull("origin", "main").unwrap(), Pulled::FastForward(_)));
    assert_same(&alan.main(), &ada.main());

    // The same key.
    alan.put(&alan_old, "ada", "3").unwrap();
    ada.put(&ada_old, "ada", "4").unwrap();
    ada.push("origin", "main").unwrap();
    let Pulled::Conflicts(conflicts) = alan.pull("origin", "main").unwrap() else { panic!() };
    assert_eq!(conflicts.count(), 1);
    let theirs = alan.branch("origin/main").unwrap();
    alan.merge(&theirs).rule(&alan_old, MergeRule::Theirs).run().unwrap();
    alan.push("origin", "main").unwrap();
    ada.pull("origin", "main").unwrap();
    assert_same(&alan.main(), &ada.main());

    // A branch of the hub, worked on here.
    assert!(matches!(ada.pull("origin", "draft").unwrap(), Pulled::FastForward(_)));
    ada.branch("draft").unwrap().put(&ada_old, "c", "3").unwrap();
    assert_eq!(ada.push("origin", "draft").unwrap().commits, 1);
    alan.pull("origin", "draft").unwrap();
    assert_same(&alan.branch("draft").unwrap(), &ada.branch("draft").unwrap());
    // A branch that the hub does not have.
    let new = ada.create_branch("new", &ada.branch("draft").unwrap()).unwrap();
    new.put(&ada_old, "d", "4").unwrap();
    ada.push("origin", "new").unwrap();
    let temporary = |db: &Db| {
        let all = db.branches().unwrap().into_iter();
        all.filter(|info| info.name.starts_with("incoming/")).count()
    };
    assert_eq!(temporary(&ada) + temporary(&alan), 0);
    let hub = Db::open(&hub, options()).unwrap();
    assert_same(&hub.branch("new").unwrap(), &new);
    assert_eq!(temporary(&hub), 0);
}

#[test]
fn bad_input_is_refused() {
    let db = store();
    for name in ["", "a/b", "-a", "incoming", "newest", "a:b"] {
        assert!(matches!(invalid(db.add_remote(name, "/x")), InvalidInput::RemoteName { .. }));
    }
    for address in ["", "http://host/x", "file://relative", "s3://bucket"] {
        let refused = invalid(db.add_remote("hub", address));
        assert_eq!(refused, InvalidInput::RemoteAddress { address: address.into() });
    }
    let none = InvalidInput::NoRemote { name: "hub".into() };
    assert_eq!(invalid(db.pull("hub", "main")), none);
    assert_eq!(invalid(db.remove_remote("hub")), none);
    let other = store();
    let none = InvalidInput::NoBranch { name: "none".into() };
    assert_eq!(invalid(db.push_to(&other, "none")), none);
    assert_eq!(invalid(db.fetch_from(&other, "none", "x")), none);
    // Nothing to transfer.
    assert!(db.push_to(&other, "main").unwrap().is_up_to_date());
    db.put(&notes(&db), "a", "1").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("self");
    let own = Db::open(&path, options().shared(true)).unwrap();
    assert_eq!(invalid(own.push(path.to_str().unwrap(), "main")), InvalidInput::RemoteIsSelf);
    for name in ["a:b", "incoming/0", "newest"] {
        let refused = invalid(own.fetch_from(&db, "main", name));
        let is_right = match refused {
            InvalidInput::TemporaryBranch { .. } => name.starts_with("incoming/"),
            InvalidInput::BranchName { .. } => !name.starts_with("incoming/"),
            _ => false,
        };
        assert!(is_right, "{name}");
    }
    let missing = dir.path().join("missing");
    assert!(own.push(missing.to_str().unwrap(), "main").is_err());
}

#[test]
fn a_trimmed_history_is_not_sent_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("db"), options().segment_bytes(1 << 20)).unwrap();
    let notes = db.create_keyspace("latest", Retention::Latest).unwrap();
    for number in 0..40_u8 {
        db.put(&notes, [number % 4], vec![number; 100_000]).unwrap();
    }
    let before = store();
    before.fetch_from(&db, "main", "main").unwrap();
    assert_same(&before.main(), &db.main());
    db.flush().unwrap();
    db.compact().unwrap();
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > Glsn(20), "{first}");
    db.put(&notes, "new", "1").unwrap();
    // A store that has the trimmed commits receives the later ones.
    before.fetch_from(&db, "main", "main").unwrap();
    assert_same(&before.main(), &db.main());
    let late = store();
    let refused = invalid(late.fetch_from(&db, "main", "main"));
    assert!(matches!(refused, InvalidInput::HistoryTrimmed { .. }), "{refused:?}");
    assert_eq!(late.main().tip().unwrap(), None);
}

#[test]
fn a_branch_that_left_a_trimmed_history_is_not_sent_as_if_it_had_none() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("db"), options().segment_bytes(1 << 20)).unwrap();
    let keys = db.create_keyspace("latest", Retention::Latest).unwrap();
    let default = db.keyspace("default").unwrap();
    db.set_retention(&default, Retention::Latest).unwrap();
    let fill = |from: u8| {
        for number in from..from + 40 {
            db.put(&keys, [number % 4], vec![number; 100_000]).unwrap();
        }
    };
    fill(0);
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let idle = db.create_branch("idle", &db.main()).unwrap();
    let fork = db.newest();
    fill(40);
    db.flush().unwrap();
    db.compact().unwrap();
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > fork.next(), "{first}");
    draft.put(&keys, "draft", "1").unwrap();
    let target = store();
    for name in ["main", "draft", "idle"] {
        let refused = invalid(target.fetch_from(&db, name, "theirs"));
        assert!(matches!(refused, InvalidInput::HistoryTrimmed { .. }), "{name}: {refused:?}");
    }
    // It is not empty, although its commits are not known.
    let all = [db.main(), draft, idle.clone()].map(|branch| branch.tip().unwrap().unwrap());
    assert_eq!(BTreeSet::from(all).len(), 3);
    let other = store();
    other.put(&notes(&other), "a", "1").unwrap();
    let refused = invalid(other.push_to(&db, "main"));
    assert!(matches!(refused, InvalidInput::NotFastForward { .. }), "{refused:?}");
}

#[test]
fn a_deleted_range_of_expired_values_is_received() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let timed = || {
        let options = options().world(Arc::new(MemDisk::new()), clock.clone());
        Db::open("/store", options).unwrap()
    };
    let (here, there, third) = (timed(), timed(), timed());
    let ours = notes(&here);
    here.transact(|tx| {
        (0..500_u32).try_for_each(|key| {
            tx.put_with_ttl(&ours, key.to_be_bytes(), "x", Duration::from_secs(1))
        })
    })
    .unwrap();
    here.delete_prefix(&ours, "").unwrap();
    let deleted = here.main().tip().unwrap();
    clock.advance(Duration::from_secs(10));
    // On a branch, keys are deleted one by one, and there are none.
    there.fetch_from(&here, "main", "theirs").unwrap();
    let theirs = there.branch("theirs").unwrap();
    assert_eq!(theirs.tip().unwrap(), deleted);
    assert!(there.fetch_from(&here, "main", "theirs").unwrap().is_up_to_date());
    here.put(&ours, "later", "1").unwrap();
    there.fetch_from(&here, "main", "theirs").unwrap();
    third.fetch_from(&there, "theirs", "main").unwrap();
    assert_same(&here.main(), &third.main());
}

#[test]
fn ids_outlive_a_restart_and_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&path, options()).unwrap();
    let keys = notes(&db);
    let first = db.put(&keys, "a", "one").unwrap();
    let id = db.commit_id(first).unwrap().unwrap();
    let second = db.put(&keys, "b", "two").unwrap();
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(db.find_commit(&id).unwrap(), Some(first));
    let later = db.commit_id(second).unwrap().unwrap();
    let there = store();
    db.push_to(&there, "main").unwrap();
    assert_eq!(there.main().tip().unwrap(), Some(later));
    // A dump keeps the ids of received commits.
    let mut dump = Vec::new();
    there.dump(plimsoll::DumpOptions::new().history(true), &mut dump).unwrap();
    let copy = dir.path().join("copy");
    Db::restore(&copy, options(), &mut &dump[..]).unwrap();
    let copy = Db::open(&copy, options()).unwrap();
    assert_eq!(copy.main().tip().unwrap(), Some(later));
    assert_eq!(copy.commit_id(Glsn::NONE).unwrap(), None);
}

fn catch_up(db: &Db, branch: &Branch, theirs: &Branch, notes: &Keyspace) {
    if let Pulled::Conflicts(_) = db.catch_up(branch.name(), theirs.name()).unwrap() {
        let merge = db.merge(theirs).into(branch).rule(notes, MergeRule::Theirs);
        assert!(matches!(merge.run().unwrap(), MergeOutcome::Merged(_)));
    }
    // The branch contains theirs now.
    assert!(matches!(db.catch_up(branch.name(), theirs.name()).unwrap(), Pulled::UpToDate));
}

#[test]
fn a_forced_push_replaces_expiries_too() {
    let (here, there) = (store(), store());
    let [ours, theirs] = [&here, &there].map(notes);
    here.put(&ours, "a", "one").unwrap();
    here.put_with_ttl(&ours, "b", "one", Duration::from_secs(3600)).unwrap();
    there.put_with_ttl(&theirs, "a", "one", Duration::from_secs(3600)).unwrap();
    there.put(&theirs, "b", "one").unwrap();
    here.push_forced_to(&there, "main").unwrap();
    assert_same(&here.main(), &there.main());
    assert_eq!(there.ttl(&theirs, "a").unwrap(), Ttl::Unlimited);
}

#[test]
fn commits_to_a_keyspace_that_was_dropped_are_received() {
    let (here, there) = (store(), store());
    let ours = notes(&here);
    here.put(&ours, "a", "one").unwrap();
    here.push_to(&there, "main").unwrap();
    there.drop_keyspace(&notes(&there)).unwrap();
    here.fetch_from(&there, "main", "main").unwrap();
    assert_same(&here.main(), &there.main());
    let theirs = notes(&there);
    there.put(&theirs, "a", "two").unwrap();
    here.fetch_from(&there, "main", "main").unwrap();
    assert_same(&here.main(), &there.main());
    // Into a store that has dropped it as well.
    here.drop_keyspace(&ours).unwrap();
    here.fetch_from(&there, "main", "theirs").unwrap();
    there.put(&theirs, "b", "three").unwrap();
    here.fetch_from(&there, "main", "theirs").unwrap();
    assert_eq!(here.branch("theirs").unwrap().tip().unwrap(), there.main().tip().unwrap());
}

#[test]
fn stores_that_keep_only_the_latest_values_exchange_commits() {
    let dir = tempfile::tempdir().unwrap();
    let hub = dir.path().join("hub");
    let db = Db::open(&hub, options()).unwrap();
    let keys = db.create_keyspace("latest", Retention::Latest).unwrap();
    for number in 0..50_u8 {
        db.put(&keys, [number % 5], [number; 1000]).unwrap();
    }
    let side = db.create_branch("side", &db.main()).unwrap();
    side.put(&keys, "side", "1").unwrap();
    db.put(&keys, "main", "1").unwrap();
    db.merge(&side).run().unwrap();
    db.close().unwrap();
    let clone = |name| Db::clone_store(hub.to_str().unwrap(), dir.path().join(name), options());
    let (ada, alan) = (clone("ada").unwrap(), clone("alan").unwrap());
    for db in [&ada, &alan] {
        let info = db.keyspaces().into_iter().find(|info| info.name == "latest").unwrap();
        assert_eq!(info.retention, Retention::Latest);
    }
    let work = |db: &Db, key: &str| {
        let keys = db.keyspace("latest").unwrap();
        for number in 0..10_u8 {
            db.put(&keys, key, [number; 100]).unwrap();
        }
        db.flush().unwrap();
        db.compact().unwrap();
    };
    for _ in 0..3 {
        work(&ada, "ada");
        ada.push("origin", "main").unwrap();
        work(&alan, "alan");
        assert!(matches!(alan.pull("origin", "main").unwrap(), Pulled::Merged(_)));
        let hub = Db::open(&hub, options()).unwrap();
        hub.compact().unwrap();
        hub.close().unwrap();
        // Alan began before Ada's commits, at a state that the hub has not kept.
        let refused = invalid(alan.push("origin", "main"));
        assert!(matches!(refused, InvalidInput::StateNotRetained { .. }), "{refused:?}");
        let theirs = alan.branch("origin/main").unwrap();
        assert_eq!(theirs.tip().unwrap(), ada.main().tip().unwrap());
        assert_eq!(theirs.state_hash().unwrap(), ada.state_hash().unwrap());
    }
}

#[test]
fn a_push_leaves_branches_of_ones_own_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [hub, own] = ["hub", "own"].map(|name| dir.path().join(name));
    Db::open(&hub, options()).unwrap().close().unwrap();
    let db = Db::open(&own, options()).unwrap();
    let keys = notes(&db);
    db.put(&keys, "a", "1").unwrap();
    let mine = db.create_branch("team/main", &db.main()).unwrap();
    mine.put(&keys, "mine", "1").unwrap();
    db.add_remote("team", hub.to_str().unwrap()).unwrap();
    assert!(matches!(db.pull("team", "main").unwrap(), Pulled::UpToDate));
    db.push("team", "main").unwrap();
    assert_eq!(mine.get(&keys, "mine").unwrap().unwrap(), b"1");
}

/// Random work in three stores that exchange their commits.
fn exchange(seed: u64) {
    let mut random = Random::new(seed);
    let stores = [store(), store(), store()];
    let spaces = stores.each_ref().map(notes);
    for step in 0..60 {
        let at = random.below(3) as usize;
        let (db, notes) = (&stores[at], &spaces[at]);
        let key = |random: &mut Random| random.below(300).to_be_bytes();
        let branch = match random.below(3) {
            0 => {
                db.branch("side").unwrap_or_else(|_| db.create_branch("side", &db.main()).unwrap())
            }
            _ => db.main(),
        };
        let other = &stores[(at + 1 + random.below(2) as usize) % 3];
        match random.below(10) {
            0..3 => {
                let keys: Vec<_> = (0..random.below(20)).map(|_| key(&mut random)).collect();
                branch
                    .transact(|tx| {
                        keys.iter().try_for_each(|key| tx.put(notes, key, step.to_string()))
                    })
                    .unwrap();
            }
            3 => drop(branch.delete(notes, key(&mut random)).unwrap()),
            4 => {
                let (a, b) = (key(&mut random), key(&mut random));
                if a < b {
                    branch.transact(|tx| tx.delete_range(notes, a..b)).unwrap();
                }
            }
            5 => {
                let (from, into) = match branch.name() {
                    "main" => ("side", branch),
                    _ => ("main", branch),
                };
                if let Ok(from) = db.branch(from) {
                    let merge = db.merge(&from).into(&into).rule(notes, MergeRule::Theirs);
                    if let MergeOutcome::Conflicts(steps) = merge.run().unwrap() {
                        panic!("seed {seed}: {:?}", steps.collect::<Vec<_>>());
                    }
                }
            }
            6 => {
                let name = branch.name();
                match db.push_to(other, name) {
                    Ok(moved) if moved.to.is_none() => {}
                    Ok(_) => assert_same(&branch, &other.branch(name).unwrap()),
                    Err(Error::InvalidInput(InvalidInput::NotFastForward { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            7 => db.compact().unwrap(),
            _ => {
                let name = branch.name();
                let Ok(theirs) = other.branch(name) else { continue };
                let fetched = format!("fetched/{name}");
                db.fetch_from(other, name, &fetched).unwrap();
                if theirs.tip().unwrap().is_none() {
                    continue;
                }
                let fetched = db.branch(&fetched).unwrap();
                assert_same(&theirs, &fetched);
                catch_up(db, &branch, &fetched, notes);
            }
        }
    }
    // In the end, all have the same.
    let [first, rest @ ..] = &stores;
    for other in rest {
        first.fetch_from(other, "main", "last").unwrap();
        if let Ok(last) = first.branch("last") {
            catch_up(first, &first.main(), &last, &spaces[0]);
        }
    }
    for other in rest {
        first.push_to(other, "main").unwrap();
        assert_same(&first.main(), &other.main());
    }
    let late = store();
    late.fetch_from(first, "main", "main").unwrap();
    assert_same(&first.main(), &late.main());
    let again = late.snapshot_at(Moment::Newest).unwrap().state_hash().unwrap();
    assert_eq!(again, first.state_hash().unwrap());
}

#[test]
fn random_exchanges_end_with_equal_stores() {
    for seed in 0..12 {
        exchange(seed);
    }
}
