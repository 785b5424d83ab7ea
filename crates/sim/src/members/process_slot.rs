//! The slot of a process: its open store, and the thread in which it may be stopped.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll::borders::{Border, at_next, at_nth, forget, without_pending};
use plimsoll::{Db, Error};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::lying::{AtChange, Process};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::thread::spawn;
use plimsoll_disk::vfs::Disk;

use crate::members::life::{Answer, Life, Order, perform};
use crate::op::process_op::Act;

/// Simulated time between two rounds of background work while a process waits.
const ROUND_NANOS: u64 = 50_000_000;

/// The longest wait, and the shortest one while a process is stopped.
const WAIT_MAX: Duration = Duration::from_secs(1);
const WAIT_FOR_STOPPED: Duration = Duration::from_millis(100);

/// The result of an act; `Err`: the process panicked.
pub(super) type Ended = Result<plimsoll::Result<Answer>, String>;

/// The operation or border case of a process at which something happens to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Operation(u64),
    Change(AtChange),
    /// The n-th time that its thread reaches a border case of the store.
    Border(Border, u64),
}

/// A call of an act that fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum FailingCall {
    Reservation(u64),
    Read(u64),
    /// The read of this number after the next crossing of a border.
    ReadBeyond(Border, u64),
}

/// A process and its open store.
pub(super) struct ProcessSlot {
    pub(super) process: Process,
    pub(super) disk: Arc<dyn Disk>,
    life: Arc<Mutex<Option<Life>>>,
    /// The act within which it is stopped.
    job: Option<(Order, JoinHandle<Ended>)>,
}

impl ProcessSlot {
    pub(super) fn new(process: Process, disk: Arc<dyn Disk>) -> Self {
        Self { process, disk, life: Arc::default(), job: None }
    }

    /// Its open store. The process is not stopped.
    pub(super) fn life(&self) -> MutexGuard<'_, Option<Life>> {
        lock(&self.life)
    }

    /// The open store, behind its own handle, so that the caller can change other state meanwhile.
    pub(super) fn life_handle(&self) -> Arc<Mutex<Option<Life>>> {
        Arc::clone(&self.life)
    }

    /// Whether it is stopped within an act.
    pub(super) fn is_stopped(&self) -> bool {
        self.job.is_some()
    }

    /// Its open store, unless it is stopped or has none.
    pub(super) fn db(&self) -> Option<Db> {
        if self.is_stopped() { None } else { self.life().as_ref().map(|life| life.db.clone()) }
    }

    /// The act in which its process is stopped.
    pub(super) fn act_under_way(&self) -> Option<Act> {
        self.job.as_ref().map(|(order, _)| order.act)
    }

    /// Executes an order; `kill`: the process is killed when its thread reaches a border case.
    pub(super) fn perform(&self, order: &Order, kill: Option<(Border, u64)>) -> Ended {
        if let Some((border, nth)) = kill {
            let process = self.process.clone();
            at_nth(border, nth, move || process.kill());
        }
        let ended = act(&self.life, order);
        forget();
        ended
    }

    /// Makes a call of the next act fail.
    pub(super) fn let_fail(&self, call: FailingCall) {
        match call {
            FailingCall::Read(nth) => self.process.fail_read(Some(nth)),
            FailingCall::ReadBeyond(border, nth) => {
                let process = self.process.clone();
                at_next(border, move || process.fail_read(Some(nth)));
            }
            FailingCall::Reservation(after) => {
                self.db().iter().for_each(|db| db.refuse_after(after, 1 + after % 2 * 1000))
            }
        }
    }

    /// Stops making calls fail.
    pub(super) fn let_nothing_fail(&self) {
        self.process.fail_read(None);
        self.db().iter().for_each(|db| db.refuse_after(u64::MAX, 1));
    }

    /// Executes an order in a thread that stops at an operation; `None` once it has stopped.
    pub(super) fn perform_and_stop(&mut self, order: &Order, at: At) -> Option<Ended> {
        match at {
            At::Operation(after) => self.process.stop_at(Some(after)),
            At::Change(change) => self.process.stop_at_change(change),
            At::Border(..) => {}
        }
        let (life, process, of) = (Arc::clone(&self.life), self.process.clone(), order.clone());
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let job = spawn("member", move || {
            if let At::Border(border, nth) = at {
                let process = process.clone();
                at_nth(border, nth, move || process.stop_here());
            }
            let ended = act(&life, &of);
            forget();
            done.store(true, Ordering::SeqCst);
            process.notify();
            ended
        });
        self.job = Some((order.clone(), job.expect("a thread starts")));
        self.process.wait_until_stopped(&|| is_done.load(Ordering::SeqCst));
        if self.process.is_stopped() {
            return None;
        }
        self.process.stop_at(None);
        self.end_job().map(|(_, ended)| ended)
    }

    /// Resumes a stopped act, or unwinds it if the process is dead, and waits for its end.
    pub(super) fn end_job(&mut self) -> Option<(Order, Ended)> {
        let (order, job) = self.job.take()?;
        self.process.resume();
        Some((order, job.join().unwrap_or_else(|_| Err("its thread panicked".to_owned()))))
    }

    /// Drops the state of a dead process.
    pub(super) fn bury(&self) -> Result<(), String> {
        let life = self.life().take();
        catch_unwind(AssertUnwindSafe(|| drop(life))).map_err(|panic| text_of(&*panic))
    }
}

fn act(life: &Mutex<Option<Life>>, order: &Order) -> Ended {
    let mut life = lock(life);
    catch_unwind(AssertUnwindSafe(|| perform(&mut life, order))).map_err(|panic| text_of(&*panic))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()));
    format!("it panicked: {}", text.unwrap_or_default())
}

/// Processes that wait, nested within each other's rounds of background work.
#[derive(Default)]
struct Waiting {
    members: Vec<u8>,
    /// The time of the next round for each.
    next_rounds: BTreeMap<u8, u64>,
}

/// The processes that run background work while another one waits.
pub(super) struct BackgroundPeers {
    clock: Arc<ManualClock>,
    /// Includes stopped processes, which are skipped.
    at_work: Mutex<BTreeMap<u8, (Process, Db)>>,
    waiting: Mutex<Waiting>,
    failed: Mutex<Option<(u8, Error)>>,
}

impl BackgroundPeers {
    pub(super) fn new(clock: &Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::clone(clock),
            at_work: Mutex::default(),
            waiting: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    fn at_work(&self) -> MutexGuard<'_, BTreeMap<u8, (Process, Db)>> {
        lock(&self.at_work)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Adds or removes a process.
    pub(super) fn set(&self, member: u8, open: Option<(Process, Db)>) {
        let before = match open {
            Some(open) => self.at_work().insert(member, open),
            None => self.at_work().remove(&member),
        };
        drop(before);
    }

    /// The first failure of background work since the last call.
    pub(super) fn take_failure(&self) -> Option<(u8, Error)> {
        lock(&self.failed).take()
    }

    /// Lets a process wait: time passes, and the others work.
    pub(super) fn wait(&self, member: u8, patience: Duration) {
        // Only time ends a wait for a stopped process.
        let is_one_stopped = self.at_work().values().any(|(process, _)| process.is_stopped());
        let least = if is_one_stopped { WAIT_FOR_STOPPED } else { Duration::ZERO };
        self.clock.advance(patience.min(WAIT_MAX).max(least));
        let others = {
            let mut waiting = self.waiting();
            let now = self.clock.monotonic_nanos();
            if now < waiting.next_rounds.get(&member).copied().unwrap_or_default() {
                return;
            }
            waiting.next_rounds.insert(member, now + ROUND_NANOS);
            // A process that waits within a round is in the middle of an operation, and does no
            // other work.
            waiting.members.push(member);
            let at_work = self.at_work();
            let may_work = |other: &u8, process: &Process| {
                !waiting.members.contains(other) && !process.is_stopped()
            };
            let others = at_work.iter().filter(|(other, (process, _))| may_work(other, process));
            others.map(|(other, open)| (*other, open.clone())).collect::<Vec<(u8, (Process, Db))>>()
        };
        for (other, (process, db)) in others {
            // A stop that is planned at a border case is meant for the process that waits, not for
            // the one that works.
            if let Err(error) = without_pending(|| db.step())
                && !process.is_dead()
            {
                self.failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert((other, error));
            }
        }
        self.waiting().members.pop();
    }
}
