//! Handovers between the members of a store: the warm image, removed files, holds of files.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, Options, Retention, Snapshot};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::members::Members;

use crate::warm_world::{self, STORE, World, key};

const KEYS: u32 = 12_000;

fn shared(world: &World) -> Options {
    world.options().shared(true)
}

fn value(number: u32, round: u8) -> Vec<u8> {
    vec![number as u8 ^ round; 300]
}

/// Reads every sixth key twice.
fn read_hot(db: &Db, round: u8) {
    let space = db.keyspace("objects").unwrap();
    for number in
        (0..KEYS).filter(|number| key(*number)[0] < 40).flat_map(|number| [number, number])
    {
        assert_eq!(db.get(&space, &key(number)).unwrap().unwrap(), &value(number, round)[..]);
    }
}

#[test]
fn the_warm_image_is_written_by_the_current_keeper() {
    let world = World::new(3);
    let one = Db::open(STORE, shared(&world)).unwrap();
    let space = one.create_keyspace("objects", Retention::Latest).unwrap();
    warm_world::put(&one, &space, 0..KEYS, |number| value(number, 0));
    one.compact().unwrap();
    world.work(&one);
    let two = Db::open(STORE, shared(&world)).unwrap();
    world.work(&two);
    read_hot(&two, 0);
    one.close().unwrap();
    let images = world.image();
    images.iter().for_each(|path| world.disk.remove(path).unwrap());
    assert!(!two.members().unwrap()[0].is_keeper);
    world.pass_an_interval(&two);
    assert!(two.members().unwrap()[0].is_keeper);
    assert!(two.stats().warm.segments_written > 0, "{:?}", two.stats().warm);
    // Also when it closes.
    world.image().iter().for_each(|path| world.disk.remove(path).unwrap());
    read_hot(&two, 0);
    two.close().unwrap();
    let three = Db::open(STORE, shared(&world)).unwrap();
    world.work(&three);
    let before = three.stats();
    assert!(before.warm.rows_restored + before.warm.pages_restored > 50, "{:?}", before.warm);
    read_hot(&three, 0);
    let loads = three.stats().pool.loads - before.pool.loads;
    assert!(loads < 40, "{loads} pages were read");
}

#[test]
fn an_image_of_a_new_keeper_has_no_row_older_than_its_memtable() {
    let world = World::new(4);
    let one = Db::open(STORE, shared(&world)).unwrap();
    let space = one.create_keyspace("objects", Retention::Latest).unwrap();
    warm_world::put(&one, &space, 0..KEYS, |number| value(number, 0));
    one.compact().unwrap();
    world.work(&one);
    let two = Db::open(STORE, shared(&world)).unwrap();
    world.work(&two);
    read_hot(&two, 0);
    world.pass_an_interval(&two);
    // Newer versions are in its memtable, and in a run of the other member, which then leaves. Its
    // rows are older than both.
    warm_world::put(&one, &space, 0..600, |number| value(number, 1));
    one.compact().unwrap();
    warm_world::put(&one, &space, 600..601, |number| value(number, 1));
    assert!(two.newest() == one.newest());
    one.close().unwrap();
    two.close().unwrap();
    let three = Db::open(STORE, shared(&world)).unwrap();
    let space = three.keyspace("objects").unwrap();
    world.work(&three);
    for number in 0..KEYS {
        let wanted = value(number, u8::from(number <= 600));
        assert_eq!(three.get(&space, &key(number)).unwrap().unwrap(), &wanted[..], "{number}");
    }
}

#[test]
fn a_member_suspended_while_freeing_the_log_blocks_no_cursors_and_backups() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || {
        Options::new()
            .memory_bytes(16 << 20)
            .segment_bytes(1 << 20)
            .retention(Retention::Latest)
            .shared(true)
    };
    let (one, two) = (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let space = one.keyspace("default").unwrap();
    let held = one.log().cursor("held", Glsn(1)).unwrap();
    for round in 0..80u64 {
        one.put(&space, (round % 10).to_be_bytes(), vec![round as u8; 60_000]).unwrap();
    }
    let begun = Instant::now();
    loop {
        one.compact().unwrap();
        // Until the other member releases older moments.
        if one.stats().index.history_runs.iter().sum::<u64>() == 0 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", one.stats().index);
        std::thread::sleep(Duration::from_millis(50));
    }
    let (disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>) =
        (Arc::new(OsDisk::new()), Arc::new(SystemClock::new()));
    let stopped = Members::join(&disk, &clock, &path, Duration::from_secs(5)).unwrap();
    stopped.begin(false, std::process::id(), clock.wall_micros()).unwrap();
    stopped.joined();
    // Only now, because the new member retains all of the log, which the keeper would otherwise
    // free.
    one.log().drop_cursor("held").unwrap();
    assert_eq!(two.log().bounds().first, held);
    stopped.holds.unless_held(|removal| {
        assert!(removal.may_free_below(Glsn(50)));
        let refused = two.log().cursor("early", Glsn(2));
        let Err(Error::Trimmed { first, .. }) = refused else { panic!("{refused:?}") };
        assert!(first > Glsn(20) && first <= Glsn(50), "{first}");
        two.log().cursor("late", Glsn(60)).unwrap();
        assert_eq!(
            two.get(&two.keyspace("default").unwrap(), 1u64.to_be_bytes()).unwrap().unwrap(),
            vec![71; 60_000]
        );
        let copy = dir.path().join("copy");
        two.backup(&copy).unwrap();
        let copied = Db::open(&copy, options()).unwrap();
        assert!(copied.log().bounds().first >= first);
        assert_eq!(
            copied.get(&copied.keyspace("default").unwrap(), 1u64.to_be_bytes()).unwrap().unwrap(),
            [71; 60_000]
        );
    });
    assert_eq!(one.log().cursors(), two.log().cursors());
}

/// Removed files below `path` that this process still has open.
fn removed_and_open(path: &Path) -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let names = open.map(|name| name.to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with(path.to_str().unwrap()) && name.ends_with("(deleted)"))
        .collect()
}

#[test]
fn an_idle_member_keeps_no_removed_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || {
        Options::new()
            .memory_bytes(16 << 20)
            .segment_bytes(1 << 20)
            .retention(Retention::Latest)
            .shared(true)
    };
    let (one, two) = (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let space = one.keyspace("default").unwrap();
    let overwrite = |round: u8| {
        for key in 0..8u64 {
            one.put(&space, key.to_be_bytes(), vec![round; 400_000]).unwrap();
            for other in 0..20u64 {
                one.put(&space, [key, other].map(u64::to_be_bytes).concat(), vec![round; 30_000])
                    .unwrap();
            }
        }
        one.compact().unwrap();
    };
    overwrite(1);
    let of_two = two.keyspace("default").unwrap();
    let held = two.snapshot();
    overwrite(2);
    let read = |db: &Snapshot, round: u8| {
        for key in 0..8u64 {
            assert_eq!(db.get(&of_two, key.to_be_bytes()).unwrap().unwrap(), vec![round; 400_000]);
            let other = [key, 3].map(u64::to_be_bytes).concat();
            assert_eq!(db.get(&of_two, other).unwrap().unwrap(), vec![round; 30_000]);
        }
    };
    read(&held, 1);
    read(&two.snapshot(), 2);
    let blobs = || {
        let files = std::fs::read_dir(path.join("log")).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|of| of == "blob")).count()
    };
    assert!(blobs() >= 16, "{}", blobs());
    // From here on nothing is committed.
    drop(held);
    let begun = Instant::now();
    loop {
        one.compact().unwrap();
        // One blob file belongs to the segment in which the newer values begin.
        if blobs() <= 9 && removed_and_open(&path).is_empty() {
            break;
        }
        // Less than the 20 seconds after which a member checks even if it is not woken.
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{} {:?}",
            blobs(),
            removed_and_open(&path)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    read(&two.snapshot(), 2);
}
