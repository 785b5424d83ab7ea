//! Stores that exchange commits, checked against a model that knows every commit and its id.
//!
//! Two or three stores, each on a separate disk, write to their branches, push, fetch, catch up,
//! are cloned and replaced. Within a transfer, the power of a store is cut, reads and reservations
//! of memory fail, syncs fail, or another commit is made. The transfer is then repeated.
//!
//! The model computes the id of each commit from what the log of its store shows and from the
//! parents that the model knows, so a commit changed during a transfer is detected.
//!
//! Clocks move by whole milliseconds, and each expiry lies half a millisecond between two times of
//! a clock, as in [`crate::expiry`].

mod catching_up;
mod checks;
mod contents;
mod doubt;
mod model;
mod registry;
mod state;
mod transfer;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{Branch, Db, Durability, Glsn, Keyspace, Retention};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::random::Random;

use crate::driver::guarded;
use crate::failure::{Failure, Outcome, ensure};
use crate::op::Op;
use crate::sync::contents::Contents;
use crate::sync::doubt::UnknownEffect;
use crate::sync::model::Graph;
use crate::sync::state::{MAIN, NAMES};
use crate::world::{Setting, World};

/// The prefix of the branches that hold the commits of a transfer.
const INCOMING: &str = "incoming/";

/// Runs a workload.
///
/// # Errors
/// A store has other commits than the model.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed)?;
        for (number, op) in ops.iter().enumerate() {
            let Op::Syncing(choice) = op else { continue };
            driver.step(&mut Random::new(*choice)).map_err(|failure| failure.at(number, op))?;
        }
        driver.finish()
    })
}

/// The workload of a seed.
pub fn workload(seed: u64, ops: usize) -> Vec<Op> {
    let mut random = Random::new(seed ^ 0x0051_2c0d);
    (0..ops).map(|_| Op::Syncing(random.next_u64())).collect()
}

/// A time in the store's unit.
fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// The result of a call that must not fail.
fn done<T>(what: &str, result: plimsoll::Result<T>) -> Outcome<T> {
    result.map_err(|error| Failure::new(format!("{what} failed: {error} [{error:?}]")))
}

/// A store.
struct Store {
    world: World,
    /// `None`: it is closed.
    db: Option<Db>,
    /// The last commit of each branch; `None`: it has none.
    branches: BTreeMap<String, Option<usize>>,
    /// Tags, each with the branches at its moment.
    tags: BTreeMap<String, (u64, BTreeMap<String, Option<usize>>)>,
    /// Commits whose ids were not asked for yet, in order.
    pending: Vec<(Glsn, usize)>,
    /// The newest entry of the log whose effect is known.
    seen: u64,
    /// The commits that it has or had.
    had: BTreeSet<usize>,
    /// The effect of a call that did not return.
    doubt: Option<UnknownEffect>,
    /// Whether its ids were asked for.
    has_ids: bool,
    /// Whether a branch was deleted before that.
    has_deleted_early: bool,
}

impl Store {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("it is open between operations")
    }

    fn is_down(&self) -> bool {
        self.world.disk.power_is_cut()
    }

    /// The names of its branches, main included.
    fn names(&self) -> Vec<String> {
        self.branches.keys().cloned().collect()
    }

    fn some_branch(&self, random: &mut Random) -> String {
        let names = self.names();
        match random.below(3) {
            0 => MAIN.to_owned(),
            _ => names[random.below(names.len() as u64) as usize].clone(),
        }
    }

    fn branch(&self, name: &str) -> Outcome<Branch> {
        done("branch", self.db().branch(name))
    }

    fn keyspace(&self, space: usize) -> Outcome<Keyspace> {
        done("keyspace", self.db().keyspace(NAMES[space]))
    }
}

/// A run.
struct Driver {
    seed: u64,
    clock: Arc<ManualClock>,
    stores: Vec<Store>,
    /// The retention of all keyspaces.
    retention: Retention,
    graph: Graph,
    /// Numbers commits and stores, so that no two are the same.
    counter: u64,
}

impl Driver {
    fn new(seed: u64) -> Outcome<Self> {
        let mut random = Random::new(seed ^ 0x0051_c4e5);
        let world = World::new(seed, Setting::of_seed(seed));
        let retention =
            [Retention::Forever, Retention::Forever, Retention::Glsns(30), Retention::Latest];
        let mut driver = Self {
            seed,
            clock: Arc::clone(&world.clock),
            stores: Vec::new(),
            retention: retention[random.below(4) as usize],
            graph: Graph::default(),
            counter: 0,
        };
        for _ in 0..2 + random.below(2) {
            let store = driver.new_store(&mut random)?;
            driver.stores.push(store);
        }
        Ok(driver)
    }

    /// A new, empty store.
    fn new_store(&mut self, random: &mut Random) -> Outcome<Store> {
        self.counter += 1;
        let seed = self.seed.wrapping_add(self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = World::new(seed, Setting::of_seed(seed));
        world.clock = Arc::clone(&self.clock);
        world.setting.durability = Durability::Sync;
        if random.below(2) == 0 {
            world.setting.memtable_bytes = 16 << 10;
        }
        let db = done("open", world.open())?;
        let mut store = Store {
            world,
            db: Some(db),
            branches: BTreeMap::from([(MAIN.to_owned(), None)]),
            tags: BTreeMap::new(),
            pending: Vec::new(),
            seen: 0,
            had: BTreeSet::new(),
            doubt: None,
            has_ids: false,
            has_deleted_early: false,
        };
        // Create the keyspaces in another order in each store, so that their numbers differ.
        let first = random.below(NAMES.len() as u64) as usize;
        for number in 0..NAMES.len() {
            let name = NAMES[(first + number) % NAMES.len()];
            done("create", store.db().create_keyspace(name, self.retention))?;
        }
        store.seen = store.db().newest().0;
        Ok(store)
    }

    /// Whether the stores keep all that was ever committed.
    fn keeps_all(&self) -> bool {
        self.retention == Retention::Forever
    }

    /// The time by which all stores judge their newest states.
    fn now(&self) -> u64 {
        self.clock.wall_micros()
    }

    fn step(&mut self, random: &mut Random) -> Outcome {
        self.clock.advance(Duration::from_millis(1));
        let number = random.below(self.stores.len() as u64) as usize;
        self.act(number, random)?;
        (0..self.stores.len()).try_for_each(|number| self.recover(number, random))
    }

    fn act(&mut self, number: usize, random: &mut Random) -> Outcome {
        match random.below(64) {
            0..18 => self.write(number, random),
            18..21 => self.create(number, random),
            21 => self.rename(number, random),
            22 => self.delete(number, random),
            23..28 => self.merge(number, random),
            28..44 => self.transfer(number, random),
            44..48 => self.catch_up(number, random),
            48 => self.replace(number, random),
            49 | 50 => self.tag(number, random),
            51..53 => self.maintain(number, random),
            53 => {
                self.clock.advance(Duration::from_millis(1 + random.below(200)));
                Ok(())
            }
            54 => self.reopen(number),
            55 => {
                self.stores[number].world.disk.cut_power();
                Ok(())
            }
            56..58 => {
                self.stores[number].world.disk.cut_power_at_change(1 + random.below(40));
                Ok(())
            }
            58 => self.resolve(number),
            _ => self.check(number, random),
        }
    }

    /// Flushes, compacts, trims, or does other work on a store.
    fn maintain(&mut self, number: usize, random: &mut Random) -> Outcome {
        if !self.keeps_all() {
            // Later, the log may lack the entries that the ids are computed from.
            self.resolve(number)?;
        }
        let db = self.stores[number].db().clone();
        let worked = match random.below(6) {
            0 => db.flush(),
            1 => db.compact(),
            2 => {
                db.drop_caches();
                Ok(())
            }
            3 if !self.keeps_all() => db.log().trim(db.newest()).map(drop),
            4 => db.set_memory((16 + random.below(9)) << 20),
            _ => (0..1 + random.below(24)).try_for_each(|_| db.step().map(drop)),
        };
        self.unless_down(number, "maintenance", worked).map(drop)
    }

    /// The result of a call that fails only because of a power cut; `None` if so.
    fn unless_down<T>(
        &self,
        number: usize,
        what: &str,
        result: plimsoll::Result<T>,
    ) -> Outcome<Option<T>> {
        match result {
            Err(_) if self.stores[number].is_down() => Ok(None),
            result => done(what, result).map(Some),
        }
    }

    fn reopen(&mut self, number: usize) -> Outcome {
        let db = self.stores[number].db().clone();
        self.stores[number].db = None;
        let closed = db.close();
        if self.unless_down(number, "close", closed)?.is_some() {
            self.open(number)?;
        }
        Ok(())
    }

    fn open(&mut self, number: usize) -> Outcome {
        let opened = self.stores[number].world.open();
        if let Some(db) = self.unless_down(number, "open", opened)? {
            self.stores[number].db = Some(db);
        }
        Ok(())
    }

    /// Opens a store again if its power was cut, and determines the outcome of the last call.
    fn recover(&mut self, number: usize, random: &mut Random) -> Outcome {
        let is_cut = self.stores[number].is_down();
        while self.stores[number].is_down() || self.stores[number].db.is_none() {
            self.stores[number].db = None;
            self.stores[number].world.disk.restore_power();
            if random.below(3) == 0 {
                self.stores[number].world.disk.cut_power_at_change(1 + random.below(40));
            }
            self.open(number)?;
        }
        if is_cut {
            self.stores[number].world.disk.cut_power_at_change(u64::MAX);
            // The log may have lost entries that were visible.
            self.stores[number].seen = 0;
            self.settle(number)?;
            self.check_all(number)?;
        }
        Ok(())
    }

    /// Asks for the ids of all commits of a store, and compares them with those of the model.
    fn resolve(&mut self, number: usize) -> Outcome {
        let db = self.stores[number].db().clone();
        let pending = std::mem::take(&mut self.stores[number].pending);
        for (place, (glsn, commit)) in pending.iter().enumerate() {
            let id = match self.unless_down(number, "commit_id", db.commit_id(*glsn))? {
                Some(id) => id,
                None => {
                    self.stores[number].pending = pending[place..].to_vec();
                    return Ok(());
                }
            };
            self.stores[number].has_ids = true;
            self.identify(number, *commit, id)?;
        }
        Ok(())
    }

    /// Compares the id of a commit with its contents and its parents.
    fn identify(
        &mut self,
        number: usize,
        commit: usize,
        id: Option<plimsoll::CommitId>,
    ) -> Outcome {
        // Parents that the store has forgotten do not count.
        let known: Vec<usize> = {
            let parents = self.graph.commits[commit].parents.iter().copied();
            parents.filter(|parent| self.graph.commits[*parent].id.is_some()).collect()
        };
        let is_whole = known.len() == self.graph.commits[commit].parents.len();
        self.graph.commits[commit].parents = known;
        self.graph.contain(commit);
        let store = &self.stores[number];
        let Some(id) = id else {
            let is_held =
                store.branches.values().any(|tip| self.graph.contains(*tip, Some(commit)));
            return ensure(!is_held, || format!("the id of commit {commit} is unknown"));
        };
        let is_excused = store.has_deleted_early;
        ensure(is_whole || is_excused, || format!("a parent of commit {commit} is unknown"))?;
        let of_graph = |graph: &Graph, commit: usize| {
            graph.id_with(&graph.commits[commit].contents, &graph.commits[commit].parents)
        };
        if of_graph(&self.graph, commit) != Some(*id.as_bytes())
            && is_excused
            && self.graph.commits[commit].parents.len() == 2
        {
            // The branch that it merged was deleted before ids were computed.
            self.graph.commits[commit].parents.truncate(1);
            self.graph.contain(commit);
        }
        ensure(of_graph(&self.graph, commit) == Some(*id.as_bytes()), || {
            let Graph { commits, .. } = &self.graph;
            format!("store {number}: {id} does not fit {:?}", commits[commit])
        })?;
        self.graph.identify(commit, id);
        Ok(())
    }

    /// Notes a commit that a store has acknowledged.
    fn note(
        &mut self,
        number: usize,
        (branch, glsn): (&str, Glsn),
        parents: Vec<usize>,
    ) -> Outcome<usize> {
        let db = self.stores[number].db().clone();
        let commit = done("read", db.log().commit(glsn))?;
        let commit = commit.ok_or_else(|| Failure::new(format!("{glsn} is not a commit")))?;
        let (contents, effects) = done("changes", Contents::read(&commit))?;
        let added = self.graph.add(parents, contents, &effects);
        let store = &mut self.stores[number];
        store.pending.push((glsn, added));
        store.had.insert(added);
        store.branches.insert(branch.to_owned(), Some(added));
        store.seen = store.seen.max(glsn.0);
        Ok(added)
    }

    fn finish(&mut self) -> Outcome {
        for number in 0..self.stores.len() {
            self.stores[number].world.disk.cut_power_at_change(u64::MAX);
            self.resolve(number)?;
            self.check_all(number)?;
            self.reopen(number)?;
            self.check_all(number)?;
            let report = done("verify", self.stores[number].db().verify(&mut |_| {}))?;
            ensure(report.problems.is_empty(), || format!("{:?}", report.problems))?;
        }
        Ok(())
    }
}
