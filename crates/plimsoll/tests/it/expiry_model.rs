//! Random transactions, while time passes, checked against a model of values that expire.
//!
//! The clock moves by whole milliseconds and values expire half a millisecond behind one, so that
//! the microseconds by which commits follow each other decide nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{
    Db, Durability, Error, Glsn, Keyspace, Moment, Options, Read, Retention, Snapshot, Ttl,
};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;

const START: u64 = 1_780_000_000_000_000;
const KEYS: u64 = 10;
const SPACES: [(&str, Retention); 2] = [("all", Retention::Forever), ("new", Retention::Latest)];

/// A value, and when it expires.
type Content = (Vec<u8>, Option<u64>);

/// Versions by keyspace number and key: GLSN and content, oldest first.
type Versions = BTreeMap<(usize, u8), Vec<(Glsn, Option<Content>)>>;

/// What a transaction did to a key.
#[derive(Clone)]
enum Own {
    Written(Option<Content>),
    Appended(Vec<u8>),
}

struct World {
    seed: u64,
    random: Random,
    disk: Arc<MemDisk>,
    clock: Arc<ManualClock>,
    db: Option<Db>,
    spaces: Vec<Keyspace>,
    versions: Versions,
    /// The clock at each commit.
    times: BTreeMap<Glsn, u64>,
    /// Open snapshots, and the clock when they were opened.
    snapshots: Vec<(Snapshot, u64)>,
}

fn live(content: Option<&Content>, now: u64) -> Option<Content> {
    content.filter(|(_, expires)| expires.is_none_or(|at| at > now)).cloned()
}

fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

impl World {
    fn new(seed: u64) -> Self {
        let (disk, clock) = (Arc::new(MemDisk::new()), Arc::new(ManualClock::new(START)));
        let mut world = Self {
            seed,
            random: Random::new(seed),
            disk,
            clock,
            db: None,
            spaces: Vec::new(),
            versions: Versions::new(),
            times: BTreeMap::new(),
            snapshots: Vec::new(),
        };
        world.open();
        world
    }

    fn open(&mut self) {
        self.snapshots.clear();
        if let Some(db) = self.db.take() {
            db.close().unwrap();
        }
        let options = Options::new()
            .memory_bytes(16 << 20)
            .durability(Durability::Buffered)
            .background(false)
            .world(self.disk.clone(), self.clock.clone());
        let db = Db::open("/store", options).unwrap();
        let create = |(name, retention)| db.create_keyspace(name, retention).unwrap();
        self.spaces = SPACES.map(create).to_vec();
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn now(&self) -> u64 {
        self.clock.wall_micros()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn value(&mut self) -> Vec<u8> {
        let (len, byte) = ([3, 40, 2000][self.below(3) as usize], self.below(256) as u8);
        vec![byte; len]
    }

    /// The content of a key as of a commit, if it is live at a time.
    fn content(&self, space: usize, key: u8, at: Glsn, now: u64) -> Option<Content> {
        let versions = self.versions.get(&(space, key))?;
        let (_, content) = versions.iter().rfind(|(glsn, _)| *glsn <= at)?;
        live(content.as_ref(), now)
    }

    /// Runs a transaction in the store and in the model.
    fn transaction(&mut self) {
        let (begun, at) = (self.now(), self.db().newest());
        let mut tx = self.db().begin();
        let mut own: BTreeMap<(usize, u8), Own> = BTreeMap::new();
        // The first expiry that the transaction depends on.
        let mut first = u64::MAX;
        for _ in 0..1 + self.below(4) {
            let (space, key) = (self.below(2) as usize, self.below(KEYS) as u8);
            let keyspace = self.spaces[space].clone();
            let expires = self.now() + 500 + 1000 * (1 + self.below(20));
            let value = self.value();
            let base = self.content(space, key, at, begun);
            let mut seen = |own: Option<&Own>| match own {
                Some(Own::Written(content)) => content.clone(),
                other => {
                    let expires = base.as_ref().and_then(|(_, expires)| *expires);
                    first = first.min(expires.unwrap_or(u64::MAX));
                    match (other, base.clone()) {
                        (Some(Own::Appended(more)), Some((value, expires))) => {
                            Some(([value, more.clone()].concat(), expires))
                        }
                        (Some(Own::Appended(more)), None) => Some((more.clone(), None)),
                        (_, base) => base,
                    }
                }
            };
            let before = own.get(&(space, key)).cloned();
            let written = match self.random.below(8) {
                0 => {
                    tx.put(&keyspace, [key], &value).unwrap();
                    Some(Own::Written(Some((value, None))))
                }
                1 | 2 => {
                    tx.put_expiring_at(&keyspace, [key], &value, time(expires)).unwrap();
                    Some(Own::Written(Some((value, Some(expires)))))
                }
                3 => {
                    tx.append(&keyspace, [key], &value).unwrap();
                    Some(match before {
                        None => Own::Appended(value),
                        Some(Own::Appended(more)) => Own::Appended([more, value].concat()),
                        Some(Own::Written(None)) => Own::Written(Some((value, None))),
                        Some(Own::Written(Some((old, expires)))) => {
                            Own::Written(Some(([old, value].concat(), expires)))
                        }
                    })
                }
                4 => {
                    tx.delete(&keyspace, [key]).unwrap();
                    Some(Own::Written(None))
                }
                5 => {
                    let there = tx.expire_at(&keyspace, [key], time(expires)).unwrap();
                    let wanted = seen(before.as_ref());
                    assert_eq!(there, wanted.is_some(), "seed {}", self.seed);
                    // An expiry that stays the same is not written.
                    let is_pending = matches!(before, Some(Own::Appended(_)));
                    let changed = wanted.filter(|(_, old)| is_pending || *old != Some(expires));
                    changed.map(|(value, _)| Own::Written(Some((value, Some(expires)))))
                }
                6 => {
                    let there = tx.persist(&keyspace, [key]).unwrap();
                    let wanted = seen(before.as_ref());
                    assert_eq!(there, wanted.is_some(), "seed {}", self.seed);
                    match (wanted, &before) {
                        (Some((_, None)), None | Some(Own::Written(_))) => None,
                        (wanted, _) => wanted.map(|(value, _)| Own::Written(Some((value, None)))),
                    }
                }
                _ => {
                    let found = tx.get(&keyspace, [key]).unwrap().map(|value| value.to_vec());
                    let wanted = seen(before.as_ref()).map(|(value, _)| value);
                    assert_eq!(found, wanted, "seed {}", self.seed);
                    None
                }
            };
            if let Some(written) = written {
                own.insert((space, key), written);
            }
        }
        if self.below(3) == 0 {
            self.pass();
        }
        let committed = tx.commit();
        if own.is_empty() {
            committed.unwrap();
            return;
        }
        if first <= self.now() {
            let is_conflict = matches!(committed, Err(Error::Conflict { .. }));
            assert!(is_conflict, "seed {}: {committed:?}", self.seed);
            return;
        }
        let glsn = committed.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        self.times.insert(glsn, self.now());
        for ((space, key), own) in own {
            let content = match own {
                Own::Written(content) => content,
                Own::Appended(more) => match self.content(space, key, at, self.now()) {
                    Some((value, expires)) => Some(([value, more].concat(), expires)),
                    None => Some((more, None)),
                },
            };
            self.versions.entry((space, key)).or_default().push((glsn, content));
        }
    }

    fn pass(&mut self) {
        let millis = 1 + self.below(12);
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Compares everything that a source reads with the model as of a commit and a time.
    fn check(&self, source: &impl Read, spaces: &[usize], at: Glsn, now: u64) {
        for &space in spaces {
            let (keyspace, seed) = (&self.spaces[space], self.seed);
            let mut wanted = Vec::new();
            for key in 0..KEYS as u8 {
                let content = self.content(space, key, at, now);
                let found = source.get(keyspace, [key]).unwrap().map(|value| value.to_vec());
                let value = content.as_ref().map(|(value, _)| value.clone());
                assert_eq!(found, value, "seed {seed}, key {key} of {space} at {at}");
                assert_eq!(source.contains_key(keyspace, [key]).unwrap(), content.is_some());
                let expires = match source.ttl(keyspace, [key]).unwrap() {
                    Ttl::Absent => None,
                    Ttl::Unlimited => Some(None),
                    Ttl::Expires { at, .. } => Some(Some(at)),
                };
                let told = content.as_ref().map(|(_, expires)| expires.map(time));
                assert_eq!(expires, told, "seed {seed}, key {key} of {space} at {at}");
                wanted.extend(content.map(|(value, expires)| (vec![key], value, expires)));
            }
            for reverse in [false, true] {
                let rows = source.iter(keyspace).unwrap();
                let mut rows = if reverse { rows.reverse() } else { rows };
                let mut found = Vec::new();
                while let Some(row) = rows.next() {
                    let (key, value) = row.unwrap();
                    let micros =
                        |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
                    found.push((key, value.to_vec(), rows.expires().map(micros)));
                }
                assert_eq!(found, wanted, "seed {seed}, {space} at {at}, {reverse}");
                wanted.reverse();
            }
            assert_eq!(source.len(keyspace).unwrap(), wanted.len() as u64, "seed {seed}");
        }
    }

    fn check_all(&mut self) {
        let (newest, now) = (self.db().newest(), self.now());
        self.check(&self.db().snapshot(), &[0, 1], newest, now);
        self.check(&self.db().begin(), &[0, 1], newest, now);
        for (snapshot, then) in &self.snapshots {
            self.check(snapshot, &[0, 1], snapshot.at(), *then);
        }
        let commits: Vec<_> = self.times.iter().map(|(glsn, then)| (*glsn, *then)).collect();
        if let Some(pick) = (self.below(commits.len() as u64 + 1) as usize).checked_sub(1) {
            let (glsn, then) = commits[pick];
            let past = self.db().snapshot_at(Moment::Glsn(glsn)).unwrap();
            // The newest commit is judged by the clock.
            self.check(&past, &[0], glsn, if glsn == newest { now } else { then });
        }
    }

    fn step(&mut self) {
        match self.below(24) {
            0..10 => self.transaction(),
            10..14 => self.pass(),
            14..16 => self.db().flush().unwrap(),
            16 => self.db().compact().unwrap(),
            17 | 18 => while self.db().step().unwrap() {},
            19 => self.db().drop_caches(),
            20 => self.open(),
            21 if self.snapshots.len() < 3 => {
                let opened = (self.db().snapshot(), self.now());
                self.snapshots.push(opened);
            }
            21 | 22 => self.snapshots.clear(),
            _ => self.check_all(),
        }
    }
}

#[test]
fn random_transactions_see_what_has_not_expired() {
    for seed in 0..30 {
        let mut world = World::new(seed);
        (0..400).for_each(|_| world.step());
        world.check_all();
        world.open();
        world.check_all();
        let report = world.db().verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "seed {seed}: {:?}", report.problems);
    }
}
