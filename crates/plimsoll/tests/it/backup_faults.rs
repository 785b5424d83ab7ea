//! Faults around a backup: a power cut after it, a failed sync at its end, and later changes of the
//! store that it shares files with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll::{BackupOptions, Db, Error, InvalidInput, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;

fn options(disk: &Arc<dyn Disk>) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    small().background(false).world(Arc::clone(disk), clock)
}

fn small() -> Options {
    Options::new().memory_bytes(16 << 20).segment_bytes(256 << 10).memtable_bytes(64 << 10)
}

fn value(number: u64) -> Vec<u8> {
    (0..3000).map(|at: u64| (at * 31 + number * 7) as u8).collect()
}

fn fill(db: &Db, numbers: std::ops::Range<u64>) {
    let keyspace = db.keyspace("default").unwrap();
    for number in numbers {
        let mut tx = db.begin();
        tx.put(&keyspace, &number.to_be_bytes(), &value(number)).unwrap();
        tx.commit().unwrap();
    }
}

fn check(db: &Db, numbers: std::ops::Range<u64>) {
    let (keyspace, snapshot) = (db.keyspace("default").unwrap(), db.snapshot());
    let found: Vec<_> = snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len() as u64, numbers.end - numbers.start);
    for ((key, bytes), number) in found.iter().zip(numbers) {
        assert_eq!((&key[..], &bytes[..]), (&number.to_be_bytes()[..], &value(number)[..]));
    }
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_completed_backup_survives_a_power_cut() {
    for seed in 0..20 {
        let lying = LyingDisk::new(seed);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let db = Db::open("/store", options(&disk)).unwrap();
        fill(&db, 0..20);
        db.backup("/copy").unwrap();
        disk.create_dir(Path::new("/given")).unwrap();
        db.backup_copy("/given").unwrap();
        lying.cut_power();
        drop(db);
        lying.restore_power();
        for copy in ["/copy", "/given"] {
            let copy = Db::open(copy, options(&disk).create(false));
            check(&copy.unwrap_or_else(|error| panic!("seed {seed}: {error}")), 0..20);
        }
    }
}

/// A disk on which syncs of one folder fail, from a given one on.
#[derive(Debug)]
struct Failing {
    inner: MemDisk,
    folder: Mutex<PathBuf>,
    good: AtomicUsize,
    /// Makes a backup of another store once the folder `/copy/log.partial` is about to be created.
    other: Mutex<Option<Db>>,
}

impl DiskLayer for Failing {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let other = if path == Path::new("/copy/log.partial") {
            self.other.lock().unwrap().take()
        } else {
            None
        };
        if let Some(other) = other {
            other.backup("/copy").unwrap();
        }
        self.inner.create_dir(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fails = *self.folder.lock().unwrap() == dir
            && self
                .good
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |good| good.checked_sub(1))
                .is_err();
        if fails { Err(io::Error::other("the sync failed")) } else { self.inner.sync_dir(dir) }
    }
}

fn failing() -> Failing {
    Failing {
        inner: MemDisk::new(),
        folder: Mutex::default(),
        good: AtomicUsize::new(0),
        other: Mutex::default(),
    }
}

#[test]
fn a_backup_that_fails_because_of_another_removes_nothing_of_that_one() {
    let failing = Arc::new(failing());
    let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
    let db = Db::open("/store", options(&disk)).unwrap();
    let other = Db::open("/other", options(&disk)).unwrap();
    fill(&other, 0..20);
    other.flush().unwrap();
    *failing.other.lock().unwrap() = Some(other);
    let error = db.backup("/copy").unwrap_err();
    assert!(matches!(&error, Error::Io { kind: io::ErrorKind::AlreadyExists, .. }), "{error}");
    assert_eq!(disk.names(Path::new("/copy")).unwrap(), ["index", "log"]);
    check(&Db::open("/copy", options(&disk).create(false)).unwrap(), 0..20);
}

#[test]
fn a_backup_with_a_failed_folder_sync_is_an_error_and_does_not_open() {
    for folder in ["/", "/copy", "/copy/index", "/copy/log.partial"] {
        let failing = Arc::new(failing());
        let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
        let db = Db::open("/store", options(&disk)).unwrap();
        fill(&db, 0..20);
        *failing.folder.lock().unwrap() = PathBuf::from(folder);
        let error = db.backup("/copy").unwrap_err();
        assert!(
            matches!(&error, Error::Io { message, .. } if message.contains("the sync failed")),
            "{error}"
        );
        *failing.folder.lock().unwrap() = PathBuf::new();
        for options in [options(&disk).create(false), options(&disk).read_only(true)] {
            let opened = Db::open("/copy", options);
            assert!(matches!(&opened, Err(Error::NotAStore { .. })), "{folder}: {opened:?}");
        }
        let left = disk.names(Path::new("/copy")).unwrap_or_default();
        if folder == "/copy" {
            // Complete, but not durable.
            assert_eq!(left, ["index", "log.partial"]);
            let again = db.backup("/copy");
            assert!(
                matches!(
                    again,
                    Err(Error::InvalidInput(InvalidInput::DestinationUnfinished { .. }))
                ),
                "{again:?}"
            );
        } else {
            // The backup can be made again, because the copied files are removed.
            assert_eq!(left, Vec::<String>::new(), "{folder}");
            db.backup("/copy").unwrap();
        }
        // The store itself continues.
        fill(&db, 20..21);
        check(&db, 0..21);
    }
}

#[test]
fn a_backup_that_is_cancelled_leaves_nothing_of_its_own() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let db = Db::open("/store", options(&disk)).unwrap();
    fill(&db, 0..20);
    disk.create_dir(Path::new("/given")).unwrap();
    for copy in [false, true] {
        let cancelled =
            || BackupOptions::new().copy(copy).cancel_on(Arc::new(AtomicBool::new(true)));
        assert_eq!(db.backup_with("/given", cancelled()), Err(Error::Cancelled));
        assert_eq!(disk.names(Path::new("/given")).unwrap(), Vec::<String>::new());
        assert_eq!(db.backup_with("/new", cancelled()), Err(Error::Cancelled));
        assert_eq!(disk.entry(Path::new("/new")).unwrap(), None);
    }
    db.backup_with("/new", BackupOptions::new().cancel_on(Arc::new(AtomicBool::new(false))))
        .unwrap();
    check(&Db::open("/new", options(&disk).create(false)).unwrap(), 0..20);
}

#[test]
fn a_backup_is_not_made_inside_the_store_by_any_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let db = Db::open(&store, small()).unwrap();
    fill(&db, 0..3);
    std::os::unix::fs::symlink(&store, dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink(store.join("log"), dir.path().join("deep")).unwrap();
    fs::create_dir(dir.path().join("beside")).unwrap();
    fs::create_dir(store.join("empty")).unwrap();
    std::os::unix::fs::symlink(store.join("empty"), dir.path().join("empty")).unwrap();
    let before: Vec<_> =
        fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for inside in [
        "store/sub",
        "link/sub",
        "deep/sub",
        "beside/../store/sub",
        "store/log/sub",
        "store/empty",
        "empty",
    ] {
        let error = db.backup(dir.path().join(inside)).unwrap_err();
        assert!(
            matches!(&error, Error::InvalidInput(InvalidInput::DestinationInside { .. })),
            "{inside}: {error}"
        );
    }
    let after: Vec<_> =
        fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(before, after);
    // A folder whose name only begins like that of the store.
    db.backup(dir.path().join("store2")).unwrap();
    check(&Db::open(dir.path().join("store2"), small()).unwrap(), 0..3);
}

#[test]
fn a_copy_shares_no_file_with_the_store() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), small()).unwrap();
    fill(&db, 0..200);
    db.flush().unwrap();
    let linked = db.backup(dir.path().join("linked")).unwrap();
    let copied = db.backup_copy(dir.path().join("copied")).unwrap();
    assert!(linked.bytes_linked > 0 && copied.bytes_linked == 0, "{linked:?} {copied:?}");
    assert_eq!(copied.bytes_copied, linked.bytes_linked + linked.bytes_copied);
    let links = |folder: &str| {
        let files =
            ["index", "log"].map(|part| fs::read_dir(dir.path().join(folder).join(part)).unwrap());
        files
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().metadata().unwrap().nlink())
            .max()
            .unwrap()
    };
    assert_eq!((links("linked"), links("copied")), (2, 1));
    db.close().unwrap();
    check(&Db::open(dir.path().join("copied"), small()).unwrap(), 0..200);
}
