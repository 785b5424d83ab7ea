//! This process's part in a store that several processes have open: the thread that serves the
//! other members, and leaving.
//!
//! The keeper is the member that does the background work of the index. All others follow it: they
//! release a memtable when the keeper's runs hold its contents, publish what they still need, and
//! become the keeper when there is none.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::job_pool::{Job, JobPriority};
use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::holds::Held;
use plimsoll_log::members::{Member, Members};
use plimsoll_memory::pool::Pool;

use crate::engine::shared::joining::report_work;
use crate::engine::shared::{memory_share, requests};
use crate::engine::trim::LogSpace;
use crate::engine::{Engine, compact_and_free};
use crate::index::memtables::flush_policy;
use crate::txn::committer::Committer;
use crate::txn::shared::Shared;
use crate::types::error::{Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::lock::lock;

/// The longest time between two checks of the other members while commits are made.
const LOOK: Duration = Duration::from_millis(500);

/// The longest time between two checks while no commits are made. The next sync of a commit ends
/// this wait.
const POLL_INTERVAL_IDLE: Duration = Duration::from_secs(20);

/// The longest sleep of the thread that answers pings; each ping wakes it.
const PING_SLEEP: Duration = Duration::from_secs(600);

/// The time between two checks while memory moves from one member to another, and between two
/// attempts to close a memtable.
const POLL_INTERVAL_SHORT: Duration = Duration::from_millis(20);

/// The part of an open store that takes part in the work of all members.
#[derive(Default)]
pub(crate) struct Membership {
    /// `None` if no other process can have the store open, so that there is nothing to do.
    shared: Option<Arc<Shared>>,
    is_ending: Arc<AtomicBool>,
    worker: Mutex<Option<Worker>>,
    /// While this process is the keeper, applies the log records that it has not applied yet.
    applier: Mutex<Option<Job>>,
    /// Serves requests to the keeper.
    server: Mutex<Option<Worker>>,
    /// Answers pings while other threads work, but no longer once a thread that other members need
    /// has panicked: then another member becomes the keeper.
    ping_thread: Mutex<Option<Worker>>,
    /// While this process leaves, reports to processes that wait to join that it is at work.
    reporter: Mutex<Option<Worker>>,
    /// Set when a thread panicked.
    has_lost_thread: Arc<AtomicBool>,
    /// Number of answered pings, in a store without threads.
    pings: AtomicU64,
}

impl Membership {
    /// Creates the membership of a process of a store that other processes may have open.
    pub(crate) fn new(shared: Option<Arc<Shared>>) -> Self {
        Self { shared, ..Self::default() }
    }

    /// The members of the store, if there may be several.
    pub(crate) fn members(&self) -> Option<&Arc<Members>> {
        self.shared.as_ref().map(|shared| shared.members())
    }

    /// The members of the store, including this process; empty if it has the store alone.
    pub(crate) fn list(&self) -> Result<Vec<Member>> {
        self.members().map_or(Ok(Vec::new()), |members| members.slots.list().lift())
    }

    /// Starts the work for the other members.
    pub(crate) fn start(
        &self,
        pool: &Arc<Pool>,
        space: &Arc<LogSpace>,
        committer: &Arc<Committer>,
    ) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        // The thread must not own the store: the store is closed where it is dropped, which must
        // not happen here.
        let alarm = || {
            let has_lost_thread = Arc::clone(&self.has_lost_thread);
            move || has_lost_thread.store(true, Ordering::Release)
        };
        if !shared.members().table.is_reader() {
            let server =
                requests::serve(shared.members(), &self.is_ending, alarm(), space, committer)?;
            *lock(&self.server) = Some(server);
            *lock(&self.ping_thread) = Some(self.answer(shared.members(), space)?);
            *lock(&self.applier) = Some(start_to_apply(shared, committer, alarm())?);
        }
        let (pool, space, committer) = (Arc::clone(pool), Arc::clone(space), Arc::clone(committer));
        let (shared, is_ending) = (Arc::clone(shared), Arc::clone(&self.is_ending));
        let members = Arc::clone(shared.members());
        let (mut before, mut was_keeper) = (Glsn::NONE, members.keeper.is_keeper());
        let step = move |_| {
            let (seen, durable) = (members.table.state(), members.marks.durable_glsn());
            if is_ending.load(Ordering::Acquire) {
                return Next::End;
            }
            // An error here is retried at the next check; a caller that needs the result meanwhile
            // gets the error itself.
            let needed = members.needs.own_needs();
            let polled = poll(&space, &committer, &shared).unwrap_or_default();
            if std::mem::replace(&mut was_keeper, members.keeper.is_keeper()) != was_keeper {
                // From now on this process must flush the memtables that hold commits of others, so
                // the alarm for them may be due.
                committer.sequencer.alarm.ring_if_set();
            }
            let newest = members.marks.next();
            if newest == before && members.needs.own_needs() != needed {
                // Wake the keeper, which checks rarely while nothing is committed.
                members.table.notify();
            }
            let is_fitting = memory_share::fit(&pool, &space, &members).unwrap_or(true);
            if is_fitting {
                members.table.wait_for_change(seen, POLL_INTERVAL_SHORT);
            } else if polled.must_retry {
                retry_closing(&committer, &members, seen);
            } else if newest == before && !polled.is_reading {
                members.marks.rest(seen, newest, durable, POLL_INTERVAL_IDLE);
            } else {
                members.table.wait_for_change(seen, LOOK);
            }
            before = newest;
            Next::Again
        };
        let worker = Worker::start("plimsoll-member", &Arc::new(Bell::default()), alarm(), step)?;
        *lock(&self.worker) = Some(worker);
        Ok(())
    }

    /// Starts the thread that answers pings.
    fn answer(&self, members: &Arc<Members>, space: &Arc<LogSpace>) -> Result<Worker> {
        let (members, is_ending) = (Arc::clone(members), Arc::clone(&self.is_ending));
        let (space, has_lost_thread) = (Arc::clone(space), Arc::clone(&self.has_lost_thread));
        let mut pings = 0;
        let step = move |_| {
            let has_lost_thread = has_lost_thread.load(Ordering::Acquire)
                || space.reader.index.env.signals.has_panicked_job();
            if is_ending.load(Ordering::Acquire) || has_lost_thread {
                return Next::End;
            }
            pings = members.keeper.answer_ping(pings, PING_SLEEP);
            Next::Again
        };
        Ok(Worker::start("plimsoll-ping", &Arc::new(Bell::default()), || {}, step)?)
    }

    /// Does the work of the threads once, for a store without threads.
    pub(crate) fn step(&self, pool: &Pool, space: &LogSpace, committer: &Committer) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let members = shared.members();
        let pings = members.keeper.answer_pings(self.pings.load(Ordering::Relaxed));
        self.pings.store(pings, Ordering::Relaxed);
        committer.caught_up(|| shared.blind.apply_left())?;
        poll(space, committer, shared)?;
        memory_share::fit(pool, space, members)?;
        requests::serve_pending(members, &self.is_ending, space, committer);
        Ok(())
    }

    /// Stops the work for other processes and leaves the members. Returns whether no member
    /// remains, in which case this process writes the index.
    pub(crate) fn leave(&self, pool: &Pool, space: &LogSpace) -> Result<bool> {
        let Some(members) = self.members() else { return Ok(true) };
        let has_threads = lock(&self.worker).is_some();
        self.stop(members);
        // A joining member may wait until this process releases memory, and the thread that would
        // release it has just ended.
        let release_memory = || drop(memory_share::shrink(pool, space, members));
        // An error means that another member has not finished joining or leaving, so one remains.
        let Ok(is_last) = members.leave(&release_memory) else { return Ok(false) };
        if has_threads {
            *lock(&self.reporter) = report_work(members).ok();
        }
        if !is_last {
            return Ok(false);
        }
        let index = &space.reader.index;
        index.following.follow(members)?;
        Ok(index.env.role().may_write())
    }

    /// Stops the threads that serve other members and answer pings, and the apply job.
    fn stop(&self, members: &Members) {
        self.is_ending.store(true, Ordering::Release);
        let (worker, applier) = (lock(&self.worker).take(), lock(&self.applier).take());
        if let Some(worker) = worker {
            members.table.notify();
            worker.stop();
        }
        if let Some(applier) = applier {
            applier.stop();
        }
        let ping_thread = lock(&self.ping_thread).take();
        if let Some(ping_thread) = ping_thread {
            members.keeper.ping();
            ping_thread.stop();
        }
    }

    /// Stops serving requests. A request in progress ends early if the index is closed.
    pub(crate) fn stop_serving(&self) {
        let server = lock(&self.server).take();
        if let (Some(server), Some(members)) = (server, self.members()) {
            members.table.notify();
            server.stop();
        }
    }

    /// The last step of leaving; other processes may join afterwards.
    pub(crate) fn left(&self) {
        let reporter = lock(&self.reporter).take();
        if let Some(members) = self.members() {
            reporter.as_ref().map(Worker::stop);
            members.left();
        }
    }
}

/// Starts the apply job, which applies log records that this process has not applied yet while it
/// is the keeper. `alarm` is called if the job panics.
fn start_to_apply(
    shared: &Arc<Shared>,
    committer: &Arc<Committer>,
    alarm: impl Fn() + Send + 'static,
) -> Result<Job> {
    let job_pool = Arc::clone(&committer.reader.index.env.context.job_pool);
    let (applying, committer) = (Arc::clone(shared), Arc::clone(committer));
    let step = move |_| {
        // If this fails, the commit that needs everything applied retries and returns the error.
        let _ = committer.caught_up(|| applying.blind.apply_left());
        Next::Rung
    };
    Ok(job_pool.start("apply", JobPriority::High, &shared.blind.applier, alarm, step)?)
}

/// The result of checking the other members.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    /// Whether this member has an older moment open, for which others retain versions.
    is_reading: bool,
    /// Whether a memtable must still be closed because a commit was in progress: see
    /// [`retry_closing`].
    must_retry: bool,
}

/// Does the work that the other members need from this one.
pub(crate) fn poll(space: &LogSpace, committer: &Committer, shared: &Shared) -> Result<Polled> {
    let (index, members) = (&space.reader.index, shared.members());
    // A failure poisons the log, and the next commit returns it.
    let _ = space.reader.log.check_shared();
    // A `Sync` process also flushes what `Buffered` peers are waiting for; the flush makes it
    // durable.
    let is_waited_for = members.keeper.is_keeper()
        && members.marks.flush_requested() > committer.sequencer.applied();
    // An error here is retried by the next read.
    let _ = if is_waited_for {
        committer.fresh_and_ordered()
    } else {
        committer.caught_up(|| shared.blind.apply_while_blind(space.clock.monotonic_nanos()))
    };
    let applied = committer.sequencer.applied();
    index.following.follow(members)?;
    // Publish the GLSN that was read before `follow`: by now, the part of the log that the
    // memtables need is published.
    members.needs.set_applied(applied);
    space.reader.log.close_removed();
    if !members.keeper.is_keeper() && members.budgets.memory_total().is_some() {
        // Clear the slots of members that have ended, so that the others can use their memory.
        members.slots.list().lift()?;
    }
    let must_retry =
        close_if_wanted(committer, members).is_none() && committer.sequencer.check().is_ok();
    if members.keeper.is_keeper() {
        // Listing the members also detects those that have ended, whose published needs no longer
        // count.
        members.slots.list().lift()?;
        index.following.publish_needs(members);
        index.runs.files.remove_left();
        compact_and_free::free_log(space)?;
    } else {
        // Release memtables whose contents the runs hold as well, so that they use no memory and
        // pin no log.
        let let_go = |applied| {
            if index.runs.checkpoint().glsn >= applied {
                index.memtables.close_up_to(applied);
            }
        };
        committer.sequencer.try_between_commits(let_go);
        index.following.follow(members)?;
    }
    Ok(Polled { is_reading: committer.publish_floor(), must_retry })
}

/// Tries to close the memtable between two commits until the next check is due. An attempt frees no
/// log and takes no lock between members.
fn retry_closing(committer: &Committer, members: &Members, seen: u64) {
    for _ in 0..LOOK.as_millis() / POLL_INTERVAL_SHORT.as_millis() {
        members.table.wait_for_change(seen, POLL_INTERVAL_SHORT);
        if members.table.state() != seen || close_if_wanted(committer, members).is_some() {
            return;
        }
    }
}

/// Closes the memtable for other members, which want it flushed or whose log it pins, unless a
/// memtable already waits to be flushed. `None` if a commit is in progress.
fn close_if_wanted(committer: &Committer, members: &Members) -> Option<()> {
    let memtables = &committer.reader.index.memtables;
    let after = flush_policy::for_others(
        memtables.unflushed(),
        committer.reader.index.runs.checkpoint().glsn,
        members.keeper.is_keeper().then(|| members.marks.flush_requested()),
        members.marks.close_requested(),
    );
    let Some(after) = after else { return Some(()) };
    committer.sequencer.try_between_commits(|applied| {
        if applied >= after {
            memtables.close_if_none_waits(applied);
        }
    })
}

impl Engine {
    /// Keeps other members from removing any file that this process knows at this time; `None` if
    /// this process has the store alone.
    pub(crate) fn hold_files(&self) -> Result<Option<Held>> {
        let Some(members) = self.membership.members() else { return Ok(None) };
        let held = members.holds.hold_files().lift()?;
        // Load the newest manifest, which names no file that was removed before the hold.
        self.committer.fresh()?;
        self.reader.check_open()?;
        self.reader.log.catch_up().lift()?;
        self.reader.index.memtables.refresh()?;
        self.reader.log.trimmed_below(held.gone_below());
        Ok(Some(held))
    }

    /// Keeps the log from `from` on in all members until [`LogSpace::release`], as far as it was
    /// not freed before.
    pub(crate) fn hold_log(&self, from: Glsn) -> Result<()> {
        if self.membership.members().is_some_and(|members| !members.table.has_slot()) {
            return Err(InvalidInput::CannotHoldLog { path: self.path.clone() }.into());
        }
        // Wait until a removal that another member has begun ends. If it does not end in time, the
        // part of the log that it frees counts as freed.
        let _held = self.hold_files()?;
        self.space.hold(from);
        Ok(())
    }

    /// The connection to the other processes, in a store that is shared.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.membership.shared.as_ref().expect("the store is shared")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;

    #[test]
    fn closing_a_memtable_is_requested_until_it_waits_to_be_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let store = open::open(&dir.path().join("store"), options).unwrap();
        let mut tx = Transaction::new(&store.committer);
        tx.put(&store.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
        tx.commit().unwrap();
        let (committer, members) = (&store.committer, store.membership.members().unwrap());
        members.marks.request_flush(committer.sequencer.applied());
        let beside_a_commit = || {
            committer
                .sequencer
                .try_between_commits(|_| close_if_wanted(committer, members))
                .unwrap()
        };
        assert_eq!(beside_a_commit(), None);
        store.reader.index.memtables.close_up_to(committer.sequencer.applied());
        assert_eq!(beside_a_commit(), Some(()), "nothing is left to close");
    }
}
