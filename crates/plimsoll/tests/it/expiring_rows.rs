//! Values that expire, cached as rows: each reader judges them by its own moment.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Error, Keyspace, Moment, Overflow, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;

use crate::expiry::{START, World, options_on, world};

/// Values in each place: in the index, in the log, in one large piece.
const LENGTHS: [usize; 3] = [100, 5000, 70_000];

fn hits(db: &Db) -> u64 {
    db.stats().row_cache.hits
}

/// Puts values that expire after ten seconds, and makes them rows.
fn rows(world: &World) -> Vec<String> {
    let keys: Vec<_> = LENGTHS.iter().map(|len| format!("{len}")).collect();
    for (key, len) in keys.iter().zip(LENGTHS) {
        world.put(key, vec![7; len], 10);
    }
    world.db.flush().unwrap();
    world.db.drop_pages();
    keys.iter().for_each(|key| assert!(world.has(key)));
    keys
}

#[test]
fn a_value_that_expires_is_answered_by_its_row_until_then_and_afterwards() {
    let world = world();
    let keys = rows(&world);
    let snapshot = world.db.snapshot();
    for has_expired in [false, true] {
        for key in &keys {
            world.db.drop_pages();
            let before = hits(&world.db);
            let len = (!has_expired).then(|| key.parse().unwrap());
            let found = world.db.get(&world.space, key).unwrap();
            assert_eq!(found.map(|value| value.len()), len, "{key}");
            let lent = world.db.get_with(&world.space, key, <[u8]>::len).unwrap();
            assert_eq!(lent, len, "{key}");
            let now = world.db.snapshot();
            assert_eq!(now.contains_key(&world.space, key).unwrap(), !has_expired);
            assert_eq!(hits(&world.db) - before, 3, "{key}, expired: {has_expired}");
            // An older moment is judged by its own time.
            let earlier = snapshot.get(&world.space, key).unwrap();
            assert_eq!(earlier.map(|value| value.len()), key.parse().ok());
        }
        world.pass(10);
    }
    world.clock.set_wall_micros(START + 1_000_000);
    assert!(keys.iter().all(|key| world.has(key)), "the clock was set back");
}

#[test]
fn a_row_whose_version_a_merge_has_dropped_has_expired_for_every_reader() {
    let world = world();
    let keys = rows(&world);
    world.pass(10);
    world.db.put(&world.space, "other", "later").unwrap();
    world.db.set_retention(&world.space, Retention::Latest).unwrap();
    world.db.compact().unwrap();
    world.clock.set_wall_micros(START + 1_000_000);
    assert!(!keys.iter().any(|key| world.has(key)));
    world.put(&keys[0], "new", 10);
    assert!(world.has(&keys[0]));
    world.db.flush().unwrap();
    assert!(world.has(&keys[0]), "a flush replaces the row");
}

#[test]
fn a_restart_of_the_time_shows_no_value_that_a_merge_has_dropped() {
    let world = world();
    let keys = rows(&world);
    world.db.set_retention(&world.space, Retention::Latest).unwrap();
    // A commit under a clock that is far ahead, and a merge.
    world.pass(1000 * 24 * 3600);
    world.db.put(&world.space, "other", "ahead").unwrap();
    world.db.compact().unwrap();
    assert!(!keys.iter().any(|key| world.has(key)), "answered by rows");
    world.clock.set_wall_micros(START + 1_000_000);
    world.db.log().restart_time().unwrap().unwrap();
    let walked = world.db.snapshot().len(&world.space).unwrap();
    let found = keys.iter().filter(|key| world.has(key)).count();
    assert_eq!((found, walked), (0, 1));
}

#[test]
fn a_past_row_is_judged_by_the_time_of_its_reader() {
    let world = world();
    let keys = rows(&world);
    let then = world.db.newest();
    let early = world.db.snapshot();
    world.pass(9);
    let late = world.db.snapshot_at(Moment::Glsn(then)).unwrap();
    keys.iter().for_each(|key| world.put(key, "new", 100));
    world.db.flush().unwrap();
    for _ in 0..3 {
        for key in &keys {
            world.db.drop_pages();
            for snapshot in [&early, &late] {
                let found = snapshot.get(&world.space, key).unwrap();
                assert_eq!(found.map(|value| value.len()), key.parse().ok());
            }
        }
    }
}

#[test]
fn an_update_keeps_the_expiry_of_a_row() {
    let world = world();
    world.put("n", 7i64.to_le_bytes(), 10);
    world.db.flush().unwrap();
    world.db.drop_pages();
    assert!(world.has("n"));
    let mut tx = world.db.begin();
    tx.add(&world.space, "n", 1, Overflow::Checked).unwrap();
    tx.commit().unwrap();
    assert!(world.has("n"));
    world.pass(10);
    assert!(!world.has("n"));
}

#[test]
fn a_transaction_that_read_a_row_conflicts_once_it_has_expired() {
    let world = world();
    let keys = rows(&world);
    for key in &keys {
        let mut tx = world.db.begin();
        let before = hits(&world.db);
        assert!(tx.get(&world.space, key).unwrap().is_some());
        assert_eq!(hits(&world.db) - before, 1, "a row answered");
        tx.put(&world.space, "seen", key).unwrap();
        world.pass(10);
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })), "{key}");
        world.clock.set_wall_micros(START + 1_000_000);
    }
}

#[test]
fn an_image_restores_rows_with_their_expiry() {
    let (disk, clock) = (Arc::new(MemDisk::new()), Arc::new(ManualClock::new(START)));
    let open = || {
        let db = Db::open("/store", options_on(disk.clone(), &clock).warm(true)).unwrap();
        let space: Keyspace = db.keyspace("rows").unwrap();
        (db, space)
    };
    let (db, space) = open();
    db.put_with_ttl(&space, "short", "1", Duration::from_secs(10)).unwrap();
    db.put_with_ttl(&space, "long", "2", Duration::from_secs(1000)).unwrap();
    db.put(&space, "ever", "3").unwrap();
    db.flush().unwrap();
    for key in ["short", "long", "ever"] {
        db.drop_pages();
        assert!(db.get(&space, key).unwrap().is_some());
    }
    db.close().unwrap();
    let (db, space) = open();
    while db.step().unwrap() {}
    let before = hits(&db);
    let there = ["short", "long", "ever"].map(|key| db.get(&space, key).unwrap().is_some());
    assert_eq!((there, hits(&db) - before), ([true; 3], 3));
    clock.advance(Duration::from_secs(11));
    let there = ["short", "long", "ever"].map(|key| db.get(&space, key).unwrap().is_some());
    assert_eq!(there, [false, true, true]);
    db.close().unwrap();
}
