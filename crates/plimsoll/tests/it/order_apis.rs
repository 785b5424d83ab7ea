//! Every kind of change and of read, on a replica other than the one that made the change.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::order::memory::MemoryOrder;
use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Overflow, Retention, Sizes, Ttl};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;

use crate::order::{check_equal, entries, options, rows};

fn replicas(order: &MemoryOrder, dir: &tempfile::TempDir) -> (Db, Db) {
    let open = |name: &str| Db::open(dir.path().join(name), options(order)).unwrap();
    (open("one"), open("two"))
}

fn get(db: &Db, space: &Keyspace, key: &str) -> Option<Vec<u8>> {
    db.get(space, key).unwrap().map(|value| value.to_vec())
}

#[test]
fn keyspaces_and_their_settings_are_those_of_all_replicas() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (one, two) = replicas(&order, &dir);
    let rows_of_one = one.create_keyspace("rows", Retention::Glsns(7)).unwrap();
    one.put(&rows_of_one, "a", "1").unwrap();
    two.sync().unwrap();
    let info = |db: &Db, name: &str| {
        db.keyspaces().into_iter().find(|info| info.name.as_ref() as &str == name)
    };
    assert_eq!(info(&two, "rows").unwrap().retention, Retention::Glsns(7));
    let rows_of_two = two.keyspace("rows").unwrap();
    assert_eq!(get(&two, &rows_of_two, "a").as_deref(), Some(&b"1"[..]));
    // Both create keyspaces; each has an id of its own.
    let (x, y) = (one.keyspace("x").unwrap(), two.keyspace("y").unwrap());
    one.put(&x, "k", "of x").unwrap();
    two.put(&y, "k", "of y").unwrap();
    // Both create the same one.
    let (z1, z2) = (one.keyspace("z").unwrap(), two.keyspace("z").unwrap());
    one.put(&z1, "k1", "1").unwrap();
    two.put(&z2, "k2", "2").unwrap();
    check_equal(&[&one, &two], &["rows", "x", "y", "z", "default"]);
    assert_eq!(rows(&one, &one.keyspace("z").unwrap()).len(), 2);
    one.drop_keyspace(&rows_of_one).unwrap();
    let error = two.put(&rows_of_two, "b", "2").unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
    two.sync().unwrap();
    assert!(info(&two, "rows").is_none());
}

#[test]
fn tags_branches_and_cursors_are_those_of_all_replicas() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (one, two) = replicas(&order, &dir);
    let space = one.keyspace("default").unwrap();
    one.put(&space, "a", "1").unwrap();
    one.tag("first", Moment::Newest).unwrap();
    one.put(&space, "a", "2").unwrap();
    let branch = one.create_branch("draft", &one.main()).unwrap();
    branch.put(&space, "a", "on the branch").unwrap();
    two.sync().unwrap();
    let there = two.keyspace("default").unwrap();
    let tagged = two.snapshot_at(two.tag_at("first").unwrap().into()).unwrap();
    assert_eq!(&tagged.get(&there, "a").unwrap().unwrap()[..], b"1");
    let branch_there = two.branch("draft").unwrap();
    assert_eq!(&branch_there.get(&there, "a").unwrap().unwrap()[..], b"on the branch");
    branch_there.put(&there, "b", "of two").unwrap();
    two.merge(&branch_there).run().unwrap();
    one.sync().unwrap();
    assert_eq!(get(&one, &space, "a").as_deref(), Some(&b"on the branch"[..]));
    assert_eq!(get(&one, &space, "b").as_deref(), Some(&b"of two"[..]));
    one.delete_branch("draft").unwrap();
    one.delete_tag("first").unwrap();
    one.log().cursor("reader", Glsn(1)).unwrap();
    two.sync().unwrap();
    assert!(two.tags().unwrap().is_empty());
    assert!(two.branch("draft").is_err());
    assert_eq!(two.log().cursors().len(), 1);
    two.log().advance_cursor("reader", Glsn(3)).unwrap();
    one.sync().unwrap();
    assert_eq!(one.log().cursors()[0].next, Glsn(3));
    check_equal(&[&one, &two], &["default"]);
}

#[test]
fn streams_watches_and_the_feed_show_commits_of_all_replicas() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (one, two) = replicas(&order, &dir);
    let (space, there) = (one.keyspace("default").unwrap(), two.keyspace("default").unwrap());
    let appended = one.log().append(7, &[b"first", b"second"]).unwrap();
    one.put(&space, "seen/a", "1").unwrap();
    one.put(&space, "other", "1").unwrap();
    two.log().append(7, &[b"third"]).unwrap();
    let first = *appended.start();
    assert_eq!(two.log().read(first.next()).unwrap().payload(), b"second");
    let of_stream = |db: &Db| {
        let all = entries(db).into_iter();
        all.filter(|entry| entry.2 == 7).map(|entry| entry.3).collect::<Vec<_>>()
    };
    let wanted: Vec<Vec<u8>> = [&b"first"[..], b"second", b"third"].map(<[u8]>::to_vec).into();
    assert_eq!(of_stream(&two), wanted);
    let mut watch = two.watch(&there, "seen/", Glsn(1)).unwrap();
    let seen = watch.next_timeout(Duration::ZERO).unwrap().unwrap();
    let mut changes = seen.changes().unwrap();
    let change = changes.next().unwrap().unwrap();
    assert_eq!(change.key(), b"seen/a");
    check_equal(&[&one, &two], &["default"]);
    let error = one.log().append(7, &[&vec![0; (1 << 20) + 1]]).unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
    // The refused record left nothing in the order.
    check_equal(&[&one, &two], &["default"]);
    let error = one.log().restart_time().unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
}

#[test]
fn range_deletions_expiry_and_updates_work_on_all_replicas() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (one, two) = replicas(&order, &dir);
    let (space, there) = (one.keyspace("default").unwrap(), two.keyspace("default").unwrap());
    let mut tx = one.begin();
    for key in 0..500u32 {
        tx.put(&space, key.to_be_bytes(), "x").unwrap();
    }
    tx.commit().unwrap();
    two.sync().unwrap();
    two.delete_range(&there, 100u32.to_be_bytes()..400u32.to_be_bytes()).unwrap();
    one.sync().unwrap();
    assert_eq!(rows(&one, &space).len(), 200);
    one.put_with_ttl(&space, "short", "x", Duration::from_secs(3600)).unwrap();
    two.sync().unwrap();
    assert!(matches!(two.ttl(&there, "short").unwrap(), Ttl::Expires { .. }));
    one.add(&space, "n", 5, Overflow::Checked).unwrap();
    two.add(&there, "n", 6, Overflow::Checked).unwrap();
    assert_eq!(one.add(&space, "n", 1, Overflow::Checked).unwrap(), 12);
    two.append(&there, "text", "ab").unwrap();
    one.append(&space, "text", "cd").unwrap();
    two.sync().unwrap();
    assert_eq!(get(&two, &there, "text").as_deref(), Some(&b"abcd"[..]));
    assert!(two.compare_and_swap(&there, "text", Some(b"abcd"), Some(b"e")).unwrap());
    one.sync().unwrap();
    let at = one.newest();
    one.put(&space, "text", "to be undone").unwrap();
    one.revert(one.newest()).run().unwrap();
    two.sync().unwrap();
    assert_eq!(get(&two, &there, "text").as_deref(), Some(&b"e"[..]));
    let before = two.snapshot_at(at.into()).unwrap();
    assert_eq!(&before.get(&there, "text").unwrap().unwrap()[..], b"e");
    check_equal(&[&one, &two], &["default"]);
}

fn large(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(2654435761).to_le_bytes()[3] ^ seed).collect()
}

#[test]
fn large_values_and_large_transactions_reach_all_replicas() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let open = |name: &str| {
        let mut sizes = Sizes::USUAL;
        sizes.write_set_bytes = Some(256 << 10);
        Db::open(dir.path().join(name), options(&order).sizes(sizes)).unwrap()
    };
    let (one, two) = (open("one"), open("two"));
    let (space, there) = (one.keyspace("default").unwrap(), two.keyspace("default").unwrap());
    let value = large(1, 700_000);
    one.put(&space, "put", &value).unwrap();
    let mut tx = one.begin();
    tx.put_reader(&space, "read", &mut &large(2, 3_000_000)[..]).unwrap();
    tx.commit().unwrap();
    two.sync().unwrap();
    assert_eq!(get(&two, &there, "put"), Some(value));
    let mut reader = two.snapshot().get_reader(&there, "read").unwrap().unwrap();
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    assert!(found == large(2, 3_000_000));
    // A transaction that is written as runs, with values in blob files.
    let mut tx = two.begin();
    for key in 0..6000u32 {
        let bytes = if key % 500 == 0 { 20_000 } else { 200 };
        tx.put(&there, key.to_be_bytes(), large(key as u8, bytes)).unwrap();
    }
    tx.commit().unwrap();
    two.bulk_load(&there, (0..20_000u32).map(|key| (format!("load {key:06}"), "value"))).unwrap();
    one.sync().unwrap();
    assert_eq!(get(&one, &space, "load 012345").as_deref(), Some(&b"value"[..]));
    let found = one.get(&space, 1500u32.to_be_bytes()).unwrap().unwrap();
    assert!(found[..] == large(1500u32 as u8, 20_000));
    check_equal(&[&one, &two], &["default"]);
    for db in [&one, &two] {
        db.flush().unwrap();
        db.compact().unwrap();
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
    }
    // All of it is there after the replicas are opened again, and in a new one.
    one.close().unwrap();
    let (one, three) = (open("one"), open("three"));
    check_equal(&[&two, &one, &three], &["default"]);
}

#[test]
fn a_damaged_or_missing_blob_is_named_and_not_used() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (one, two) = replicas(&order, &dir);
    let (space, there) = (one.keyspace("default").unwrap(), two.keyspace("default").unwrap());
    let at = order.last() + 1;
    one.put(&space, "put", large(1, 700_000)).unwrap();
    let [hash] = order.blobs()[..] else { panic!("one blob") };
    for offset in [5, 100_000, 700_000] {
        order.flip_blob(hash, offset);
        let error = two.sync().unwrap_err();
        let Error::Corrupt { message, .. } = &error else { panic!("{error:?}") };
        assert!(message.contains(&format!("position {at} ")), "{message}");
        assert_eq!(get(&two, &there, "put"), None, "reads go on");
        order.flip_blob(hash, offset);
    }
    two.sync().unwrap();
    assert_eq!(get(&two, &there, "put"), Some(large(1, 700_000)));
    order.remove_blob(hash);
    let three = Db::open(dir.path().join("three"), options(&order)).unwrap_err();
    assert!(three.to_string().contains("is missing"), "{three}");
}

#[test]
fn a_replica_on_a_full_disk_reads_on_and_continues_later() {
    let order = MemoryOrder::new(1);
    let (disk_one, disk_two) = (LyingDisk::new(1), LyingDisk::new(2));
    let open = |disk: &LyingDisk| {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
        let options: Options = options(&order).world(Arc::new(disk.clone()), clock);
        Db::open("/store", options).unwrap()
    };
    let (one, two) = (open(&disk_one), open(&disk_two));
    let (space, there) = (one.keyspace("default").unwrap(), two.keyspace("default").unwrap());
    one.put(&space, "a", "1").unwrap();
    two.sync().unwrap();
    disk_two.fill_up(Some(0));
    for key in 0..8u32 {
        one.put(&space, key.to_be_bytes(), large(key as u8, 200_000)).unwrap();
    }
    two.sync().unwrap_err();
    assert_eq!(get(&two, &there, "a").as_deref(), Some(&b"1"[..]));
    disk_two.fill_up(None);
    check_equal(&[&one, &two], &["default"]);
}

#[test]
fn a_commit_that_was_ordered_and_not_applied_is_told_as_made() {
    let order = MemoryOrder::new(1);
    let disk = LyingDisk::new(1);
    let open = || {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
        let options: Options = options(&order).world(Arc::new(disk.clone()), clock);
        Db::open("/store", options.memtable_bytes(64 << 10)).unwrap()
    };
    let db = open();
    let space = db.keyspace("default").unwrap();
    db.put(&space, "first", "1").unwrap();
    disk.fill_up(Some(100 << 10));
    let mut refused = None;
    for key in 0..4000u32 {
        let before = order.last();
        if let Err(error) = db.put(&space, key.to_be_bytes(), large(key as u8, 9000)) {
            let is_made = order.last() > before;
            let is_told = error.to_string().contains("the commit was made");
            assert_eq!(is_made, is_told, "{error:?}");
            refused = Some((key, is_made));
            break;
        }
    }
    let (key, is_made) = refused.expect("the disk is full");
    assert_eq!(get(&db, &space, "first").as_deref(), Some(&b"1"[..]), "reads go on");
    // A commit after one that could not be applied is not made.
    let before = order.last();
    if is_made {
        let error = db.put(&space, "next", "1").unwrap_err().to_string();
        assert!(!error.contains("the commit was made"), "{error}");
        assert_eq!(order.last(), before);
    }
    drop((space, db));
    disk.fill_up(None);
    disk.cut_power();
    disk.restart_process();
    let db = open();
    db.sync().unwrap();
    let space = db.keyspace("default").unwrap();
    assert_eq!(db.get(&space, key.to_be_bytes()).unwrap().is_some(), is_made);
    db.put(&space, "last", "1").unwrap();
}

#[test]
fn a_moment_that_another_replica_names_is_readable_or_refused() {
    let (order, clock) = (MemoryOrder::new(1), Arc::new(ManualClock::new(1_700_000_000_000_000)));
    let open = |seed: u64| {
        let disk = Arc::new(LyingDisk::new(seed));
        let options: Options = options(&order).world(disk, Arc::clone(&clock) as _);
        Db::open("/store", options).unwrap()
    };
    let (one, two) = (open(1), open(2));
    let space = one.create_keyspace("new", Retention::Latest).unwrap();
    one.put(&space, "a", "old").unwrap();
    let old = one.snapshot();
    clock.advance(Duration::from_secs(20 * 60));
    one.put(&space, "a", "young").unwrap();
    let young = one.newest();
    clock.advance(Duration::from_secs(5 * 60));
    one.put(&space, "a", "new").unwrap();
    // This one drops what it may before it knows the tag.
    two.sync().unwrap();
    two.flush().unwrap();
    two.compact().unwrap();
    let refused = one.tag("old", old.at().into()).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidInput(plimsoll::InvalidInput::MomentTooOld { .. })),
        "{refused:?}"
    );
    one.create_branch_at("old", &one.main(), old.at().into()).unwrap_err();
    one.tag("young", young.into()).unwrap();
    two.sync().unwrap();
    let there = two.keyspace("new").unwrap();
    let tagged = two.snapshot_at(two.tag_at("young").unwrap().into()).unwrap();
    assert_eq!(&tagged.get(&there, "a").unwrap().unwrap()[..], b"young");
}
