//! The law of the house for the warm image: dropped, damaged, older, of another store, of another moment, restored with a backup, under
//! other budgets, after commits, trims, kills and power cuts: every answer is the model's.
//!
//! `PLIMSOLL_WARM_SEEDS` says how many lives of a store are simulated (24 restarts each), `PLIMSOLL_WARM_SEED` which is the first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Keyspace, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

const KEYS: u64 = 600;
const RESTARTS: u64 = 24;
const INTERVAL: Duration = Duration::from_secs(5);

/// What each key has: the number of the commit that put it.
type Model = BTreeMap<u64, u64>;

/// Names of an image's files with their bytes.
type Image = Vec<(String, Vec<u8>)>;

/// A store, and where it stands.
struct Life {
    random: Random,
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    path: PathBuf,
    model: Model,
    commits: u64,
    /// Images of this store and of its backups, of any moment, and some of another store.
    images: Vec<Image>,
    /// Backups with what was in them.
    backups: Vec<(PathBuf, Model)>,
    restored: u64,
    objects: u64,
    doubted: u64,
    ignored: u64,
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Small values stand in leaves, others in the log.
fn value(number: u64, commit: u64) -> Vec<u8> {
    let bytes = if (number + commit).is_multiple_of(5) { 1300 } else { 200 };
    (0..bytes).map(|at: u64| (at * 7 + number * 3 + commit * 11) as u8).collect()
}

fn image_of(disk: &LyingDisk, store: &Path) -> Image {
    let dir = store.join("warm");
    if disk.entry(&dir).unwrap().is_none() {
        return Image::new();
    }
    let read = |name: &str| {
        let file = disk.open(&dir.join(name), Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    disk.list(&dir).unwrap().into_iter().map(|entry| (entry.name.clone(), read(&entry.name))).collect()
}

fn put_image(disk: &LyingDisk, store: &Path, image: &Image) {
    let dir = store.join("warm");
    if disk.entry(&dir).unwrap().is_none() {
        disk.create_dir(&dir).unwrap();
    }
    for entry in disk.list(&dir).unwrap() {
        disk.remove(&dir.join(entry.name)).unwrap();
    }
    for (name, bytes) in image {
        disk.open(&dir.join(name), Open::CreateNew, Caching::Buffered).unwrap().write_at(bytes, 0).unwrap();
    }
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            disk: LyingDisk::new(seed),
            clock: Arc::new(ManualClock::new(1_780_000_000_000_000)),
            path: PathBuf::from("/store"),
            model: Model::new(),
            commits: 0,
            images: Vec::new(),
            backups: Vec::new(),
            restored: 0,
            objects: 0,
            doubted: 0,
            ignored: 0,
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    fn open(&mut self) -> (Db, Keyspace) {
        let options = Options::new()
            .memory_bytes((16 + self.random.below(3) * 8) << 20)
            .memtable_bytes(32 << 10)
            .segment_bytes(128 << 10)
            .background(false)
            .warm(!self.one_in(10))
            .warm_interval(INTERVAL)
            .world(Arc::new(self.disk.clone()), Arc::clone(&self.clock) as _);
        let db = Db::open(&self.path, options).unwrap();
        let keyspace = db.create_keyspace("objects", Retention::Latest).unwrap();
        (db, keyspace)
    }

    fn step(&mut self, db: &Db) {
        for _ in 0..self.random.below(30) {
            if !db.step().unwrap() {
                self.clock.advance(Duration::from_millis(200));
            }
        }
    }

    fn read(&mut self, db: &Db, keyspace: &Keyspace, reads: u64) {
        let snapshot = db.snapshot();
        // Some more often than others: those are hot. What has to be loaded becomes an object.
        let drops = self.one_in(2);
        for _ in 0..reads {
            if drops && self.one_in(25) {
                db.drop_pages();
            }
            let reach = 1 + self.random.below(KEYS);
            let number = self.random.below(reach);
            let found = snapshot.get(keyspace, &key(number)).unwrap();
            let wanted = self.model.get(&number).map(|&commit| value(number, commit));
            assert_eq!(found.as_deref(), wanted.as_deref(), "key {number}");
        }
    }

    fn commit(&mut self, db: &Db, keyspace: &Keyspace) {
        let mut tx = db.begin();
        self.commits += 1;
        for _ in 0..1 + self.random.below(30) {
            let number = self.random.below(KEYS);
            if self.one_in(8) {
                tx.delete(keyspace, &key(number)).unwrap();
                self.model.remove(&number);
            } else {
                tx.put(keyspace, &key(number), &value(number, self.commits)).unwrap();
                self.model.insert(number, self.commits);
            }
        }
        tx.commit().unwrap();
    }

    /// A process lives and ends somehow.
    fn live(&mut self) {
        let (db, keyspace) = self.open();
        for _ in 0..8 + self.random.below(12) {
            match self.random.below(16) {
                0..4 => self.commit(&db, &keyspace),
                4..9 => self.read(&db, &keyspace, 150),
                9..12 => self.step(&db),
                12 => self.clock.advance(INTERVAL),
                13 => db.flush().unwrap(),
                14 => db.compact().unwrap(),
                _ => {
                    let newest = db.newest();
                    let until = newest.saturating_sub(self.random.below(20)).max(1);
                    db.log().trim(until).unwrap();
                }
            }
        }
        if self.one_in(6) {
            let path = PathBuf::from(format!("/backup-{}", self.commits + 1000 * self.backups.len() as u64));
            db.backup(&path).unwrap();
            self.disk.sync_dir(Path::new("/")).unwrap();
            self.backups.push((path, self.model.clone()));
        }
        let stats = db.stats();
        self.restored += stats.warm.pages_restored;
        self.objects += stats.warm.objects_restored;
        self.doubted += stats.warm.objects_doubted;
        assert!(stats.warnings.len() <= 1, "{:?}", stats.warnings);
        self.ignored += stats.warnings.len() as u64;
        match self.random.below(3) {
            0 => db.close().unwrap(),
            1 => {
                // As a killed process leaves it; what this one still does goes to another disk.
                self.disk = self.disk.snapshot();
                drop(db);
            }
            _ => {
                self.disk.cut_power();
                drop(db);
                self.disk.restore_power();
            }
        }
    }

    /// Something happens to the image while nobody has the store open.
    fn meddle(&mut self) {
        let image = image_of(&self.disk, &self.path);
        if !image.is_empty() && self.one_in(2) {
            self.images.push(image.clone());
        }
        if self.one_in(8) && !self.backups.is_empty() {
            // An older state of the store, with the image of the newer one.
            let at = self.random.below(self.backups.len() as u64) as usize;
            (self.path, self.model) = self.backups.swap_remove(at);
            put_image(&self.disk, &self.path, &image);
        }
        match self.random.below(8) {
            0 => put_image(&self.disk, &self.path, &Image::new()),
            1 | 2 if !self.images.is_empty() => {
                let at = self.random.below(self.images.len() as u64) as usize;
                put_image(&self.disk, &self.path, &self.images[at]);
            }
            3 if !image.is_empty() && image.iter().all(|(_, bytes)| !bytes.is_empty()) => {
                let mut image = image;
                let which = self.random.below(image.len() as u64) as usize;
                let bytes = &mut image[which].1;
                let at = self.random.below(bytes.len() as u64) as usize;
                if self.one_in(2) {
                    bytes[at] ^= 1u8 << self.random.below(8)
                } else {
                    bytes.truncate(at)
                }
                put_image(&self.disk, &self.path, &image);
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        let (db, keyspace) = self.open();
        self.step(&db);
        // Objects first, before the walk has pages loaded that could answer.
        for number in 0..KEYS {
            let found = db.snapshot().get(&keyspace, &key(number)).unwrap();
            let wanted = self.model.get(&number).map(|&commit| value(number, commit));
            assert_eq!(found.as_deref(), wanted.as_deref(), "key {number}");
        }
        let all: Vec<_> = db.snapshot().range(&keyspace, ..).unwrap().map(Result::unwrap).collect();
        assert_eq!(all.len(), self.model.len());
        for (number, &commit) in &self.model {
            let found = db.snapshot().get(&keyspace, &key(*number)).unwrap();
            assert_eq!(found.as_deref(), Some(&value(*number, commit)[..]), "key {number}");
        }
        db.close().unwrap();
    }
}

/// Whatever else goes by this name.
fn foreign_image(seed: u64) -> Image {
    let mut other = Life::new(seed ^ 0xf0f0);
    for _ in 0..3 {
        other.live();
    }
    image_of(&other.disk, &other.path)
}

fn number_from(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_happens_to_the_image_every_answer_is_the_models() {
    let first = number_from("PLIMSOLL_WARM_SEED").unwrap_or(0);
    let seeds = number_from("PLIMSOLL_WARM_SEEDS").unwrap_or(6);
    let (mut pages, mut objects, mut doubted, mut ignored) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        println!("PLIMSOLL_WARM_SEED={seed} PLIMSOLL_WARM_SEEDS=1");
        let mut life = Life::new(seed);
        life.images.extend(Some(foreign_image(seed)).filter(|image| !image.is_empty()));
        for _ in 0..RESTARTS {
            life.live();
            life.meddle();
        }
        life.check();
        pages += life.restored;
        objects += life.objects;
        doubted += life.doubted;
        ignored += life.ignored;
    }
    let outcome = format!(
        "{} restarts: {pages} pages and {objects} objects restored, {doubted} objects doubted, {ignored} images ignored",
        seeds * RESTARTS
    );
    println!("{outcome}");
    let all_happened = pages > 100 && objects > 100 && doubted > 100 && ignored > 10;
    assert!(seeds < 6 || all_happened, "{outcome}");
}
