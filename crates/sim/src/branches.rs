//! Branches, merges and tags, checked against a model that knows every commit and its parents.
//!
//! One or two processes share a store, create, rename and delete branches, and write to them, one
//! at a time. Snapshots, transactions and iterators stay open meanwhile. Keys have values that
//! expire. The power is cut and processes are killed, between calls and within them; the recovered
//! state must be that after one of the commits, and no acknowledged one may be lost.
//!
//! Clocks move by whole milliseconds, and each expiry lies half a millisecond between two times of
//! a clock, as in [`crate::expiry`].

mod changes;
mod checks;
mod failing;
mod histories;
mod json;
mod merging;
mod model;
mod registry;
mod rules;
mod transaction;
mod undoing;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{Branch, Db, Durability, Error, Glsn, Keyspace, Retention, Snapshot};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::lying::{AtChange, Process};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::random::Random;

use crate::branches::checks::ReadState;
use crate::branches::histories::Hashes;
use crate::branches::model::{
    Content, Effect, JSON, KEYS, MAIN, Model, NUMBERS, Place, SPACES, TEXTS, Writes,
};
use crate::branches::transaction::OpenTx;
use crate::branches::watching::Watch;
use crate::driver::guarded;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::micros_of;
use crate::op::Op;
use crate::world::{Setting, World};

/// The names of the keyspaces. The first one has the retention of the run.
const NAMES: [&str; SPACES] = ["kept", "new", "numbers", "texts", "json"];

/// The metadata of the commit by which an idle store advances its time.
const TIME_ADVANCED: &[u8] = br#"{"time_advanced":true}"#;

/// The most snapshots, and the most transactions, that a process has open.
const OPEN_MAX: usize = 3;

/// Runs a workload.
///
/// # Errors
/// A process read something that differs from the model.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed)?;
        for (number, op) in ops.iter().enumerate() {
            let Op::Branching(choice) = op else { continue };
            driver.step(&mut Random::new(*choice)).map_err(|failure| failure.at(number, op))?;
        }
        driver.finish()
    })
}

/// The workload of a seed.
pub fn workload(seed: u64, ops: usize) -> Vec<Op> {
    let mut random = Random::new(seed ^ 0x00b2_a2c4);
    (0..ops).map(|_| Op::Branching(random.next_u64())).collect()
}

/// Why a step did not end.
enum StepError {
    /// A call failed, as it does after a crash.
    Call(Failure),
    /// The store differs from the model.
    Wrong(Failure),
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> Self {
        Self::Wrong(failure)
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Call(failure) | StepError::Wrong(failure) => failure,
        }
    }
}

type Step<T = ()> = Result<T, StepError>;

/// The result of a call that fails only after a crash.
fn done<T>(what: &str, result: plimsoll::Result<T>) -> Step<T> {
    let failed = |error| Failure::new(format!("{what} failed: {error} [{error:?}]"));
    result.map_err(|error| StepError::Call(failed(error)))
}

/// As [`done`], for work that another process may have to do, and that may fail there for lack of
/// memory.
fn upkeep<T>(what: &str, result: plimsoll::Result<T>) -> Step {
    match result {
        Err(Error::NotKeeper { .. }) => Ok(()),
        result => done(what, result).map(drop),
    }
}

/// A time in the store's unit.
fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// The events while a process waits for another one: time passes, and the other does its background
/// work.
struct BackgroundPeers {
    clock: Arc<ManualClock>,
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
        self.clock.advance(Duration::from_millis(millis));
        if self.is_waiting.swap(true, Ordering::Relaxed) {
            return;
        }
        let others: Vec<Db> = {
            let stores = lock(&self.stores);
            let others = stores.iter().enumerate().filter(|(other, _)| *other != number);
            others.filter_map(|(_, db)| db.clone()).collect()
        };
        // The process that waits reports an error.
        others.iter().for_each(|db| while let Ok(true) = db.step() {});
        self.is_waiting.store(false, Ordering::Relaxed);
    }
}

/// A process that has the store open.
struct Member {
    process: Process,
    db: Db,
    spaces: Vec<Keyspace>,
    /// Branches that it keeps open, by their number in the model.
    handles: BTreeMap<usize, Branch>,
    snapshots: Vec<(Snapshot, ReadState)>,
    /// Iterators, and the rows that are left.
    walks: Vec<checks::Walk>,
    txs: Vec<OpenTx>,
}

/// A run.
struct Driver {
    world: World,
    peers: Arc<BackgroundPeers>,
    /// `None`: the process is not open.
    members: Vec<Option<Member>>,
    durability: Durability,
    /// The retention of the first keyspace.
    retention: Retention,
    next_pid: u32,
    model: Model,
    /// The effect of a commit that was begun.
    doubt: Option<Effect>,
    /// Whether branches are created at earlier moments.
    has_late_forks: bool,
    /// Whether the last call of a merge failed because the state that it reads is not retained.
    is_trimmed: bool,
    watches: Vec<Watch>,
    hashes: Hashes,
}

impl Driver {
    fn new(seed: u64) -> Outcome<Self> {
        let mut world = World::new(seed, Setting::of_seed(seed));
        let mut random = Random::new(seed ^ 0x00b2_c4e5);
        let count = 1 + random.below(2) as usize;
        let retention =
            [Retention::Latest, Retention::Glsns(20), Retention::Forever][random.below(3) as usize];
        if random.below(2) == 0 {
            // Most runs are smaller than a memtable of the usual settings.
            world.setting.memtable_bytes = 16 << 10;
        }
        // A process sees the buffered commits of another only once they are durable.
        let durability = if count > 1 { Durability::Sync } else { world.setting.durability };
        let peers = Arc::new(BackgroundPeers {
            clock: Arc::clone(&world.clock),
            stores: Mutex::new(vec![None; count]),
            is_waiting: AtomicBool::new(false),
        });
        let members = (0..count).map(|_| None).collect();
        let mut driver = Self {
            world,
            peers,
            members,
            durability,
            retention,
            next_pid: 1,
            model: Model::new(),
            doubt: None,
            has_late_forks: random.below(2) == 0,
            is_trimmed: false,
            watches: Vec::new(),
            hashes: Hashes::default(),
        };
        driver.open_all()?;
        Ok(driver)
    }

    /// Opens the store in each process that does not have it open.
    fn open_all(&mut self) -> Step {
        for number in 0..self.members.len() {
            if self.members[number].is_some() {
                continue;
            }
            let (process, disk) = self.world.disk.process(self.next_pid);
            self.next_pid += 1;
            let peers = Arc::clone(&self.peers);
            process.when_idle(move |patience| peers.wait(number, patience));
            let options = self.world.options().durability(self.durability);
            let options = options.retention(Retention::Latest).shared(self.members.len() > 1);
            let options = options.world(disk, Arc::clone(&self.world.clock) as _);
            let db = done("open", Db::open(self.world.store_path(), options))?;
            let create = |(space, name): (usize, &&str)| {
                let retention = if space == 0 { self.retention } else { Retention::Latest };
                done("create", db.create_keyspace(name, retention))
            };
            if self.members.len() > 1 {
                // A commit that a killed process has ordered may become durable only now.
                done("sync", db.sync())?;
            }
            let spaces = NAMES.iter().enumerate().map(create).collect::<Step<_>>()?;
            let newest = db.newest().0;
            if self.model.newest == 0 {
                // The commits that have created the keyspaces.
                self.model.note(newest, self.world.clock.wall_micros());
                self.model.acked = newest;
            }
            ensure(newest >= self.model.acked, || {
                format!("opened at {newest}, acknowledged {}", self.model.acked)
            })?;
            self.absorb(&db)?;
            if self.members.len() == 1 {
                // A commit that is not there now does not come back.
                self.doubt = None;
            }
            self.model.cut_behind(newest);
            self.cut_watches();
            self.peers.set(number, Some(db.clone()));
            self.members[number] = Some(Member {
                process,
                db,
                spaces,
                handles: BTreeMap::new(),
                snapshots: Vec::new(),
                walks: Vec::new(),
                txs: Vec::new(),
            });
        }
        Ok(())
    }

    fn member(&self, number: usize) -> &Member {
        self.members[number].as_ref().expect("all are open between operations")
    }

    fn member_mut(&mut self, number: usize) -> &mut Member {
        self.members[number].as_mut().expect("all are open between operations")
    }

    /// The time by which a process judges the newest state, exact to some microseconds.
    fn now(&self) -> u64 {
        self.world.clock.wall_micros().max(self.model.last_micros())
    }

    fn pass(&mut self, random: &mut Random) {
        let millis = match random.below(4) {
            0 => 1000 * (1 + random.below(90)),
            _ => 1 + random.below(12),
        };
        self.world.clock.advance(Duration::from_millis(millis));
    }

    /// Whether a process was killed.
    fn is_killed(&self) -> bool {
        self.members.iter().flatten().any(|member| member.process.is_dead())
    }

    /// Whether the power is cut, or a process was killed.
    fn is_down(&self) -> bool {
        let is_down =
            |member: &Option<Member>| member.as_ref().is_none_or(|member| member.process.is_dead());
        self.world.disk.power_is_cut() || self.members.iter().any(is_down)
    }

    fn step(&mut self, random: &mut Random) -> Outcome {
        match self.act(random) {
            Err(StepError::Call(_)) if self.is_down() => {}
            // The reads of a killed process are unknown.
            Err(StepError::Wrong(_)) if self.is_killed() => {}
            ended => ended?,
        }
        while self.is_down() {
            match self.recover(random) {
                Err(StepError::Call(_)) if self.is_down() => {}
                Err(StepError::Wrong(_)) if self.is_killed() => {}
                ended => ended?,
            }
        }
        Ok(())
    }

    fn act(&mut self, random: &mut Random) -> Step {
        let number = random.below(self.members.len() as u64) as usize;
        // While a process waited for another one, the other one may have worked.
        let db = self.member(number).db.clone();
        self.absorb(&db)?;
        match random.below(86) {
            0..14 => self.change(number, random),
            14..20 => self.transaction(number, random),
            20..23 => self.begin(number, random),
            23..27 => self.go_on(number, random),
            27..30 => self.commit_open(number, random),
            30..34 => self.create(number, random),
            34 => self.rename(number, random),
            35..37 => self.delete(number, random),
            37..44 => self.merge(number, random),
            44 => upkeep("flush", db.flush()),
            45 => upkeep("compact", db.compact()),
            46 => self.work(number, random),
            47 => {
                let until = self.model.newest + 1 - random.below(3).min(self.model.newest);
                upkeep("trim", db.log().trim(Glsn(until)))
            }
            48 => {
                self.pass(random);
                Ok(())
            }
            49 => self.spare(number, random),
            50 | 51 => self.hold(number, random),
            52 => {
                let member = self.member_mut(number);
                member.snapshots.clear();
                member.walks.clear();
                member.handles.clear();
                Ok(())
            }
            53 | 54 => self.tag(number, random),
            55 => {
                self.close(number)?;
                self.open_all()
            }
            56 => {
                self.crash(number, random);
                Ok(())
            }
            57 | 58 => {
                self.arm(number, random);
                Ok(())
            }
            64..67 => self.pick(number, random),
            67..70 => self.revert(number, random),
            70 | 71 => self.reset(number, random),
            72..74 => self.watch(number, random),
            74..76 => self.poll_watches(random),
            76..80 => self.check_histories(number, random),
            80..84 => self.failing(number, random),
            84 | 85 => self.delete_then_cut(number, random),
            _ => self.check(number, random),
        }
    }

    /// Frees memory, or makes buffered commits durable.
    fn spare(&mut self, number: usize, random: &mut Random) -> Step {
        let db = self.member(number).db.clone();
        match random.below(6) {
            0 => db.drop_caches(),
            1 | 2 => db.drop_pages(),
            3 if self.members.len() == 1 => {
                done("memory", db.set_memory((16 + random.below(9)) << 20))?;
            }
            _ => {
                done("sync", db.sync())?;
                self.model.acked = self.model.newest;
            }
        }
        Ok(())
    }

    /// Does background work, which may advance the log's time by a commit.
    fn work(&mut self, number: usize, random: &mut Random) -> Step {
        let db = self.member(number).db.clone();
        for _ in 0..1 + random.below(24) {
            let worked = done("step", db.step_from(random.below(6) as usize))?;
            self.absorb(&db)?;
            if !worked {
                break;
            }
        }
        Ok(())
    }

    /// Runs a call that commits once with this effect, or not at all if it fails.
    fn commit<T>(
        &mut self,
        number: usize,
        what: &str,
        effect: Effect,
        call: impl FnOnce(&Db) -> plimsoll::Result<T>,
    ) -> Step<T> {
        let db = self.member(number).db.clone();
        self.doubt = Some(effect);
        let result = done(what, call(&db))?;
        self.acknowledge(number)?;
        self.absorb(&db)?;
        ensure(self.doubt.is_none(), || format!("{what} has not committed: {:?}", self.doubt))?;
        Ok(result)
    }

    /// Notes that a process has acknowledged the commit that was begun.
    fn acknowledge(&mut self, number: usize) -> Step {
        if self.member(number).process.is_dead() {
            // No process has seen it.
            return Err(StepError::Call(Failure::new("the process is dead")));
        }
        if self.durability == Durability::Sync {
            self.model.acked = self.model.acked.max(self.model.newest + 1);
        }
        Ok(())
    }

    /// Notes new commits: the one that was begun, and those by which background work has advanced
    /// the log's time.
    fn absorb(&mut self, db: &Db) -> Step {
        self.absorb_upto(db, db.newest().0)
    }

    fn absorb_upto(&mut self, db: &Db, newest: u64) -> Step {
        while self.model.newest < newest {
            let glsn = self.model.newest + 1;
            let commit = match db.log().commit(Glsn(glsn)) {
                // A compaction within a merge has freed the log.
                Err(Error::Trimmed { .. }) if self.doubt.is_some() => {
                    let (micros, effect) = (self.now(), self.doubt.take());
                    effect.into_iter().for_each(|effect| self.model.apply(glsn, micros, effect));
                    continue;
                }
                commit => done("read", commit)?,
            };
            let commit = commit.ok_or_else(|| Failure::new(format!("{glsn} is not a commit")))?;
            let micros = micros_of(commit.time());
            let micros = micros - micros % 1000;
            if done("metadata", commit.metadata())? == TIME_ADVANCED {
                self.model.note(glsn, micros);
            } else {
                let unknown = || Failure::new(format!("nothing has made the commit {glsn}"));
                let effect = self.doubt.take().ok_or_else(unknown)?;
                self.model.apply(glsn, micros, effect);
            }
            if self.durability == Durability::Sync {
                self.model.acked = glsn;
            }
        }
        Ok(())
    }

    /// A branch as a process knows it.
    fn branch(&self, number: usize, branch: usize) -> Step<Branch> {
        let member = self.member(number);
        if let Some(handle) = member.handles.get(&branch) {
            return Ok(handle.clone());
        }
        let name = self.model.lines[branch].name().expect("the branch exists");
        done("branch", member.db.branch(name))
    }

    /// One of the branches that exist, mostly a young one.
    fn some_branch(&self, random: &mut Random) -> usize {
        let alive = self.model.alive();
        alive[random.below(alive.len() as u64) as usize]
    }

    fn close(&mut self, number: usize) -> Step {
        let db = self.take(number).db.clone();
        done("close", db.close())?;
        self.model.acked = self.model.newest;
        Ok(())
    }

    fn take(&mut self, number: usize) -> Member {
        self.peers.set(number, None);
        let mut member = self.members[number].take().expect("all are open");
        self.stop_watches(number);
        member.snapshots.clear();
        member.walks.clear();
        member.txs.clear();
        member.handles.clear();
        member
    }

    /// Cuts the power, or kills a process.
    fn crash(&mut self, number: usize, random: &mut Random) {
        if self.members.len() > 1 && random.below(2) == 0 {
            self.member(number).process.kill();
        } else {
            self.world.disk.cut_power();
        }
    }

    /// Cuts the power, or kills a process, within one of the next calls.
    fn arm(&mut self, number: usize, random: &mut Random) {
        let nth = 1 + random.below(30);
        if self.members.len() > 1 && random.below(2) == 0 {
            let change = AtChange { nth, later: random.below(4) };
            self.member(number).process.kill_at_change(change);
        } else {
            self.world.disk.cut_power_at_change(nth);
        }
    }

    /// Opens the store again after a crash, in which the power may be cut again.
    fn recover(&mut self, random: &mut Random) -> Step {
        if self.world.disk.power_is_cut() {
            let open = (0..self.members.len()).filter(|number| self.members[*number].is_some());
            open.collect::<Vec<_>>().into_iter().for_each(|number| drop(self.take(number)));
            self.world.disk.restore_power();
            if random.below(3) == 0 {
                self.world.disk.cut_power_at_change(1 + random.below(40));
            }
        }
        for number in 0..self.members.len() {
            if self.members[number].as_ref().is_some_and(|member| member.process.is_dead()) {
                drop(self.take(number));
            }
        }
        self.open_all()?;
        for number in 0..self.members.len() {
            self.check_all(number)?;
        }
        self.resolve()
    }

    /// Determines whether a commit that a killed process has begun is in the log; if so, it
    /// precedes the next one.
    fn resolve(&mut self) -> Step {
        let Some(doubt) = self.doubt.take() else { return Ok(()) };
        self.arm_nothing();
        let (db, space) = (self.member(0).db.clone(), self.member(0).spaces[0].clone());
        let content = Content::new(b"resolved".to_vec(), None);
        let glsn = done("put", db.put(&space, [0], &content.value[..]))?.0;
        let writes = Writes::from([((0, 0), Some(content))]);
        let own = Effect::Write { branch: MAIN, writes, touched: BTreeSet::new() };
        for at in self.model.newest + 1..=glsn {
            self.doubt = Some(if at == glsn { own.clone() } else { doubt.clone() });
            self.absorb_upto(&db, at)?;
        }
        self.doubt = None;
        for number in 0..self.members.len() {
            self.check_all(number)?;
        }
        Ok(())
    }

    /// Lets no call be interrupted.
    fn arm_nothing(&self) {
        self.world.disk.cut_power_at_change(u64::MAX);
        for member in self.members.iter().flatten() {
            member.process.kill_at(u64::MAX);
            member.process.kill_at_change(AtChange { nth: u64::MAX, later: 0 });
        }
    }

    fn finish(&mut self) -> Outcome {
        self.arm_nothing();
        let random = &mut Random::new(self.model.newest);
        for number in 0..self.members.len() {
            self.check_all(number)?;
        }
        self.poll_watches(random)?;
        (0..self.members.len()).try_for_each(|number| self.close(number))?;
        self.open_all()?;
        self.check_all(0)?;
        self.poll_watches(random)?;
        self.check_histories(0, random)?;
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

/// A value for a key.
fn value((space, key): Place, random: &mut Random) -> Vec<u8> {
    match space {
        NUMBERS => random.below(1000).to_le_bytes().to_vec(),
        TEXTS => rules::text_of(std::array::from_fn(|_| random.below(3) as u16)),
        JSON => json::value(key, random),
        _ => {
            let len = [3, 40, 2000, 20_000][random.below(4) as usize];
            vec![random.below(256) as u8; len]
        }
    }
}

/// A keyspace and a key.
fn place(random: &mut Random) -> (usize, u8) {
    (random.below(SPACES as u64) as usize, random.below(KEYS) as u8)
}

/// Fails unless a call was refused as expected.
fn refused<T>(what: &str, result: plimsoll::Result<T>, is_right: impl Fn(&Error) -> bool) -> Step {
    match result {
        Err(error) if is_right(&error) => Ok(()),
        Err(error) => done(what, Err(error)),
        Ok(_) => Err(Failure::new(format!("{what} was not refused")).into()),
    }
}

/// Fails if the newest commits differ.
fn same_newest(db: &Db, model: &Model) -> Step {
    Ok(same("newest commit", &db.newest().0, &model.newest)?)
}
