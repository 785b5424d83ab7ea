//! Helpers of the tests of warm restarts: a disk and a clock, keys in random order, and a store
//! without pending work.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Keyspace, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

pub(crate) const STORE: &str = "/store";
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

/// A disk and a clock.
pub(crate) struct World {
    pub(crate) disk: LyingDisk,
    pub(crate) clock: Arc<ManualClock>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            disk: LyingDisk::new(seed),
            clock: Arc::new(ManualClock::new(1_780_000_000_000_000)),
        }
    }

    /// The same world, as a process finds it after this one was killed.
    pub(crate) fn after_a_kill(&self) -> Self {
        Self {
            disk: self.disk.snapshot(),
            clock: Arc::new(ManualClock::new(1_780_000_100_000_000)),
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options::new()
            .memory_bytes(16 << 20)
            .segment_bytes(1 << 20)
            .background(false)
            .warm_interval(INTERVAL)
            .world(Arc::new(self.disk.clone()), Arc::clone(&self.clock) as _)
    }

    pub(crate) fn open(&self) -> Db {
        Db::open(STORE, self.options()).unwrap()
    }

    /// Does the pending work, and lets the time pass that it may need.
    pub(crate) fn work(&self, db: &Db) {
        loop {
            while db.step().unwrap() {}
            if !db.stats().warm.restoring {
                return;
            }
            self.clock.advance(Duration::from_millis(100));
        }
    }

    /// Lets an interval pass and does the work that is due.
    pub(crate) fn pass_an_interval(&self, db: &Db) {
        self.clock.advance(INTERVAL);
        for _ in 0..10 {
            while db.step().unwrap() {}
            self.clock.advance(Duration::from_millis(100));
        }
    }

    pub(crate) fn image(&self) -> Vec<PathBuf> {
        let dir = Path::new(STORE).join("warm");
        self.files("warm").into_iter().map(|name| dir.join(name)).collect()
    }

    /// Names of the files in one of the store's folders, if it exists.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let dir = Path::new(STORE).join(folder);
        match self.disk.entry(&dir).unwrap() {
            None => Vec::new(),
            Some(_) => self.disk.list(&dir).unwrap().into_iter().map(|entry| entry.name).collect(),
        }
    }

    pub(crate) fn read(&self, path: &Path) -> Vec<u8> {
        let file = self.disk.open(path, Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) {
        if self.disk.entry(path).unwrap().is_some() {
            self.disk.remove(path).unwrap();
        }
        let file = self.disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(bytes, 0).unwrap();
    }
}

/// Keys in random order.
pub(crate) fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

/// Puts the values of these keys, 500 in a transaction.
pub(crate) fn put(
    db: &Db,
    keyspace: &Keyspace,
    numbers: impl Iterator<Item = u32>,
    value: impl Fn(u32) -> Vec<u8>,
) {
    let mut tx = db.begin();
    for (at, number) in numbers.enumerate() {
        tx.put(keyspace, &key(number), &value(number)).unwrap();
        if at % 500 == 499 {
            tx.commit().unwrap();
            tx = db.begin();
        }
    }
    tx.commit().unwrap();
}

/// A store with these keys in as few runs as possible, and without pending work.
pub(crate) fn settled_store(
    world: &World,
    retention: Retention,
    keys: std::ops::Range<u32>,
    value: impl Fn(u32) -> Vec<u8>,
) -> (Db, Keyspace) {
    let db = world.open();
    let keyspace = db.create_keyspace("objects", retention).unwrap();
    put(&db, &keyspace, keys, value);
    db.compact().unwrap();
    world.work(&db);
    (db, keyspace)
}

/// Opens a store, and restores its image.
pub(crate) fn reopen(world: &World) -> (Db, Keyspace) {
    let db = world.open();
    world.work(&db);
    let keyspace = db.keyspace("objects").unwrap();
    (db, keyspace)
}

/// Opens a store with an invalid image; checks that one warning names the reason.
pub(crate) fn reopen_with_a_warning(world: &World, what: &str, why: &str) -> (Db, Keyspace) {
    let (db, keyspace) = reopen(world);
    let warnings = db.stats().warnings;
    assert_eq!(warnings.len(), 1, "{what}: {warnings:?}");
    assert!(
        warnings[0].contains("the warm image is ignored") && warnings[0].contains(why),
        "{what}: {warnings:?}"
    );
    (db, keyspace)
}

/// Calls `ignored` with a copy of the world for each length to which the file at `path` is
/// truncated, and for each of its bytes that is changed.
pub(crate) fn for_each_damage(world: &World, path: &Path, ignored: impl Fn(&World, &str, &str)) {
    let bytes = world.read(path);
    for len in 0..bytes.len() {
        let world = world.after_a_kill();
        world.write(path, &bytes[..len]);
        ignored(&world, &format!("cut at {len}"), "it is");
    }
    for at in 0..bytes.len() {
        let world = world.after_a_kill();
        world.disk.corrupt(path, at as u64, 1 << (at % 8)).unwrap();
        ignored(&world, &format!("byte {at}"), "it");
    }
}
