//! A pass that is stopped at any operation leaves the archive as it was, and the next one completes
//! it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use plimsoll::{Moment, Retention};
use plimsoll_archive::{Archive, Bucket, Error, Folder, Object, Put};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;

use crate::support::{World, options};

/// How an operation fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// It does nothing.
    Before,
    /// It is done, and its answer is lost.
    After,
    /// The disk has no room.
    Full,
}

/// Fails from one operation on, as if the archiver was killed there.
#[derive(Debug)]
struct Failing {
    folder: Folder,
    left: AtomicI64,
    failure: Failure,
}

impl Failing {
    fn step<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        match self.failure {
            _ if left > 0 => operation(),
            Failure::After if left == 0 => {
                operation()?;
                Err(io::ErrorKind::TimedOut.into())
            }
            Failure::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Bucket for Failing {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        self.step(|| self.folder.put_new(name, bytes))
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        self.step(|| self.folder.get(name))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.step(|| self.folder.list(folder))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.step(|| self.folder.delete(name))
    }
}

fn failing(world: &World, after: i64, failure: Failure) -> (Archive, Arc<Failing>) {
    let folder = Folder::new(Arc::new(OsDisk::new()), world.path("archive"));
    let bucket = Arc::new(Failing { folder, left: AtomicI64::new(after), failure });
    (Archive::of(Arc::clone(&bucket) as _, "the archive"), bucket)
}

#[test]
fn a_pass_that_stops_at_any_operation_leaves_the_archive_as_it_was() {
    for failure in [Failure::Before, Failure::After, Failure::Full] {
        let mut world = World::new(40, Retention::Latest);
        world.write(60);
        world.archive().push(world.db()).unwrap();
        let mut before = world.newest();
        let mut stops = 0;
        for after in 0.. {
            world.write(12);
            let (archive, _) = failing(&world, after, failure);
            // Every other pass has a base.
            let mut archive = archive.base_every(if after % 2 == 0 { 1 } else { 1 << 40 });
            if after % 4 == 0 {
                archive = archive.keep(Duration::ZERO);
            }
            let pushed = archive.push(world.db());
            drop(archive);
            match &pushed {
                Ok(report) => assert_eq!(report.glsn, world.newest()),
                Err(Error::Storage { .. } | Error::Damaged { .. }) => stops += 1,
                Err(error) => panic!("{error}"),
            }
            let report = world.archive().verify(&mut |_| {}).unwrap();
            assert_eq!(report.damage, [], "after {after} operations, {failure:?}");
            let restored = world.restore(Moment::Newest).unwrap();
            assert!(restored.is_whole);
            assert!(restored.glsn == before || restored.glsn == world.newest());
            if pushed.is_ok() {
                assert_eq!(restored.glsn, world.newest());
                break;
            }
            // The next pass completes it, every other time.
            before = restored.glsn;
            if after % 3 == 0 {
                world.archive().push(world.db()).unwrap();
                before = world.newest();
            }
        }
        assert!(stops > 8, "{stops} stops");
    }
}

#[test]
fn an_archiver_goes_on_after_a_failure() {
    let mut world = World::new(41, Retention::Forever);
    world.write(30);
    for failure in [Failure::Before, Failure::After, Failure::Full] {
        let (mut archive, bucket) = failing(&world, 7, failure);
        let mut failures = 0;
        for after in 0..10 {
            world.write(3);
            bucket.left.store(after, Ordering::Relaxed);
            failures += u32::from(archive.push(world.db()).is_err());
            bucket.left.store(i64::MAX, Ordering::Relaxed);
            assert_eq!(archive.push(world.db()).unwrap().glsn, world.newest());
        }
        assert!(failures > 2, "{failures} failures");
        assert!(world.restore(Moment::Newest).unwrap().is_whole);
    }
}

/// Sets a flag before an operation, as a signal handler does.
#[derive(Debug)]
struct Cancelling {
    folder: Folder,
    left: AtomicI64,
    flag: Arc<AtomicBool>,
}

impl Bucket for Cancelling {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        self.folder.put_new(name, bytes)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.flag.store(true, Ordering::Relaxed);
        }
        self.folder.get(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.folder.list(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.folder.delete(name)
    }
}

fn cancelling(world: &World, after: i64) -> (Archive, Arc<AtomicBool>) {
    let folder = Folder::new(Arc::new(OsDisk::new()), world.path("archive"));
    let flag = Arc::new(AtomicBool::new(false));
    let bucket = Cancelling { folder, left: AtomicI64::new(after), flag: Arc::clone(&flag) };
    let archive = Archive::of(Arc::new(bucket), "the archive");
    (archive.cancel_on(Arc::clone(&flag)), flag)
}

#[test]
fn a_restore_or_verification_ends_when_it_is_cancelled_and_leaves_nothing() {
    let mut world = World::new(46, Retention::Forever);
    world.write(40);
    world.archive().push(world.db()).unwrap();
    let (mut restores, mut verifications) = (0, 0);
    let is_cancelled = |error: &Error| matches!(error, Error::Store(plimsoll::Error::Cancelled));
    for after in 0.. {
        let (archive, flag) = cancelling(&world, after);
        let folder = world.path("cancelled");
        let restored = archive.restore(&folder, options(), Moment::Newest);
        let is_over = restored.is_ok();
        assert_eq!(is_over, !flag.load(Ordering::Relaxed), "{restored:?}");
        if let Err(error) = &restored {
            assert!(is_cancelled(error), "{error}");
            let left = std::fs::read_dir(folder.parent().unwrap()).unwrap();
            let mut left = left.map(|entry| entry.unwrap().file_name());
            assert!(!left.any(|name| name.to_string_lossy().starts_with("cancelled")));
            restores += 1;
        } else {
            break;
        }
    }
    for after in 0.. {
        let (archive, flag) = cancelling(&world, after);
        match archive.verify(&mut |_| {}) {
            Ok(report) => {
                assert_eq!(report.damage, []);
                assert!(!flag.load(Ordering::Relaxed));
                break;
            }
            Err(error) => assert!(is_cancelled(&error), "{error}"),
        }
        verifications += 1;
    }
    assert!(restores > 3 && verifications > 3, "{restores} and {verifications}");
}

#[test]
fn two_archivers_that_cannot_lock_do_not_overwrite_each_other() {
    let mut world = World::new(42, Retention::Forever);
    world.write(30);
    let (mut one, _) = failing(&world, i64::MAX, Failure::Before);
    let (mut two, _) = failing(&world, i64::MAX, Failure::Before);
    one.push(world.db()).unwrap();
    two.push(world.db()).unwrap();
    world.write(3);
    one.push(world.db()).unwrap();
    world.write(3);
    let refused = two.push(world.db());
    assert!(matches!(refused, Err(Error::OtherArchiver { .. })), "{refused:?}");
    one.push(world.db()).unwrap();
    assert!(world.restore(Moment::Newest).unwrap().is_whole);
    let report = world.archive().verify(&mut |_| {}).unwrap();
    assert_eq!(report.damage, []);
}

#[test]
fn after_a_power_cut_at_any_sync_an_archive_has_every_completed_pass() {
    let mut world = World::new(43, Retention::Latest);
    world.write(40);
    for cut in 0.. {
        let lying = LyingDisk::new(cut);
        let archive = || {
            let disk: Arc<dyn Disk> = Arc::new(lying.clone());
            Archive::of(Arc::new(Folder::new(disk, "/archive")), "the archive").base_every(1)
        };
        let mut archiver = archive();
        archiver.push(world.db()).unwrap();
        let before = world.newest();
        world.write(10);
        lying.cut_power_at_sync(lying.sync_count() + cut);
        let pushed = archiver.push(world.db());
        let is_cut = lying.power_is_cut();
        drop(archiver);
        lying.cut_power();
        lying.restore_power();
        let report = archive().verify(&mut |_| {}).unwrap();
        assert_eq!(report.damage, [], "cut at {cut}");
        let dest = world.path("restored");
        let restored = archive().restore(&dest, options(), Moment::Newest).unwrap();
        assert!(restored.is_whole);
        world.check(&dest, restored.glsn);
        std::fs::remove_dir_all(&dest).unwrap();
        if pushed.is_ok() {
            assert_eq!(restored.glsn, world.newest(), "cut at {cut}");
        } else {
            assert!(restored.glsn == before || restored.glsn == world.newest());
        }
        // The next pass completes it.
        archive().push(world.db()).unwrap();
        assert_eq!(archive().verify(&mut |_| {}).unwrap().glsn, world.newest());
        if !is_cut {
            assert!(cut > 6, "{cut} syncs");
            return;
        }
    }
}

#[test]
fn a_first_pass_that_fails_at_any_sync_is_begun_again() {
    let mut world = World::new(44, Retention::Forever);
    world.write(30);
    for failed in 1.. {
        let lying = LyingDisk::new(failed);
        let archive = || {
            let disk: Arc<dyn Disk> = Arc::new(lying.clone());
            Archive::of(Arc::new(Folder::new(disk, "/archive")), "the archive")
        };
        lying.fail_sync(failed);
        let pushed = archive().push(world.db());
        if pushed.is_ok() {
            assert!(failed > 6, "{failed} syncs");
            return;
        }
        if let Err(error) = archive().verify(&mut |_| {}) {
            assert!(matches!(error, Error::NotAnArchive { .. }), "{error}");
        }
        archive().push(world.db()).unwrap();
        // Objects left by the first pass are as durable as those that the second one has sent.
        lying.cut_power();
        lying.restore_power();
        let report = archive().verify(&mut |_| {}).unwrap();
        assert_eq!((report.damage, report.glsn), (Vec::new(), world.newest()), "sync {failed}");
    }
}

/// A folder in which nothing under some names can be read.
#[derive(Debug)]
struct Unreadable {
    folder: Folder,
    names: String,
}

impl Bucket for Unreadable {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        self.folder.put_new(name, bytes)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        match name.starts_with(&self.names) {
            true => Err(io::Error::other("the storage does not answer")),
            false => self.folder.get(name),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.folder.list(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.folder.delete(name)
    }
}

#[test]
fn a_pass_that_cannot_read_the_newest_manifest_fails() {
    let mut world = World::new(45, Retention::Forever);
    for _ in 0..3 {
        world.write(3);
        world.archive().push(world.db()).unwrap();
    }
    let before = crate::support::files(&world.path("archive"));
    let folder = Folder::new(Arc::new(OsDisk::new()), world.path("archive"));
    let names = format!("manifests/{:020}", 3);
    let mut archive = Archive::of(Arc::new(Unreadable { folder, names }), "the archive");
    world.write(3);
    let refused = archive.push(world.db());
    assert!(matches!(refused, Err(Error::Storage { .. })), "{refused:?}");
    assert!(before == crate::support::files(&world.path("archive")));
    // A restore takes what it can have.
    let report = archive.restore(world.path("restored"), options(), Moment::Newest).unwrap();
    assert!(!report.is_whole);
}
