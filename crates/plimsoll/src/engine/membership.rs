//! This process's part in a store that several have open: joining, the thread that looks after what
//! others need of it, leaving.
//!
//! The keeper is the member that does the background work of the index. All others follow it: they
//! release their memtables when its runs hold what is in them, say what they still need, and take
//! its place when it is free.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_disk::vfs::{DirLock, LockError};
use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::budgets::First;
use plimsoll_log::members::holding::Held;
use plimsoll_log::members::{Members, PATIENCE};
use plimsoll_memory::pool::Pool;

use crate::engine::steps;
use crate::engine::trim::LogSpace;
use crate::engine::{Engine, cursor_commits, keyspace_commits, memory, requests};
use crate::index::memtables::flush_policy;
use crate::txn::committer::Committer;
use crate::txn::follower::Learn;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::machine_memory::there_is_bytes;
use crate::types::options::{MIN_MEMORY_BYTES, Options};

/// How often the store's lock is tried: a child that another process is starting may hold it for a
/// moment.
const LOCK_TRIES: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Who has the lock where nobody says so.
const HELD_BY_NOBODY: &str =
    "by a process that is no member of it, such as a child that one of them forked; end it";

/// As [`HELD_BY_NOBODY`], where the words name no member because they are not those that the
/// members use.
const HELD_BY_UNKNOWN: &str = "by processes whose file SHARED was removed or replaced; close the \
                               store in every process, then open it again";

/// The longest time between two looks at the others: while something is committed, and otherwise.
/// The next sync of a commit ends a longer one.
const LOOK: Duration = Duration::from_millis(500);
const LOOK_IDLE: Duration = Duration::from_secs(20);

/// The longest sleep of the thread that answers nudges: each one wakes it.
const PULSE_SLEEP: Duration = Duration::from_secs(600);

/// The time between two looks while memory moves from one member to another, and between two tries
/// to close a memtable.
const LOOK_SOON: Duration = Duration::from_millis(20);

/// A process that is joining. No other joins or leaves meanwhile.
pub(crate) struct Joining {
    pub(crate) members: Arc<Members>,
    /// `None`: this process only reads.
    pub(crate) lock: Option<Arc<dyn DirLock>>,
    /// Whether no other process has the store open to write.
    pub(crate) is_first: bool,
    /// The memory that this process may use from the start.
    pub(crate) memory_bytes: u64,
}

impl Joining {
    /// Waits for the right to join, and finds out whether others are there.
    pub(crate) fn begin(path: &Path, options: &Options) -> Result<Self> {
        if let Some(file_system) = options.disk.not_for_sharing(path)? {
            return Err(InvalidInput::CannotBeShared { path: path.to_owned(), file_system }.into());
        }
        if options.read_only {
            return Self::begin_to_read(path, options);
        }
        let members = Members::join(&options.disk, &options.clock, path, PATIENCE).lift()?;
        let (lock, is_first) = take_lock(path, options, &members)?;
        members.begin(is_first, options.disk.process_id(), options.clock.wall_micros()).lift()?;
        if is_first && members.try_to_keep().lift()? {
            members.keep();
        }
        let memory_bytes = first_budget(&members, options)?;
        Ok(Self { members: Arc::new(members), lock: Some(lock), is_first, memory_bytes })
    }

    fn begin_to_read(path: &Path, options: &Options) -> Result<Self> {
        let members = Members::join_to_read(&options.disk, &options.clock, path, PATIENCE);
        let members = members.map_err(|error| of_nobody_to_follow(path, error))?;
        let is_followed =
            members.begin_to_read(std::process::id(), options.clock.wall_micros()).lift()?;
        if !is_followed {
            check_not_alone(path, options)?;
        }
        let memory_bytes = if members.has_slot() {
            first_budget(&members, options)?
        } else {
            options.memory_bytes
        };
        Ok(Self { members: Arc::new(members), lock: None, is_first: !is_followed, memory_bytes })
    }

    /// Lets others join. `oldest` is the oldest moment that this one may read, `checkpoint` what
    /// its manifest holds.
    pub(crate) fn end(
        &self,
        path: &Path,
        oldest: Glsn,
        checkpoint: Glsn,
        manifest: u64,
    ) -> Result<()> {
        self.members.set_floor(oldest);
        self.members.set_applied(oldest);
        self.members.set_checkpoint(checkpoint);
        if let Some(lock) = self.lock.as_ref().filter(|_| self.is_first) {
            lock.share().map_err(|error| locked(path, error))?;
            self.members.set_manifest(manifest);
        }
        self.members.joined();
        Ok(())
    }
}

fn first_budget(members: &Members, options: &Options) -> Result<u64> {
    let wanted = match options.memory_total.or(members.memory_total()) {
        // Others may be in a container that has more.
        Some(total) if !options.has_memory_bytes => total.min(there_is_bytes()),
        _ => options.memory_bytes,
    };
    match members.first_budget(options.memory_total, wanted, MIN_MEMORY_BYTES).lift()? {
        First::Bytes(bytes) => Ok(bytes),
        First::TooMany { total_bytes, members } => Err(InvalidInput::NoMemoryForAnother {
            total_bytes,
            members,
            min_bytes: MIN_MEMORY_BYTES,
        }
        .into()),
    }
}

/// Fails if a process has the store for itself: it tells others nothing of its commits.
fn check_not_alone(path: &Path, options: &Options) -> Result<()> {
    for tries in 0.. {
        let Some((pid, who)) = options.disk.locked_by(path)? else { break };
        if tries == LOCK_TRIES {
            return Err(Error::Locked { path: path.to_owned(), pid, who });
        }
        options.clock.sleep(LOCK_PAUSE);
    }
    Ok(())
}

/// The error of a process that may not write to the store's folder, where no other ever shared it.
fn of_nobody_to_follow(path: &Path, error: LogError) -> Error {
    match error {
        LogError::Io { kind: ErrorKind::NotFound, .. } => {
            InvalidInput::NobodyToFollow { path: path.to_owned() }.into()
        }
        error => Error::of_log(error),
    }
}

fn locked(path: &Path, error: LockError) -> Error {
    match error {
        LockError::Held { pid, who } => Error::Locked { path: path.to_owned(), pid, who },
        LockError::Io(error) => error.into(),
    }
}

/// Locks the store alone, if no other member has it, and otherwise beside them.
fn take_lock(
    path: &Path,
    options: &Options,
    members: &Members,
) -> Result<(Arc<dyn DirLock>, bool)> {
    let mut tries = 0;
    loop {
        match options.disk.lock(path) {
            Ok(lock) => return Ok((Arc::from(lock), true)),
            Err(LockError::Held { .. }) => {}
            Err(error) => return Err(locked(path, error)),
        }
        match options.disk.lock_shared(path) {
            Ok(lock) => {
                let writers = members.writers();
                if writers.as_ref().is_ok_and(|writers| !writers.is_empty()) {
                    return Ok((Arc::from(lock), false));
                }
                // Whoever had it a moment ago, alone or as the last member, has let go of it.
                drop(lock);
                if tries == LOCK_TRIES {
                    writers.lift()?;
                    let who =
                        if members.are_words_known() { HELD_BY_NOBODY } else { HELD_BY_UNKNOWN };
                    return Err(Error::Locked {
                        path: path.to_owned(),
                        pid: None,
                        who: who.to_owned(),
                    });
                }
            }
            Err(LockError::Held { .. }) if tries < LOCK_TRIES => {}
            Err(error) => return Err(locked(path, error)),
        }
        tries += 1;
        options.clock.sleep(LOCK_PAUSE);
    }
}

/// The part of an open store in what its members do together.
pub(crate) struct Membership {
    pub(crate) members: Arc<Members>,
    is_ending: Arc<AtomicBool>,
    worker: Mutex<Option<Worker>>,
    /// Applies what this process has left in the log while it is the keeper.
    applier: Mutex<Option<Worker>>,
    /// Does what others ask the keeper for.
    server: Mutex<Option<Worker>>,
    /// Answers the others while this one does other things, but not once a thread has panicked that
    /// they need: then another one keeps the index.
    pulse: Mutex<Option<Worker>>,
    /// Set when a thread panicked.
    has_lost_thread: Arc<AtomicBool>,
    /// Nudges that were answered, in a store without threads.
    nudges: AtomicU64,
}

impl Membership {
    pub(crate) fn new(members: &Arc<Members>) -> Self {
        Self {
            members: Arc::clone(members),
            is_ending: Arc::default(),
            worker: Mutex::default(),
            applier: Mutex::default(),
            server: Mutex::default(),
            pulse: Mutex::default(),
            has_lost_thread: Arc::default(),
            nudges: AtomicU64::default(),
        }
    }

    /// Starts to look after what others need.
    pub(crate) fn start(
        &self,
        pool: &Arc<Pool>,
        space: &Arc<LogSpace>,
        committer: &Arc<Committer>,
    ) -> Result<()> {
        // Not the store itself: it is closed where it is dropped, and that is not to be here.
        let alarm = || {
            let has_lost_thread = Arc::clone(&self.has_lost_thread);
            move || has_lost_thread.store(true, Ordering::Release)
        };
        if !self.members.is_reader() {
            let server =
                requests::serve(&self.members, &self.is_ending, alarm(), space, committer)?;
            *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
            *self.pulse.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.answer(space)?);
            let applier = committer.start_to_apply(alarm())?;
            *self.applier.lock().unwrap_or_else(PoisonError::into_inner) = applier;
        }
        let (pool, space, committer) = (Arc::clone(pool), Arc::clone(space), Arc::clone(committer));
        let (members, is_ending) = (Arc::clone(&self.members), Arc::clone(&self.is_ending));
        let (mut before, mut was_keeper) = (Glsn::NONE, members.is_keeper());
        let step = move |_| {
            let (seen, durable) = (members.state(), members.durable_glsn());
            if is_ending.load(Ordering::Acquire) {
                return Next::End;
            }
            // What fails now is tried again at the next look; who needs it meanwhile gets the
            // error.
            let needed = members.own_needs();
            let looked = look(&space, &committer, &members).unwrap_or_default();
            if std::mem::replace(&mut was_keeper, members.is_keeper()) != was_keeper {
                // What it has to flush from now on, others have committed.
                committer.sequencer.alarm.ring_if_set();
            }
            let newest = members.next();
            if newest == before && members.own_needs() != needed {
                // The keeper looks seldom while nothing is committed.
                members.tell();
            }
            let is_fitting = memory::fit_share(&pool, &space, &members).unwrap_or(true);
            if is_fitting {
                members.wait_for_change(seen, LOOK_SOON);
            } else if looked.must_retry {
                retry_closing(&committer, &members, seen);
            } else if newest == before && !looked.is_reading {
                members.rest(seen, newest, durable, LOOK_IDLE);
            } else {
                members.wait_for_change(seen, LOOK);
            }
            before = newest;
            Next::Again
        };
        let worker = Worker::start("plimsoll-member", &Arc::new(Bell::default()), alarm(), step)?;
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
        Ok(())
    }

    /// Starts the thread that answers the nudges of others.
    fn answer(&self, space: &Arc<LogSpace>) -> Result<Worker> {
        let (members, is_ending) = (Arc::clone(&self.members), Arc::clone(&self.is_ending));
        let (space, has_lost_thread) = (Arc::clone(space), Arc::clone(&self.has_lost_thread));
        let mut nudges = 0;
        let step = move |_| {
            let has_lost_thread = has_lost_thread.load(Ordering::Acquire)
                || space.reader.index.env.signals.has_lost_thread();
            if is_ending.load(Ordering::Acquire) || has_lost_thread {
                return Next::End;
            }
            nudges = members.answer_nudge(nudges, PULSE_SLEEP);
            Next::Again
        };
        Ok(Worker::start("plimsoll-pulse", &Arc::new(Bell::default()), || {}, step)?)
    }

    /// What the threads do, once: for a store that has none.
    pub(crate) fn step(&self, pool: &Pool, space: &LogSpace, committer: &Committer) -> Result<()> {
        let nudges = self.members.answer_nudges(self.nudges.load(Ordering::Relaxed));
        self.nudges.store(nudges, Ordering::Relaxed);
        committer.apply_left()?;
        look(space, committer, &self.members)?;
        memory::fit_share(pool, space, &self.members)?;
        requests::serve_those_asked(&self.members, &self.is_ending, space, committer);
        Ok(())
    }

    /// Ends the threads that look after others, apply, and answer.
    pub(crate) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            self.members.tell();
            worker.stop();
        }
        let applier = self.applier.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(applier) = applier {
            applier.stop();
        }
        let pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pulse) = pulse {
            self.members.nudge();
            pulse.stop();
        }
    }

    /// Ends the work for others; what is under way ends early if the index is closed.
    pub(crate) fn stop_serving(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = server {
            self.members.tell();
            server.stop();
        }
    }
}

/// What a look at the others found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    /// This member holds an older moment, which others keep versions for.
    is_reading: bool,
    /// A memtable is to be closed, and a commit was in the way: see [`retry_closing`].
    must_retry: bool,
}

/// Does what the other members need of this one.
pub(crate) fn look(space: &LogSpace, committer: &Committer, members: &Members) -> Result<Looked> {
    let index = &space.reader.index;
    // A failure poisons the log: the next commit returns it.
    let _ = space.file_log.check_shared();
    // What others wait for is flushed by a process, too, that reads only what is durable: the flush
    // makes it so.
    let is_waited_for =
        members.is_keeper() && members.flush_wanted() > committer.sequencer.applied();
    // What fails now is tried again by who reads.
    let _ = if is_waited_for {
        committer.fresh_and_ordered()
    } else {
        committer.keep_up(space.clock.monotonic_nanos())
    };
    let applied = committer.sequencer.applied();
    index.following.follow(members)?;
    // Afterwards, and as it was before: what memtables need of the log is told by now.
    members.set_applied(applied);
    space.file_log.close_removed();
    if !members.is_keeper() && members.memory_total().is_some() {
        // What those had that have ended is for the others.
        members.list().lift()?;
    }
    let must_retry =
        close_if_wanted(committer, members).is_none() && committer.sequencer.check().is_ok();
    if members.is_keeper() {
        // Finds those that have ended, too: what they promised is void.
        members.list().lift()?;
        index.following.tell_needs(members);
        index.runs.files.remove_left();
        steps::free_log(space)?;
    } else {
        // What the runs hold as well takes no memory, and needs no log.
        let let_go = |applied| {
            if index.runs.checkpoint().glsn >= applied {
                index.memtables.close_up_to(applied);
            }
        };
        committer.sequencer.try_at_applied(let_go);
        index.following.follow(members)?;
    }
    Ok(Looked { is_reading: committer.promise_floor(), must_retry })
}

/// Tries to close the memtable between two commits, until it is time for a look. A try frees no log
/// and asks no lock of another member.
fn retry_closing(committer: &Committer, members: &Members, seen: u64) {
    for _ in 0..LOOK.as_millis() / LOOK_SOON.as_millis() {
        members.wait_for_change(seen, LOOK_SOON);
        if members.state() != seen || close_if_wanted(committer, members).is_some() {
            return;
        }
    }
}

/// Closes the memtable for others, unless another one waits to be flushed: they want it flushed, or
/// it holds the log back. `None`: a commit is under way.
fn close_if_wanted(committer: &Committer, members: &Members) -> Option<()> {
    let memtables = &committer.reader.index.memtables;
    let after = flush_policy::for_others(
        memtables.unflushed(),
        committer.reader.index.runs.checkpoint().glsn,
        members.is_keeper().then(|| members.flush_wanted()),
        members.close_wanted(),
    );
    let Some(after) = after else { return Some(()) };
    committer.sequencer.try_at_applied(|applied| {
        if applied >= after {
            memtables.close_if_none_waits(applied);
        }
    })
}

impl Learn for LogSpace {
    fn learn_keyspaces(&self, at: Glsn) -> Result<()> {
        keyspace_commits::learn(self, at)
    }

    fn learn_cursors(&self, at: Glsn) -> Result<()> {
        cursor_commits::learn(self, at)
    }
}

impl Engine {
    /// From now on no other member removes a file that this one knows, which are those of now;
    /// `None` if this process has the store alone.
    pub(crate) fn hold_files(&self) -> Result<Option<Held>> {
        let Some(membership) = &self.membership else { return Ok(None) };
        let held = membership.members.hold_files().lift()?;
        // What was removed before is in no newer manifest.
        self.committer.fresh()?;
        self.reader.check_open()?;
        self.file_log.catch_up().lift()?;
        self.reader.index.memtables.refresh()?;
        self.file_log.trimmed_below(held.gone_below());
        Ok(Some(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;

    #[test]
    fn a_memtable_is_to_be_closed_until_it_waits_to_be_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let store = open::open(&dir.path().join("store"), options).unwrap();
        let mut tx = Transaction::new(&store.committer);
        tx.put(&store.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
        tx.commit().unwrap();
        let (committer, members) = (&store.committer, store.space.members().unwrap());
        members.want_flush(committer.sequencer.applied());
        let beside_a_commit =
            || committer.sequencer.try_at_applied(|_| close_if_wanted(committer, members)).unwrap();
        assert_eq!(beside_a_commit(), None);
        store.reader.index.memtables.close_up_to(committer.sequencer.applied());
        assert_eq!(beside_a_commit(), Some(()), "nothing is left to close");
    }
}
