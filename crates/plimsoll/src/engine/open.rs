//! Opens a store. This is the only place where its parts are put together.
//!
//! ```text
//! STORE/
//!   LOCK     locked by the process that has it open for writing
//!   log/     the truth: segments, offset tables, blob files
//!   index/   a cache of it: the manifest and the runs
//!   warm/    an image of the hot set in memory; may be missing, may be deleted
//! ```
//!
//! A creation that was interrupted leaves a folder with some of these and no entry in the log: it
//! opens as an empty store.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::io_cause::IoCause;
use plimsoll_disk::vfs::{DirLock, Disk, LockError};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::options::{FileLogOptions, Mode, Shared};
use plimsoll_log::file_log::{FileLog, id_in};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::{self, Log};
use plimsoll_log::members::members_of;
use plimsoll_log::members::reading::tell_readers_of_one_alone;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use crate::engine::cursor_commits;
use crate::engine::cursors::Cursors;
use crate::engine::folder::{
    LASTING, check_folder, find_or_make_folder, make_folders, set_foreign_aside,
};
use crate::engine::io_choice;
use crate::engine::keyspace_commits;
use crate::engine::maintenance::checkpoints::{self, Checkpoints};
use crate::engine::maintenance::upkeep::Upkeep;
use crate::engine::membership::{Joining, Membership};
use crate::engine::open_beside::open_beside_a_writer;
use crate::engine::replay::replay;
use crate::engine::retention::RetentionHorizon;
use crate::engine::steps;
use crate::engine::trim::LogSpace;
use crate::engine::{Catalog, Engine, Maintenance, Opened};
use crate::index::OpenIndex;
use crate::index::env::Context;
use crate::index::env::duty::Duty;
use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_name;
use crate::index::run::file::newest_in_folder;
use crate::read::moments::Snapshots;
use crate::read::reader::{Owner, Reader};
use crate::rowcache::RowCache;
use crate::txn::blindness::Blindness;
use crate::txn::committer::Committer;
use crate::txn::follower::Follower;
use crate::txn::patience::{self, Patience};
use crate::txn::sequencer::CommitSequencer;
use crate::types::damage::recover_command;
use crate::types::error::{Error, Lift, Result};
use crate::types::events;
use crate::types::keyspaces::Keyspaces;
use crate::types::machine_memory::{ceiling_bytes, check_there_is};
use crate::types::options::{Durability, Options};
use crate::types::stats::OpeningStats;
use crate::warm::{self, WARM_DIR, Warm};

/// How often the lock of a store is tried, and the pause between two tries.
const LOCK_TRIES: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Divisor: the part of the budget that the page pool never gives away.
pub(crate) const POOL_FLOOR_SHARE: u64 = 8;

/// Opens or creates the store at `path`.
pub(crate) fn open(path: &Path, options: Options) -> Result<Arc<Engine>> {
    if !options.read_only && !options.shared {
        return open_by(path, options);
    }
    let read = || read_manifest(path, &options);
    open_beside_a_writer(&read, || open_by(path, options.clone()))
}

fn read_manifest(path: &Path, options: &Options) -> Result<Option<Manifest>> {
    Manifest::read_of_store(&*options.disk, path)
}

/// As [`open`], once.
pub(crate) fn open_by(path: &Path, mut options: Options) -> Result<Arc<Engine>> {
    options.check()?;
    [Some(options.memory_bytes), options.memory_total]
        .into_iter()
        .flatten()
        .try_for_each(check_there_is)?;
    let watch = Stopwatch::start(&options);
    find_or_make_folder(path, &options)?;
    // A process that only reads follows one that writes, which may make them anew.
    let lasting: &[&str] = if options.read_only { &[] } else { &LASTING };
    let path = &match options.disk.of_store(path, lasting)? {
        Some((disk, path)) => {
            options.disk = disk;
            path
        }
        None => path.to_owned(),
    };
    check_folder(path, &options)?;
    let joining = options.shared.then(|| Joining::begin(path, &options)).transpose()?;
    if let Some(joining) = &joining {
        options.memory_bytes = joining.memory_bytes;
    }
    let lock = match &joining {
        Some(joining) => joining.lock.clone(),
        None => take_lock(path, &options)?.map(Arc::from),
    };
    let members = joining.as_ref().map(|joining| Arc::clone(&joining.members));
    let duty = match &members {
        Some(members) => Duty::Member(Arc::clone(members)),
        None if options.read_only => Duty::ReadOnly,
        None => Duty::Alone,
    };
    let budget = Budget::with_ceiling(
        options.memory_bytes,
        ceiling_bytes(options.memory_bytes),
        Backing::Mapped,
    )?;
    let (options, io) = io_choice::choose(options, &budget);
    let pool = Pool::new(&budget, options.memory_bytes / POOL_FLOOR_SHARE).lift()?;
    let row_cache =
        if options.row_cache { RowCache::new(&budget, &pool)? } else { RowCache::none() };
    let upkeep = Upkeep::start(&pool, &options)?;
    make_folders(path, &options)?;
    let manifest = Manifest::read_of_store(&*options.disk, path)?;
    if let (Some(manifest), Some(log_id)) = (&manifest, id_in(&*options.disk, &path.join("log"))) {
        check_log_id(path, manifest, log_id)?;
    }
    let before_log = watch.nanos();
    let (file_log, report) = FileLog::open(FileLogOptions {
        outer_lock: lock.as_ref().map(Arc::downgrade),
        shared: joining.as_ref().map(|joining| Shared {
            members: Arc::clone(&joining.members),
            is_first: joining.is_first,
        }),
        ..log_options(path, &options, &budget, &pool, manifest.as_ref())
    })
    .map_err(|error| explain(path, error))?;
    let log_nanos = watch.nanos() - before_log;
    let file_log = Arc::new(file_log);
    let log: Arc<dyn Log> = Arc::clone(&file_log) as _;
    let manifest = match manifest {
        Some(manifest) => {
            let manifest = check_manifest(path, manifest, &*log)?;
            // Other members may be writing manifests.
            if lock.is_some() && joining.as_ref().is_none_or(|joining| joining.is_first) {
                set_foreign_aside(&*options.disk, &path.join("index"), manifest.number)?;
            }
            manifest
        }
        None => {
            refuse_to_forget(path, &options, &*log, &budget)?;
            Manifest::empty(log.id())
        }
    };
    let snapshots = Arc::new(Snapshots::default());
    let keyspaces = Arc::new(Keyspaces::default());
    let sequencer = Arc::new(CommitSequencer::new(&log));
    let is_to_learn: Arc<AtomicBool> = Arc::default();
    let horizon = Arc::new(RetentionHorizon {
        log: Arc::clone(&log),
        sequencer: Arc::clone(&sequencer),
        clock: Arc::clone(&options.clock),
        snapshots: Arc::clone(&snapshots),
        keyspaces: Arc::clone(&keyspaces),
        members: members.clone(),
        is_to_learn: Arc::clone(&is_to_learn),
        trim_wanted: AtomicU64::new(0),
        move_wanted: AtomicU64::new(0),
        moves_stopped: OnceLock::new(),
        ready: OnceLock::new(),
    });
    let checkpoint = manifest.checkpoint.glsn;
    let context = Context {
        disk: Arc::clone(&options.disk),
        clock: Arc::clone(&options.clock),
        dir: path.join("index"),
        budget: budget.clone(),
        pool: Arc::clone(&pool),
        log: Arc::clone(&log),
        row_cache: Arc::clone(&row_cache),
        memtable_bytes: options.memtable_bytes,
        table_bytes: options.sizes.table_bytes,
        step_bytes: options.sizes.step_bytes,
        duty: duty.clone(),
        background: options.background && !options.read_only,
    };
    let index = OpenIndex::open(context, manifest, Arc::clone(&horizon) as _)?;
    check_pointers(path, &index, &*log)?;
    let before_replay = watch.nanos();
    let replayed = replay(&log, &budget, &index, checkpoint)?;
    let replay_nanos = watch.nanos() - before_replay;
    sequencer.replayed(replayed.last);
    let warm = options
        .warm
        .then(|| warm(path, &options, &budget, &pool, &row_cache, (&file_log, &index, &sequencer)))
        .transpose()?;
    let context =
        patience::Context { index: Arc::clone(&index), sequencer: Arc::clone(&sequencer) };
    let patience =
        Arc::new(Patience::new(&budget, context, options.background && !options.read_only));
    let context = checkpoints::Context {
        clock: Arc::clone(&options.clock),
        log: Arc::clone(&file_log),
        index: Arc::clone(&index),
        sequencer: Arc::clone(&sequencer),
        members: members.clone(),
    };
    let checkpoints = (!options.read_only)
        .then(|| Checkpoints::start(context, options.background))
        .transpose()?;
    let reader = Arc::new(Reader {
        budget,
        log,
        index,
        row_cache,
        snapshots,
        keyspaces,
        may_refresh: options.read_only || members.is_some(),
        is_closed: AtomicBool::new(false),
        owner: Owner::here(),
    });
    let follower = members.as_ref().map(|members| {
        Arc::new(Follower {
            members: Arc::clone(members),
            file_log: Arc::clone(&file_log),
            log: Arc::clone(&reader.log),
            budget: reader.budget.clone(),
            index: Arc::clone(&reader.index),
            sequencer: Arc::clone(&sequencer),
            is_buffered: options.durability == Durability::Buffered,
            learn: OnceLock::new(),
            to_learn: Mutex::default(),
            is_to_learn,
            blindness: Blindness::new(options.sizes.blind_after),
            applier: Arc::default(),
            is_called: AtomicBool::new(false),
        })
    });
    let committer =
        Committer::new(Arc::clone(&reader), sequencer, patience, options.clone(), follower.clone());
    let catalog = Arc::new(Catalog {
        cursors: Cursors::default(),
        horizon,
        streams_known: AtomicBool::new(false),
    });
    let space = Arc::new(LogSpace {
        reader: Arc::clone(&reader),
        sequencer: Arc::clone(&committer.sequencer),
        catalog: Arc::clone(&catalog),
        file_log: Arc::clone(&file_log),
        follower,
        clock: Arc::clone(&options.clock),
        segment_bytes: options.segment_limit_bytes(),
        trim_lock: Mutex::new(()),
        held_back: Mutex::default(),
    });
    let store = Arc::new(Engine {
        path: path.to_owned(),
        options,
        io,
        reader,
        committer: Arc::new(committer),
        file_log,
        catalog,
        space,
        maintenance: Maintenance { pool, upkeep: Mutex::new(upkeep), warm, checkpoints },
        opened: Opened { stats: OnceLock::new(), warnings: report.warnings },
        membership: members.as_ref().map(Membership::new),
        lock: Mutex::new(lock),
    });
    if let Some(follower) = &store.committer.follower {
        let _ = follower.learn.set(Arc::downgrade(&store.space) as _);
    }
    keyspace_commits::load(&store, replayed.last)?;
    cursor_commits::learn(&store.space, replayed.last)?;
    let sweeps = !store.options.background && store.options.sizes.sweeps_at_open;
    if let Some(checkpoints) = store.maintenance.checkpoints.as_ref().filter(|_| sweeps) {
        // With threads, the checkpoint thread does this, and opening does not wait for it.
        checkpoints.sweep()?;
    }
    let _ = store.catalog.horizon.ready.set(());
    // Not before it is known what the log is kept for: the index has threads already.
    let space = Arc::downgrade(&store.space);
    store.reader.index.env.free_log_by(Box::new(move |may_flush| {
        if let Some(space) = space.upgrade() {
            steps::try_to_free_log(&space, may_flush);
        }
    }));
    if let (Some(joining), Some(membership)) = (&joining, &store.membership) {
        let checkpoint = store.reader.index.runs.checkpoint().glsn.min(checkpoint);
        joining.end(
            path,
            store.committer.sequencer.visible(),
            checkpoint,
            store.reader.index.runs.manifest_number(),
        )?;
        if store.options.background {
            membership.start(&store.maintenance.pool, &store.space, &store.committer)?;
        }
    }
    let stats = OpeningStats {
        nanos: watch.nanos(),
        log_nanos,
        replay_nanos,
        replayed: replayed.transactions,
        replayed_bytes: replayed.bytes,
    };
    let log_files = || store.file_log.file_count().unwrap_or_default() as u64;
    events::opened(&store.path, &stats, log_files, || {
        store.reader.index.sources.view().infos().count() as u64
    });
    let _ = store.opened.stats.set(stats);
    Ok(store)
}

/// Measures the phases of opening, from the call on.
struct Stopwatch {
    clock: Arc<dyn Clock>,
    begun: u64,
}

impl Stopwatch {
    fn start(options: &Options) -> Self {
        Self { clock: Arc::clone(&options.clock), begun: options.clock.monotonic_nanos() }
    }

    fn nanos(&self) -> u64 {
        self.clock.monotonic_nanos().saturating_sub(self.begun)
    }
}

/// Starts the warm restore in the background.
fn warm(
    path: &Path,
    options: &Options,
    budget: &Budget,
    pool: &Arc<Pool>,
    row_cache: &Arc<RowCache>,
    (log, index, sequencer): (&Arc<FileLog>, &Arc<OpenIndex>, &Arc<CommitSequencer>),
) -> Result<Warm> {
    let context = warm::Context {
        disk: Arc::clone(&options.disk),
        clock: Arc::clone(&options.clock),
        dir: path.join(WARM_DIR),
        budget: budget.clone(),
        pool: Arc::clone(pool),
        log: Arc::clone(log),
        index: Arc::clone(index),
        row_cache: Arc::clone(row_cache),
        sequencer: Arc::clone(sequencer),
        read_only: options.read_only,
        interval: options.warm_interval,
        bytes_per_second: options.warm_bytes_per_second,
        loads_at_once: options.sizes.restore_loads,
    };
    Ok(Warm::start(context, options.background)?)
}

/// Locks the store for writing.
pub(crate) fn take_lock(path: &Path, options: &Options) -> Result<Option<Box<dyn DirLock>>> {
    if options.read_only {
        return Ok(None);
    }
    let lock = lock_alone(path, options)?;
    tell_readers_of_one_alone(&*options.disk, path).lift()?;
    Ok(Some(lock))
}

/// Keeps all others from writing to the store. Changes no file but the lock's.
pub(crate) fn lock_alone(path: &Path, options: &Options) -> Result<Box<dyn DirLock>> {
    let mut locked = options.disk.lock(path);
    for _ in 0..LOCK_TRIES {
        // A process that only reads may be looking who has it.
        if !matches!(locked, Err(LockError::Held { .. })) {
            break;
        }
        options.clock.sleep(LOCK_PAUSE);
        locked = options.disk.lock(path);
    }
    match locked {
        Ok(lock) => Ok(lock),
        Err(LockError::Held { pid, who }) => {
            let (pid, who) = sharers(path, options).unwrap_or((pid, who));
            Err(Error::Locked { path: path.to_owned(), pid, who })
        }
        Err(LockError::Io(error)) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            Err(Error::Io {
                kind: error.kind(),
                source: Some(IoCause::new(error)),
                message: format!(
                    "{}: the file system is read-only; open the store read-only",
                    path.display()
                ),
            })
        }
        Err(LockError::Io(error)) => Err(error.into()),
    }
}

/// The processes that share the store, of whom the lock's file tells nothing; `None` if there are
/// none.
fn sharers(path: &Path, options: &Options) -> Option<(Option<u32>, String)> {
    let members = members_of(&options.disk, path).ok().filter(|members| !members.is_empty())?;
    // A process may have opened it several times.
    let pids: BTreeSet<u32> = members.iter().map(|member| member.pid).collect();
    let of = if pids.len() == 1 { "a process that shares it" } else { "processes that share it" };
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    Some((
        Some(members[0].pid),
        format!("by {of} (pid {pids}); close it there, or open it shared, too"),
    ))
}

fn log_options(
    path: &Path,
    options: &Options,
    budget: &Budget,
    pool: &Arc<Pool>,
    manifest: Option<&Manifest>,
) -> FileLogOptions {
    let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
    let mut log =
        FileLogOptions::new(disk, clock, path.join("log"), Arc::clone(pool), budget.clone());
    if let Some(bytes) = options.segment_bytes {
        log.segment_bytes = u32::try_from(bytes).expect("checked: at most 1 GiB");
    }
    log.durability = match options.durability {
        Durability::Sync => log::Durability::Sync,
        Durability::Buffered => log::Durability::Buffered,
    };
    log.background = options.background;
    log.on_poison = Some(events::poisoned);
    // An empty index has no knowledge of the log.
    log.known = manifest.map(|manifest| manifest.durable).filter(|known| known.glsn > Glsn::NONE);
    log.mode = match manifest {
        _ if options.read_only => Mode::ReadOnly,
        // An index without its log is damage, not a new store.
        Some(_) => Mode::Write,
        None => Mode::Create,
    };
    log
}

/// The advice if log and index do not belong together.
fn forked_advice(path: &Path) -> String {
    format!(
        "put back the folder as it was at one time; or run `{}`, which makes a new store of what \
         can be read and changes nothing in this one",
        recover_command(path)
    )
}

/// Adds advice to the error about a log that lacks entries known to the index.
fn explain(path: &Path, error: LogError) -> Error {
    match error {
        LogError::Forked { glsn, what } => Error::Forked {
            glsn: Some(glsn),
            message: format!(
                "{}: the log was forked, cut back or exchanged: at GLSN {glsn} {what}; {}",
                path.display(),
                forked_advice(path)
            ),
        },
        error => Error::of_log(error),
    }
}

/// Removes a folder of the store with its contents, if it exists.
pub(crate) fn remove_folder(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if disk.entry(dir)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_folder(disk, &path)? } else { disk.remove(&path)? }
    }
    Ok(disk.remove_dir(dir)?)
}

/// Rejects an index with values in the trimmed part of the log: a trim waits until the manifest
/// needs nothing there any more.
fn check_pointers(path: &Path, index: &OpenIndex, log: &dyn Log) -> Result<()> {
    let first = log.bounds().first;
    match index.sources.view().min_pointer().filter(|oldest| *oldest < first) {
        None => Ok(()),
        Some(oldest) => Err(Error::corrupt(format!(
            "{}: the index needs entry {oldest} of the log, which begins with {first}: it is \
             older than the log; put the whole folder back as it was at one time",
            path.display()
        ))),
    }
}

/// Rejects an index without a manifest whose runs hold what the log does not have: they would be
/// swept.
fn refuse_to_forget(path: &Path, options: &Options, log: &dyn Log, budget: &Budget) -> Result<()> {
    let bounds = log.bounds();
    if bounds.first > Glsn::FIRST {
        return Err(Error::corrupt(format!(
            "{}: the index has no manifest, and the log begins only with GLSN {}; `plimsoll \
             verify` says what helps",
            path.display(),
            bounds.first
        ))
        .in_file(|| "index".to_owned()));
    }
    let newest = newest_in_folder(&*options.disk, &path.join("index"), log.id(), budget)?;
    if newest >= bounds.next {
        return Err(Error::Forked {
            glsn: Some(bounds.next),
            message: format!(
                "{}: the index has no manifest, and its runs hold commits up to GLSN {newest}, \
                 which the log, with its end at {}, does not have; {}",
                path.display(),
                bounds.next.0 - 1,
                forked_advice(path)
            ),
        });
    }
    Ok(())
}

fn forked<T>(path: &Path, glsn: Option<Glsn>, what: &str) -> Result<T> {
    Err(Error::Forked {
        glsn,
        message: format!("{}: {what}; {}", path.display(), forked_advice(path)),
    })
}

fn check_log_id(path: &Path, manifest: &Manifest, log_id: u128) -> Result<()> {
    if manifest.log_id == log_id {
        return Ok(());
    }
    forked(
        path,
        None,
        &format!("index/{} was made from another log", manifest_name(manifest.number)),
    )
}

/// Rejects a manifest that was not made from this log.
fn check_manifest(path: &Path, manifest: Manifest, log: &dyn Log) -> Result<Manifest> {
    check_log_id(path, &manifest, log.id())?;
    let checkpoint = manifest.checkpoint;
    if checkpoint.glsn > Glsn::NONE
        && checkpoint.glsn >= log.bounds().first
        && log.chain_at(checkpoint.glsn).lift()?.is_some_and(|chain| chain != checkpoint.chain)
    {
        return forked(
            path,
            Some(checkpoint.glsn),
            "the index was made from a log that was forked or cut back since",
        );
    }
    if log.bounds().first > checkpoint.glsn.next() {
        return Err(Error::corrupt(format!(
            "{}: the log begins with GLSN {}, and manifest {} of the index holds commits up to {} \
             only: a newer manifest is missing; `plimsoll verify` says what helps",
            path.display(),
            log.bounds().first,
            manifest.number,
            checkpoint.glsn
        )));
    }
    Ok(manifest)
}
