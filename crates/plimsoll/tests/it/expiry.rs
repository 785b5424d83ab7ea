//! Values that expire.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{
    Compression, Db, Durability, Error, InvalidInput, Keyspace, Moment, Options, Overflow, Read,
    Resident, Result, Ttl, Value,
};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;

/// Where the clock starts, in microseconds since 1970.
pub(crate) const START: u64 = 1_780_000_000_000_000;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct World {
    pub(crate) disk: Arc<MemDisk>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) db: Db,
    pub(crate) space: Keyspace,
}

pub(crate) fn options_on(disk: Arc<dyn Disk>, clock: &Arc<ManualClock>) -> Options {
    Options::new()
        .memory_bytes(16 << 20)
        .durability(Durability::Buffered)
        .background(false)
        .world(disk, clock.clone())
}

pub(crate) fn options(disk: &Arc<MemDisk>, clock: &Arc<ManualClock>) -> Options {
    options_on(disk.clone(), clock)
}

fn open(disk: Arc<MemDisk>, clock: Arc<ManualClock>) -> World {
    let db = Db::open("/store", options(&disk, &clock)).unwrap();
    let space = db.keyspace("rows").unwrap();
    World { disk, clock, db, space }
}

pub(crate) fn world() -> World {
    open(Arc::new(MemDisk::new()), Arc::new(ManualClock::new(START)))
}

impl World {
    pub(crate) fn put(&self, key: &str, value: impl AsRef<[u8]>, seconds: u64) {
        self.db.put_with_ttl(&self.space, key, value, SECOND * seconds as u32).unwrap();
    }

    /// Lets time pass, and a little more: while the clock stands still, each commit is a
    /// microsecond later than the one before it.
    pub(crate) fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds) + Duration::from_millis(1));
    }

    pub(crate) fn reopen(self) -> Self {
        self.db.close().unwrap();
        open(self.disk, self.clock)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.db.get(&self.space, key).unwrap().is_some()
    }

    /// How many seconds the value of a key lives; `None` if it does not expire or is absent.
    pub(crate) fn left(&self, key: &str) -> Option<u64> {
        match self.db.ttl(&self.space, key).unwrap() {
            Ttl::Expires { left, at } => {
                let now = left.as_micros() as u64;
                let micros = at.duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
                // The first microseconds are those by which commits follow each other.
                assert!((micros - now).abs_diff(self.now()) < 1000);
                Some(left.as_secs_f64().round() as u64)
            }
            Ttl::Unlimited | Ttl::Absent => None,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.wall_micros()
    }

    pub(crate) fn time(&self, seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.now()) + SECOND * seconds as u32
    }
}

pub(crate) fn keys(read: &impl Read, space: &Keyspace) -> Vec<String> {
    let text = |row: Result<(Vec<u8>, Value)>| String::from_utf8(row.unwrap().0).unwrap();
    read.iter(space).unwrap().map(text).collect()
}

fn invalid<T: std::fmt::Debug>(result: Result<T>) -> InvalidInput {
    match result {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

/// Values in each place: in the index, in the log, in a blob file.
pub(crate) const LENGTHS: [usize; 4] = [0, 100, 5000, 400 << 10];

#[test]
fn a_value_of_any_length_expires_in_every_place() {
    for compression in [Compression::None, Compression::Lz4] {
        let mut world = world();
        world.db.set_compression(&world.space, compression).unwrap();
        for (key, len) in ["a", "b", "c", "d"].iter().zip(LENGTHS) {
            world.put(key, vec![7; len], 10);
        }
        for step in 0..4 {
            match step {
                1 => world.db.flush().unwrap(),
                2 => world.db.compact().unwrap(),
                3 => world = world.reopen(),
                _ => {}
            }
            for (key, len) in ["a", "b", "c", "d"].iter().zip(LENGTHS) {
                assert_eq!(world.left(key), Some(10), "{key} {step}");
                let value = world.db.get(&world.space, key).unwrap().unwrap();
                assert_eq!(value.to_vec(), vec![7; len], "{key} {step}");
            }
        }
        world.pass(9);
        assert!(world.has("a") && world.has("d"));
        let before = world.db.snapshot();
        world.pass(1);
        for key in ["a", "b", "c", "d"] {
            assert!(!world.has(key), "{key}");
            assert_eq!(world.db.ttl(&world.space, key).unwrap(), Ttl::Absent);
            let now = world.db.snapshot();
            assert!(!now.contains_key(&world.space, key).unwrap());
            assert!(now.get_reader(&world.space, key).unwrap().is_none());
            let there = world.db.get_resident(&world.space, key, |_| ()).unwrap();
            assert_eq!(there, Resident::Absent);
            assert!(before.get(&world.space, key).unwrap().is_some(), "its own moment");
        }
        assert!(world.db.snapshot().is_empty(&world.space).unwrap());
        assert_eq!(before.len(&world.space).unwrap(), 4);
    }
}

#[test]
fn iterators_skip_expired_values_in_both_directions() {
    for flushed in [false, true] {
        let world = world();
        for key in 0..50u32 {
            let name = format!("{key:02}");
            match key % 3 {
                0 => world.put(&name, [7; 10], 10),
                1 => _ = world.db.put(&world.space, &name, [7; 10]).unwrap(),
                _ => world.put(&name, [7; 2000], 20),
            }
        }
        if flushed {
            world.db.flush().unwrap();
        }
        let then = world.db.snapshot();
        world.pass(10);
        let wanted: Vec<_> =
            (0..50u32).filter(|key| key % 3 != 0).map(|key| format!("{key:02}")).collect();
        let now = world.db.snapshot();
        assert_eq!(keys(&now, &world.space), wanted);
        let back: Vec<_> =
            now.iter(&world.space).unwrap().reverse().map(|row| row.unwrap().0).collect();
        assert_eq!(
            back,
            wanted.iter().rev().map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>()
        );
        let mut visited = 0;
        now.iter(&world.space)
            .unwrap()
            .visit(|_, _| {
                visited += 1;
                ControlFlow::<()>::Continue(())
            })
            .unwrap();
        assert_eq!((visited, now.len(&world.space).unwrap()), (wanted.len(), wanted.len() as u64));
        assert_eq!(now.first(&world.space).unwrap().unwrap().0, b"01");
        assert_eq!(now.last(&world.space).unwrap().unwrap().0, b"49");
        let size = world.db.keyspace_size(&world.space, 1000).unwrap();
        assert_eq!((size.keys, size.exact), (wanted.len() as u64, true));
        assert_eq!(then.len(&world.space).unwrap(), 50, "the older moment sees all");
        // Many keys that have expired: no gap hides what an older moment sees.
        world.pass(10);
        assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 17);
        assert_eq!(then.len(&world.space).unwrap(), 50);
        assert_eq!(now.len(&world.space).unwrap(), wanted.len() as u64);
    }
}

#[test]
fn an_iterator_tells_when_each_value_expires() {
    let world = world();
    world.put("a", "1", 10);
    world.db.put(&world.space, "b", "2").unwrap();
    world.put("c", [7; 3000], 20);
    for flushed in [false, true] {
        if flushed {
            world.db.flush().unwrap();
        }
        let mut rows = world.db.snapshot().iter(&world.space).unwrap();
        let mut told = Vec::new();
        while let Some(row) = rows.next() {
            row.unwrap();
            let left = |at: SystemTime| at.duration_since(world.time(0)).unwrap().as_secs();
            told.push(rows.expires().map(left));
        }
        assert_eq!(told, [Some(10), None, Some(20)]);
    }
}

#[test]
fn a_put_replaces_the_expiry_and_an_update_keeps_it() {
    let world = world();
    world.put("n", 5i64.to_le_bytes(), 10);
    assert_eq!(world.db.add(&world.space, "n", 2, Overflow::Checked).unwrap(), 7);
    assert_eq!(world.left("n"), Some(10));
    world.put("a", "ab", 10);
    world.db.append(&world.space, "a", vec![b'c'; 3000]).unwrap();
    assert_eq!(world.left("a"), Some(10));
    assert!(world.db.compare_and_swap(&world.space, "n", Some(&7i64.to_le_bytes()), None).unwrap());
    assert!(!world.has("n"));
    world.put("p", "1", 10);
    world.db.put(&world.space, "p", "2").unwrap();
    assert_eq!(world.db.ttl(&world.space, "p").unwrap(), Ttl::Unlimited);
    // In one transaction: the update keeps the expiry of the put before it.
    let mut tx = world.db.begin();
    tx.put_with_ttl(&world.space, "x", 1i64.to_le_bytes(), SECOND * 30).unwrap();
    tx.add(&world.space, "x", 1, Overflow::Checked).unwrap();
    tx.append(&world.space, "a", "d").unwrap();
    assert!(matches!(tx.ttl(&world.space, "x").unwrap(), Ttl::Expires { .. }));
    assert!(matches!(tx.ttl(&world.space, "a").unwrap(), Ttl::Expires { .. }));
    tx.commit().unwrap();
    assert_eq!((world.left("x"), world.left("a")), (Some(30), Some(10)));
    // An update of an expired value begins anew.
    world.pass(10);
    assert_eq!(world.db.append(&world.space, "a", "new").unwrap(), 3);
    assert_eq!(world.db.ttl(&world.space, "a").unwrap(), Ttl::Unlimited);
    world.pass(20);
    assert_eq!(world.db.add(&world.space, "x", 1, Overflow::Checked).unwrap(), 1);
    assert!(world.db.set_if_absent(&world.space, "n", "there").unwrap());
    world.put("s", "old", 1);
    assert!(!world.db.set_if_absent(&world.space, "s", "new").unwrap());
    world.pass(1);
    assert!(world.db.set_if_absent(&world.space, "s", "new").unwrap());
    assert_eq!(world.db.insert(&world.space, "t", "").unwrap(), None);
    world.put("t", "", 1);
    world.pass(1);
    assert_eq!(world.db.insert(&world.space, "t", "").unwrap(), None);
}

#[test]
fn an_expiry_is_changed_and_removed() {
    let world = world();
    for (key, len) in ["a", "b", "c", "d"].iter().zip(LENGTHS) {
        world.put(key, vec![7; len], 10);
        assert!(world.db.expire_at(&world.space, key, world.time(100)).unwrap());
        assert_eq!(world.left(key), Some(100));
        assert_eq!(world.db.get(&world.space, key).unwrap().unwrap().to_vec(), vec![7; len]);
        assert!(world.db.persist(&world.space, key).unwrap());
        assert_eq!(world.db.ttl(&world.space, key).unwrap(), Ttl::Unlimited);
        assert!(world.db.expire_at(&world.space, key, world.time(1)).unwrap());
        assert_eq!(world.left(key), Some(1));
    }
    let newest = world.db.newest();
    let at = world.time(50);
    assert!(!world.db.expire_at(&world.space, "absent", at).unwrap());
    assert!(!world.db.persist(&world.space, "absent").unwrap());
    world.pass(1);
    assert!(!world.db.expire_at(&world.space, "a", at).unwrap(), "it has expired");
    assert!(!world.db.persist(&world.space, "b").unwrap());
    assert_eq!(world.db.newest(), newest, "nothing was written");
    world.db.put(&world.space, "p", "").unwrap();
    let newest = world.db.newest();
    assert!(world.db.persist(&world.space, "p").unwrap());
    assert_eq!(world.db.newest(), newest, "it did not expire before");
    // In a transaction that has written or updated the key itself.
    let mut tx = world.db.begin();
    tx.put_with_ttl(&world.space, "q", "1", SECOND).unwrap();
    assert!(tx.persist(&world.space, "q").unwrap());
    tx.append(&world.space, "p", "2").unwrap();
    assert!(tx.expire_at(&world.space, "p", world.time(20)).unwrap());
    tx.commit().unwrap();
    assert_eq!(world.db.ttl(&world.space, "q").unwrap(), Ttl::Unlimited);
    assert_eq!((world.left("p"), world.has("p")), (Some(20), true));
}

#[test]
fn a_bad_time_is_refused_and_nothing_is_written() {
    let world = world();
    let (db, space) = (&world.db, &world.space);
    db.put(space, "k", "old").unwrap();
    let newest = db.newest();
    let year_10000 = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
    for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX, SECOND * u32::MAX * 60] {
        let refused = invalid(db.put_with_ttl(space, "k", "v", ttl));
        assert!(matches!(refused, InvalidInput::TimeToLive { .. }), "{refused}");
        let refused = invalid(db.set_ttl(space, Some(ttl)));
        assert!(matches!(refused, InvalidInput::TimeToLive { .. }), "{refused}");
    }
    for at in [UNIX_EPOCH, world.time(0), year_10000] {
        let refused = [
            invalid(db.put_expiring_at(space, "k", "v", at)),
            invalid(db.expire_at(space, "k", at)),
        ];
        let is_time = |what: &InvalidInput| matches!(what, InvalidInput::ExpiryTime { .. });
        assert!(refused.iter().all(is_time), "{refused:?}");
    }
    let mut tx = db.begin();
    invalid(tx.put_with_ttl(space, "k", "v", Duration::ZERO));
    tx.put(space, "other", "").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get(space, "k").unwrap().unwrap(), b"old");
    assert_eq!(db.newest(), newest + 1);
    db.put_expiring_at(space, "k", "v", year_10000 - Duration::from_micros(1)).unwrap();
    assert!(matches!(db.ttl(space, "k").unwrap(), Ttl::Expires { .. }));
}

#[test]
fn a_keyspace_gives_its_time_to_live_to_what_is_put() {
    let mut world = world();
    world.db.put(&world.space, "before", "").unwrap();
    world.db.set_ttl(&world.space, Some(SECOND * 10)).unwrap();
    for reopened in [false, true] {
        if reopened {
            world = world.reopen();
        }
        let (db, space) = (&world.db, &world.space);
        assert_eq!(db.keyspaces()[1].ttl, Some(SECOND * 10));
        db.put(space, "put", "1").unwrap();
        let mut tx = db.begin();
        tx.put_reader(space, "reader", &mut &[7; 5000][..]).unwrap();
        tx.append(space, "update", "1").unwrap();
        tx.commit().unwrap();
        db.bulk_load(space, [("load", "1")]).unwrap();
        db.append(space, "one update", "1").unwrap();
        for key in ["put", "reader", "update", "load", "one update"] {
            assert_eq!(world.left(key), Some(10), "{key}");
        }
        world.put("own", "1", 30);
        assert_eq!(world.left("own"), Some(30));
        assert!(db.persist(space, "put").unwrap());
        assert_eq!(db.ttl(space, "put").unwrap(), Ttl::Unlimited);
        assert_eq!(db.ttl(space, "before").unwrap(), Ttl::Unlimited);
        world.pass(10);
        assert_eq!(keys(&db.snapshot(), space), ["before", "own", "put"]);
        world.pass(30);
    }
    world.db.set_ttl(&world.space, None).unwrap();
    world.db.put(&world.space, "put", "1").unwrap();
    assert_eq!(world.db.ttl(&world.space, "put").unwrap(), Ttl::Unlimited);
    assert_eq!(world.db.keyspaces()[1].ttl, None);
}

#[test]
fn an_older_moment_is_judged_by_the_time_of_its_commit() {
    let world = world();
    world.put("a", "1", 10);
    let first = world.db.newest();
    world.pass(5);
    let second = world.db.put(&world.space, "b", "2").unwrap();
    world.pass(5);
    let third = world.db.put(&world.space, "c", "3").unwrap();
    world.pass(100);
    let there = |moment: Moment| keys(&world.db.snapshot_at(moment).unwrap(), &world.space);
    assert_eq!(there(Moment::Glsn(first)), ["a"]);
    assert_eq!(there(Moment::Glsn(second)), ["a", "b"]);
    assert_eq!(there(Moment::Glsn(third)), ["b", "c"]);
    assert_eq!(there(Moment::Newest), ["b", "c"]);
    let at = |seconds| UNIX_EPOCH + Duration::from_micros(START) + SECOND * seconds;
    assert_eq!(there(Moment::Time(at(9))), ["a", "b"]);
    assert_eq!(there(Moment::Time(at(6))), ["a", "b"]);
    assert_eq!(there(Moment::Time(at(11))), ["b", "c"]);
    let versions: Vec<_> =
        world.db.history(&world.space, "a").unwrap().map(Result::unwrap).collect();
    assert_eq!((versions.len(), versions[0].bytes), (1, Some(1)));
    let expires = versions[0].expires.unwrap();
    assert!(expires.duration_since(at(10)).unwrap() < Duration::from_millis(1));
    assert_eq!(versions[0].value().unwrap().unwrap(), b"1");
    let differences = |from, to| -> Vec<Vec<u8>> {
        let diff = world.db.diff(&world.space, from, to, "").unwrap();
        diff.map(|difference| difference.unwrap().key).collect()
    };
    assert_eq!(differences(first, third), [b"b", b"c"], "an expiry is no commit");
    let again = world.db.put(&world.space, "a", "1").unwrap();
    assert_eq!(differences(third, again), [b"a"], "it had expired, although the bytes are equal");
    assert_eq!(differences(first, again), [b"b", b"c"]);
}

#[test]
fn a_moment_by_time_is_judged_by_that_time_in_an_idle_store_too() {
    let world = world();
    world.put("k", "v", 10);
    let at = |seconds| UNIX_EPOCH + Duration::from_micros(START) + SECOND * seconds;
    let there = |seconds| {
        let snapshot = world.db.snapshot_at(Moment::Time(at(seconds))).unwrap();
        snapshot.contains_key(&world.space, "k").unwrap()
    };
    let told = || [5, 9, 11, 50, 1000].map(there);
    assert_eq!(told(), [true; 5], "a time in the future is now");
    world.pass(100);
    let judged = [true, true, false, false, false];
    assert_eq!(told(), judged, "the last commit is the newest");
    world.db.put(&world.space, "other", "").unwrap();
    assert_eq!(told(), judged);
}

#[test]
fn a_transaction_conflicts_with_an_expiry_that_it_did_not_see() {
    for flushed in [false, true] {
        let world = world();
        let (db, space) = (&world.db, &world.space);
        let read: [fn(&plimsoll::Transaction, &Keyspace); 6] = [
            |tx, space| assert!(tx.get(space, "k").unwrap().is_some()),
            |tx, space| assert!(tx.contains_key(space, "k").unwrap()),
            |tx, space| assert!(matches!(tx.ttl(space, "k").unwrap(), Ttl::Expires { .. })),
            |tx, space| assert_eq!(tx.len(space).unwrap(), 1),
            |tx, space| assert!(tx.first(space).unwrap().is_some()),
            |tx, space| assert!(tx.get_reader(space, "k").unwrap().is_some()),
        ];
        for read in read {
            let tx = |passes: u64| {
                world.put("k", "v", 10);
                if flushed {
                    db.flush().unwrap();
                }
                let mut tx = db.begin();
                read(&tx, space);
                tx.put(&db.keyspace("other").unwrap(), "o", "").unwrap();
                world.pass(passes);
                tx.commit()
            };
            tx(9).unwrap();
            match tx(10) {
                Err(error @ Error::Conflict { .. }) => {
                    assert!(error.to_string().contains("has expired"), "{error}");
                    let Error::Conflict { key, .. } = error else { unreachable!() };
                    assert_eq!(key, b"k");
                }
                other => panic!("{other:?}"),
            }
        }
        // A transaction that has read nothing of it does not conflict.
        let mut tx = db.begin();
        tx.put(space, "k", "v").unwrap();
        world.pass(100);
        tx.commit().unwrap();
    }
}

#[test]
fn a_transaction_depends_only_on_the_rows_that_an_iterator_has_returned() {
    for rows in 1..=4 {
        let world = world();
        for (key, seconds) in [("a", 100), ("b", 100), ("c", 100), ("d", 10)] {
            world.put(key, "v", seconds);
        }
        let mut tx = world.db.begin();
        let mut walk = tx.iter(&world.space).unwrap();
        let read: Vec<_> = (0..rows).map(|_| walk.next().unwrap().unwrap().0).collect();
        drop(walk);
        assert_eq!(read.concat(), b"abcd"[..rows]);
        tx.put(&world.db.keyspace("other").unwrap(), "o", "").unwrap();
        world.pass(11);
        match tx.commit() {
            Err(Error::Conflict { key, .. }) => assert_eq!((rows, &key[..]), (4, &b"d"[..])),
            committed => assert!(rows < 4 && committed.is_ok(), "{rows}: {committed:?}"),
        }
    }
}

#[test]
fn a_range_deletion_does_not_conflict_with_an_expiry() {
    let world = world();
    world.put("expired", "1", 10);
    world.put("expires", "1", 30);
    world.pass(20);
    let mut tx = world.db.begin();
    tx.delete_range(&world.space, "a"..).unwrap();
    world.pass(20);
    tx.commit().unwrap();
    for key in ["expired", "expires"] {
        let newest = world.db.history(&world.space, key).unwrap().next().unwrap().unwrap();
        assert_eq!(newest.bytes, None, "{key} is deleted");
    }
}

#[test]
fn an_update_is_computed_without_a_base_that_expires_before_its_commit() {
    let world = world();
    world.put("n", 5i64.to_le_bytes(), 10);
    let mut tx = world.db.begin();
    tx.add(&world.space, "n", 1, Overflow::Checked).unwrap();
    world.pass(10);
    tx.commit().unwrap();
    let value = world.db.get(&world.space, "n").unwrap().unwrap();
    assert_eq!(i64::from_le_bytes(value[..].try_into().unwrap()), 1);
    assert_eq!(world.db.ttl(&world.space, "n").unwrap(), Ttl::Unlimited);
}

#[test]
fn a_row_in_memory_is_not_served_after_it_expired() {
    let world = world();
    world.db.put(&world.space, "k", "old").unwrap();
    world.db.flush().unwrap();
    (0..3).for_each(|_| assert!(world.has("k")));
    world.put("k", "new", 10);
    world.db.flush().unwrap();
    world.db.drop_pages();
    for _ in 0..3 {
        assert_eq!(world.db.get(&world.space, "k").unwrap().unwrap(), b"new");
    }
    world.pass(10);
    assert!(!world.has("k"), "neither the new value nor the old one");
    world.db.compact().unwrap();
    assert!(!world.has("k"));
    let world = world.reopen();
    assert!(!world.has("k"));
}

#[test]
fn log_time_does_not_fall_behind_its_last_commit() {
    let world = world();
    world.put("k", "v", 10);
    world.pass(10);
    world.db.put(&world.space, "other", "").unwrap();
    assert!(!world.has("k"));
    // The clock is set back, but the last commit was made after the expiry.
    world.clock.set_wall_micros(START);
    assert!(!world.has("k"));
    let world = world.reopen();
    assert!(!world.has("k"));
    assert!(world.db.add(&world.space, "k", 1, Overflow::Checked).is_ok());
}

#[test]
fn a_large_transaction_keeps_its_expiries() {
    let world = world();
    let mut tx = world.db.begin();
    for key in 0..30_000u32 {
        let key = format!("{key:06}");
        tx.put_with_ttl(&world.space, &key, [7; 300], SECOND * 10).unwrap();
    }
    tx.commit().unwrap();
    assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 30_000);
    assert_eq!(world.left("012345"), Some(10));
    let world = world.reopen();
    assert_eq!(world.left("012345"), Some(10));
    world.pass(10);
    assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 0);
    world.db.compact().unwrap();
    assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 0);
}

#[test]
fn a_transaction_that_missed_an_expired_value_conflicts_if_the_clock_is_set_back() {
    let world = world();
    world.put("k", "v", 10);
    let there = world.now();
    world.pass(10);
    for set_back in [false, true] {
        let mut tx = world.db.begin();
        assert!(tx.get(&world.space, "k").unwrap().is_none());
        tx.put(&world.space, "o", "").unwrap();
        if set_back {
            world.clock.set_wall_micros(there);
            let committed = tx.commit();
            // The last commit holds the log's time, so the value stays expired.
            assert!(committed.is_ok(), "{committed:?}");
        } else {
            tx.commit().unwrap();
        }
    }
    world.put("l", "v", 20);
    let there = world.now();
    world.pass(40);
    let mut tx = world.db.begin();
    assert_eq!(tx.len(&world.space).unwrap(), 1);
    tx.put(&world.space, "p", "").unwrap();
    world.clock.set_wall_micros(there);
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    assert!(world.has("l"));
}

/// A clock that goes on by a second whenever it is read.
#[derive(Debug)]
struct Hasty(ManualClock);

impl Clock for Hasty {
    fn wall_micros(&self) -> u64 {
        self.0.advance(SECOND);
        self.0.wall_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.monotonic_nanos()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }
}

#[test]
fn a_keyspace_is_dropped_at_once_while_its_values_expire() {
    for forget in [false, true] {
        let clock = Arc::new(Hasty(ManualClock::new(START)));
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let options = Options::new().memory_bytes(16 << 20).background(false).world(disk, clock);
        let db = Db::open("/store", options).unwrap();
        let space = db.keyspace("rows").unwrap();
        // Some have expired when the keyspace is dropped, the others expire meanwhile.
        for key in 0..100u32 {
            let (key, ttl) = (key.to_be_bytes(), SECOND * (20 + 4 * key));
            db.put_with_ttl(&space, key, [7; 100], ttl).unwrap();
        }
        let dropped = match forget {
            false => db.drop_keyspace(&space).unwrap(),
            true => db.forget_keyspace(&space).unwrap(),
        };
        assert_eq!(dropped.keys, 100);
        for key in 0..100u32 {
            let newest = db.history(&space, key.to_be_bytes()).unwrap().next().unwrap().unwrap();
            assert_eq!((newest.glsn, newest.bytes), (dropped.glsn, None), "{key}");
        }
    }
}
