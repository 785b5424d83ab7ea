//! Opening a store: alone, or as one of several processes that share it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::vfs::{DirLock, LockError};
use plimsoll_disk::worker::{Bell, Next, Woken, Worker};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::{FileLog, options};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::budgets::First;
use plimsoll_log::members::{LOCK_TIMEOUT, Members};
use plimsoll_memory::budget::Budget;

use crate::engine::lock::take_lock_alone;
use crate::index::OpenIndex;
use crate::index::env::role::Role;
use crate::read::system_records::OwnRecords;
use crate::txn::applier::Applier;
use crate::txn::other_processes::{Alone, Peers};
use crate::txn::sequencer::CommitSequencer;
use crate::txn::shared::Shared;
use crate::txn::shared::floors::Floors;
use crate::txn::shared::follower::Follower;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::machine_memory::available_bytes;
use crate::types::options::{Durability, MIN_MEMORY_BYTES, Options};

/// How often the store's lock is tried again, because a child process that another process is
/// starting may hold the lock briefly.
const LOCK_TRIES: usize = 20;

/// The pause before each further try.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The time between two reports of a process that joins or leaves; many fit into [`LOCK_TIMEOUT`].
const REPORT_PERIOD: Duration = Duration::from_secs(1);

/// The maximum number of reports. A report shows that the process runs, not that its work proceeds,
/// so others must not wait forever for a process that reports forever.
const REPORTS_MAX: u32 = 600;

/// Shown when the lock's holder cannot be identified.
const HELD_BY_NOBODY: &str =
    "by a process that is not a member, such as a forked child of a member; end that process";

/// As [`HELD_BY_NOBODY`], if the words name no member because the members use other words.
const HELD_BY_UNKNOWN: &str = "by processes whose file SHARED was removed or replaced; close the \
                               store in every process, then open it again";

/// The entry of this process into a store: the store's lock, and what opening the store may do.
pub(crate) struct Entry {
    pub(crate) lock: Option<Arc<dyn DirLock>>,
    /// `None` if no other process can open the store for writing meanwhile.
    joining: Option<Joining>,
}

impl Entry {
    /// Locks the store at `path` for this process alone, or joins the members that share it. Sets
    /// the memory budget of this process in `options`.
    pub(crate) fn begin(path: &Path, options: &mut Options) -> Result<Self> {
        if !options.shared {
            return Ok(Self {
                lock: take_lock_alone(path, options)?.map(Arc::from),
                joining: None,
            });
        }
        let joining = Joining::begin(path, options)?;
        options.memory_bytes = joining.memory_bytes;
        Ok(Self { lock: joining.lock.clone(), joining: Some(joining) })
    }

    /// The members that share the store.
    pub(crate) fn members(&self) -> Option<&Arc<Members>> {
        self.joining.as_ref().map(|joining| &joining.members)
    }

    /// Which process writes the files of the index.
    pub(crate) fn role(&self, options: &Options) -> Role {
        match self.members() {
            Some(members) => Role::Member(Arc::clone(members)),
            None if options.read_only => Role::ReadOnly,
            None => Role::Alone,
        }
    }

    /// How the log is shared with other processes.
    pub(crate) fn of_log(&self) -> Option<options::Shared> {
        self.joining.as_ref().map(|joining| options::Shared {
            members: Arc::clone(&joining.members),
            is_first: joining.is_first,
        })
    }

    /// Whether no other process writes the files of the index until [`Entry::end`].
    pub(crate) fn is_only_writer(&self) -> bool {
        self.lock.is_some() && self.joining.as_ref().is_none_or(|joining| joining.is_first)
    }

    /// Whether another process may replace the manifest that this one reads.
    pub(crate) fn may_refresh(&self, options: &Options) -> bool {
        options.read_only || self.joining.is_some()
    }

    /// The part of a store that commits and reads use to deal with other processes, and the same as
    /// its concrete type if there can be other processes.
    pub(crate) fn peers(
        &self,
        options: &Options,
        budget: &Budget,
        (log, index, sequencer): (&Arc<FileLog>, &Arc<OpenIndex>, &Arc<CommitSequencer>),
        records: &Arc<OwnRecords>,
        floors: Floors,
    ) -> (Arc<dyn Peers>, Option<Arc<Shared>>) {
        let Some(members) = self.members() else {
            return (Arc::new(Alone::new(log, sequencer)), None);
        };
        let applier = Applier {
            log: Arc::clone(log),
            budget: budget.clone(),
            index: Arc::clone(index),
            sequencer: Arc::clone(sequencer),
            records: Arc::clone(records),
            to_load: Mutex::default(),
            must_load_records: floors.must_load_records,
        };
        let is_buffered = options.durability == Durability::Buffered;
        let follower = Follower { members: Arc::clone(members), is_buffered, applier };
        let shared = Arc::new(Shared::new(follower, options.sizes.blind_after));
        (Arc::clone(&shared) as _, Some(shared))
    }

    /// Lets other processes join. `oldest` is the oldest moment that this process may read,
    /// `checkpoint` the one at which the index was opened.
    pub(crate) fn end(
        &self,
        path: &Path,
        oldest: Glsn,
        checkpoint: Glsn,
        index: &OpenIndex,
    ) -> Result<()> {
        let Some(joining) = &self.joining else { return Ok(()) };
        let checkpoint = index.runs.checkpoint().glsn.min(checkpoint);
        joining.end(path, oldest, checkpoint, index.runs.manifest_number())
    }
}

/// A process that is joining. No other process joins or leaves meanwhile, except while this one
/// waits for memory.
struct Joining {
    members: Arc<Members>,
    /// `None` in a read-only process.
    lock: Option<Arc<dyn DirLock>>,
    /// Whether no other process has the store open for writing.
    is_first: bool,
    /// The memory budget of this process from the start.
    memory_bytes: u64,
    /// Reports to processes that wait to join that this one is at work; `None` without threads.
    reporter: Option<Worker>,
}

impl Joining {
    /// Waits for the right to join, and finds out whether other processes have the store open.
    fn begin(path: &Path, options: &Options) -> Result<Self> {
        if let Some(file_system) = options.disk.not_for_sharing(path)? {
            return Err(InvalidInput::CannotBeShared { path: path.to_owned(), file_system }.into());
        }
        if options.read_only {
            return Self::begin_to_read(path, options);
        }
        let members = Members::join(&options.disk, &options.clock, path, LOCK_TIMEOUT).lift()?;
        let (lock, is_first) = take_lock(path, options, &members)?;
        members.begin(is_first, options.disk.process_id(), options.clock.wall_micros()).lift()?;
        if is_first && members.keeper.try_acquire().lift()? {
            members.keeper.keep();
        }
        // Others may join while this process waits for memory, unless this process is the first.
        let memory_bytes = first_budget(&members, options, !is_first)?;
        let members = Arc::new(members);
        let reporter = options.background.then(|| report_work(&members)).transpose()?;
        Ok(Self { members, lock: Some(lock), is_first, memory_bytes, reporter })
    }

    fn begin_to_read(path: &Path, options: &Options) -> Result<Self> {
        let members = Members::join_to_read(&options.disk, &options.clock, path, LOCK_TIMEOUT);
        let members = members.map_err(|error| of_nobody_to_follow(path, error))?;
        let is_followed =
            members.begin_to_read(std::process::id(), options.clock.wall_micros()).lift()?;
        if !is_followed {
            check_not_alone(path, options)?;
        }
        let memory_bytes = if members.table.has_slot() {
            first_budget(&members, options, false)?
        } else {
            options.memory_bytes
        };
        let members = Arc::new(members);
        // No process waits for one that cannot report.
        let reports = options.background && members.can_report_work();
        let reporter = reports.then(|| report_work(&members)).transpose()?;
        Ok(Self { members, lock: None, is_first: !is_followed, memory_bytes, reporter })
    }

    /// Lets other processes join. `oldest` is the oldest moment that this process may read,
    /// `checkpoint` the checkpoint of its manifest.
    fn end(&self, path: &Path, oldest: Glsn, checkpoint: Glsn, manifest: u64) -> Result<()> {
        self.members.needs.set_floor(oldest);
        self.members.needs.set_applied(oldest);
        self.members.needs.set_checkpoint(checkpoint);
        if let Some(lock) = self.lock.as_ref().filter(|_| self.is_first) {
            lock.share().map_err(|error| locked(path, error))?;
            self.members.marks.set_manifest(manifest);
        }
        self.reporter.as_ref().map(Worker::stop);
        self.members.joined();
        Ok(())
    }
}

/// Starts a thread that reports every second that this process works, while it joins or leaves, for
/// ten minutes at most.
pub(crate) fn report_work(members: &Arc<Members>) -> Result<Worker> {
    let members = Arc::clone(members);
    let step = reports(move || members.report_work());
    Ok(Worker::start("plimsoll-join", &Arc::new(Bell::default()), || {}, step)?)
}

/// The steps of the reporting thread.
fn reports(report: impl Fn()) -> impl FnMut(Woken) -> Next {
    let mut left = REPORTS_MAX;
    move |_| {
        report();
        left -= 1;
        if left == 0 { Next::End } else { Next::Within(REPORT_PERIOD) }
    }
}

fn first_budget(members: &Members, options: &Options, lets_others: bool) -> Result<u64> {
    let wanted = match options.memory_total.or(members.budgets.memory_total()) {
        // The total may exceed the memory that is available here, because other processes may run
        // in a container with a higher limit.
        Some(total) if !options.has_memory_bytes => total.min(available_bytes()),
        _ => options.memory_bytes,
    };
    let bytes = (wanted, MIN_MEMORY_BYTES);
    match members.budgets.first_budget(options.memory_total, bytes, lets_others).lift()? {
        First::Bytes(bytes) => Ok(bytes),
        First::TooMany { total_bytes, members } => Err(InvalidInput::NoMemoryForAnother {
            total_bytes,
            members,
            min_bytes: MIN_MEMORY_BYTES,
        }
        .into()),
    }
}

/// Fails if a process has the store open alone, because such a process publishes nothing about its
/// commits.
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

/// The error of a process that may not write to the store's folder while no process has ever shared
/// the store.
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

/// Locks the store alone if no other member has it open, otherwise joins its members.
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
                let writers = members.slots.writers();
                if writers.as_ref().is_ok_and(|writers| !writers.is_empty()) {
                    return Ok((Arc::from(lock), false));
                }
                // The previous holder, alone or as the last member, has released the lock since.
                drop(lock);
                if tries == LOCK_TRIES {
                    writers.lift()?;
                    let who = if members.table.are_words_known() {
                        HELD_BY_NOBODY
                    } else {
                        HELD_BY_UNKNOWN
                    };
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_process_reports_for_ten_minutes_at_most() {
        let reported = Cell::new(0);
        let mut step = reports(|| reported.set(reported.get() + 1));
        let mut waited = Duration::ZERO;
        while let Next::Within(pause) = step(Woken::TimedOut) {
            assert!(pause < LOCK_TIMEOUT / 2, "those that wait see several reports");
            waited += pause;
            assert!(waited <= Duration::from_secs(600), "it does not end");
        }
        assert!(waited >= Duration::from_secs(595), "{waited:?}");
        assert_eq!(reported.get(), 600);
    }
}
