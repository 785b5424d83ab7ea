//! Warm restarts: hot rows are restored without their pages, and no stale row is restored.

use std::path::PathBuf;

use plimsoll::{Db, Keyspace, Retention, delete_warm_image, warm_image};
use plimsoll_disk::vfs::Disk;

use crate::warm_world::{
    self, INTERVAL, STORE, World, for_each_damage, key, reopen, reopen_with_a_warning,
    settled_store,
};

fn value(number: u32, round: u8) -> Vec<u8> {
    (0..60 + number % 80).map(|at| (at * 7 + number) as u8 ^ round).collect()
}

fn put(db: &Db, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>, round: u8) {
    warm_world::put(db, keyspace, numbers, |number| value(number, round));
}

fn delete(db: &Db, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>) {
    let mut tx = db.begin();
    numbers.for_each(|number| tx.delete(keyspace, &key(number)).unwrap());
    tx.commit().unwrap();
}

fn get(db: &Db, keyspace: &Keyspace, number: u32) -> Option<Vec<u8>> {
    db.snapshot().get(keyspace, &key(number)).unwrap().map(|value| value.to_vec())
}

/// Reads keys so that each becomes a row, and leaves no page in memory.
fn make_objects(db: &Db, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        db.drop_pages();
        assert!(get(db, keyspace, number).is_some());
    }
    db.drop_pages();
}

const KEYS: u32 = 3000;

/// Every tenth.
fn hot() -> impl Iterator<Item = u32> {
    (0..KEYS).step_by(10)
}

/// A store with keys in runs, some of which are cached as rows.
fn store_with_objects(world: &World, retention: Retention) -> (Db, Keyspace) {
    let (db, keyspace) = settled_store(world, retention, 0..KEYS, |number| value(number, 0));
    make_objects(&db, &keyspace, hot());
    assert_eq!(db.stats().row_cache.entries, 300);
    (db, keyspace)
}

fn image_of_objects(world: &World) -> Vec<(PathBuf, Vec<u8>)> {
    let is_of_objects =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("rows-");
    world
        .image()
        .into_iter()
        .filter(is_of_objects)
        .map(|path| (path.clone(), world.read(&path)))
        .collect()
}

/// Replaces the image of rows.
fn exchange(world: &World, image: &[(PathBuf, Vec<u8>)]) {
    world.image().iter().for_each(|path| world.disk.remove(path).unwrap());
    image.iter().for_each(|(path, bytes)| world.write(path, bytes));
}

#[test]
fn rows_are_restored_after_a_close_without_a_page() {
    let world = World::new(1);
    let (db, _) = store_with_objects(&world, Retention::Latest);
    db.close().unwrap();
    let image = warm_image(STORE, &world.options()).unwrap();
    assert_eq!((image.rows, image.problem), (300, None));
    let files = image_of_objects(&world);
    for _ in 0..3 {
        let (db, keyspace) = reopen(&world);
        let before = db.stats();
        assert_eq!(
            (before.warm.rows_restored, before.warm.rows_stale),
            (300, 0),
            "{:?}",
            before.warm
        );
        hot().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 0))));
        let after = db.stats();
        assert_eq!(after.pool.loads, before.pool.loads, "no page was needed");
        assert_eq!(after.row_cache.hits - before.row_cache.hits, 300);
        assert_eq!(after.warnings, Vec::<String>::new());
        db.close().unwrap();
        assert_eq!(image_of_objects(&world), files, "a short run leaves it unchanged");
    }
}

#[test]
fn no_rows_are_restored_if_the_cache_or_the_image_is_disabled() {
    let world = World::new(1);
    let (db, _) = store_with_objects(&world, Retention::Latest);
    db.close().unwrap();
    let files = image_of_objects(&world);
    for options in [world.options().warm(false), world.options().row_cache(false)] {
        let db = Db::open(STORE, options).unwrap();
        world.work(&db);
        assert_eq!((db.stats().row_cache.entries, db.stats().warm.rows_restored), (0, 0));
        db.close().unwrap();
        assert_eq!(image_of_objects(&world), files);
    }
}

#[test]
fn after_a_kill_or_a_power_cut_no_row_that_changed_since_the_image_is_restored() {
    for retention in [Retention::Forever, Retention::Latest] {
        let world = World::new(2);
        let (db, keyspace) = store_with_objects(&world, retention);
        world.pass_an_interval(&db);
        assert!(db.stats().warm.segments_written > 0);
        // Commits after the image: in a run that the image cannot know, and in the memtable.
        put(&db, &keyspace, hot().step_by(3), 1);
        delete(&db, &keyspace, hot().skip(1).step_by(3));
        db.flush().unwrap();
        put(&db, &keyspace, hot().step_by(5), 2);
        let expected = |at: usize, number: u32| match at {
            at if at.is_multiple_of(5) => Some(value(number, 2)),
            at if at % 3 == 0 => Some(value(number, 1)),
            at if at % 3 == 1 => None,
            _ => Some(value(number, 0)),
        };
        let killed = world.after_a_kill();
        let power_cut = world.after_a_kill();
        power_cut.disk.cut_power();
        power_cut.disk.restore_power();
        for world in [killed, power_cut] {
            let (db, keyspace) = reopen(&world);
            let stats = db.stats();
            let (restored, stale) = (stats.warm.rows_restored, stats.warm.rows_stale);
            assert_eq!(restored + stale, 300, "{stats:?}");
            assert!(
                (90..=100).contains(&restored),
                "the unchanged rows, except for false positives of a filter: {restored}"
            );
            for (at, number) in hot().enumerate() {
                assert_eq!(get(&db, &keyspace, number), expected(at, number), "{number}");
            }
            assert_eq!(stats.warnings, Vec::<String>::new());
        }
    }
}

#[test]
fn a_key_written_twice_between_two_flushes_invalidates_no_other_row() {
    let world = World::new(2);
    let (db, keyspace) = store_with_objects(&world, Retention::Latest);
    world.pass_an_interval(&db);
    // Keys that are not hot, each written twice: the flush drops the superseded version, even if it
    // is a deletion.
    put(&db, &keyspace, (1..KEYS).step_by(300), 1);
    delete(&db, &keyspace, (1..KEYS).step_by(600));
    put(&db, &keyspace, (1..KEYS).step_by(300), 2);
    db.flush().unwrap();
    let (db, keyspace) = reopen(&world.after_a_kill());
    let warm = db.stats().warm;
    assert!(warm.rows_restored >= 290, "all except for false positives of a filter: {warm:?}");
    hot().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 0))));
    assert_eq!(get(&db, &keyspace, 1), Some(value(1, 2)));
}

#[test]
fn rows_merged_beside_younger_versions_are_saved_again_and_restored() {
    for retention in [Retention::Forever, Retention::Latest] {
        let world = World::new(2);
        let (db, keyspace) = store_with_objects(&world, retention);
        world.pass_an_interval(&db);
        put(&db, &keyspace, (1..KEYS).step_by(300), 1);
        db.compact().unwrap();
        let (early, _) = reopen(&world.after_a_kill());
        let warm = early.stats().warm;
        assert_eq!(
            (warm.rows_restored, warm.rows_stale),
            (0, 300),
            "they are beside younger versions: {warm:?}"
        );
        let before = db.stats().warm;
        world.pass_an_interval(&db);
        let once = db.stats().warm;
        assert!(once.bytes_written > before.bytes_written);
        world.pass_an_interval(&db);
        assert_eq!(db.stats().warm, once, "nothing was merged since");
        let (db, keyspace) = reopen(&world.after_a_kill());
        let warm = db.stats().warm;
        assert_eq!((warm.rows_restored, warm.rows_stale), (300, 0), "{warm:?}");
        hot().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 0))));
    }
}

#[test]
fn an_idle_store_merges_its_runs_once_its_rows_are_restored() {
    let world = World::new(2);
    let (db, keyspace) = store_with_objects(&world, Retention::Latest);
    world.pass_an_interval(&db);
    put(&db, &keyspace, (1..KEYS).step_by(5), 1);
    db.flush().unwrap();
    assert_eq!(db.stats().index.runs.len(), 2);
    let (db, keyspace) = reopen(&world.after_a_kill());
    let stats = db.stats();
    assert!(
        stats.warm.rows_restored >= 290,
        "all except for false positives of a filter: {:?}",
        stats.warm
    );
    assert_eq!(stats.index.runs.len(), 1, "{:?}", stats.index);
    hot().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 0))));
    assert_eq!(get(&db, &keyspace, 1), Some(value(1, 1)));
}

/// An older image of the same store, after every kind of change to a key.
fn an_older_image(retention: Retention, then: impl Fn(&Db, &Keyspace)) {
    let world = World::new(3);
    let (db, keyspace) = store_with_objects(&world, retention);
    world.pass_an_interval(&db);
    let old = image_of_objects(&world);
    assert!(!old.is_empty());
    then(&db, &keyspace);
    let wanted: Vec<_> = hot().map(|number| get(&db, &keyspace, number)).collect();
    db.close().unwrap();
    exchange(&world, &old);
    let (db, keyspace) = reopen(&world);
    let found: Vec<_> = hot().map(|number| get(&db, &keyspace, number)).collect();
    assert!(found == wanted, "{retention:?}");
    assert_eq!(db.stats().warm.rows_restored + db.stats().warm.rows_stale, 300);
    assert_eq!(db.stats().warnings, Vec::<String>::new());
}

#[test]
fn a_row_of_a_deleted_key_is_not_restored_even_if_the_deletion_is_gone() {
    for retention in [Retention::Forever, Retention::Latest, Retention::Glsns(2)] {
        an_older_image(retention, |db, keyspace| {
            delete(db, keyspace, hot());
            db.flush().unwrap();
            db.compact().unwrap();
            // So that even a lagging horizon passes it.
            (0..5).for_each(|round| put(db, keyspace, 1..2, round));
            db.compact().unwrap();
        });
    }
}

#[test]
fn a_row_replaced_or_deleted_by_a_merge_or_a_large_transaction_is_not_restored() {
    for retention in [Retention::Forever, Retention::Latest] {
        an_older_image(retention, |db, keyspace| {
            for round in 1..4 {
                put(db, keyspace, hot().step_by(round as usize), round);
                db.flush().unwrap();
                delete(db, keyspace, hot().skip(1).step_by(7));
                db.flush().unwrap();
            }
            db.compact().unwrap();
        });
        an_older_image(retention, |db, keyspace| {
            // Spilled, and adopted as runs.
            let mut tx = db.begin();
            (0..20_000).for_each(|number| tx.put(keyspace, &key(number), &[5; 400]).unwrap());
            tx.commit().unwrap();
        });
    }
}

#[test]
fn an_image_from_below_the_trim_point_is_ignored_because_it_may_be_of_a_fork() {
    let world = World::new(4);
    let (db, _) = store_with_objects(&world, Retention::Latest);
    db.close().unwrap();
    let fork = world.after_a_kill();
    // Nothing is ever superseded, because that alone would make the image too old.
    let new = || KEYS..KEYS + 50;
    for (world, round) in [(&world, 1), (&fork, 2)] {
        delete_warm_image(STORE, &world.options()).unwrap();
        let (db, keyspace) = reopen(world);
        put(&db, &keyspace, new(), round);
        db.flush().unwrap();
        make_objects(&db, &keyspace, new());
        db.close().unwrap();
    }
    let foreign = image_of_objects(&fork);
    let (db, keyspace) = reopen(&world);
    (1..400)
        .for_each(|number| put(&db, &keyspace, KEYS + 100 * number..KEYS + 100 * number + 90, 3));
    // Flushed, not merged: rows in one run with younger versions could not be validated.
    db.flush().unwrap();
    db.log().trim(db.newest() - 1).unwrap();
    let oldest = warm_image(STORE, &fork.options()).unwrap().oldest_glsn;
    assert!(db.stats().log.first > oldest + 1, "{oldest}: {:?}", db.stats().log);
    db.close().unwrap();
    exchange(&world, &foreign);
    let db = world.open();
    let keyspace = db.keyspace("objects").unwrap();
    while db.stats().warm.restoring {
        // Before any merge.
        db.step_from(4).unwrap();
        world.clock.advance(std::time::Duration::from_millis(100));
    }
    let warm = db.stats().warm;
    assert_eq!((warm.rows_restored, warm.rows_stale), (0, 50), "{warm:?}");
    assert_eq!(db.stats().warnings, Vec::<String>::new());
    new().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 1))));
}

/// A small store, and its image of rows alone.
fn small_store(world: &World) -> (PathBuf, Vec<u8>) {
    let db = world.open();
    let keyspace = db.keyspace("objects").unwrap();
    put(&db, &keyspace, 0..40, 0);
    db.flush().unwrap();
    make_objects(&db, &keyspace, 0..12);
    db.close().unwrap();
    let image = image_of_objects(world);
    assert_eq!(image.len(), 1);
    exchange(world, &image);
    image.into_iter().next().unwrap()
}

/// Opens a store with an invalid image: nothing of it is restored from the fault on, there is one
/// warning, and all reads are right.
fn assert_ignored(world: &World, what: &str, why: &str) {
    let (db, keyspace) = reopen_with_a_warning(world, what, why);
    assert_eq!(db.stats().warm.rows_restored, 0, "{what}");
    (0..12).for_each(|number| {
        assert_eq!(get(&db, &keyspace, number), Some(value(number, 0)), "{what}")
    });
    assert!(image_of_objects(world).is_empty(), "{what}: the image was removed");
}

#[test]
fn an_image_of_rows_truncated_or_changed_at_any_byte_is_ignored_with_one_warning() {
    let world = World::new(5);
    let (path, bytes) = small_store(&world);
    assert!(bytes.len() < 2000);
    for_each_damage(&world, &path, assert_ignored);
    // Valid bytes under another name.
    let name = path.file_name().unwrap().to_str().unwrap();
    let world = world.after_a_kill();
    world.disk.remove(&path).unwrap();
    world.write(&path.with_file_name(name.replace("rows-000000", "rows-000001")), &bytes);
    assert_ignored(&world, "another name", "it is damaged");
    // Closing replaces it by a valid image.
    let (db, keyspace) = reopen(&world);
    make_objects(&db, &keyspace, 0..12);
    db.close().unwrap();
    let (db, _) = reopen(&world);
    let stats = db.stats();
    assert!(stats.warm.rows_restored > 0 && stats.warnings.is_empty(), "{stats:?}");
}

#[test]
fn an_image_of_rows_of_another_store_is_ignored() {
    let (world, other) = (World::new(6), World::new(60));
    let (path, _) = small_store(&world);
    let (_, foreign) = small_store(&other);
    world.write(&path, &foreign);
    assert_ignored(&world, "foreign", "another store");
}

#[test]
fn an_image_of_rows_ahead_of_the_log_or_of_a_fork_is_ignored() {
    let world = World::new(7);
    let (path, _) = small_store(&world);
    let copy = world.after_a_kill();
    for (world, commits) in [(&world, 2u32), (&copy, 3)] {
        delete_warm_image(STORE, &world.options()).unwrap();
        let (db, keyspace) = reopen(world);
        (0..commits)
            .for_each(|number| put(&db, &keyspace, 1000 + number..1001 + number, commits as u8));
        db.flush().unwrap();
        make_objects(&db, &keyspace, 0..12);
        db.close().unwrap();
        exchange(world, &image_of_objects(world));
    }
    let (ours, theirs) = (world.read(&path), copy.read(&path));
    assert_ne!(ours, theirs);
    world.write(&path, &theirs);
    assert_ignored(&world, "ahead", "the log ends at");
    copy.write(&path, &ours);
    assert_ignored(&copy, "fork", "history differs");
}

#[test]
fn a_reader_beside_a_writer_gets_no_warning_about_a_newer_image() {
    let world = World::new(8);
    small_store(&world);
    let reader_world = world.after_a_kill();
    let (db, keyspace) = reopen(&world);
    put(&db, &keyspace, 500..501, 1);
    db.flush().unwrap();
    delete_warm_image(STORE, &world.options()).unwrap();
    make_objects(&db, &keyspace, 0..12);
    db.close().unwrap();
    // The reader read the log before the writer continued, and the image afterwards.
    exchange(&reader_world, &image_of_objects(&world));
    let reader = Db::open(STORE, reader_world.options().read_only(true)).unwrap();
    reader_world.work(&reader);
    assert_eq!((reader.stats().warm.rows_restored, reader.stats().warm.restoring), (0, false));
    assert_eq!(reader.stats().warnings, Vec::<String>::new());
}

#[test]
fn a_reader_restores_rows_and_writes_nothing() {
    let world = World::new(9);
    let (db, _) = store_with_objects(&world, Retention::Latest);
    db.close().unwrap();
    let files = image_of_objects(&world);
    let db = Db::open(STORE, world.options().read_only(true)).unwrap();
    world.work(&db);
    assert_eq!(db.stats().warm.rows_restored, 300);
    world.pass_an_interval(&db);
    db.close().unwrap();
    assert_eq!(image_of_objects(&world), files);
}

#[test]
fn only_changed_files_are_written_and_deleted_ones_are_written_again() {
    let world = World::new(10);
    let (db, keyspace) = store_with_objects(&world, Retention::Latest);
    world.pass_an_interval(&db);
    let (first, files) = (db.stats().warm, image_of_objects(&world));
    assert!(!files.is_empty());
    world.pass_an_interval(&db);
    assert_eq!(db.stats().warm, first, "nothing changed");
    // A change of a few rows is not worth writing; those few are stale.
    put(&db, &keyspace, hot().take(3), 1);
    db.flush().unwrap();
    world.pass_an_interval(&db);
    let killed = world.after_a_kill();
    let (reopened, of) = reopen(&killed);
    assert_eq!(get(&reopened, &of, 0), Some(value(0, 1)));
    drop(reopened);
    delete_warm_image(STORE, &world.options()).unwrap();
    world.pass_an_interval(&db);
    assert_eq!(warm_image(STORE, &world.options()).unwrap().rows, 300);
    db.close().unwrap();
    let (db, _) = reopen(&world);
    assert_eq!(db.stats().warm.rows_restored, 300);
}

#[test]
fn a_process_that_stays_open_writes_its_own_image_and_removes_the_old_one() {
    let world = World::new(11);
    let (db, _) = store_with_objects(&world, Retention::Latest);
    db.close().unwrap();
    let found = image_of_objects(&world);
    let (db, keyspace) = reopen(&world);
    make_objects(&db, &keyspace, (1..KEYS).step_by(10));
    world.pass_an_interval(&db);
    let own = image_of_objects(&world);
    assert!(own.iter().all(|(path, _)| found.iter().all(|(other, _)| path != other)));
    assert_eq!(warm_image(STORE, &world.options()).unwrap().rows, 600);
    drop(db);
    // Both images, as left by a process that is killed before it has written all of its own.
    found.iter().for_each(|(path, bytes)| world.write(path, bytes));
    let (db, keyspace) = reopen(&world);
    let stats = db.stats();
    assert_eq!((stats.warm.rows_restored, stats.row_cache.entries), (600, 600), "{stats:?}");
    (0..KEYS).for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(value(number, 0))));
}

#[test]
fn with_less_memory_the_accessed_rows_are_restored() {
    let world = World::new(12);
    let db = Db::open(STORE, world.options().memory_bytes(64 << 20)).unwrap();
    let keyspace = db.create_keyspace("objects", Retention::Latest).unwrap();
    let large = |number: u32| value(number, 0).repeat(9);
    for first in (0..4000).step_by(100) {
        let mut tx = db.begin();
        (first..first + 100)
            .for_each(|number| tx.put(&keyspace, &key(number), &large(number)).unwrap());
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    make_objects(&db, &keyspace, 0..1200);
    assert_eq!(db.stats().row_cache.entries, 1200, "{:?}", db.stats().row_cache);
    let touched = || (0..1200).step_by(10);
    touched().for_each(|number| assert!(get(&db, &keyspace, number).is_some()));
    db.close().unwrap();
    let files = image_of_objects(&world);
    let (db, keyspace) = reopen(&world);
    let stats = db.stats();
    let restored = stats.warm.rows_restored;
    assert!(
        (200..1000).contains(&restored) && stats.row_cache.evictions == 0,
        "{restored}: {stats:?}"
    );
    assert!(stats.memory.peak_bytes <= stats.memory.limit_bytes);
    let before = stats.row_cache.hits;
    touched().for_each(|number| assert_eq!(get(&db, &keyspace, number), Some(large(number))));
    let hits = db.stats().row_cache.hits - before;
    assert_eq!(hits, 120);
    db.close().unwrap();
    assert_eq!(
        image_of_objects(&world),
        files,
        "a short run with a small budget leaves the image unchanged"
    );
}

#[test]
fn a_power_cut_at_any_sync_while_rows_are_saved_leaves_a_valid_image() {
    let world = World::new(13);
    // So large that the rows written below are not merged with it at once.
    let (db, keyspace) =
        settled_store(&world, Retention::Forever, 0..3 * KEYS, |number| value(number, 0));
    make_objects(&db, &keyspace, hot());
    world.pass_an_interval(&db);
    drop(db);
    let at_rest = world.after_a_kill();
    for sync in 1.. {
        let mut cut = false;
        for seed in 0..6 {
            let world = at_rest.after_a_kill();
            let (db, keyspace) = reopen(&world);
            put(&db, &keyspace, hot().step_by(2), 1);
            delete(&db, &keyspace, hot().skip(1).step_by(6));
            db.flush().unwrap();
            make_objects(&db, &keyspace, (5..KEYS).step_by(10));
            world.disk.reseed(seed * 100 + sync);
            world.disk.cut_power_at_sync(world.disk.sync_count() + sync);
            world.clock.advance(INTERVAL);
            while !world.disk.power_is_cut() && matches!(db.step(), Ok(true)) {
                world.clock.advance(std::time::Duration::from_millis(100));
            }
            cut |= world.disk.power_is_cut();
            drop(db);
            world.disk.restore_power();
            let (db, keyspace) = reopen(&world);
            let stats = db.stats();
            assert!(stats.warm.rows_restored > 90, "sync {sync}, seed {seed}: {stats:?}");
            assert_eq!(stats.warnings, Vec::<String>::new(), "sync {sync}, seed {seed}");
            for (at, number) in hot().enumerate() {
                let expected = match at {
                    at if at % 2 == 0 => Some(value(number, 1)),
                    at if at % 6 == 1 => None,
                    _ => Some(value(number, 0)),
                };
                assert_eq!(
                    get(&db, &keyspace, number),
                    expected,
                    "sync {sync}, seed {seed}, key {number}"
                );
            }
        }
        if !cut {
            assert!(sync > 3, "a segment of pages, one of rows, and names");
            return;
        }
    }
}
