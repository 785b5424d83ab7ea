//! Dumps, the change feed, replays and other processes have the same expiries as the store.

use std::sync::Arc;

use plimsoll::*;
use plimsoll_disk::clock::ManualClock;

use crate::expiry::{LENGTHS, SECOND, START, keys, options, options_on, world};

#[test]
fn a_dump_and_the_change_feed_have_the_expiries() {
    let world = world();
    world.db.set_ttl(&world.space, Some(SECOND * 100)).unwrap();
    for (key, len) in ["a", "b", "c", "d"].iter().zip(LENGTHS) {
        world.put(key, vec![7; len], 10);
    }
    world.db.put(&world.space, "default", "").unwrap();
    world.db.put(&world.space, "lasting", "").unwrap();
    let first = world.db.newest();
    world.db.persist(&world.space, "lasting").unwrap();
    for (key, seconds) in [("a", Some(10)), ("d", Some(10)), ("default", Some(100))] {
        assert_eq!(world.left(key), seconds);
    }
    let commit = world.db.log().commit(first).unwrap().unwrap();
    let change = commit.changes().unwrap().next().unwrap().unwrap();
    let left = change.expires().unwrap().duration_since(change.time()).unwrap();
    assert_eq!(left.as_secs_f64().round() as u64, 100);
    for history in [false, true] {
        let mut dump = Vec::new();
        world.db.dump(DumpOptions::new().history(history), &mut dump).unwrap();
        let path = if history { "/history" } else { "/newest" };
        let at = || options(&world.disk, &world.clock);
        Db::restore(path, at(), &dump[..]).unwrap();
        let db = Db::open(path, at()).unwrap();
        let space = db.keyspace("rows").unwrap();
        assert_eq!(db.keyspaces()[1].ttl, Some(SECOND * 100));
        for key in ["a", "b", "c", "d", "default", "lasting"] {
            let (copy, own) =
                (db.ttl(&space, key).unwrap(), world.db.ttl(&world.space, key).unwrap());
            match (copy, own) {
                (Ttl::Expires { at: copy, .. }, Ttl::Expires { at: own, .. }) => {
                    assert_eq!(copy, own)
                }
                (copy, own) => {
                    assert_eq!((copy, own, key), (Ttl::Unlimited, Ttl::Unlimited, "lasting"))
                }
            }
        }
        if history {
            world.pass(10);
            assert_eq!(keys(&db.snapshot(), &space), ["default", "lasting"]);
            let then = db.snapshot_at(Moment::Glsn(first)).unwrap();
            assert_eq!(then.len(&space).unwrap(), 6);
        }
        db.close().unwrap();
    }
}

#[test]
fn a_replay_and_another_process_see_the_same_expiries() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::new(START)));
    let open = || {
        let disk = Arc::new(plimsoll_disk::os::OsDisk::new());
        let options = options_on(disk, &clock).shared(true);
        let db = Db::open(dir.path().join("store"), options).unwrap();
        let space = db.keyspace("rows").unwrap();
        (db, space)
    };
    let (one, of_one) = open();
    let (two, of_two) = open();
    one.put_with_ttl(&of_one, "k", 5i64.to_le_bytes(), SECOND * 10).unwrap();
    let before = two.snapshot();
    assert_eq!(two.add(&of_two, "k", 1, Overflow::Checked).unwrap(), 6);
    let ttl = |db: &Db, space: &Keyspace| match db.ttl(space, "k").unwrap() {
        Ttl::Expires { at, .. } => Some(at),
        _ => None,
    };
    let at = ttl(&one, &of_one);
    assert_eq!((at.is_some(), ttl(&two, &of_two)), (true, at));
    clock.advance(SECOND * 11);
    assert_eq!((one.get(&of_one, "k").unwrap(), two.get(&of_two, "k").unwrap()), (None, None));
    assert!(before.get(&of_two, "k").unwrap().is_some());
    // A member whose clock is behind follows the log's time.
    one.put(&of_one, "other", "").unwrap();
    clock.set_wall_micros(START);
    assert_eq!((one.get(&of_one, "k").unwrap(), two.get(&of_two, "k").unwrap()), (None, None));
    assert_eq!(two.add(&of_two, "k", 1, Overflow::Checked).unwrap(), 1);
    drop((one, two, before));
    let (again, space) = open();
    let value = again.get(&space, "k").unwrap().unwrap();
    assert_eq!(i64::from_le_bytes(value[..].try_into().unwrap()), 1);
    assert_eq!(again.ttl(&space, "k").unwrap(), Ttl::Unlimited);
}

#[test]
fn a_process_that_only_writes_puts_by_the_newest_time_to_live() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options::new().memory_bytes(16 << 20).shared(true);
        let db = Db::open(dir.path().join("store"), options).unwrap();
        let space = db.keyspace("rows").unwrap();
        (db, space)
    };
    let (one, of_one) = open();
    let (two, of_two) = open();
    let puts: [fn(&Db, &Keyspace) -> Result<()>; 4] = [
        |db, space| db.put(space, "k", "").map(drop),
        |db, space| db.append(space, "k", "").map(drop),
        |db, space| db.transact(|tx| tx.put_reader(space, "k", &mut &[7; 5000][..])).map(drop),
        |db, space| db.bulk_load(space, [("k", "")]).map(drop),
    ];
    for put in puts {
        one.delete(&of_one, "k").unwrap();
        one.set_ttl(&of_one, None).unwrap();
        assert!(two.get(&of_two, "k").unwrap().is_none());
        one.set_ttl(&of_one, Some(SECOND * 1000)).unwrap();
        put(&two, &of_two).unwrap();
        assert!(matches!(one.ttl(&of_one, "k").unwrap(), Ttl::Expires { .. }));
    }
}
