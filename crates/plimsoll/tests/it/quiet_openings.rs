//! If no work is pending, opening a store changes no file of its log and its index, and neither
//! does closing it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::{Db, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};

/// The changes, in the order of the calls.
type Changes = Arc<Mutex<Vec<String>>>;

/// A disk that records all changes.
#[derive(Debug)]
struct Noting {
    disk: LyingDisk,
    changes: Changes,
}

impl Noting {
    fn note(&self, what: &str, path: &Path) -> &LyingDisk {
        note(&self.changes, what, path);
        &self.disk
    }
}

fn note(changes: &Changes, what: &str, path: &Path) {
    changes.lock().unwrap().push(format!("{what} {}", path.display()));
}

#[derive(Debug)]
struct NotingFile {
    file: Arc<dyn File>,
    path: PathBuf,
    changes: Changes,
}

impl File for NotingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        note(&self.changes, "write", &self.path);
        self.file.write_at(buf, offset)
    }
    fn sync(&self) -> io::Result<()> {
        note(&self.changes, "sync", &self.path);
        self.file.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        note(&self.changes, "cut", &self.path);
        self.file.set_len(len)
    }
}

impl DiskLayer for Noting {
    fn below(&self) -> &dyn Disk {
        &self.disk
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        if open == Open::CreateNew {
            self.note("make", path);
        }
        let file = self.disk.open(path, open, caching)?;
        Ok(Arc::new(NotingFile { file, path: path.to_owned(), changes: Arc::clone(&self.changes) }))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        // Creating an existing folder changes nothing.
        if self.disk.entry(path)?.is_none() { self.note("make", path) } else { &self.disk }
            .create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("rename", to).rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        // Removing a missing file changes nothing.
        if self.disk.entry(path)?.is_some() { self.note("remove", path) } else { &self.disk }
            .remove(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.note("remove", path).remove_dir(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("link", to).hard_link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.note("sync", dir).sync_dir(dir)
    }
}

struct World {
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    changes: Changes,
}

impl World {
    fn open(&self, is_shared: bool, read_only: bool) -> Db {
        let disk = Noting { disk: self.disk.clone(), changes: Arc::clone(&self.changes) };
        let sizes =
            Options::new().memory_bytes(16 << 20).memtable_bytes(256 << 10).segment_bytes(1 << 20);
        let options = sizes.background(false).warm(false).shared(is_shared).read_only(read_only);
        Db::open("/store", options.world(Arc::new(disk), Arc::clone(&self.clock) as _)).unwrap()
    }

    /// Records the changes since the last call, if there were any.
    fn expect_none(&self, found: &mut Vec<String>, when: &str) {
        let changed = self.changed();
        if !changed.is_empty() {
            found.push(format!("{when}: {changed:?}"));
        }
    }

    /// The changes of the log and the index since the last call.
    fn changed(&self) -> Vec<String> {
        let mut changes = std::mem::take(&mut *self.changes.lock().unwrap());
        let is_written =
            |change: &str| ["write", "cut", "make", "rename", "remove", "link"].contains(&change);
        let of_files =
            |change: &str| change.contains("/store/log") || change.contains("/store/index");
        // A sync without preceding writes changes nothing.
        changes
            .retain(|change| of_files(change) && change.split(' ').next().is_some_and(is_written));
        changes
    }
}

/// Does the remaining background work of a store that nobody uses.
fn rest(world: &World, db: &Db) {
    for _ in 0..3 {
        while db.step().unwrap() {}
        world.clock.advance(Duration::from_secs(100));
    }
}

/// A store, where `values` decides how much of it is only in the log.
fn world(values: u32, and_then: impl FnOnce(&Db)) -> World {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let world = World { disk: LyingDisk::new(1), clock, changes: Changes::default() };
    let db = world.open(false, false);
    let space = db.keyspace("default").unwrap();
    for key in 0..values {
        let bytes = if key % 100 == 7 { 300 << 10 } else { 300 };
        db.put(&space, key.to_be_bytes(), vec![5; bytes]).unwrap();
    }
    and_then(&db);
    rest(&world, &db);
    db.close().unwrap();
    assert!(!world.changed().is_empty());
    world
}

#[test]
fn opening_reading_and_closing_a_store_that_needs_nothing_changes_neither_log_nor_index() {
    let worlds = [
        ("small", world(3, |_| {})),
        ("flushed", world(2000, |db| db.flush().unwrap())),
        ("merged", world(2000, |db| db.compact().unwrap())),
        ("trimmed", world(2000, |db| assert!(db.log().trim(db.newest()).is_ok()))),
        ("unchanged", world(1999, |_| {})),
    ];
    let mut found = Vec::new();
    for (name, world) in &worlds {
        for round in 0..2 {
            for (is_shared, read_only) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let what =
                    format!("{name}, shared: {is_shared}, read-only: {read_only}, round {round}");
                let db = world.open(is_shared, read_only);
                world.expect_none(&mut found, &format!("{what}, opened"));
                let beside = is_shared.then(|| world.open(true, false));
                world.expect_none(&mut found, &format!("{what}, opened beside it"));
                for db in [Some(&db), beside.as_ref()].into_iter().flatten() {
                    let space = db.snapshot().keyspace("default").unwrap().unwrap();
                    let rows = db.snapshot().range(&space, ..).unwrap().count();
                    assert!(rows == 3 || rows >= 1999);
                    rest(world, db);
                }
                world.expect_none(&mut found, &format!("{what}, in use"));
                if let Some(beside) = beside {
                    beside.close().unwrap();
                }
                world.expect_none(&mut found, &format!("{what}, closed beside it"));
                db.close().unwrap();
                world.expect_none(&mut found, &format!("{what}, closed"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Data that an opening leaves unchanged may be in the page cache only: a failed sync is reported
/// once, to a process that has ended.
#[test]
fn a_failed_sync_of_an_earlier_close_harms_no_later_commit() {
    for is_shared in [false, true] {
        for (seed, failing) in (0..12).flat_map(|seed| (1..8).map(move |failing| (seed, failing))) {
            let what = format!("shared: {is_shared}, seed {seed}, sync {failing} of the close");
            let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
            let world = World { disk: LyingDisk::new(seed), clock, changes: Changes::default() };
            let put = |db: &Db, keys: std::ops::Range<u32>| {
                let space = db.keyspace("default").unwrap();
                for key in keys {
                    db.put(&space, key.to_be_bytes(), vec![5; 200]).unwrap();
                }
            };
            let db = world.open(is_shared, false);
            put(&db, 0..20);
            world.disk.fail_sync(failing);
            let failed = db.close().is_err();
            world.disk.cancel_failures();
            let db = world.open(is_shared, false);
            put(&db, 20..23);
            world.disk.cut_power();
            drop(db);
            world.disk.restore_power();
            let db = world.open(is_shared, false);
            let space = db.keyspace("default").unwrap();
            let found = db.snapshot().len(&space).unwrap();
            assert_eq!(found, 23, "{what}, told: {failed}");
        }
    }
}
