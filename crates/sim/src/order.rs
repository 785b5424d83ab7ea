//! Replicas whose commits are ordered outside of them, by an *order*; their history must be
//! serializable.
//!
//! Two to four replicas, each on a disk of its own and with a clock of its own, run transactions
//! whose steps alternate. The order fails in several ways. It refuses appends without a reason; it
//! loses the answer of an append that was made, was not made, or is made later; it is unavailable;
//! it returns damaged batches and blobs. Processes are killed and the power of replicas is cut,
//! between calls and within them; the disk of a replica is set back to an earlier state. The order
//! is trimmed up to the position of a copy of a replica; replicas that lack trimmed batches are
//! made anew from that copy ([`trim`]). At times the order loses all its batches, and continues
//! from a replica that has everything ([`heal`]).
//!
//! Each written value names its transaction. At the end the log of a replica gives the order of the
//! transactions; the state before each must be the one that it read ([`history`]), and the logs of
//! all replicas must be equal.

mod heal;
mod history;
mod trim;

use std::sync::Arc;
use std::time::Duration;

use plimsoll::order::memory::{Faults, MemoryOrder};
use plimsoll::{Db, Error, Keyspace, Options, Sizes, Transaction};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;

use crate::driver::guarded;
use crate::failure::{Failure, Outcome, ensure};
use crate::op::Op;
use crate::order::history::{Fate, History, Id, KEYS, Values};

/// The wall clock at the start.
const START_MICROS: u64 = 1_700_000_000_000_000;

/// The folder of each store.
const STORE: &str = "/store";

/// The most transactions that a replica has open.
const OPEN_MAX: usize = 3;

/// Runs a workload.
///
/// # Errors
/// The history is not serializable, an acknowledged commit is lost, or the replicas differ.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed)?;
        for (number, op) in ops.iter().enumerate() {
            let Op::Ordering(choice) = op else { continue };
            driver.step(&mut Random::new(*choice)).map_err(|failure| failure.at(number, op))?;
        }
        driver.finish()
    })
}

/// The workload of a seed.
pub fn workload(seed: u64, ops: usize) -> Vec<Op> {
    let mut random = Random::new(seed ^ 0x000d_0e2a);
    (0..ops).map(|_| Op::Ordering(random.next_u64())).collect()
}

/// A transaction that is open.
struct OpenTx {
    tx: Transaction,
    id: Id,
    reads: Values,
    writes: Vec<u8>,
}

/// A replica.
struct Replica {
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    /// `None`: it is closed.
    open: Option<(Db, Keyspace)>,
    txs: Vec<OpenTx>,
    /// Its disk as it was some time ago.
    earlier: Option<LyingDisk>,
}

impl Replica {
    fn db(&self) -> Option<Db> {
        self.open.as_ref().map(|(db, _)| db.clone())
    }
}

struct Driver {
    order: MemoryOrder,
    replicas: Vec<Replica>,
    /// The disk of a replica when the order was trimmed last.
    base: Option<LyingDisk>,
    history: History,
    memtable_bytes: u64,
    /// Whether leftover files are swept before the order is read, or some time later.
    sweeps_at_open: bool,
}

/// Whether the faults of the order explain an error.
fn is_of_order(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. } | Error::InDoubt { .. } | Error::Corrupt { .. })
}

impl Driver {
    fn new(seed: u64) -> Outcome<Self> {
        let mut random = Random::new(seed ^ 0x0ade_27e0);
        let order = MemoryOrder::new(seed);
        let replica = |number: u64| Replica {
            disk: LyingDisk::new(seed ^ number << 32),
            clock: Arc::new(ManualClock::new(START_MICROS + 7_000_000 * number)),
            open: None,
            txs: Vec::new(),
            earlier: None,
        };
        let replicas = (0..2 + random.below(3)).map(replica).collect();
        let memtable_bytes = [32 << 10, 256 << 10][random.below(2) as usize];
        let (history, sweeps_at_open) = (History::default(), random.below(2) == 0);
        let base = None;
        let mut driver = Self { order, replicas, base, history, memtable_bytes, sweeps_at_open };
        for number in 0..driver.replicas.len() {
            driver.open(number)?;
        }
        Ok(driver)
    }

    fn options(&self, number: usize) -> Options {
        let Replica { disk, clock, .. } = &self.replicas[number];
        Options::new()
            .memory_bytes(16 << 20)
            .memtable_bytes(self.memtable_bytes)
            .sizes(Sizes { sweeps_at_open: self.sweeps_at_open, ..Sizes::USUAL })
            .background(false)
            .warm(false)
            .order_timeout(Duration::from_millis(400))
            .order(Arc::new(self.order.clone()))
            .world(Arc::new(disk.clone()), Arc::clone(clock) as _)
    }

    /// Opens a replica; the first time, the order must work.
    fn open(&mut self, number: usize) -> Outcome {
        let opened = Db::open(STORE, self.options(number));
        let opened = opened.and_then(|db| db.keyspace("default").map(|space| (db, space)));
        match opened {
            Ok(open) => self.replicas[number].open = Some(open),
            Err(error) if self.is_down(number) || is_of_order(&error) => {}
            Err(error) => return Err(failed("opening a replica", &error)),
        }
        Ok(())
    }

    /// Whether a call of a replica may fail because its disk has no power.
    fn is_down(&self, number: usize) -> bool {
        self.replicas[number].disk.power_is_cut()
    }

    /// The result of a call; `None` if it failed and the failure is excused.
    fn checked<T>(
        &self,
        number: usize,
        what: &str,
        result: plimsoll::Result<T>,
    ) -> Outcome<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.is_down(number) || is_of_order(&error) => Ok(None),
            Err(Error::Behind { .. }) if self.is_behind(number) => Ok(None),
            Err(error) => Err(failed(what, &error)),
        }
    }

    fn step(&mut self, random: &mut Random) -> Outcome {
        let number = random.below(self.replicas.len() as u64) as usize;
        self.revive(number, random)?;
        if self.replicas[number].open.is_none() {
            self.calm();
            self.open(number)?;
        }
        if self.is_behind(number) {
            self.remake(number)?;
        }
        let Some(db) = self.replicas[number].db() else { return Ok(()) };
        let choice = random.below(42);
        if choice >= 33 {
            // Drop the handle first, because a handle that outlives its process would write.
            drop(db);
            return self.disturb(number, choice, random);
        }
        match choice {
            0..=11 => self.advance_tx(number, random),
            12..=19 => self.commit_tx(number, random),
            20..=22 => self.write_once(number, random),
            23 => self.count(number),
            24..=26 => self.checked(number, "a step", db.step()).map(drop),
            27..=28 => self.sync(number),
            29 => self.checked(number, "a flush", db.flush()).map(drop),
            30 => self.checked(number, "a compaction", db.compact()).map(drop),
            _ => self.look(number),
        }
    }

    /// Faults, ends of processes, and time.
    fn disturb(&mut self, number: usize, choice: u64, random: &mut Random) -> Outcome {
        let replica = &self.replicas[number];
        match choice {
            33 | 34 => self.set_faults(random),
            35 => replica.disk.cut_power_at_change(1 + random.below(30)),
            36 => return self.end_process(number, random),
            37 => return self.close(number),
            38 => return self.set_back(number, random),
            39 => return self.trim(number, random),
            40 => return self.heal(number, random),
            _ => replica.clock.advance(Duration::from_millis(random.below(5000))),
        }
        Ok(())
    }

    fn set_faults(&mut self, random: &mut Random) {
        let mut chance = || [0.0, 0.0, 0.05, 0.25][random.below(4) as usize];
        self.order.set_faults(Faults {
            refused: chance(),
            unavailable: chance(),
            in_doubt_done: chance(),
            in_doubt_lost: chance(),
            in_doubt_late: chance(),
            flipped: chance(),
            flipped_blob: chance(),
        });
        self.order.set_available(random.below(8) > 0);
    }

    /// Ends all faults of the order.
    fn calm(&self) {
        self.order.set_faults(Faults::default());
        self.order.set_available(true);
    }

    /// Opens a replica again after a power cut: either the power returns, or only the process had
    /// ended, so that all of its writes remain.
    fn revive(&mut self, number: usize, random: &mut Random) -> Outcome {
        let replica = &mut self.replicas[number];
        if !replica.disk.power_is_cut() {
            return Ok(());
        }
        replica.txs.clear();
        // Closing it fails, because its disk has no power.
        replica.open = None;
        match random.below(2) {
            0 => replica.disk.restore_power(),
            _ => replica.disk.restart_process(),
        }
        self.open(number)
    }

    fn end_process(&mut self, number: usize, random: &mut Random) -> Outcome {
        self.replicas[number].disk.cut_power();
        self.revive(number, random)
    }

    fn close(&mut self, number: usize) -> Outcome {
        let replica = &mut self.replicas[number];
        replica.txs.clear();
        if let Some((db, space)) = replica.open.take() {
            drop(space);
            let closed = db.close();
            self.checked(number, "closing", closed)?;
        }
        self.revive(number, &mut Random::new(0))?;
        if self.replicas[number].open.is_none() { self.open(number) } else { Ok(()) }
    }

    /// Remembers the present state of a replica's disk, or sets the disk back to the remembered
    /// state.
    fn set_back(&mut self, number: usize, random: &mut Random) -> Outcome {
        let replica = &mut self.replicas[number];
        match replica.earlier.take() {
            None => {
                replica.earlier = Some(replica.disk.snapshot());
                Ok(())
            }
            Some(_) if random.below(2) > 0 => Ok(()),
            Some(earlier) => {
                replica.txs.clear();
                replica.disk.cut_power();
                replica.open = None;
                replica.disk = earlier;
                replica.disk.cut_power();
                self.revive(number, random)
            }
        }
    }

    fn begin_tx(&mut self, number: usize) {
        let id = self.history.begin();
        let replica = &mut self.replicas[number];
        let Some((db, _)) = &replica.open else { return };
        let tx = db.begin();
        replica.txs.push(OpenTx { tx, id, reads: Values::default(), writes: Vec::new() });
    }

    /// Reads or writes in an open transaction, or begins one.
    fn advance_tx(&mut self, number: usize, random: &mut Random) -> Outcome {
        let open = self.replicas[number].txs.len();
        if open == 0 || (open < OPEN_MAX && random.below(3) == 0) {
            self.begin_tx(number);
        }
        let replica = &mut self.replicas[number];
        let (Some((_, space)), false) = (replica.open.clone(), replica.txs.is_empty()) else {
            return Ok(());
        };
        let at = random.below(replica.txs.len() as u64) as usize;
        let OpenTx { tx, id, reads, writes } = &mut replica.txs[at];
        let key = random.below(u64::from(KEYS)) as u8;
        let done = match random.below(4) {
            0 | 1 => {
                if writes.contains(&key) {
                    return Ok(());
                }
                tx.get(&space, [key]).and_then(|value| reads.see(key, value.as_deref()))
            }
            2 => {
                let own = writes.clone();
                let read = tx.range(&space, [0u8]..[KEYS]).and_then(|mut range| {
                    let mut all = vec![None; usize::from(KEYS)];
                    while let Some((key, value)) = range.advance()? {
                        all[usize::from(key[0])] = Some(value.to_vec());
                    }
                    Ok(all)
                });
                read.and_then(|all| {
                    let others = (0..KEYS).filter(|key| !own.contains(key));
                    others
                        .map(|key| (key, &all[usize::from(key)]))
                        .try_for_each(|(key, value)| reads.see(key, value.as_deref()))
                })
            }
            _ => {
                writes.push(key);
                match random.below(8) {
                    0 => tx.delete(&space, [key]),
                    _ => tx.put(&space, [key], id.value(random)),
                }
            }
        };
        self.checked(number, "a step of a transaction", done).map(drop)
    }

    fn commit_tx(&mut self, number: usize, random: &mut Random) -> Outcome {
        let replica = &mut self.replicas[number];
        if replica.txs.is_empty() {
            return Ok(());
        }
        let at = random.below(replica.txs.len() as u64) as usize;
        let OpenTx { mut tx, id, reads, .. } = replica.txs.swap_remove(at);
        let Some((_, space)) = replica.open.clone() else { return Ok(()) };
        // Write a mark, so that the log shows where the transaction was ordered.
        let marked = tx.put(&space, id.mark(), b"");
        let committed = marked.and_then(|()| tx.commit());
        self.record(number, id, reads, committed.map(|at| at.0))
    }

    fn record(
        &mut self,
        number: usize,
        id: Id,
        reads: Values,
        committed: plimsoll::Result<u64>,
    ) -> Outcome {
        let fate = match committed {
            Ok(glsn) => Fate::Made(glsn),
            Err(Error::Conflict { .. }) => Fate::NotMade,
            Err(Error::Unavailable { .. } | Error::Corrupt { .. }) if !self.is_down(number) => {
                Fate::NotMade
            }
            Err(Error::Behind { .. }) if self.is_behind(number) => Fate::NotMade,
            Err(Error::InDoubt { .. }) => Fate::InDoubt,
            Err(_) if self.is_down(number) => Fate::InDoubt,
            Err(error) => return Err(failed("a commit", &error)),
        };
        self.history.end(id, reads, fate);
        Ok(())
    }

    /// A blind commit, at times with a value in a blob file.
    fn write_once(&mut self, number: usize, random: &mut Random) -> Outcome {
        let id = self.history.begin();
        let Some((db, space)) = self.replicas[number].open.clone() else { return Ok(()) };
        let mut tx = db.begin();
        let value = match random.below(3) {
            0 => id.large_value(),
            _ => id.value(random),
        };
        let key = random.below(u64::from(KEYS)) as u8;
        let put = tx.put(&space, [key], value).and_then(|()| tx.put(&space, id.mark(), b""));
        let committed = put.and_then(|()| tx.commit());
        self.record(number, id, Values::default(), committed.map(|at| at.0))
    }

    /// Adds to a counter, which counts each acknowledged addition exactly once.
    fn count(&mut self, number: usize) -> Outcome {
        let Some((db, space)) = self.replicas[number].open.clone() else { return Ok(()) };
        match db.add(&space, "counter", 1, plimsoll::Overflow::Checked) {
            Ok(_) => self.history.counted += 1,
            Err(Error::Conflict { .. }) => {}
            Err(Error::Unavailable { .. } | Error::Corrupt { .. }) if !self.is_down(number) => {}
            Err(Error::Behind { .. }) if self.is_behind(number) => {}
            Err(_) if self.is_down(number) => self.history.count_in_doubt += 1,
            Err(Error::InDoubt { .. }) => self.history.count_in_doubt += 1,
            Err(error) => return Err(failed("an addition", &error)),
        }
        Ok(())
    }

    /// Syncs. A successful sync shows everything that was acknowledged before it.
    fn sync(&mut self, number: usize) -> Outcome {
        let Some((db, _)) = self.replicas[number].open.clone() else { return Ok(()) };
        let acknowledged = self.history.newest_made();
        if let Some(newest) = self.checked(number, "a sync", db.sync())? {
            ensure(newest.0 >= acknowledged, || {
                format!("a sync ends at GLSN {newest}, but GLSN {acknowledged} was acknowledged")
            })?;
        }
        Ok(())
    }

    /// Reads a snapshot.
    fn look(&mut self, number: usize) -> Outcome {
        let Some((db, space)) = self.replicas[number].open.clone() else { return Ok(()) };
        let snapshot = db.snapshot();
        let mut seen = Values::default();
        let read = (0..KEYS).try_for_each(|key| {
            snapshot.get(&space, [key]).and_then(|value| seen.see(key, value.as_deref()))
        });
        if self.checked(number, "a read", read)?.is_some() {
            self.history.snapshots.push((snapshot.at().0, seen));
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        self.calm();
        for number in 0..self.replicas.len() {
            // This also cancels a power cut that was to come.
            self.replicas[number].disk.cut_power();
            self.revive(number, &mut Random::new(number as u64))?;
            if self.replicas[number].open.is_none() {
                self.open(number)?;
            }
            if self.is_behind(number) {
                self.remake(number)?;
            }
        }
        let mut logs = Vec::new();
        for replica in &self.replicas {
            let Some((db, space)) = &replica.open else {
                return Err(Failure::new("a replica cannot be opened"));
            };
            db.sync().map_err(|error| failed("the last sync", &error))?;
            logs.push(history::read_log(db, space).map_err(|error| failed("a scan", &error))?);
        }
        for (number, log) in logs.iter().enumerate() {
            ensure(*log == logs[0], || format!("the logs of replicas 0 and {number} differ"))?;
        }
        self.history.check(&logs[0])?;
        for replica in &mut self.replicas {
            let Some((db, _)) = replica.open.take() else { continue };
            let report = db.verify(&mut |_| {}).map_err(|error| failed("verify", &error))?;
            ensure(report.problems.is_empty(), || format!("verify reports {report:?}"))?;
            db.close().map_err(|error| failed("closing", &error))?;
        }
        Ok(())
    }
}

fn failed(what: &str, error: &Error) -> Failure {
    Failure::new(format!("{what} failed: {error} [{error:?}]"))
}
