//! A restore gives the state as of the requested moment, whatever the store did meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use plimsoll::{Db, Durability, Glsn, Moment, Retention};
use plimsoll_archive::{Archive, Error, Folder, Stop};
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;

use crate::support::{World, options, rows_of, seeds};

/// Makes passes between commits, reopenings and trims.
fn live(world: &mut World, rounds: u32, base_bytes: u64) {
    let mut archive = world.archive().base_every(base_bytes);
    for _ in 0..rounds {
        // Everything is archived when the log is trimmed.
        match world.rng.u32(0..8) {
            0 => world.reopen(),
            1 => world.db().flush().unwrap(),
            2 => world.db().compact().unwrap(),
            3 => {
                let until = Glsn(world.rng.u64(1..=world.newest().0 + 1));
                world.db().log().trim(until).unwrap();
            }
            _ => {}
        }
        let commits = world.rng.u64(0..30);
        world.write(commits);
        let report = archive.push(world.db()).unwrap();
        assert_eq!(report.glsn, world.db().newest());
        if world.rng.u32(0..4) == 0 {
            drop(archive);
            archive = world.archive().base_every(base_bytes);
        }
    }
}

#[test]
fn restores_at_random_glsns_equal_the_model() {
    for seed in seeds(4) {
        let retention = if seed % 2 == 0 { Retention::Forever } else { Retention::Latest };
        let mut world = World::new(seed, retention);
        live(&mut world, 30, if seed % 4 < 2 { 400 << 10 } else { 1 << 40 });
        let newest = world.db().newest();
        let report = world.archive().verify(&mut |_| {}).unwrap();
        assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
        let ranges = report.restorable;
        if retention == Retention::Forever {
            assert_eq!(ranges, [Glsn(0)..=newest]);
        }
        // Between two passes, the store itself may have trimmed what need not be retained.
        assert_eq!(*ranges.last().unwrap().end(), newest);
        for number in 0..8 {
            let range = ranges[world.rng.usize(..ranges.len())].clone();
            let glsn = Glsn(world.rng.u64(range.start().0..=range.end().0));
            let glsn = if number == 0 { newest } else { glsn };
            let report = world.restore(Moment::Glsn(glsn)).unwrap();
            assert_eq!((report.glsn, report.is_whole, report.damage), (glsn, true, Vec::new()));
        }
    }
}

#[test]
fn a_trimmed_store_is_restored_from_its_base_on() {
    let mut world = World::new(5, Retention::Latest);
    world.write(300);
    world.db().compact().unwrap();
    world.db().log().trim(world.newest().next()).unwrap();
    assert!(world.db().log().bounds().first > Glsn::FIRST);
    let begins = world.db().newest();
    assert!(world.archive().push(world.db()).unwrap().is_base);
    world.write(50);
    assert!(!world.archive().push(world.db()).unwrap().is_base);
    for glsn in [begins, Glsn(begins.0 + 20), world.newest()] {
        assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole);
    }
    match world.restore(Moment::Glsn(Glsn(begins.0 - 1))).unwrap_err() {
        Error::NotArchived { restorable, .. } => {
            assert_eq!(restorable, [begins..=world.newest()]);
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_log_that_was_trimmed_before_it_was_archived_needs_another_base() {
    let mut world = World::new(6, Retention::Latest);
    world.write(40);
    world.archive().push(world.db()).unwrap();
    let first_end = world.newest();
    world.write(200);
    world.db().compact().unwrap();
    world.db().log().trim(world.newest().next()).unwrap();
    assert!(world.db().log().bounds().first > first_end.next());
    world.write(5);
    let mut archive = world.archive();
    assert!(archive.push(world.db()).unwrap().is_base);
    let second = world.newest();
    world.write(40);
    archive.push(world.db()).unwrap();
    for glsn in [Glsn(3), first_end, second, Glsn(second.0 + 7), world.newest()] {
        assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole, "{glsn}");
    }
    let lost = Moment::Glsn(Glsn(second.0 - 1));
    assert!(matches!(world.restore(lost), Err(Error::NotArchived { .. })));
    let newest = world.newest();
    let report = world.archive().verify(&mut |_| {}).unwrap();
    assert_eq!(report.restorable, [Glsn(0)..=first_end, second..=newest]);
    // Damage that is not in the way changes nothing.
    let copy = world.path("archive/manifests").join(format!("{:020}.copy", 3));
    std::fs::write(copy, "damaged").unwrap();
    assert_eq!(world.archive().verify(&mut |_| {}).unwrap().damage.len(), 1);
    assert!(matches!(world.restore(lost), Err(Error::NotArchived { .. })));
}

#[test]
fn the_log_is_kept_until_it_is_archived() {
    let mut world = World::new(9, Retention::Latest);
    world.write(40);
    let mut archive = world.archive();
    for round in 0..4 {
        assert_eq!(archive.push(world.db()).unwrap().is_base, round == 0);
        let end = world.newest();
        world.write(200);
        world.db().compact().unwrap();
        world.db().log().trim(world.newest().next()).unwrap();
        let first = world.db().log().bounds().first;
        assert!(first <= end.next(), "{first} after {end}");
        assert!(round == 0 || first > Glsn::FIRST, "what is archived is freed");
    }
    archive.push(world.db()).unwrap();
    let restorable = world.archive().verify(&mut |_| {}).unwrap().restorable;
    assert_eq!(restorable, [Glsn(0)..=world.newest()]);
    drop(archive);
    world.db().log().trim(world.newest().next()).unwrap();
    world.write(1);
    world.db().compact().unwrap();
    world.db().log().trim(world.newest().next()).unwrap();
    let first = world.db().log().bounds().first;
    assert!(first.0 + 2 > world.newest().0, "{first}: nothing is held any more");
}

#[test]
fn a_restore_at_a_time_ends_with_the_last_commit_that_is_not_later() {
    let mut world = World::new(7, Retention::Forever);
    let mut archive = world.archive();
    let mut moments = Vec::new();
    for _ in 0..6 {
        for _ in 0..3 {
            world.write(2);
            std::thread::sleep(Duration::from_millis(2));
            moments.push((SystemTime::now(), world.newest()));
            std::thread::sleep(Duration::from_millis(2));
        }
        archive.push(world.db()).unwrap();
    }
    for (time, glsn) in moments {
        let report = world.restore(Moment::Time(time)).unwrap();
        assert_eq!((report.glsn, report.is_whole), (glsn, true));
    }
    let before = Moment::Time(SystemTime::UNIX_EPOCH);
    assert!(matches!(world.restore(before), Err(Error::NotArchived { .. })));
    let beyond = Moment::Glsn(world.newest().next());
    assert!(matches!(world.restore(beyond), Err(Error::NotArchived { .. })));
}

#[test]
fn a_record_of_several_entries_is_restored_whole_or_not_at_all() {
    let mut world = World::new(8, Retention::Forever);
    world.write(2);
    let entries = world.db().log().append(7, &[b"one", b"two", b"three"]).unwrap();
    world.write(1);
    world.archive().push(world.db()).unwrap();
    let inside = Glsn(entries.start().0 + 1);
    let report = world.restore(Moment::Glsn(inside)).unwrap();
    assert_eq!(report.glsn, Glsn(entries.start().0 - 1));
    assert_eq!(world.restore(Moment::Glsn(*entries.end())).unwrap().glsn, *entries.end());
}

#[test]
fn a_pass_of_an_unchanged_store_writes_nothing() {
    let mut world = World::new(9, Retention::Forever);
    world.write(20);
    let mut archive = world.archive();
    assert!(archive.push(world.db()).unwrap().objects > 0);
    let before = crate::support::files(&world.path("archive"));
    assert_eq!(archive.push(world.db()).unwrap().objects, 0);
    drop(archive);
    assert_eq!(world.archive().push(world.db()).unwrap().objects, 0);
    assert!(before == crate::support::files(&world.path("archive")));
}

#[test]
fn objects_do_not_grow_with_the_number_of_passes() {
    let world = World::new(10, Retention::Forever);
    let mut archive = world.archive();
    let keyspace = world.rows();
    for number in 0..400_u32 {
        let value = vec![number as u8; 3000];
        world.db().put(&keyspace, number.to_be_bytes(), value).unwrap();
        archive.push(world.db()).unwrap();
    }
    let report = world.archive().verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
    let objects = crate::support::files(&world.path("archive")).len() - 32;
    assert!(objects < 150, "{objects} objects");
    let manifests = std::fs::read_dir(world.path("archive/manifests")).unwrap().count();
    assert_eq!(manifests, 32);
}

#[test]
fn an_empty_store_is_archived_and_restored() {
    let mut world = World::new(11, Retention::Forever);
    world.archive().push(world.db()).unwrap();
    assert_eq!(world.restore(Moment::Newest).unwrap().glsn, Glsn(0));
}

#[test]
fn a_store_restored_at_the_newest_moment_continues_its_archive() {
    let mut world = World::new(12, Retention::Forever);
    world.write(30);
    world.archive().push(world.db()).unwrap();
    world.db.take().unwrap().close().unwrap();
    let restored = world.path("store-2");
    world.archive().restore(&restored, options(), Moment::Newest).unwrap();
    world.db = Some(Db::open(&restored, options()).unwrap());
    world.write(30);
    world.archive().push(world.db()).unwrap();
    assert!(world.restore(Moment::Newest).unwrap().is_whole);
    assert!(world.restore(Moment::Glsn(Glsn(45))).unwrap().is_whole);
}

#[test]
fn a_store_is_archived_while_it_is_written_and_trimmed() {
    let mut world = World::new(13, Retention::Latest);
    let db = world.db().clone();
    let keyspace = world.rows();
    let (stop, is_done) = (Stop::new(), AtomicBool::new(false));
    let mut archive = world.archive().base_every(512 << 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            archive.follow(&db, Duration::from_millis(1), &stop, |_| Ok(())).unwrap();
        });
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                db.log().trim(db.newest().next()).unwrap();
                std::thread::sleep(Duration::from_millis(7));
            }
        });
        for number in 0..600_u32 {
            let bytes = if number % 50 == 0 { 300_000 } else { 2_000 };
            db.put(&keyspace, (number % 97).to_be_bytes(), vec![number as u8; bytes]).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        stop.stop();
    });
    archive.push(&db).unwrap();
    let dest = world.path("restored");
    let report = archive.restore(&dest, options(), Moment::Newest).unwrap();
    assert!(report.is_whole && report.problems.is_empty());
    let restored = Db::open(&dest, options()).unwrap();
    let rows = restored.keyspace("default").unwrap();
    assert!(rows_of(&restored, &rows) == rows_of(&db, &keyspace));
    world.db = None;
}

#[test]
fn moments_that_are_not_kept_are_dropped_and_the_others_stay() {
    let mut world = World::new(14, Retention::Latest);
    let keep = Duration::from_millis(200);
    let mut moments = Vec::new();
    for round in 0..24 {
        world.write(40);
        moments.push((SystemTime::now(), world.newest()));
        std::thread::sleep(Duration::from_millis(15));
        if round % 5 == 4 {
            world.db().compact().unwrap();
        }
        world.archive().keep(keep).push(world.db()).unwrap();
    }
    let report = world.archive().verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
    assert!(*report.restorable.first().unwrap().start() > Glsn(100), "{:?}", report.restorable);
    let newest = moments.last().unwrap().0;
    for (time, glsn) in moments {
        let restored = world.restore(Moment::Time(time));
        // A compaction may have trimmed the commits after this one before they were archived; it is
        // then unknown whether one of them is at this time.
        let is_before_a_gap =
            glsn != world.newest() && report.restorable.iter().any(|range| *range.end() == glsn);
        if newest.duration_since(time).unwrap() < keep && !is_before_a_gap {
            assert_eq!(restored.unwrap().glsn, glsn);
        } else if let Ok(report) = restored {
            assert_eq!(report.glsn, glsn);
        }
    }
    let before = crate::support::files(&world.path("archive")).len();
    let mut archive = world.archive();
    for _ in 0..18 {
        world.write(1);
        archive.push(world.db()).unwrap();
    }
    assert!(world.restore(Moment::Newest).unwrap().is_whole);
    // Dropped objects are deleted with the manifests that named them.
    assert!(crate::support::files(&world.path("archive")).len() < before + 10);
    let report = world.archive().verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
}

#[test]
fn a_store_whose_log_ends_with_an_empty_segment_is_restored_and_goes_on() {
    let mut world = World::new(15, Retention::Latest);
    for round in 0..4 {
        world.write(30);
        world.db().compact().unwrap();
        world.db().log().trim(world.newest().next()).unwrap();
        world.archive().push(world.db()).unwrap();
        let newest = world.newest();
        assert!(world.restore(Moment::Glsn(newest)).unwrap().is_whole);
        if round == 2 {
            world.db.take().unwrap().close().unwrap();
            let restored = world.path("store-2");
            world.archive().restore(&restored, options(), Moment::Newest).unwrap();
            world.db = Some(Db::open(&restored, options()).unwrap());
        }
    }
    world.write(30);
    world.archive().push(world.db()).unwrap();
    let newest = world.newest();
    for glsn in [newest, Glsn(newest.0 - 10)] {
        assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole);
    }
}

#[test]
fn a_log_that_is_trimmed_after_a_pass_needs_no_base() {
    let mut world = World::new(16, Retention::Forever);
    let mut archive = world.archive();
    for round in 0..5 {
        world.write(30);
        archive.push(world.db()).unwrap();
        if round % 2 == 1 {
            // Its close leaves a mark behind the last record.
            world.reopen();
            archive.push(world.db()).unwrap();
        }
        let next = world.newest().next();
        assert_eq!(world.db().log().trim(next).unwrap(), next);
    }
    world.write(30);
    assert!(!archive.push(world.db()).unwrap().is_base);
    for glsn in [Glsn(0), Glsn(70), world.newest()] {
        assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole);
    }
}

/// Trims the whole log.
fn trim(world: &World) {
    world.db().compact().unwrap();
    world.db().log().trim(world.newest().next()).unwrap();
}

#[test]
fn what_is_kept_stays_when_the_log_ends_with_an_empty_segment() {
    let mut world = World::new(17, Retention::Latest);
    let keep = Duration::from_secs(3600);
    world.write(30);
    world.archive().keep(keep).push(world.db()).unwrap();
    let first = world.newest();
    world.write(30);
    trim(&world);
    assert!(world.archive().keep(keep).push(world.db()).unwrap().is_base);
    for glsn in [Glsn(0), Glsn(7), first, world.newest()] {
        assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole, "{glsn}");
    }
}

/// A time between two commits.
fn moment_between() -> SystemTime {
    let pause = || std::thread::sleep(Duration::from_millis(3));
    pause();
    let now = SystemTime::now();
    pause();
    now
}

#[test]
fn a_time_in_a_part_of_the_log_that_was_not_archived_is_refused() {
    let mut world = World::new(18, Retention::Latest);
    world.write(20);
    let (before, at_before) = (moment_between(), world.newest());
    world.write(20);
    world.archive().push(world.db()).unwrap();
    world.write(30);
    let inside = moment_between();
    world.write(30);
    trim(&world);
    for round in 0..3 {
        world.archive().push(world.db()).unwrap();
        let refused = world.restore(Moment::Time(inside));
        assert!(matches!(refused, Err(Error::NotArchived { .. })), "{round}: {refused:?}");
        let report = world.restore(Moment::Time(before)).unwrap();
        assert_eq!((report.glsn, report.is_whole), (at_before, true));
        if round > 0 {
            let report = world.restore(Moment::Time(SystemTime::now())).unwrap();
            assert_eq!((report.glsn, report.is_whole), (world.newest(), true));
        }
        world.write(10);
    }
}

#[test]
fn objects_and_lists_do_not_grow_with_the_number_of_passes_over_one_segment() {
    let world = World::new(23, Retention::Forever);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let archive = || Archive::of(Arc::new(Folder::new(Arc::clone(&disk), "/archive")), "archive");
    let store = world.path("large");
    let options = options().segment_bytes(64 << 20).durability(Durability::Buffered);
    let db = Db::open(store, options.clone()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut archiver = archive();
    for number in 0..3000_u32 {
        db.put(&keyspace, number.to_be_bytes(), vec![number as u8; 200]).unwrap();
        archiver.push(&db).unwrap();
    }
    let names = |folder: &str| disk.names(&Path::new("/archive").join(folder)).unwrap().len();
    assert!(names("segments") < 300, "{} segments", names("segments"));
    assert!(names("lists") < 50, "{} lists", names("lists"));
    let report = archive().verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
    let dest = world.path("restored");
    let restored = archive().restore(&dest, options.clone(), Moment::Newest).unwrap();
    assert_eq!((restored.glsn, restored.is_whole), (db.newest(), true));
    let copy = Db::open(&dest, options).unwrap();
    let rows = copy.keyspace("default").unwrap();
    assert!(rows_of(&copy, &rows) == rows_of(&db, &keyspace));
}

#[test]
fn a_time_after_a_base_is_restored_from_it() {
    let mut world = World::new(19, Retention::Latest);
    world.write(300);
    trim(&world);
    world.write(5);
    let mut moments = vec![(moment_between(), world.newest())];
    assert!(world.archive().push(world.db()).unwrap().is_base);
    for _ in 0..3 {
        // The segment is still small, and is sent again from its beginning.
        world.write(2);
        moments.push((moment_between(), world.newest()));
        world.write(2);
        world.archive().push(world.db()).unwrap();
    }
    for (time, glsn) in moments {
        let report = world.restore(Moment::Time(time)).unwrap();
        assert_eq!((report.glsn, report.is_whole), (glsn, true));
    }
}
