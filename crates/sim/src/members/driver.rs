//! Runs the acts of several processes, one at a time, and checks each answer.

mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::borders::Border;
use plimsoll::{Durability, Options, Retention};
use plimsoll_disk::lying::{AtChange, LyingDisk};

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

use crate::failure::{Failure, Outcome};
use crate::members::driver::judge::{Known, Space};
use crate::members::life::{Life, Order, PASSING, STORE, load_writes, mark, writes_of};
use crate::members::model::{Span, Write};
use crate::members::notes::Note;
use crate::members::process_slot::{At, BackgroundPeers, Ended, FailingCall, ProcessSlot};
use crate::op::Op;
use crate::op::process_op::{Act, ProcessOp};
use crate::world::{Setting, World};

/// Operations between full comparisons.
const CHECK_EVERY: usize = 12;

/// Acts of other processes while a process is stopped by [`Driver::stop`].
const ACTS_STOPPED: u64 = 9;

/// A commit in progress or of unknown outcome.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) writes: Vec<Write>,
    pub(super) notes: Vec<Note>,
    /// For an append to a stream: the GLSN that the entries come after.
    pub(super) behind: u64,
    pub(super) reads: Vec<Span>,
    /// The moment it has read at.
    pub(super) at: Option<u64>,
    /// The number of the next act when the outcome of the commit became unknown; `None` while the
    /// process is stopped within the commit.
    pub(super) ended: Option<u64>,
}

/// A kill or stop of a process at an operation of its next act.
#[derive(Clone, Copy, Debug, Default)]
struct ScheduledStop {
    kill: Option<At>,
    stop: Option<At>,
    failing: Option<FailingCall>,
}

/// The processes that acknowledge commits before they are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffering {
    None,
    All,
    Odd,
}

/// A run.
pub(super) struct Driver {
    pub(super) world: World,
    pub(super) peers: Arc<BackgroundPeers>,
    pub(super) slots: BTreeMap<u8, ProcessSlot>,
    pub(super) known: Known,
    armed: BTreeMap<u8, ScheduledStop>,
    seed: u64,
    setting: Setting,
    memory_total: Option<u64>,
    warm: bool,
    buffering: Buffering,
    /// Compare the processes' reads only after every few acts, so that they may leave commits
    /// unapplied in between.
    pub(super) looks_seldom: bool,
    next_id: u64,
    next_pid: u32,
    /// Kill the process in this slot at this operation, counted from the start of the run over all
    /// processes of the slot.
    pub(super) kill: Option<(u8, u64)>,
    /// Stop the process there instead, and resume it after a few acts.
    pub(super) stop: Option<(u8, u64)>,
    acts_stopped: u64,
    /// Operations of processes that have ended, by slot.
    ended_operations: BTreeMap<u8, u64>,
    backups: u64,
}

impl Driver {
    pub(super) fn new(seed: u64) -> Self {
        let setting = Setting::of_seed(seed);
        let world = World::new(seed, setting);
        let mut random = Random::new(seed ^ 0x00be_d510);
        let memory_total =
            [None, Some(50 << 20), Some(64 << 20), Some(100 << 20)][random.below(4) as usize];
        let buffering = match setting.durability {
            Durability::Sync => Buffering::None,
            Durability::Buffered => [Buffering::All, Buffering::Odd][seed as usize / 2 % 2],
        };
        let looks_seldom = Random::new(seed ^ 0x005e_1d03).below(2) == 0;
        Self {
            looks_seldom,
            peers: BackgroundPeers::new(&world.clock),
            world,
            slots: BTreeMap::new(),
            known: Known::default(),
            armed: BTreeMap::new(),
            seed,
            setting,
            memory_total,
            warm: random.below(4) == 0,
            buffering,
            next_id: 1,
            next_pid: 100,
            kill: None,
            stop: None,
            acts_stopped: 0,
            ended_operations: BTreeMap::new(),
            backups: 0,
        }
    }

    /// Runs operations, and ignores those that do not concern processes.
    pub(super) fn run(&mut self, ops: &[Op]) -> Outcome {
        for (number, op) in ops.iter().enumerate() {
            let Op::OfProcess(process_op) = op else { continue };
            self.apply(*process_op).map_err(|failure| failure.at(number, op))?;
            if (number + 1).is_multiple_of(CHECK_EVERY) {
                self.check_all().map_err(|failure| failure.at(number, op))?;
            }
        }
        Ok(())
    }

    /// As [`Driver::run`], but ends when the process named by [`Driver::kill`] has been killed.
    pub(super) fn run_until_death(&mut self, ops: &[Op]) -> Outcome {
        for number in 0..ops.len() {
            self.run(&ops[number..=number])?;
            let ended = |(member, nth)| {
                self.ended_operations.get(&member).is_some_and(|ended| *ended >= nth)
            };
            if self.kill.is_some_and(ended) {
                break;
            }
        }
        Ok(())
    }

    /// Closes or kills all processes, opens the store alone, and compares it.
    pub(super) fn finish(&mut self) -> Outcome {
        self.alone().map_err(|failure| Failure {
            message: format!("at the end: {}", failure.message),
            ..failure
        })
    }

    /// Number of operations begun by the processes of a slot.
    pub(super) fn operations(&self, member: u8) -> u64 {
        let now = self.slots.get(&member).map_or(0, |slot| slot.process.operations());
        self.ended_operations.get(&member).copied().unwrap_or_default() + now
    }

    fn apply(&mut self, ProcessOp { member, act }: ProcessOp) -> Outcome {
        match act {
            Act::KillAt { after } => {
                self.armed.entry(member).or_default().kill = Some(At::Operation(after))
            }
            Act::StopAt { after } => {
                self.armed.entry(member).or_default().stop = Some(At::Operation(after))
            }
            Act::KillAtChange { nth, later } => {
                self.armed.entry(member).or_default().kill =
                    Some(At::Change(AtChange { nth, later }));
            }
            Act::StopAtChange { nth, later } => {
                self.armed.entry(member).or_default().stop =
                    Some(At::Change(AtChange { nth, later }));
            }
            Act::KillAtBorder { border, nth } => {
                self.armed.entry(member).or_default().kill =
                    Some(At::Border(border_of(border), nth));
            }
            Act::StopAtBorder { border, nth } => {
                self.armed.entry(member).or_default().stop =
                    Some(At::Border(border_of(border), nth));
            }
            Act::Refuse { after } => {
                self.armed.entry(member).or_default().failing =
                    Some(FailingCall::Reservation(after));
            }
            Act::FailRead { nth } => {
                self.armed.entry(member).or_default().failing = Some(FailingCall::Read(nth))
            }
            Act::FailReadBeyond { border, nth } => {
                self.armed.entry(member).or_default().failing =
                    Some(FailingCall::ReadBeyond(border_of(border), nth));
            }
            Act::Kill => {
                if let Some(slot) = self.slots.get(&member) {
                    slot.process.kill();
                }
            }
            Act::GoOn => self.go_on(member)?,
            Act::Check => self.check_all()?,
            Act::Advance { millis } => self.world.clock.advance(Duration::from_millis(millis)),
            Act::PowerCut => self.world.disk.cut_power(),
            Act::CutAtSync { after } => {
                self.world.disk.cut_power_at_sync(self.world.disk.sync_count() + after)
            }
            Act::FailSync { after } => self.world.disk.fail_sync(after),
            Act::FailSyncAndKill { after } => {
                self.world.disk.fail_sync(after);
                self.slots.values().for_each(|slot| slot.process.kill_at_failed_sync());
            }
            Act::Alone => self.alone()?,
            _ => self.act(member, act)?,
        }
        self.go_on_in_time()?;
        self.settle()
    }

    /// A process executes an act.
    fn act(&mut self, member: u8, act: Act) -> Outcome {
        let is_open = self.slots.contains_key(&member);
        if is_open == matches!(act, Act::Join { .. })
            || self.is_stopped(member)
            || self.is_left_out(act)
        {
            return Ok(());
        }
        if !is_open {
            self.attach(member);
        }
        let order = self.order(member, act);
        self.note_pending(member, &order);
        if act == Act::Leave {
            self.peers.set(member, None);
        }
        let mut armed = self.armed.remove(&member).unwrap_or_default();
        if let Some((_, nth)) = self.stop.filter(|(at, _)| *at == member) {
            let after = nth.checked_sub(self.operations(member)).filter(|after| *after > 0);
            armed.stop = after.map(At::Operation);
        }
        let slot = self.slots.get_mut(&member).expect("the slot is occupied");
        match armed.kill {
            Some(At::Operation(after)) => slot.process.kill_at(after),
            Some(At::Change(change)) => slot.process.kill_at_change(change),
            Some(At::Border(..)) | None => {}
        }
        // A process stopped within the act may resume it much later.
        self.known.call_fails =
            armed.failing.is_some() && armed.stop.is_none() && act != Act::Snapshot;
        if matches!(act, Act::TxBegin | Act::Join { .. }) {
            self.known.may_be_behind.remove(&member);
            self.known.may_be_behind.extend(self.known.call_fails.then_some(member));
        }
        if let Some(call) = armed.failing.filter(|_| self.known.call_fails) {
            slot.let_fail(call);
        }
        let kill =
            if let Some(At::Border(border, nth)) = armed.kill { Some((border, nth)) } else { None };
        let ended = match armed.stop {
            Some(at) => slot.perform_and_stop(&order, at),
            None => Some(slot.perform(&order, kill)),
        };
        slot.let_nothing_fail();
        match ended {
            Some(ended) => self.ended(member, &order, ended),
            None => {
                self.stopped(&order);
                self.acts_stopped = 0;
                Ok(())
            }
        }
    }

    /// Resumes a process stopped by [`Driver::stop`] after a few acts of others.
    fn go_on_in_time(&mut self) -> Outcome {
        let Some((member, _)) = self.stop.filter(|(member, _)| self.is_stopped(*member)) else {
            return Ok(());
        };
        self.acts_stopped += 1;
        if self.acts_stopped < ACTS_STOPPED {
            return Ok(());
        }
        self.stop = None;
        self.go_on(member)
    }

    /// Whether an act is skipped because state that it needs is unknown.
    fn is_left_out(&self, act: Act) -> bool {
        let is_passing = matches!(
            act,
            Act::Put { space: PASSING, .. }
                | Act::Delete { space: PASSING, .. }
                | Act::Load { space: PASSING, .. }
                | Act::Get { space: PASSING, .. }
                | Act::Scan { space: PASSING }
        );
        match act {
            Act::MakeSpace | Act::DropSpace => {
                let is_written =
                    |pending: &Pending| pending.writes.iter().any(|write| write.space == PASSING);
                // A read that began earlier returns the state of that time, which the model
                // forgets.
                let reads = |act| {
                    matches!(act, Act::Get { space: PASSING, .. } | Act::Scan { space: PASSING })
                };
                let is_read = self.slots.values().filter_map(ProcessSlot::act_under_way).any(reads);
                is_read
                    || self.known.is_space_changing
                    || self.known.in_doubt.values().any(is_written)
            }
            _ => is_passing && self.known.passing == Space::Unknown,
        }
    }

    fn attach(&mut self, member: u8) {
        self.next_pid += 1;
        let (process, disk) = self.world.disk.process(self.next_pid);
        let peers = Arc::clone(&self.peers);
        process.when_idle(move |patience| peers.wait(member, patience));
        if let Some((at, nth)) = self.kill
            && at == member
        {
            let before = self.ended_operations.get(&member).copied().unwrap_or_default();
            if nth > before {
                process.kill_at(nth - before);
            }
        }
        self.slots.insert(member, ProcessSlot::new(process, disk));
    }

    /// Whether some processes buffer commits and others do not. A process that does not buffer sees
    /// only durable commits.
    pub(super) fn is_mixed(&self) -> bool {
        self.buffering == Buffering::Odd
    }

    /// The newest commit that this process must see.
    pub(super) fn newest_for(&self, member: u8) -> u64 {
        let sees_all = !self.is_mixed() || self.is_buffered(member);
        if sees_all { self.known.model.newest() } else { self.known.durable }
    }

    /// Whether any process acknowledges commits before they are durable.
    pub(super) fn is_any_buffered(&self) -> bool {
        self.buffering != Buffering::None
    }

    fn order(&mut self, member: u8, act: Act) -> Order {
        let id = self.next_id;
        self.next_id += 1;
        let slot = &self.slots[&member];
        let is_buffered = self.is_buffered(member);
        let durability = if is_buffered { Durability::Buffered } else { Durability::Sync };
        let mut options = self
            .options()
            .durability(durability)
            .shared(true)
            .world(Arc::clone(&slot.disk), Arc::clone(&self.world.clock) as _);
        if let Act::Join { mebibytes } = act
            && mebibytes > 0
        {
            options = options.memory_bytes(mebibytes << 20);
        } else if self.memory_total.is_none() {
            options = options.memory_bytes(self.setting.memory_bytes);
        }
        if let Some(total) = self.memory_total {
            options = options.memory_total(total);
        }
        if act == Act::Backup {
            self.backups += 1;
        }
        let retention = self.retention();
        let (newest, seen) = (self.known.model.newest(), self.newest_for(member));
        Order {
            act,
            id,
            newest,
            seen,
            options,
            backup: format!("/backup{}", self.backups),
            retention,
            is_buffered,
        }
    }

    /// Whether this process acknowledges commits before they are durable.
    pub(super) fn is_buffered(&self, member: u8) -> bool {
        match self.buffering {
            Buffering::None => false,
            Buffering::All => true,
            Buffering::Odd => member % 2 == 1,
        }
    }

    /// The settings of every process, without its memory.
    fn options(&self) -> Options {
        let Setting { memtable_bytes, segment_bytes, sizes, .. } = self.setting;
        self.world.clock.advance(self.world.opening_takes);
        let options =
            Options::new().memtable_bytes(memtable_bytes).segment_bytes(segment_bytes).sizes(sizes);
        options.background(false).warm(self.warm).warm_bytes_per_second(1 << 50)
    }

    /// The store, opened alone.
    pub(super) fn open_alone(&self, path: &str) -> plimsoll::Result<Life> {
        let options = self.options().memory_bytes(self.setting.memory_bytes);
        let options =
            options.world(Arc::new(self.world.disk.clone()), Arc::clone(&self.world.clock) as _);
        Life::open(path, options, self.retention())
    }

    fn retention(&self) -> Retention {
        if self.seed.is_multiple_of(3) { Retention::Forever } else { Retention::Latest }
    }

    /// The memory of all processes together, if it is limited.
    pub(super) fn memory_total(&self) -> Option<u64> {
        self.memory_total
    }

    /// The disk, and the clock.
    pub(super) fn disk(&self) -> &LyingDisk {
        &self.world.disk
    }

    /// A commit is in doubt from its start until its process reports the outcome.
    fn note_pending(&mut self, member: u8, order: &Order) {
        let (mut reads, mut at, mut notes) = (Vec::new(), None, Vec::new());
        let writes = match order.act {
            Act::TxCommit => {
                let life = self.slots[&member].life();
                let Some(tx) = life.as_ref().and_then(|life| life.tx.as_ref()) else { return };
                (reads, at) = (tx.reads.clone(), Some(tx.at));
                let mut writes = tx.writes.clone();
                writes.push(mark(order.id));
                writes
            }
            Act::Append { stream, count, bytes } => {
                notes = Note::of_commit(order.id, stream, count, bytes);
                Vec::new()
            }
            Act::Load { space, first, count, bytes } => {
                load_writes(order.id, space, first..first + count, bytes)
            }
            act => match writes_of(act, order.id) {
                Some(writes) => writes,
                None => return self.known.note_doubt(order.act),
            },
        };
        let (id, behind) = (order.id, order.newest);
        let pending = Pending { id, writes, notes, behind, reads, at, ended: Some(id) };
        self.known.in_doubt.insert(order.id, pending);
    }

    fn stopped(&mut self, order: &Order) {
        if let Some(pending) = self.known.in_doubt.get_mut(&order.id) {
            pending.ended = None;
        }
        self.known.is_space_changing |= matches!(order.act, Act::MakeSpace | Act::DropSpace);
    }

    pub(super) fn is_stopped(&self, member: u8) -> bool {
        self.slots.get(&member).is_some_and(ProcessSlot::is_stopped)
    }

    /// Resumes a stopped process.
    pub(super) fn go_on(&mut self, member: u8) -> Outcome {
        let Some((order, ended)) = self.slots.get_mut(&member).and_then(ProcessSlot::end_job)
        else {
            return Ok(());
        };
        self.known.was_stopped = true;
        let judged = self.ended(member, &order, ended);
        self.known.was_stopped = false;
        judged
    }

    /// Handles the end of an act.
    fn ended(&mut self, member: u8, order: &Order, ended: Ended) -> Outcome {
        if let Some(pending) = self.known.in_doubt.get_mut(&order.id) {
            pending.ended = Some(self.next_id);
        }
        if matches!(order.act, Act::MakeSpace | Act::DropSpace) {
            self.known.is_space_changing = false;
        }
        let answer = ended.map_err(|panic| Failure::new(format!("process {member}: {panic}")))?;
        let slot = &self.slots[&member];
        let is_gone = slot.db().is_none();
        if !slot.process.is_dead() && !self.disk().power_is_cut() {
            match (order.act, slot.db()) {
                (Act::Join { .. }, Some(db)) => {
                    self.peers.set(member, Some((slot.process.clone(), db)))
                }
                _ if is_gone => self.stand_up(member)?,
                _ => {}
            }
        }
        self.judge(member, order, answer)
    }

    /// Handles the end of a process.
    fn stand_up(&mut self, member: u8) -> Outcome {
        self.peers.set(member, None);
        let Some(mut slot) = self.slots.remove(&member) else { return Ok(()) };
        slot.process.kill();
        let under_way = slot.end_job();
        slot.bury().map_err(|panic| Failure::new(format!("process {member}, killed: {panic}")))?;
        *self.ended_operations.entry(member).or_default() += slot.process.operations();
        match under_way {
            Some((order, ended)) => {
                drop(
                    ended.map_err(|panic| {
                        Failure::new(format!("process {member}, killed: {panic}"))
                    })?,
                );
                if let Some(pending) = self.known.in_doubt.get_mut(&order.id) {
                    pending.ended = Some(self.next_id);
                }
                if matches!(order.act, Act::MakeSpace | Act::DropSpace) {
                    self.known.is_space_changing = false;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Removes killed processes, or all after a power cut; then checks the invariants.
    fn settle(&mut self) -> Outcome {
        let is_cut = self.disk().power_is_cut();
        let members: Vec<u8> = self.slots.keys().copied().collect();
        for member in members.iter().filter(|member| is_cut || self.slots[member].process.is_dead())
        {
            self.slots[member].process.kill();
        }
        for member in members {
            if self.slots[&member].process.is_dead() {
                self.stand_up(member)?;
            }
        }
        if is_cut {
            self.disk().restore_power();
            self.known.has_failed_sync = false;
            self.known.is_cut = true;
        }
        self.check_some()
    }

    /// Closes or kills all processes, and opens the store in one process alone.
    fn alone(&mut self) -> Outcome {
        let members: Vec<u8> = self.slots.keys().copied().collect();
        self.disk().cancel_failures();
        self.disk().cut_power_at_sync(u64::MAX);
        self.armed.clear();
        for member in &members {
            self.go_on(*member)?;
        }
        self.settle()?;
        if self.known.in_doubt.is_empty() {
            self.check_all()?;
        }
        if self.known.has_failed_sync {
            // Acknowledged commits must be present all the same.
            self.apply(ProcessOp { member: 0, act: Act::PowerCut })?;
        }
        for member in members {
            if (self.seed + u64::from(member) + self.next_id).is_multiple_of(3) {
                self.apply(ProcessOp { member, act: Act::Kill })?;
            } else {
                self.apply(ProcessOp { member, act: Act::Leave })?;
                // [`Driver::stop`] may have stopped the process within its close.
                self.go_on(member)?;
            }
        }
        let store = self.disk().entry(STORE.as_ref());
        if store.is_ok_and(|entry| entry.is_some()) { self.check_alone(STORE) } else { Ok(()) }
    }
}

/// The border case with this number.
fn border_of(number: u64) -> Border {
    Border::ALL[number as usize % Border::ALL.len()]
}
