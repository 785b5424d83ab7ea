//! Warm restarts: the hot set is restored, whatever happened to the store or to the image in
//! between, and no read is ever wrong.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll::{Db, Keyspace, Options, Retention, WarmStats, delete_warm_image, warm_image};
use plimsoll_disk::vfs::Disk;

use crate::warm_world::{
    self, INTERVAL, STORE, World, for_each_damage, key, reopen_with_a_warning, settled_store,
};

const KEYS: u32 = 12_000;

/// Small values are in leaves, every seventh is in the log.
fn value(number: u32, round: u8) -> Vec<u8> {
    let bytes = if number.is_multiple_of(7) { 1500 } else { 300 };
    (0..bytes).map(|at: u32| (at.wrapping_mul(7).wrapping_add(number)) as u8 ^ round).collect()
}

fn put(db: &Db, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>, round: u8) {
    warm_world::put(db, keyspace, numbers, |number| value(number, round));
}

/// The keys that are read repeatedly: every sixth.
fn hot() -> impl Iterator<Item = u32> {
    (0..KEYS).filter(|number| key(*number)[0] < 40)
}

fn read_hot(db: &Db, keyspace: &Keyspace, round: u8) {
    let snapshot = db.snapshot();
    for number in hot() {
        assert_eq!(
            snapshot.get(keyspace, &key(number)).unwrap().unwrap(),
            &value(number, round)[..]
        );
    }
}

/// A store with some keys in runs, some of which are hot in memory.
fn warm_store(world: &World) -> (Db, Keyspace) {
    let (db, keyspace) =
        settled_store(world, Retention::Latest, 0..KEYS, |number| value(number, 0));
    for _ in 0..2 {
        read_hot(&db, &keyspace, 0);
    }
    (db, keyspace)
}

/// Opens the store and restores the image; returns the statistics, the number of pages that reading
/// the hot keys then loaded, and the warnings.
fn reopened(world: &World, options: Options, round: u8) -> (WarmStats, u64, Vec<String>) {
    let db = Db::open(STORE, options).unwrap();
    let keyspace = db.keyspace("objects").unwrap();
    world.work(&db);
    let before = db.stats();
    read_hot(&db, &keyspace, round);
    let loads = db.stats().pool.loads - before.pool.loads;
    assert!(before.memory.peak_bytes <= before.memory.limit_bytes);
    db.close().unwrap();
    (before.warm, loads, before.warnings)
}

fn assert_warm(world: &World, round: u8) {
    let (warm, loads, warnings) = reopened(world, world.options(), round);
    assert!(warm.pages_restored > 50 && warm.on && !warm.restoring, "{warm:?}");
    // Offset tables of the log are not part of an image.
    assert!(
        loads * 20 < warm.pages_restored,
        "all hot pages are resident except {loads}: {warm:?}"
    );
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn the_hot_set_is_restored_after_a_close() {
    let world = World::new(1);
    let (db, _) = warm_store(&world);
    db.close().unwrap();
    // Several times, because the image of a restored store must be as good as the first.
    for _ in 0..3 {
        assert_warm(&world, 0);
    }
}

#[test]
fn without_an_image_the_same_reads_go_to_the_disk() {
    let world = World::new(1);
    let (db, _) = warm_store(&world);
    db.close().unwrap();
    let images = world.image();
    let (warm, loads, _) = reopened(&world, world.options().warm(false), 0);
    assert_eq!(warm, WarmStats::default());
    assert!(loads > 50);
    assert_eq!(world.image(), images, "a disabled warm restart leaves the image unchanged");
}

#[test]
fn the_hot_set_is_restored_after_a_kill_or_a_power_cut() {
    let world = World::new(2);
    let (db, keyspace) = warm_store(&world);
    world.pass_an_interval(&db);
    // Commits after the image: in the memtable, and in a run that the image cannot know.
    put(&db, &keyspace, hot().step_by(3), 1);
    db.flush().unwrap();
    put(&db, &keyspace, hot().step_by(5), 2);
    let expected = |number: u32, at: usize| match at {
        at if at.is_multiple_of(5) => value(number, 2),
        at if at.is_multiple_of(3) => value(number, 1),
        _ => value(number, 0),
    };
    let killed = world.after_a_kill();
    let power_cut = world.after_a_kill();
    power_cut.disk.cut_power();
    power_cut.disk.restore_power();
    for world in [killed, power_cut] {
        let db = world.open();
        world.work(&db);
        let stats = db.stats();
        assert!(stats.warm.pages_restored > 50, "{stats:?}");
        assert_eq!(stats.warnings, Vec::<String>::new());
        let keyspace = db.keyspace("objects").unwrap();
        for (at, number) in hot().enumerate() {
            assert_eq!(
                db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
                &expected(number, at)[..]
            );
        }
    }
}

#[test]
fn unchanged_segments_are_not_written_and_deleted_ones_are_written_again() {
    let world = World::new(3);
    let (db, keyspace) = warm_store(&world);
    world.pass_an_interval(&db);
    let first = db.stats().warm;
    assert!(first.segments_written > 0, "{first:?}");
    world.pass_an_interval(&db);
    assert_eq!(db.stats().warm, first);
    let bytes = delete_warm_image(STORE, &world.options()).unwrap();
    assert_eq!((bytes, world.image()), (first.bytes_written, Vec::new()));
    assert_eq!(warm_image(STORE, &world.options()).unwrap().segments, 0);
    world.pass_an_interval(&db);
    assert_eq!(db.stats().warm.segments_written, 2 * first.segments_written);
    // Read again, they become rows. Closing then leaves the image unchanged.
    read_hot(&db, &keyspace, 0);
    world.pass_an_interval(&db);
    let before = warm_image(STORE, &world.options()).unwrap();
    assert_eq!(before.segments, first.segments_written);
    let written = db.stats().warm.segments_written;
    db.close().unwrap();
    let image = warm_image(STORE, &world.options()).unwrap();
    assert_eq!(
        (image.segments, image.bytes),
        (before.segments, before.bytes),
        "written: {written}"
    );
    assert!(image.pages > 50 && image.problem.is_none() && image.newest_glsn > 0, "{image:?}");
    assert_warm(&world, 0);
}

#[test]
fn a_short_run_with_a_small_budget_leaves_the_image_unchanged() {
    let world = World::new(4);
    let db = Db::open(STORE, world.options().memory_bytes(64 << 20)).unwrap();
    let keyspace = db.create_keyspace("objects", Retention::Latest).unwrap();
    let large = |number: u32| [value(number, 0), value(number, 1), value(number, 2)].concat();
    for numbers in (0..20_000).collect::<Vec<u32>>().chunks(500) {
        let mut tx = db.begin();
        numbers.iter().for_each(|&number| tx.put(&keyspace, &key(number), &large(number)).unwrap());
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    for _ in 0..2 {
        (0..20_000).for_each(|number| {
            assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some())
        });
    }
    db.close().unwrap();
    let image = warm_image(STORE, &world.options()).unwrap();
    assert!(image.pages * (16 << 10) > 20 << 20, "more than the small budget: {image:?}");
    let files: Vec<_> = world.image().iter().map(|path| world.read(path)).collect();
    let db = world.open();
    world.work(&db);
    let stats = db.stats();
    assert!(
        stats.warm.pages_restored > 100 && stats.warm.pages_restored < image.pages,
        "{stats:?}"
    );
    assert_eq!(stats.pool.evictions, 0, "the restore evicts nothing");
    db.close().unwrap();
    assert_eq!(world.image().iter().map(|path| world.read(path)).collect::<Vec<_>>(), files);
    let db = world.open();
    world.work(&db);
    world.clock.advance(INTERVAL);
    db.close().unwrap();
    assert!(
        warm_image(STORE, &world.options()).unwrap().pages < image.pages,
        "a process that stays open writes its own image"
    );
}

#[test]
fn an_image_that_is_still_being_restored_is_left_unchanged() {
    let world = World::new(12);
    let (db, _) = warm_store(&world);
    db.close().unwrap();
    let files: Vec<_> = world.image().iter().map(|path| world.read(path)).collect();
    assert!(!files.is_empty());
    // An allowance of one page per quarter of a second: after a minute some pages are restored, and
    // most are not.
    let db = Db::open(STORE, world.options().warm_bytes_per_second(64 << 10)).unwrap();
    for _ in 0..2 {
        world.clock.advance(INTERVAL);
        while db.step().unwrap() {}
    }
    // It has far fewer pages than the image names, and has been open for longer than an interval.
    let warm = db.stats().warm;
    assert!(warm.restoring && warm.segments_written == 0, "{warm:?}");
    db.close().unwrap();
    assert_eq!(world.image().iter().map(|path| world.read(path)).collect::<Vec<_>>(), files);
    assert_warm(&world, 0);
}

#[test]
fn a_reader_restores_the_image_and_writes_nothing() {
    let world = World::new(5);
    let (db, _) = warm_store(&world);
    db.close().unwrap();
    let files: Vec<_> = world.image().iter().map(|path| world.read(path)).collect();
    let db = Db::open(STORE, world.options().read_only(true)).unwrap();
    let keyspace = db.keyspace("objects").unwrap();
    world.work(&db);
    let before = db.stats();
    assert!(before.warm.pages_restored > 50, "{before:?}");
    read_hot(&db, &keyspace, 0);
    assert!((db.stats().pool.loads - before.pool.loads) * 20 < before.warm.pages_restored);
    world.pass_an_interval(&db);
    db.close().unwrap();
    assert_eq!(world.image().iter().map(|path| world.read(path)).collect::<Vec<_>>(), files);
}

/// A small store and its image of pages, of one segment.
fn small_store(world: &World) -> PathBuf {
    let db = world.open();
    let keyspace = db.keyspace("objects").unwrap();
    put(&db, &keyspace, 0..300, 0);
    db.flush().unwrap();
    for number in (0..300).chain(0..300) {
        assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some());
    }
    db.close().unwrap();
    let is_of_pages =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("pages-");
    let (pages, others): (Vec<_>, Vec<_>) = world.image().into_iter().partition(is_of_pages);
    others.iter().for_each(|path| world.disk.remove(path).unwrap());
    assert_eq!(pages.len(), 1);
    pages[0].clone()
}

/// Opens a store with an invalid image: nothing of it is restored, there is one warning, and all
/// reads are right.
fn assert_ignored(world: &World, what: &str, why: &str) {
    let (db, keyspace) = reopen_with_a_warning(world, what, why);
    assert_eq!(db.stats().warm.pages_restored, 0, "{what}");
    for number in (0..300).step_by(41) {
        assert_eq!(
            db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
            &value(number, 0)[..]
        );
    }
}

#[test]
fn an_image_truncated_or_changed_at_any_byte_is_ignored_with_one_warning() {
    let world = World::new(6);
    let path = small_store(&world);
    for_each_damage(&world, &path, assert_ignored);
}

#[test]
fn an_image_of_another_store_is_ignored() {
    let (world, other) = (World::new(7), World::new(70));
    let (path, foreign) = (small_store(&world), small_store(&other));
    world.write(&path, &other.read(&foreign));
    assert_ignored(&world, "foreign", "another store");
}

#[test]
fn an_image_ahead_of_the_log_and_one_of_a_fork_are_ignored() {
    let world = World::new(8);
    let path = small_store(&world);
    let copy = world.after_a_kill();
    // The two copies continue with different histories; one of them makes more commits.
    for (world, commits) in [(&world, 2u32), (&copy, 3)] {
        let db = world.open();
        let keyspace = db.keyspace("objects").unwrap();
        world.work(&db);
        for number in 0..commits {
            put(&db, &keyspace, std::iter::once(1000 + number), commits as u8);
        }
        for number in (0..300).chain(1000..1002).chain(1000..1002) {
            assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some());
        }
        // A page that is not in the image yet, so that it is written again.
        db.flush().unwrap();
        db.snapshot().get(&keyspace, &key(1000)).unwrap();
        db.close().unwrap();
    }
    let (ours, theirs) = (world.read(&path), copy.read(&path));
    assert_ne!(ours, theirs);
    world.write(&path, &theirs);
    assert_ignored(&world, "ahead", "the log ends at");
    copy.write(&path, &ours);
    assert_ignored(&copy, "fork", "history differs");
}

#[test]
fn an_older_image_of_the_same_store_is_restored_as_far_as_its_files_exist() {
    let world = World::new(9);
    let path = small_store(&world);
    let old = world.read(&path);
    let db = world.open();
    let keyspace = db.keyspace("objects").unwrap();
    put(&db, &keyspace, 0..300, 1);
    db.compact().unwrap();
    db.close().unwrap();
    world.write(&path, &old);
    let db = world.open();
    world.work(&db);
    let keyspace = db.keyspace("objects").unwrap();
    let stats = db.stats();
    assert!(stats.warm.pages_gone > 0, "{stats:?}");
    assert_eq!(stats.warnings, Vec::<String>::new());
    for number in 0..300 {
        assert_eq!(
            db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
            &value(number, 1)[..]
        );
    }
}

#[test]
fn a_power_cut_at_any_sync_of_the_image_leaves_the_old_one_or_the_new_one() {
    let world = World::new(10);
    let (db, keyspace) = warm_store(&world);
    world.pass_an_interval(&db);
    let before = world.disk.sync_count();
    (0..KEYS)
        .step_by(3)
        .for_each(|number| assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some()));
    let at_rest = world.after_a_kill();
    world.pass_an_interval(&db);
    assert!(world.disk.sync_count() - before >= 2, "a segment and its name");
    drop(db);
    'syncs: for sync in 1.. {
        for seed in 0..8 {
            let world = at_rest.after_a_kill();
            let db = world.open();
            world.work(&db);
            let keyspace = db.keyspace("objects").unwrap();
            (0..KEYS).step_by(2).for_each(|number| {
                assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some())
            });
            world.disk.reseed(seed * 100 + sync);
            world.disk.cut_power_at_sync(world.disk.sync_count() + sync);
            world.clock.advance(INTERVAL);
            while !world.disk.power_is_cut() && matches!(db.step(), Ok(true)) {
                world.clock.advance(Duration::from_millis(100));
            }
            if !world.disk.power_is_cut() {
                assert!(
                    sync > 2 && seed == 0,
                    "a segment and its name: no sync {sync}, seed {seed}"
                );
                break 'syncs;
            }
            drop(db);
            world.disk.restore_power();
            let db = world.open();
            world.work(&db);
            let stats = db.stats();
            assert!(stats.warm.pages_restored > 50, "sync {sync}, seed {seed}: {stats:?}");
            assert_eq!(stats.warnings, Vec::<String>::new(), "sync {sync}, seed {seed}");
        }
    }
}

#[test]
fn a_disk_error_of_the_image_is_reported_and_is_no_error_of_the_store() {
    let world = World::new(11);
    let (db, keyspace) = warm_store(&world);
    world.disk.fill_up(Some(0));
    world.pass_an_interval(&db);
    let told = db.stats().warm.last_error;
    assert!(told.is_some(), "{told:?}");
    world.disk.fill_up(None);
    world.pass_an_interval(&db);
    assert_eq!(db.stats().warm.last_error, None);
    read_hot(&db, &keyspace, 0);
    db.close().unwrap();
    assert_warm(&world, 0);
}

#[test]
fn a_store_with_threads_restores_with_and_without_concurrent_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20);
    let db = Db::open(&path, options.clone()).unwrap();
    let keyspace = db.keyspace("objects").unwrap();
    put(&db, &keyspace, 0..KEYS, 0);
    db.compact().unwrap();
    for _ in 0..2 {
        read_hot(&db, &keyspace, 0);
    }
    db.close().unwrap();
    // With concurrent readers: each gets the right values, also from pages that another one loaded.
    let db = Db::open(&path, options.clone()).unwrap();
    let keyspace = db.keyspace("objects").unwrap();
    while db.stats().warm.restoring {
        read_hot(&db, &keyspace, 0);
    }
    drop(db);
    // Without readers: the pages that count as restored are resident.
    let db = Db::open(&path, options).unwrap();
    while db.stats().warm.restoring {
        std::thread::sleep(Duration::from_millis(1));
    }
    let keyspace = db.keyspace("objects").unwrap();
    let before = db.stats();
    assert!(before.warm.pages_restored > 50 && before.warnings.is_empty(), "{before:?}");
    read_hot(&db, &keyspace, 0);
    assert!((db.stats().pool.loads - before.pool.loads) * 20 < before.warm.pages_restored);
    db.close().unwrap();
}
