//! The invariant of the warm image: every read matches the model, whatever happens to the image.
//! The image is dropped, damaged, replaced by an older one or one of another store or moment,
//! restored with a backup, and used under other budgets, after commits, trims, kills and power
//! cuts. Reads are made at the newest moment and at earlier ones, in a keyspace that keeps all
//! versions and in one that keeps the newest. Every fourth store works in threads, by the real
//! clock.
//!
//! `PLIMSOLL_WARM_SEEDS` sets how many lives of a store are simulated (24 restarts each),
//! `PLIMSOLL_WARM_SEED` the seed of the first.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Retention};
use plimsoll_disk::clock::{Clock, ManualClock, SystemClock};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

const KEYS: u64 = 600;
const RESTARTS: u64 = 24;
const INTERVAL: Duration = Duration::from_secs(5);

/// For stores that work in threads: short enough that several intervals fit into a life of some
/// milliseconds.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);

/// The longest waits for an image to be restored, and for the next one to be written; there may be
/// nothing to write.
const RESTORE_MAX: Duration = Duration::from_secs(60);
const SAVE_MAX: Duration = Duration::from_millis(500);

/// The number of moments that are remembered.
const MOMENTS: usize = 12;

/// Keyspaces: their names and retentions.
const KEYSPACES: [(&str, Retention); 2] =
    [("objects", Retention::Latest), ("all", Retention::Forever)];

/// For each key of each keyspace, the number of the commit that put it.
type State = BTreeMap<(usize, u64), u64>;

/// The newest state and earlier ones, with the GLSNs from which on they are valid.
#[derive(Clone, Default)]
struct Model {
    now: State,
    moments: VecDeque<(u64, State)>,
}

impl Model {
    fn commit(&mut self, glsn: u64) {
        self.moments.push_back((glsn, self.now.clone()));
        if self.moments.len() > MOMENTS {
            self.moments.pop_front();
        }
    }
}

/// Names of an image's files with their bytes.
type Image = Vec<(String, Vec<u8>)>;

/// A store and its surroundings.
struct Life {
    random: Random,
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    threads: bool,
    path: PathBuf,
    model: Model,
    commits: u64,
    /// Images of this store and of its backups, at any moment, and some of another store.
    images: Vec<Image>,
    /// Backups with their contents.
    backups: Vec<(PathBuf, Model)>,
    backups_made: u32,
    seen: Seen,
}

/// Counts of the situations that occurred.
#[derive(Debug, Default)]
struct Seen {
    restored: u64,
    objects: u64,
    stale: u64,
    ignored: u64,
    /// Reads of an earlier moment that succeeded, and those that were refused.
    earlier: u64,
    trimmed: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.restored += other.restored;
        self.objects += other.objects;
        self.stale += other.stale;
        self.ignored += other.ignored;
        self.earlier += other.earlier;
        self.trimmed += other.trimmed;
    }
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Small values are in leaves, others in the log.
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
    disk.list(&dir)
        .unwrap()
        .into_iter()
        .map(|entry| (entry.name.clone(), read(&entry.name)))
        .collect()
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
        disk.open(&dir.join(name), Open::CreateNew, Caching::Buffered)
            .unwrap()
            .write_at(bytes, 0)
            .unwrap();
    }
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            disk: LyingDisk::new(seed),
            clock: Arc::new(ManualClock::new(1_780_000_000_000_000)),
            threads: seed % 4 == 3,
            path: PathBuf::from("/store"),
            model: Model::default(),
            commits: 0,
            images: Vec::new(),
            backups: Vec::new(),
            backups_made: 0,
            seen: Seen::default(),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    fn open(&mut self) -> (Db, [Keyspace; 2]) {
        let clock: Arc<dyn Clock> =
            if self.threads { Arc::new(SystemClock::new()) } else { Arc::clone(&self.clock) as _ };
        let options = Options::new()
            .memory_bytes((16 + self.random.below(3) * 8) << 20)
            .memtable_bytes(32 << 10)
            .segment_bytes(128 << 10)
            .background(self.threads)
            .warm(!self.one_in(10))
            .warm_interval(if self.threads { SHORT_INTERVAL } else { INTERVAL })
            .world(Arc::new(self.disk.clone()), clock);
        let db = Db::open(&self.path, options).unwrap();
        let keyspaces =
            KEYSPACES.map(|(name, retention)| db.create_keyspace(name, retention).unwrap());
        (db, keyspaces)
    }

    fn step(&mut self, db: &Db) {
        if self.threads {
            std::thread::sleep(Duration::from_millis(self.random.below(20)));
            return;
        }
        for _ in 0..self.random.below(30) {
            if !db.step().unwrap() {
                self.clock.advance(Duration::from_millis(200));
            }
        }
    }

    fn read(&mut self, db: &Db, keyspaces: &[Keyspace; 2], reads: u64) {
        let (at, snapshot) = match self.model.moments.len() as u64 {
            moments if moments > 0 && self.one_in(3) => {
                let at = self.random.below(moments) as usize;
                (Some(at), db.snapshot_at(Moment::Glsn(Glsn(self.model.moments[at].0))).unwrap())
            }
            _ => (None, db.snapshot()),
        };
        // Some keys are read more often than others, which makes them hot. A key that has to be
        // loaded becomes a row.
        let drops = self.one_in(2);
        for _ in 0..reads {
            if drops && self.one_in(25) {
                db.drop_pages();
            }
            let (space, reach) = (self.random.below(2) as usize, 1 + self.random.below(KEYS));
            let number = self.random.below(reach);
            let state = at.map_or(&self.model.now, |at| &self.model.moments[at].1);
            let wanted = state.get(&(space, number)).map(|&commit| value(number, commit));
            match snapshot.get(&keyspaces[space], &key(number)) {
                Err(Error::Trimmed { .. }) if at.is_some() => self.seen.trimmed += 1,
                found => {
                    self.seen.earlier += u64::from(at.is_some());
                    assert_eq!(
                        found.unwrap().as_deref(),
                        wanted.as_deref(),
                        "keyspace {space}, key {number}, {at:?}"
                    );
                }
            }
        }
    }

    fn commit(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
        let mut tx = db.begin();
        self.commits += 1;
        for _ in 0..1 + self.random.below(30) {
            let (space, number) = (self.random.below(2) as usize, self.random.below(KEYS));
            if self.one_in(8) {
                tx.delete(&keyspaces[space], &key(number)).unwrap();
                self.model.now.remove(&(space, number));
            } else {
                tx.put(&keyspaces[space], &key(number), &value(number, self.commits)).unwrap();
                self.model.now.insert((space, number), self.commits);
            }
        }
        let glsn = tx.commit().unwrap();
        self.model.commit(glsn.0);
    }

    /// A process opens the store, works, and ends in one of several ways.
    fn live(&mut self) {
        let (db, keyspaces) = self.open();
        for _ in 0..8 + self.random.below(12) {
            match self.random.below(16) {
                0..4 => self.commit(&db, &keyspaces),
                4..9 => self.read(&db, &keyspaces, 150),
                9..12 => self.step(&db),
                12 => self.clock.advance(INTERVAL),
                13 => db.flush().unwrap(),
                14 => db.compact().unwrap(),
                _ => {
                    let newest = db.newest();
                    let until = newest.saturating_sub(self.random.below(20)).max(Glsn(1));
                    db.log().trim(until).unwrap();
                }
            }
        }
        if self.one_in(6) {
            self.backups_made += 1;
            let path = PathBuf::from(format!("/backup-{}", self.backups_made));
            db.backup(&path).unwrap();
            self.backups.push((path, self.model.clone()));
        }
        if self.threads && !self.one_in(3) {
            // On a busy machine its threads may not have run yet, and the restore pauses.
            let waits_for_save = self.one_in(2);
            let begun = Instant::now();
            let is_due = || match db.stats().warm {
                warm if warm.restoring => begun.elapsed() < RESTORE_MAX,
                warm => waits_for_save && warm.bytes_written == 0 && begun.elapsed() < SAVE_MAX,
            };
            while is_due() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let stats = db.stats();
        self.seen.restored += stats.warm.pages_restored;
        self.seen.objects += stats.warm.rows_restored;
        self.seen.stale += stats.warm.rows_stale;
        assert!(stats.warnings.len() <= 1, "{:?}", stats.warnings);
        self.seen.ignored += stats.warnings.len() as u64;
        match self.random.below(3) {
            0 => db.close().unwrap(),
            1 => {
                // The disk as a killed process leaves it; later writes of this process go to
                // another disk.
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

    /// Changes the image while no process has the store open.
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
        let (db, keyspaces) = self.open();
        self.step(&db);
        // Gets first, before the scan loads pages that could answer.
        for (space, keyspace) in keyspaces.iter().enumerate() {
            for number in 0..KEYS {
                let found = db.snapshot().get(keyspace, &key(number)).unwrap();
                let wanted =
                    self.model.now.get(&(space, number)).map(|&commit| value(number, commit));
                assert_eq!(found.as_deref(), wanted.as_deref(), "keyspace {space}, key {number}");
            }
            let all: Vec<_> =
                db.snapshot().range(keyspace, ..).unwrap().map(Result::unwrap).collect();
            assert_eq!(all.len(), self.model.now.keys().filter(|(of, _)| *of == space).count());
        }
        for (&(space, number), &commit) in &self.model.now {
            let found = db.snapshot().get(&keyspaces[space], &key(number)).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&value(number, commit)[..]),
                "keyspace {space}, key {number}"
            );
        }
        db.close().unwrap();
    }
}

/// An image of another store under the same name.
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
fn every_read_matches_the_model_whatever_happens_to_the_image() {
    let first = number_from("PLIMSOLL_WARM_SEED").unwrap_or(0);
    let seeds = number_from("PLIMSOLL_WARM_SEEDS").unwrap_or(6);
    let (mut by_steps, mut in_threads) = (Seen::default(), Seen::default());
    let mut lives = 0;
    // How much happens in threads depends on the machine; if it was too little, some more lives are
    // run.
    let is_enough =
        |lives: u64, in_threads: &Seen| lives >= seeds && (seeds < 6 || in_threads.objects > 10);
    while !is_enough(lives, &in_threads) && lives < seeds + 8 {
        // The additional lives work in threads.
        let seed = if lives < seeds { first + lives } else { 4 * lives + 3 };
        println!("PLIMSOLL_WARM_SEED={seed} PLIMSOLL_WARM_SEEDS=1");
        let mut life = Life::new(seed);
        life.images.extend(Some(foreign_image(seed)).filter(|image| !image.is_empty()));
        for _ in 0..RESTARTS {
            life.live();
            life.meddle();
        }
        life.check();
        if life.threads { &mut in_threads } else { &mut by_steps }.add(&life.seen);
        lives += 1;
    }
    let outcome = format!(
        "{} restarts; by steps: {by_steps:?}; in threads: {in_threads:?}",
        lives * RESTARTS
    );
    println!("{outcome}");
    let all_happened = by_steps.restored > 30
        && by_steps.objects > 100
        && by_steps.stale > 100
        && by_steps.ignored > 10
        && by_steps.earlier > 1000
        && by_steps.trimmed > 10
        && in_threads.objects > 10;
    assert!(seeds < 6 || all_happened, "{outcome}");
}
