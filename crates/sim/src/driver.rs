//! Runs a workload against a store and the model in lockstep.
//!
//! The driver runs each operation in the store, compares its answer with the model's (`judge`), and
//! then checks the invariants that hold between operations ([`Driver::settle`]). Faults and power
//! cuts are operations too. The driver tracks the errors that they excuse:
//! - while reads fail or return wrong bits, while the disk is full, and after a failed sync, an
//!   operation may fail, but its answer must not be wrong;
//! - after a power cut, the store is reopened, and must equal some prefix of the submitted records
//!   that contains everything acknowledged;
//! - without faults on the disk, nothing may fail.

mod charges;
mod check;
mod cursors;
mod edges;
mod failing;
mod feeds;
mod held;
mod image;
mod loads;
mod merges;
mod moments;
mod nested;
mod recover;
mod removals;
mod restore;
mod settle;
mod spaces;
mod step;
mod tags;
mod transactions;
mod updates;

pub(crate) use check::{compare, inspect};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{CommitTicket, Db, Durability, Error, Glsn, Keyspace, Snapshot};
use plimsoll_disk::clock::Clock;

use crate::driver::feeds::OpenFeed;
use crate::driver::held::{OpenReader, OpenWalk};
use crate::driver::loads::OpenLoad;
use crate::driver::nested::NestedCommit;
use crate::driver::transactions::OpenTx;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::{Judge, Place};
use crate::model::{Entry, Model, space_name};
use crate::op::{Fault, Keep, Op};
use crate::world::World;

const HOUR_MICROS: u64 = 60 * 60 * 1_000_000;

/// The most by which the log's time may be ahead of the clock.
const DAY_MICROS: u64 = 24 * HOUR_MICROS;

/// Attempts to open a store while faults prevent it.
const OPENS_MAX: usize = 16;

/// The errors that the current faults excuse.
#[derive(Clone, Copy, Debug, Default)]
struct Excuses {
    reads: bool,
    flips: bool,
    full: bool,
    /// Reads returned wrong bits since the store was opened: compaction has stopped until the next
    /// open.
    stopped: bool,
    /// A sync failed since the store was opened, or will.
    sync: bool,
    /// The budget may refuse.
    budget: bool,
}

/// How thoroughly the driver checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Verifies the store after each operation.
    pub verify_each: bool,
    /// Compares the whole store after every this many operations (0: only where the workload asks
    /// for it).
    pub check_every: usize,
    /// Permits refusals by the budget: the workload asks for more memory than the budget has.
    pub may_refuse: bool,
}

/// A run of a workload.
pub struct Driver {
    world: World,
    model: Model,
    db: Option<Db>,
    spaces: BTreeMap<u8, Keyspace>,
    /// A handle of an earlier opening, which every call must refuse.
    stale: Option<Keyspace>,
    txs: BTreeMap<u8, OpenTx>,
    snapshots: BTreeMap<u8, Snapshot>,
    walks: BTreeMap<u8, OpenWalk>,
    readers: BTreeMap<u8, OpenReader>,
    feeds: BTreeMap<u8, OpenFeed>,
    loads: BTreeMap<u8, OpenLoad>,
    /// A commit that runs within the current operation.
    nested_commit: Option<NestedCommit>,
    tickets: VecDeque<CommitTicket>,
    excuses: Excuses,
    care: CheckOptions,
    /// Whether the outcome of a commit is unknown until the store is reopened.
    in_doubt: bool,
    /// Whether the store was closed cleanly, so that nothing can be lost.
    closed_cleanly: bool,
    /// Whether the scheduled power cut stands for the end of the process alone, so that all of its
    /// writes remain.
    ends_process: bool,
    /// Whether a fault or a power cut has happened to the store.
    was_hurt: bool,
    /// Whether timestamps increase with GLSNs. They do unless the clock was set back by more than a
    /// day.
    times_ordered: bool,
    /// The latest time that the clock had when it was set.
    clock_max_micros: u64,
    trim_asked: u64,
    backups: u32,
    kept: Option<restore::SavedState>,
    /// An earlier warm image.
    image: Option<image::Image>,
    warmed: Warmed,
    answers: Vec<String>,
}

/// Totals restored from warm images over the lives of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Pages.
    pub pages: u64,
    /// Objects.
    pub objects: u64,
    /// Objects that were skipped.
    pub stale: u64,
    /// Images that were rejected.
    pub ignored: u64,
}

impl Driver {
    /// Opens a store in a world.
    ///
    /// # Errors
    /// It does not open.
    pub fn open(world: World, care: CheckOptions) -> Outcome<Self> {
        let mut driver = Self {
            world,
            model: Model::default(),
            db: None,
            spaces: BTreeMap::new(),
            stale: None,
            txs: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            walks: BTreeMap::new(),
            readers: BTreeMap::new(),
            feeds: BTreeMap::new(),
            loads: BTreeMap::new(),
            nested_commit: None,
            tickets: VecDeque::new(),
            excuses: Excuses { budget: care.may_refuse, ..Excuses::default() },
            care,
            in_doubt: false,
            closed_cleanly: true,
            ends_process: false,
            was_hurt: false,
            times_ordered: true,
            clock_max_micros: 0,
            trim_asked: 0,
            backups: 0,
            kept: None,
            image: None,
            warmed: Warmed::default(),
            answers: Vec::new(),
        };
        driver.open_store(0)?;
        Ok(driver)
    }

    /// The model in its current state.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The result of each operation, one line each: the same for the same workload, whatever the
    /// store's settings.
    pub fn answers(&self) -> &[String] {
        &self.answers
    }

    /// The contents restored from warm images in the lives that were closed.
    pub fn warmed(&self) -> Warmed {
        self.warmed
    }

    /// Whether a transaction is open.
    pub fn has_open_transactions(&self) -> bool {
        !self.txs.is_empty()
    }

    /// Runs operations.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn run(&mut self, ops: &[Op]) -> Outcome {
        for (number, op) in ops.iter().enumerate() {
            self.apply(op).map_err(|failure| failure.at(number, op))?;
            if self.care.check_every > 0 && (number + 1) % self.care.check_every == 0 {
                self.check().map_err(|failure| failure.at(number, op))?;
            }
        }
        Ok(())
    }

    /// Runs one operation.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        let answer = self.step(op)?;
        if self.world.disk.power_is_cut() {
            self.recover(0)?;
        }
        self.settle(op)?;
        if self.care.verify_each {
            self.verify()?;
        }
        self.answers.push(answer);
        Ok(())
    }

    /// Runs something that must not change any answer: background work, or closing and reopening
    /// the store.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn do_beside(&mut self, choice: u64) -> Outcome {
        let op = match choice % 9 {
            0 => Op::Flush,
            1 => Op::Compact,
            2 if self.txs.is_empty() && self.moments_held() == 0 && self.loads.is_empty() => {
                return self.reopen_under_snapshots(choice / 9);
            }
            3 | 4 => Op::DropCaches,
            5 => Op::Memory { mebibytes: [16, 17, 64, 1024][(choice / 9 % 4) as usize] },
            6 => Op::Work { first: (choice / 9 % 5) as u8 },
            _ => Op::Step,
        };
        self.step(&op)?;
        self.settle(&op)
    }

    /// Reopens the store and the snapshots at the same moments; while the store is closed, its warm
    /// image is changed.
    fn reopen_under_snapshots(&mut self, choice: u64) -> Outcome {
        let moments: Vec<(u8, u64)> =
            self.snapshots.iter().map(|(slot, snapshot)| (*slot, snapshot.at().0)).collect();
        if !choice.is_multiple_of(4) {
            self.make_warm();
        }
        self.close()?;
        self.meddle_with_image(choice / 4)?;
        self.open_store(0)?;
        self.take_some_in(choice / 40);
        for (slot, at) in moments {
            let opened = self.db().snapshot_at(plimsoll::Moment::Glsn(Glsn(at)));
            if let Some(snapshot) = self.expect("snapshot after reopening", opened)? {
                self.snapshots.insert(slot, snapshot);
            }
        }
        self.settle(&Op::Reopen)
    }

    /// Removes all faults, closes and opens the store again, and compares all of it.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn finish(&mut self) -> Outcome {
        self.heal();
        self.reopen()?;
        self.settle(&Op::Reopen)?;
        self.check()?;
        self.verify()?;
        if self.model.newest().is_multiple_of(2) {
            // Closing leaves some log to replay. Flush, so that later operations also run on stores
            // without such a rest.
            let flushed = self.db().flush();
            self.expect("flush", flushed)?;
        }
        self.close()?;
        Ok(())
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("the store is open between operations")
    }

    fn judge<'a>(&'a self, excuse: &'a dyn Fn(&Error) -> bool) -> Judge<'a> {
        Judge { db: self.db(), model: &self.model, excuse }
    }

    /// Whether the current faults excuse an error.
    fn excused(&self, error: &Error) -> bool {
        if self.world.disk.power_is_cut() {
            return true;
        }
        let excuses = self.excuses;
        match error {
            Error::Io { kind: std::io::ErrorKind::StorageFull, .. } => excuses.full,
            Error::Io { .. } => excuses.reads || excuses.flips || excuses.sync,
            Error::Corrupt { .. } | Error::Format { .. } | Error::Forked { .. } => excuses.flips,
            Error::Poisoned { .. } => excuses.sync,
            Error::OutOfBudget(_) => excuses.budget,
            _ => false,
        }
    }

    /// The answer of a call; `None` if the call failed and the failure is excused.
    fn expect<T>(&self, what: &str, answer: plimsoll::Result<T>) -> Outcome<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.excused(&error) => Ok(None),
            Err(error) => Err(Failure::new(format!("{what} failed: {error} [{error:?}]"))),
        }
    }

    fn heal(&mut self) {
        let disk = &self.world.disk;
        disk.fail_reads(0.0);
        disk.flip_bits(0.0);
        disk.fill_up(None);
        disk.slow_down(None);
        disk.cancel_failures();
        let Excuses { stopped, sync, budget, .. } = self.excuses;
        self.excuses = Excuses { stopped, sync, budget, ..Excuses::default() };
    }

    fn lie(&mut self, fault: Fault) {
        self.was_hurt = true;
        let disk = &self.world.disk;
        let of_thousand = |permille: u16| f64::from(permille) / 1000.0;
        match fault {
            Fault::Reads(permille) => {
                disk.fail_reads(of_thousand(permille));
                self.excuses.reads = true;
            }
            Fault::Flips(permille) => {
                disk.flip_bits(of_thousand(permille));
                self.excuses.flips = true;
                self.excuses.stopped = true;
            }
            Fault::Sync => {
                disk.fail_next_sync();
                self.excuses.sync = true;
            }
            Fault::SyncLater(after) => {
                disk.fail_sync(after);
                self.excuses.sync = true;
            }
            Fault::RenameLater(after) => {
                disk.fail_rename(after);
                self.excuses.sync = true;
            }
            Fault::RemoveLater(after) => {
                disk.fail_remove(after);
                self.excuses.sync = true;
            }
            Fault::Full(bytes) => {
                disk.fill_up(Some(bytes));
                self.excuses.full = true;
            }
            Fault::Slow(micros) => {
                let most = Duration::from_micros(u64::from(micros));
                disk.slow_down(Some((Arc::clone(&self.world.clock), most)));
            }
            Fault::Heal => self.heal(),
        }
    }

    /// Opens the store, repeatedly if faults prevent it; `cut_again`: the power is cut at this sync
    /// of the first attempt.
    fn open_store(&mut self, cut_again: u64) -> Outcome {
        let sync_may_fail = self.excuses.sync;
        if cut_again > 0 {
            self.world.disk.cut_power_at_sync(self.world.disk.sync_count() + cut_again);
        }
        if !self.closed_cleanly && self.excuses.flips {
            // A wrong bit in the tail of a log that was not closed is indistinguishable from a torn
            // record.
            self.heal();
        }
        for _ in 0..OPENS_MAX {
            match self.world.open() {
                Ok(db) => return self.opened(db),
                Err(_) if self.world.disk.power_is_cut() => {
                    self.was_hurt = true;
                    self.power_on();
                }
                Err(error) => {
                    ensure(self.excused(&error), || {
                        format!("the store does not open: {error} [{error:?}]")
                    })?;
                    self.heal();
                    self.excuses.sync = sync_may_fail;
                }
            }
        }
        Err(Failure::new("the store does not open although the disk has no faults"))
    }

    fn opened(&mut self, db: Db) -> Outcome {
        let (newest, bounds) = (db.newest(), db.log().bounds());
        ensure(self.model.may_end_at(newest.0), || {
            format!(
                "the store opened at {newest}; acknowledged {}, submitted {}",
                self.model.acked(),
                self.model.newest()
            )
        })?;
        same("next GLSN after opening", &bounds.next.0, &(newest.0 + 1))?;
        self.model.cut_behind(newest.0);
        self.model.acknowledge(newest.0);
        self.may_be_trimmed(bounds.first.0)?;
        if self.excuses.sync {
            // A power cut may undo the removal of a segment that could not be synced.
            self.model.begin_at(bounds.first.0);
        }
        self.model.trimmed(bounds.first.0);
        let now = self.world.clock.wall_micros();
        let last = self.model.time_before(newest.0 + 1);
        self.times_ordered &= last.is_none_or(|last| last <= now.saturating_add(DAY_MICROS));
        self.db = Some(db);
        self.refuse_stale_handle()?;
        self.in_doubt = false;
        self.closed_cleanly = false;
        self.excuses.sync = self.world.disk.has_failure_to_come();
        self.excuses.stopped = self.excuses.flips;
        Ok(())
    }

    fn drop_handles(&mut self) {
        self.txs.clear();
        self.snapshots.clear();
        self.walks.clear();
        self.readers.clear();
        self.feeds.clear();
        self.loads.clear();
        self.tickets.clear();
        if let Some((_, keyspace)) = std::mem::take(&mut self.spaces).pop_last() {
            self.stale = Some(keyspace);
        }
    }

    fn close(&mut self) -> Outcome {
        self.drop_handles();
        let Some(db) = self.db.take() else { return Ok(()) };
        let submitted = self.model.newest();
        let stats = db.stats();
        self.warmed.pages += stats.warm.pages_restored;
        self.warmed.objects += stats.warm.rows_restored;
        self.warmed.stale += stats.warm.rows_stale;
        self.warmed.ignored +=
            stats.warnings.iter().filter(|warning| warning.contains("warm image")).count() as u64;
        let closed = db.close();
        let in_doubt = self.in_doubt;
        if self.expect("close", closed)?.is_some() {
            ensure(!in_doubt || self.excuses.sync || self.world.disk.power_is_cut(), || {
                "in doubt without a cause".to_owned()
            })?;
            if !in_doubt {
                self.model.acknowledge(submitted);
                self.closed_cleanly = true;
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> Outcome {
        self.refuse_second_writer()?;
        self.close()?;
        if self.world.disk.power_is_cut() {
            return self.recover(0);
        }
        self.open_store(0)
    }

    /// Opens the store again after a power cut.
    fn recover(&mut self, cut_again: u64) -> Outcome {
        self.was_hurt = true;
        self.drop_handles();
        // The files of the open store have been invalid since the cut, so closing it fails; that
        // must do no harm.
        drop(self.db.take());
        self.power_on();
        self.closed_cleanly = false;
        self.open_store(cut_again)?;
        self.raise_floors();
        Ok(())
    }

    /// Restores the disk after a power cut, or after the process exit scheduled in its place.
    fn power_on(&mut self) {
        let disk = &self.world.disk;
        if std::mem::take(&mut self.ends_process) {
            disk.restart_process()
        } else {
            disk.restore_power()
        }
    }

    /// Ends the process without closing the store, and reopens it. Everything that it wrote
    /// survives, synced or not.
    fn kill(&mut self) -> Outcome {
        self.was_hurt = true;
        let disk = self.world.disk.snapshot();
        // The dead process must not write any more.
        self.world.disk.cut_power();
        self.drop_handles();
        drop(self.db.take());
        self.world.disk = disk;
        self.closed_cleanly = false;
        self.open_store(0)?;
        self.raise_floors();
        Ok(())
    }

    /// A keyspace's handle, created if it does not exist. `None` if that failed.
    fn keyspace(&mut self, space: u8) -> Outcome<Option<Keyspace>> {
        if let Some(keyspace) = self.spaces.get(&space) {
            return Ok(Some(keyspace.clone()));
        }
        let made = self.db().keyspace(&space_name(space));
        if self.in_doubt && made.is_ok() && !self.model.has_space(space) {
            // If the drop of the earlier keyspace of this name had an unknown outcome, this may
            // still be that keyspace.
            return Ok(None);
        }
        if !self.model.has_space(space) {
            self.committed_unseen(&made, Entry::Keyspace { space, retention: Keep::Forever });
        }
        let Some(keyspace) = self.expect("keyspace", made)? else { return Ok(None) };
        self.is_named(space, &keyspace)?;
        self.spaces.insert(space, keyspace.clone());
        Ok(Some(keyspace))
    }

    /// Records a commit whose call does not return its GLSN.
    fn committed_unseen<T>(&mut self, answer: &plimsoll::Result<T>, entry: Entry) {
        match answer {
            Ok(_) => {
                let glsn = self.model.submit(vec![entry]);
                if self.world.setting.durability == Durability::Sync {
                    self.model.acknowledge(glsn);
                }
            }
            Err(error) if self.leaves_doubt(error) => {
                self.model.submit(vec![entry]);
                self.in_doubt = true;
            }
            Err(_) => {}
        }
    }

    /// Whether the outcome of a commit is unknown after this error. The documentation promises that
    /// after any other error nothing was committed.
    fn leaves_doubt(&self, error: &Error) -> bool {
        // Such a commit was refused before it was ordered, whenever the power was cut.
        let is_refused = matches!(
            error,
            Error::OutOfBudget(_) | Error::Conflict { .. } | Error::InvalidInput(_)
        );
        (self.world.disk.power_is_cut() && !is_refused) || matches!(error, Error::Poisoned { .. })
    }

    fn place<'a>(&self, space: u8, keyspace: &'a Keyspace) -> Place<'a> {
        Place { space, keyspace }
    }

    fn open_moments(&self) -> BTreeSet<u64> {
        let txs = self.txs.values().map(|tx| tx.handle.at().0);
        let snapshots = self.snapshots.values().map(|snapshot| snapshot.at().0);
        txs.chain(snapshots).chain(self.held_moments()).collect()
    }

    pub(crate) fn raise_floors(&mut self) {
        self.raise_floors_at(self.db().newest().0);
    }

    /// Raises the floors as if `newest` were the newest moment.
    fn raise_floors_at(&mut self, newest: u64) {
        let open = self.open_moments();
        self.model.raise_floors(&open, newest, self.world.clock.wall_micros());
    }
}

/// Opens a store in a world, runs a workload and compares everything at the end; a panic counts as
/// a failure.
///
/// # Errors
/// The store differs from the model.
pub fn run(world: World, care: CheckOptions, ops: &[Op]) -> Outcome<Driver> {
    guarded(|| {
        let mut driver = Driver::open(world, care)?;
        driver.run(ops)?;
        driver.finish()?;
        Ok(driver)
    })
}

/// Turns a panic into a failure.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of an unknown kind");
        Err(Failure::new(format!("panic: {text}")))
    })
}
