//! Tags: named moments stay readable until their tag is deleted.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use plimsoll::{
    Db, DumpOptions, Durability, Error, InvalidInput, Keyspace, Moment, Options, Retention, Ttl,
};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::mem::MemDisk;

/// Where the clock starts, in microseconds since 1970.
const START: u64 = 1_780_000_000_000_000;

struct World {
    disk: MemDisk,
    clock: Arc<ManualClock>,
    db: Db,
    keys: Keyspace,
}

fn options(disk: &MemDisk, clock: &Arc<ManualClock>) -> Options {
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20);
    let options = options.retention(Retention::Latest).background(false).warm(false);
    options.world(Arc::new(disk.clone()), clock.clone())
}

fn open(disk: MemDisk, clock: Arc<ManualClock>) -> World {
    let db = Db::open("/store", options(&disk, &clock)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    World { disk, clock, db, keys }
}

fn world() -> World {
    open(MemDisk::new(), Arc::new(ManualClock::new(START)))
}

impl World {
    fn reopen(self) -> Self {
        self.db.close().unwrap();
        open(self.disk, self.clock)
    }

    /// Overwrites a key many times, and merges everything.
    fn overwrite(&self, key: &str, bytes: usize) {
        for number in 0..20_u8 {
            self.db.put(&self.keys, key, vec![number; bytes]).unwrap();
            if number.is_multiple_of(7) {
                self.db.flush().unwrap();
            }
        }
        self.db.compact().unwrap();
    }
}

fn read(db: &Db, keys: &Keyspace, tag: &str, key: &str) -> plimsoll::Result<Option<Vec<u8>>> {
    let snapshot = db.snapshot_at(db.tag_at(tag)?.into())?;
    Ok(snapshot.get(keys, key)?.map(|value| value.to_vec()))
}

fn versions(db: &Db, keys: &Keyspace, key: &str) -> usize {
    db.history(keys, key).unwrap().map(plimsoll::Result::unwrap).count()
}

fn invalid<T: std::fmt::Debug>(result: plimsoll::Result<T>) -> InvalidInput {
    match result {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tagged_moment_stays_readable_until_its_tag_is_deleted() {
    // Inline, in the log, in a blob file.
    for bytes in [100, 100_000, 6_000_000] {
        let mut world = world();
        let at = world.db.put(&world.keys, "a", vec![7; bytes]).unwrap();
        let tag = world.db.tag("v1", Moment::Newest).unwrap();
        assert_eq!((tag.glsn, tag.name.as_str()), (at, "v1"));
        assert_eq!(tag.time, world.db.snapshot_at(Moment::Glsn(at)).unwrap().time().unwrap());
        for _ in 0..2 {
            world.overwrite("a", bytes);
            world.db.log().trim(world.db.newest().next()).unwrap();
            assert!(world.db.log().bounds().first > at, "the log does not hold the moment");
            let found = read(&world.db, &world.keys, "v1", "a").unwrap();
            assert_eq!(found.unwrap(), vec![7; bytes]);
            assert_eq!(versions(&world.db, &world.keys, "a"), 2, "values of {bytes} bytes");
            assert_eq!(world.db.snapshot_at(tag.clone().into()).unwrap().time().unwrap(), tag.time);
            let between = world.db.snapshot_at(Moment::Glsn(at.next().next())).unwrap();
            assert!(matches!(between.get(&world.keys, "a"), Err(Error::Trimmed { .. })));
            drop(between);
            world = world.reopen();
            assert_eq!(world.db.tags().unwrap(), std::slice::from_ref(&tag));
        }
        world.db.delete_tag("v1").unwrap();
        world.db.put(&world.keys, "a", "new").unwrap();
        world.db.compact().unwrap();
        assert_eq!(versions(&world.db, &world.keys, "a"), 1, "values of {bytes} bytes");
        assert_eq!(world.db.tags().unwrap(), []);
    }
}

#[test]
fn deleted_keys_and_dropped_keyspaces_are_there_at_a_tag() {
    let world = world();
    let other = world.db.keyspace("other").unwrap();
    world.db.put(&other, "b", "two").unwrap();
    world.db.put(&world.keys, "a", "one").unwrap();
    world.db.tag("v1", Moment::Newest).unwrap();
    world.db.delete(&world.keys, "a").unwrap();
    world.db.drop_keyspace(&other).unwrap();
    world.db.compact().unwrap();
    world.db.compact().unwrap();
    let world = world.reopen();
    let at = world.db.snapshot_at(world.db.tag_at("v1").unwrap().into()).unwrap();
    assert_eq!(at.get(&world.keys, "a").unwrap().unwrap(), b"one");
    let other = at.keyspace("other").unwrap().unwrap();
    assert_eq!(at.get(&other, "b").unwrap().unwrap(), b"two");
    assert_eq!(world.db.get(&world.keys, "a").unwrap(), None);
}

#[test]
fn what_cannot_be_tagged_is_refused() {
    let world = world();
    let db = &world.db;
    let first = db.put(&world.keys, "a", "one").unwrap();
    let tag = db.tag("v1", Moment::Newest).unwrap();
    let newest = db.newest();
    for name in ["", "7", "now", "2026-01-31", "2 hours ago", "a:b", " a", "a\0", &"x".repeat(256)]
    {
        let refused = invalid(db.tag(name, Moment::Newest));
        assert_eq!(refused, InvalidInput::TagName { name: name.into(), limit_bytes: 255 });
    }
    let exists = InvalidInput::TagExists { name: "v1".into(), glsn: tag.glsn };
    assert_eq!(invalid(db.tag("v1", Moment::Newest)), exists);
    let none = InvalidInput::NoTag { name: "v2".into() };
    assert_eq!(invalid(db.tag_at("v2")), none);
    assert_eq!(invalid(db.delete_tag("v2")), none);
    let future = db.tag("v2", Moment::Glsn(newest.next()));
    assert!(matches!(future, Err(Error::Future { .. })), "{future:?}");
    assert_eq!(db.newest(), newest, "nothing was written");
    db.delete_tag("v1").unwrap();
    world.overwrite("a", 10);
    let gone = db.tag("v1", Moment::Glsn(first));
    assert!(matches!(gone, Err(Error::Trimmed { .. })), "{gone:?}");
    // A keyspace that did not exist then does not matter.
    let at = db.newest();
    let later = db.keyspace("later").unwrap();
    db.put(&later, "k", "1").unwrap();
    db.put(&later, "k", "2").unwrap();
    db.compact().unwrap();
    let tag = db.tag("v1", Moment::Glsn(at)).unwrap();
    assert_eq!(tag.glsn, at);
    assert_eq!(
        invalid(db.revert(db.newest()).run()),
        InvalidInput::NothingToRevert { glsn: db.newest() }
    );
    assert!(db.log().commit(db.newest()).unwrap().unwrap().changes_tag().unwrap());
    assert!(!db.log().commit(db.newest()).unwrap().unwrap().moves_cursor().unwrap());
    world.db.clone().close().unwrap();
    assert!(matches!(world.db.tags(), Err(Error::Closed)));
    let read_only = Db::open("/store", options(&world.disk, &world.clock).read_only(true)).unwrap();
    assert_eq!(read_only.tags().unwrap(), [tag]);
    assert!(matches!(read_only.tag("v3", Moment::Newest), Err(Error::ReadOnly)));
    assert!(matches!(read_only.delete_tag("v1"), Err(Error::ReadOnly)));
}

#[test]
fn more_tags_than_single_moments_stay_readable() {
    let world = world();
    for number in 0..100_u8 {
        world.db.put(&world.keys, "a", [number]).unwrap();
        world.db.put(&world.keys, "b", [number]).unwrap();
        world.db.tag(&format!("t{number}"), Moment::Newest).unwrap();
    }
    world.overwrite("a", 1);
    let world = world.reopen();
    for number in 0..100_u8 {
        for key in ["a", "b"] {
            let found = read(&world.db, &world.keys, &format!("t{number}"), key).unwrap();
            assert_eq!(found.unwrap(), [number]);
        }
    }
}

#[test]
fn values_put_after_a_tag_expire_and_those_at_the_tag_are_seen_there() {
    let world = world();
    let put = |key: String, seconds| {
        let ttl = Duration::from_secs(seconds);
        world.db.put_with_ttl(&world.keys, key, [1; 100], ttl).unwrap();
    };
    put("early".into(), 10);
    put("kept".into(), 10);
    world.db.tag("v1", Moment::Newest).unwrap();
    world.db.put_with_ttl(&world.keys, "kept", "new", Duration::from_secs(10)).unwrap();
    world.db.flush().unwrap();
    (0..1000).for_each(|number| put(format!("late{number}"), 10));
    world.clock.advance(Duration::from_secs(3600));
    world.db.put(&world.keys, "z", "later").unwrap();
    world.db.flush().unwrap();
    world.db.compact().unwrap();
    world.db.log().trim(world.db.newest().next()).unwrap();
    let stored = world.db.stats().index.versions;
    assert!(stored < 50, "{stored} versions: those put after the tag have expired");
    let world = world.reopen();
    let at = world.db.snapshot_at(world.db.tag_at("v1").unwrap().into()).unwrap();
    for key in ["early", "kept"] {
        assert_eq!(at.get(&world.keys, key).unwrap().unwrap(), [1; 100], "{key}");
        let left = Duration::from_secs(10);
        let Ttl::Expires { at: end, .. } = at.ttl(&world.keys, key).unwrap() else { panic!() };
        let put = UNIX_EPOCH + Duration::from_micros(START) + left;
        assert!(end >= put && end < put + Duration::from_secs(1), "{key}");
        assert_eq!(world.db.get(&world.keys, key).unwrap(), None, "{key}");
    }
    assert_eq!(at.get(&world.keys, "late1").unwrap(), None);
}

#[test]
fn tags_are_in_dumps_with_history_backups_and_recovered_stores() {
    let world = world();
    world.db.put(&world.keys, "a", "one").unwrap();
    let tag = world.db.tag("v1", Moment::Newest).unwrap();
    world.db.tag("gone", Moment::Newest).unwrap();
    world.db.delete_tag("gone").unwrap();
    world.overwrite("a", 100_000);
    world.db.log().trim(world.db.newest().next()).unwrap();
    assert!(world.db.log().bounds().first > tag.glsn);
    world.db.put(&world.keys, "b", "two").unwrap();
    let later = world.db.tag("v2", Moment::Newest).unwrap();
    world.db.put(&world.keys, "b", "three").unwrap();
    let on_disk = |path: &str| options(&world.disk, &world.clock).create(!path.is_empty());
    let mut dump = Vec::new();
    world.db.dump(DumpOptions::new().history(true), &mut dump).unwrap();
    Db::restore("/restored", on_disk("/restored"), &mut &dump[..]).unwrap();
    world.db.backup("/backup").unwrap();
    world.db.close().unwrap();
    Db::recover("/store", "/recovered", on_disk("/recovered"), &mut |_, _| {}).unwrap();
    for path in ["/restored", "/backup", "/recovered"] {
        for _ in 0..2 {
            let db = Db::open(path, on_disk("")).unwrap();
            assert_eq!(db.tags().unwrap(), [tag.clone(), later.clone()], "{path}");
            let keys = db.keyspace("keys").unwrap();
            db.put(&keys, "a", "new").unwrap();
            db.compact().unwrap();
            assert_eq!(read(&db, &keys, "v1", "a").unwrap().unwrap(), b"one", "{path}");
            assert_eq!(read(&db, &keys, "v1", "b").unwrap(), None, "{path}");
            assert_eq!(read(&db, &keys, "v2", "b").unwrap().unwrap(), b"two", "{path}");
            db.close().unwrap();
        }
    }
    // Without history there are no moments that could have names.
    let (mut dump, source) = (Vec::new(), Db::open("/backup", on_disk("")).unwrap());
    source.dump(DumpOptions::new(), &mut dump).unwrap();
    Db::restore("/newest", on_disk("/newest"), &mut &dump[..]).unwrap();
    assert_eq!(Db::open("/newest", on_disk("")).unwrap().tags().unwrap(), []);
}

fn join(path: &Path) -> Db {
    let options = Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    Db::open(path, options.background(false).durability(Durability::Buffered).shared(true)).unwrap()
}

#[test]
fn all_processes_know_the_tags_and_the_keeper_retains_their_moments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (join(&path), join(&path));
    let keys = keeper.keyspace("keys").unwrap();
    let theirs = other.keyspace("keys").unwrap();
    for round in 0..3_u8 {
        other.put(&theirs, "a", [round]).unwrap();
        // The keeper does not read before it merges.
        other.tag(&format!("t{round}"), Moment::Newest).unwrap();
        other.put(&theirs, "a", "over").unwrap();
        keeper.compact().unwrap();
        for number in 0..=round {
            let found = read(&keeper, &keys, &format!("t{number}"), "a").unwrap();
            assert_eq!(found.unwrap(), [number]);
        }
    }
    keeper.delete_tag("t0").unwrap();
    let names = |db: &Db| db.tags().unwrap().into_iter().map(|tag| tag.name).collect::<Vec<_>>();
    assert_eq!(names(&other), ["t1", "t2"]);
    assert_eq!(
        invalid(keeper.tag("t1", Moment::Newest)),
        InvalidInput::TagExists { name: "t1".into(), glsn: other.tag_at("t1").unwrap().glsn }
    );
    other.delete_tag("t1").unwrap();
    assert_eq!(names(&keeper), ["t2"]);
    keeper.put(&keys, "a", "new").unwrap();
    drop(other);
    keeper.compact().unwrap();
    assert_eq!(versions(&keeper, &keys, "a"), 2);
    assert_eq!(read(&keeper, &keys, "t2", "a").unwrap().unwrap(), [2]);
    drop(keeper);
    assert_eq!(names(&join(&path)), ["t2"]);
}

#[test]
fn a_clock_is_not_needed_to_read_a_tag() {
    let world = world();
    world.db.put(&world.keys, "a", "one").unwrap();
    let by_time = UNIX_EPOCH + Duration::from_micros(world.clock.wall_micros() + 1_000_000);
    world.db.put(&world.keys, "b", "two").unwrap();
    world.clock.advance(Duration::from_secs(10));
    world.db.put(&world.keys, "b", "three").unwrap();
    let tag = world.db.tag("v1", Moment::Time(by_time)).unwrap();
    assert!(tag.time.unwrap() <= by_time);
    assert_eq!(read(&world.db, &world.keys, "v1", "b").unwrap().unwrap(), b"two");
}

#[test]
fn a_tag_does_not_wait_for_merges() {
    let World { db, keys, .. } = world();
    let merges = || db.stats().index.compactions;
    // Without threads, a writer merges while there are too many runs. Each run has the same key.
    for _ in 0..40 {
        db.tag("v1", Moment::Newest).unwrap();
        db.flush().unwrap();
        db.delete_tag("v1").unwrap();
        db.flush().unwrap();
    }
    assert_eq!(merges(), 0);
    db.put(&keys, "a", "one").unwrap();
    assert!(merges() > 0, "another commit merges first");
}
