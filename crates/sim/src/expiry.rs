//! Values that expire: transactions while time passes, checked against a model.
//!
//! One or two processes with separate clocks share a store. A clock is behind or ahead of the
//! other, and is at times far ahead for a while. The power is cut, processes are killed, and
//! background work is done step by step.
//!
//! Clocks move by whole milliseconds, and each expiry lies half a millisecond between two times of
//! a clock. So no answer depends on the microseconds by which the time of a commit may differ from
//! the clock.

mod feed;
mod model;
mod transaction;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{
    Db, Durability, Error, Glsn, Keyspace, Moment, Options, Read, Retention, Snapshot, Ttl,
};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::lying::Process;
use plimsoll_disk::mutex::lock;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

use crate::driver::guarded;
use crate::expiry::feed::Feed;
use crate::expiry::model::{KEYS, Model};
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::micros_of;
use crate::op::Op;
use crate::world::{Setting, World};

/// Keyspaces and their retention: one that keeps all moments, and one that drops expired values.
const SPACES: [(&str, Retention); 2] = [("all", Retention::Forever), ("new", Retention::Latest)];

/// The most watches that a process has open.
const FEEDS_MAX: usize = 2;

/// The most snapshots that are open at a time.
const SNAPSHOTS_MAX: usize = 3;

/// The metadata of the commit by which an idle store advances its time.
const TIME_ADVANCED: &[u8] = br#"{"time_advanced":true}"#;

/// The amount by which a clock is ahead for a while.
const HOUR: Duration = Duration::from_secs(3600);

/// The time after which an idle store trusts a clock that has jumped.
const TRUSTED_AFTER: Duration = Duration::from_secs(60);

/// The least such time in a store that was opened while the clock was ahead by an hour.
const TRUSTED_AFTER_OPENING: Duration = Duration::from_secs(3000);

/// Runs a workload.
///
/// # Errors
/// A process read something other than the values that have not expired.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed)?;
        for (number, op) in ops.iter().enumerate() {
            let Op::Timed(choice) = op else { continue };
            driver.step(&mut Random::new(*choice)).map_err(|failure| failure.at(number, op))?;
        }
        driver.finish()
    })
}

/// The workload of a seed.
pub fn workload(seed: u64, ops: usize) -> Vec<Op> {
    let mut random = Random::new(seed ^ 0x0000_771e);
    (0..ops).map(|_| Op::Timed(random.next_u64())).collect()
}

/// The result of a call that must not fail.
fn done<T>(what: &str, result: plimsoll::Result<T>) -> Outcome<T> {
    result.map_err(|error| Failure::new(format!("{what} failed: {error} [{error:?}]")))
}

/// As [`done`], for work that another process may have to do, and that may fail there for lack of
/// memory.
fn upkeep(what: &str, result: plimsoll::Result<()>) -> Outcome {
    match result {
        Err(Error::NotKeeper { .. }) => Ok(()),
        result => done(what, result),
    }
}

/// A time in the store's unit.
fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// The events while a process waits for another one: time passes, and the other does its background
/// work.
struct BackgroundPeers {
    clocks: Vec<Arc<ManualClock>>,
    /// The open stores.
    stores: Mutex<Vec<Option<Db>>>,
    /// Whether a process waits. A process that waits during work for another one gets no such help.
    is_waiting: AtomicBool,
}

impl BackgroundPeers {
    fn set(&self, number: usize, db: Option<Db>) {
        lock(&self.stores)[number] = db;
    }

    fn wait(&self, number: usize, patience: Duration) {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).clamp(1, 100);
        self.clocks.iter().for_each(|clock| clock.advance(Duration::from_millis(millis)));
        if self.is_waiting.swap(true, Ordering::Relaxed) {
            return;
        }
        for other in 0..self.clocks.len() {
            let db = lock(&self.stores)[other].clone().filter(|_| other != number);
            // The process that waits reports an error.
            db.iter().for_each(|db| while let Ok(true) = db.step() {});
        }
        self.is_waiting.store(false, Ordering::Relaxed);
    }
}

/// A process that has the store open.
struct Member {
    process: Process,
    db: Db,
    spaces: Vec<Keyspace>,
    /// Its open snapshots, and the time by which each is judged.
    snapshots: Vec<(Snapshot, u64)>,
    /// Its watches that report expiries.
    feeds: Vec<Feed>,
}

/// A run.
struct Driver {
    world: World,
    /// Has the clock of each process; a clock outlives the process.
    peers: Arc<BackgroundPeers>,
    /// `None`: the process is not open.
    members: Vec<Option<Member>>,
    durability: Durability,
    next_pid: u32,
    model: Model,
}

impl Driver {
    fn new(seed: u64) -> Outcome<Self> {
        let world = World::new(seed, Setting::of_seed(seed));
        let mut random = Random::new(seed ^ 0x00c1_0c45);
        let start = world.clock.wall_micros();
        let clocks: Vec<_> = (0..1 + random.below(2))
            .map(|_| Arc::new(ManualClock::new(start + 1000 * random.below(30_000))))
            .collect();
        // A process sees the buffered commits of another only once they are durable.
        let durability = if clocks.len() > 1 { Durability::Sync } else { world.setting.durability };
        let members = clocks.iter().map(|_| None).collect();
        let stores = Mutex::new(clocks.iter().map(|_| None).collect());
        let peers =
            Arc::new(BackgroundPeers { clocks, stores, is_waiting: AtomicBool::new(false) });
        let mut driver =
            Self { world, peers, members, durability, next_pid: 1, model: Model::default() };
        driver.open_all()?;
        Ok(driver)
    }

    fn options(&self, number: usize, disk: Arc<dyn Disk>) -> Options {
        let clock = Arc::clone(&self.peers.clocks[number]);
        let options = self.world.options().durability(self.durability);
        options.shared(self.peers.clocks.len() > 1).world(disk, clock)
    }

    /// Opens the store in each process that does not have it open.
    fn open_all(&mut self) -> Outcome {
        for number in 0..self.members.len() {
            if self.members[number].is_some() {
                continue;
            }
            let (process, disk) = self.world.disk.process(self.next_pid);
            self.next_pid += 1;
            let peers = Arc::clone(&self.peers);
            process.when_idle(move |patience| peers.wait(number, patience));
            let options = self.options(number, disk);
            let db = done("open", Db::open(self.world.store_path(), options))?;
            let create = |(name, retention)| done("create", db.create_keyspace(name, retention));
            let spaces = SPACES.into_iter().map(create).collect::<Outcome<_>>()?;
            if self.model.newest == 0 {
                // The commits that have created the keyspaces.
                self.model.note(db.newest().0, self.peers.clocks[number].wall_micros());
            }
            self.absorb_marks(&db)?;
            let newest = db.newest().0;
            ensure(newest <= self.model.newest && newest >= self.model.acked, || {
                format!("opened at {newest}, acknowledged {}", self.model.acked)
            })?;
            self.model.cut_behind(newest);
            self.peers.set(number, Some(db.clone()));
            let member = Member { process, db, spaces, snapshots: Vec::new(), feeds: Vec::new() };
            self.members[number] = Some(member);
        }
        Ok(())
    }

    fn member(&self, number: usize) -> &Member {
        self.members[number].as_ref().expect("all are open between operations")
    }

    fn snapshots_of(&mut self, number: usize) -> &mut Vec<(Snapshot, u64)> {
        &mut self.members[number].as_mut().expect("all are open").snapshots
    }

    fn feeds_of(&mut self, number: usize) -> &mut Vec<Feed> {
        &mut self.members[number].as_mut().expect("all are open").feeds
    }

    /// The time by which a process judges the newest state, exact to some microseconds.
    fn now(&self, number: usize) -> u64 {
        self.peers.clocks[number].wall_micros().max(self.model.last_micros())
    }

    fn pass(&mut self, random: &mut Random) {
        let millis = match random.below(4) {
            0 => 1000 * (1 + random.below(90)),
            _ => 1 + random.below(12),
        };
        self.peers.clocks.iter().for_each(|clock| clock.advance(Duration::from_millis(millis)));
    }

    fn step(&mut self, random: &mut Random) -> Outcome {
        let number = random.below(self.members.len() as u64) as usize;
        // While a process waited for another one, the other one may have worked.
        self.absorb_marks(&self.member(number).db.clone())?;
        match random.below(34) {
            0..12 => return self.transaction(number, random),
            12..17 => self.pass(random),
            17 | 18 => upkeep("flush", self.member(number).db.flush())?,
            19 => upkeep("compact", self.member(number).db.compact())?,
            20 => return self.work(number, random),
            21 => self.rest(number, random)?,
            22 if random.below(4) == 0 => self.member(number).db.drop_caches(),
            // The next reads load pages, so that their values are cached as rows.
            22 if random.below(3) > 0 => self.member(number).db.drop_pages(),
            22 => done("memory", self.member(number).db.set_memory((16 + random.below(9)) << 20))?,
            23 => {
                self.close(number)?;
                self.open_all()?;
            }
            24 => self.crash(number, random)?,
            25 => self.lead(number, random)?,
            26 | 27 if self.member(number).snapshots.len() < SNAPSHOTS_MAX => {
                let now = self.now(number);
                let snapshot = self.member(number).db.snapshot();
                self.snapshots_of(number).push((snapshot, now));
            }
            26..29 => self.snapshots_of(number).clear(),
            29 if random.below(8) == 0 => self.feeds_of(number).clear(),
            29 if self.feeds_of(number).len() < FEEDS_MAX => self.open_feed(number, random)?,
            29 => {
                return self
                    .follow(number, [None, Some(1 + random.below(4))][random.below(2) as usize]);
            }
            32 => return self.trim(number, random),
            _ => return self.check(number, random),
        }
        Ok(())
    }

    /// Trims the log, up to the watches and sometimes a little less.
    fn trim(&mut self, number: usize, random: &mut Random) -> Outcome {
        let watched = self.members.iter().flatten().flat_map(|member| &member.feeds);
        let end = watched.map(Feed::needs).min().unwrap_or(u64::MAX).min(self.model.newest + 1);
        let until = Glsn(end.saturating_sub(random.below(3)));
        let db = self.member(number).db.clone();
        // The log is freed up to what the index has.
        upkeep("flush", db.flush())?;
        upkeep("trim", db.log().trim(until).map(drop))
    }

    /// Does background work, which may advance the log's time by a commit.
    fn work(&mut self, number: usize, random: &mut Random) -> Outcome {
        for _ in 0..1 + random.below(24) {
            let db = self.member(number).db.clone();
            let worked = done("step", db.step_from(random.below(6) as usize))?;
            self.absorb_marks(&db)?;
            if !worked {
                break;
            }
        }
        Ok(())
    }

    /// Lets the store be idle for a while.
    fn rest(&mut self, number: usize, random: &mut Random) -> Outcome {
        for _ in 0..16 {
            self.peers.clocks.iter().for_each(|clock| clock.advance(Duration::from_secs(5)));
            self.work(number, random)?;
        }
        Ok(())
    }

    /// Notes the commits by which background work has advanced the log's time.
    fn absorb_marks(&mut self, db: &Db) -> Outcome {
        while self.model.newest < db.newest().0 {
            let metadata = self.committed(db, self.model.newest + 1)?;
            same("metadata of a step", &&metadata[..], &TIME_ADVANCED)?;
        }
        Ok(())
    }

    /// Notes a commit; returns its metadata.
    fn committed(&mut self, db: &Db, glsn: u64) -> Outcome<Vec<u8>> {
        let commit = done("read", db.log().commit(Glsn(glsn)))?;
        let commit = commit.ok_or_else(|| Failure::new(format!("{glsn} is not a commit")))?;
        let micros = micros_of(commit.time());
        self.model.note(glsn, micros - micros % 1000);
        if self.durability == Durability::Sync {
            self.model.acked = glsn;
        }
        done("metadata", commit.metadata().map(<[u8]>::to_vec))
    }

    fn close(&mut self, number: usize) -> Outcome {
        let member = self.take(number);
        drop((member.snapshots, member.feeds));
        done("close", member.db.close())?;
        self.model.acked = self.model.newest;
        Ok(())
    }

    fn take(&mut self, number: usize) -> Member {
        self.peers.set(number, None);
        self.members[number].take().expect("all are open")
    }

    /// Cuts the power, or kills a process.
    fn crash(&mut self, number: usize, random: &mut Random) -> Outcome {
        if self.members.len() > 1 && random.below(2) == 0 {
            let member = self.take(number);
            member.process.kill();
            drop(member);
        } else {
            self.world.disk.cut_power();
            (0..self.members.len()).for_each(|number| drop(self.take(number)));
            self.world.disk.restore_power();
        }
        self.open_all()
    }

    /// A clock is far ahead for a while, in which the store may be opened again, does background
    /// work, and nothing is committed. When it is right again, nothing is lost.
    fn lead(&mut self, number: usize, random: &mut Random) -> Outcome {
        let clock = Arc::clone(&self.peers.clocks[number]);
        let right = clock.wall_micros();
        let begun = clock.monotonic_nanos();
        // While processes wait for each other, time passes.
        let latest = self.now(number).max(right) + HOUR.as_micros() as u64 / 2;
        clock.set_wall_micros(right + HOUR.as_micros() as u64);
        upkeep("flush", self.member(number).db.flush())?;
        let opens = random.below(3) == 0;
        if opens {
            self.close(number)?;
            self.open_all()?;
            self.rest(number, random)?;
        }
        for _ in 0..1 + random.below(3) {
            self.work(number, random)?;
            self.check(number, random)?;
        }
        clock.set_wall_micros(right);
        let last = self.model.last_micros();
        let passed = Duration::from_nanos(clock.monotonic_nanos() - begun);
        let trusted_after = if opens { TRUSTED_AFTER_OPENING } else { TRUSTED_AFTER };
        ensure(last <= latest || passed >= trusted_after, || {
            format!("an idle store commits at {last}, when a clock is ahead for a while")
        })?;
        self.check(number, random)
    }

    fn check(&mut self, number: usize, random: &mut Random) -> Outcome {
        self.follow(number, None)?;
        let (member, now) = (self.member(number), self.now(number));
        let newest = self.model.newest;
        same("newest commit", &member.db.newest().0, &newest)?;
        for (space, keyspace) in member.spaces.iter().enumerate() {
            for key in 0..KEYS as u8 {
                let lent = done("get_with", member.db.get_with(keyspace, [key], <[u8]>::to_vec))?;
                let content = self.model.content(space, key, newest, now);
                same("a lent value", &lent, &content.map(|(value, _)| value))?;
            }
        }
        self.compare(number, &member.db.snapshot(), &[0, 1], (newest, now))?;
        self.compare(number, &member.db.begin(), &[0, 1], (newest, now))?;
        for (snapshot, then) in &member.snapshots {
            let at = snapshot.at();
            self.compare(number, snapshot, &[0, 1], (at.0, *then))
                .map_err(|failure| failure.within("an open snapshot"))?;
            // Opened again, an older moment is judged by the time of its commit. If another process
            // has trimmed the log, that time may be unknown.
            let then = self.model.time_of(at.0).filter(|_| at.0 < newest);
            if let Some(then) = then.filter(|_| self.members.len() == 1) {
                let again = done("again", member.db.snapshot_at(Moment::Glsn(at)))?;
                self.compare(number, &again, &[0], (at.0, then))
                    .map_err(|failure| failure.within("an open moment, opened again"))?;
            }
        }
        if let Some((glsn, then)) = self.model.commit_at(random.next_u64()) {
            let past = done("past", member.db.snapshot_at(Moment::Glsn(Glsn(glsn))))?;
            // The newest commit is judged by the clock.
            let then = if glsn == newest { now } else { then };
            // A commit that was trimmed is judged by a later time. That another process has trimmed
            // the log is known by now.
            if glsn >= member.db.log().bounds().first.0 || glsn == newest {
                self.compare(number, &past, &[0], (glsn, then))
                    .map_err(|failure| failure.within("an earlier moment"))?;
            }
        }
        Ok(())
    }

    /// Compares everything that a source reads with the model as of a commit and a time.
    fn compare(
        &self,
        number: usize,
        source: &impl Read,
        spaces: &[usize],
        (at, now): (u64, u64),
    ) -> Outcome {
        for &space in spaces {
            let keyspace = &self.member(number).spaces[space];
            let mut wanted = Vec::new();
            for key in 0..KEYS as u8 {
                let what = |call| format!("{call} of key {key} in {} at {at}", SPACES[space].0);
                let content = self.model.content(space, key, at, now);
                let found = done("get", source.get(keyspace, [key]))?.map(|value| value.to_vec());
                same(what("get"), &found, &content.as_ref().map(|(value, _)| value.clone()))?;
                let there = done("contains", source.contains_key(keyspace, [key]))?;
                same(what("contains"), &there, &content.is_some())?;
                let expires = match done("ttl", source.ttl(keyspace, [key]))? {
                    Ttl::Absent => None,
                    Ttl::Unlimited => Some(None),
                    Ttl::Expires { at, .. } => Some(Some(at)),
                };
                let told = content.as_ref().map(|(_, expires)| expires.map(time));
                same(what("ttl"), &expires, &told)?;
                wanted
                    .extend(content.map(|(value, expires)| (vec![key], value, expires.map(time))));
            }
            for reverse in [false, true] {
                let rows = done("iter", source.iter(keyspace))?;
                let mut rows = if reverse { rows.reverse() } else { rows };
                let mut found = Vec::new();
                while let Some(row) = rows.next() {
                    let (key, value) = done("row", row)?;
                    found.push((key, value.to_vec(), rows.expires()));
                }
                let what = format!("rows of {} at {at}, reverse: {reverse}", SPACES[space].0);
                same(what, &found, &wanted)?;
                wanted.reverse();
            }
            let len = done("len", source.len(keyspace))?;
            same(format!("number of keys in {}", SPACES[space].0), &len, &(wanted.len() as u64))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        let mut random = Random::new(self.model.newest);
        for number in 0..self.members.len() {
            self.check(number, &mut random)?;
        }
        (0..self.members.len()).try_for_each(|number| self.close(number))?;
        self.open_all()?;
        self.check(0, &mut random)?;
        let report = done("verify", self.member(0).db.verify(&mut |_| {}))?;
        ensure(report.problems.is_empty(), || format!("{:?}", report.problems))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Break a cycle of references: the peers hold the stores, a store holds its process, and
        // the process holds the peers, because it calls them while it waits.
        (0..self.members.len()).for_each(|number| self.peers.set(number, None));
    }
}

/// Bytes of a value.
fn value(random: &mut Random) -> Vec<u8> {
    let len = [3, 40, 2000, 20_000][random.below(4) as usize];
    vec![random.below(256) as u8; len]
}
