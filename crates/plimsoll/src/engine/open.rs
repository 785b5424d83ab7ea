//! Opens a store. Only this module assembles its parts.
//!
//! ```text
//! STORE/
//!   LOCK     locked by the process, or the processes, that have the store open for writing
//!   log/     the truth: segments, offset tables, blob files
//!   index/   a cache of it: the manifest and the runs
//!   warm/    an image of the hot set in memory; may be missing, may be deleted
//! ```
//!
//! A creation that was interrupted leaves a folder with some of these and no entry in the log. Such
//! a folder opens as an empty store.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use plimsoll_disk::clock::Clock;
use plimsoll_disk::job_pool::JobPool;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::{FileLog, id_in};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use crate::engine::folder::{
    LASTING, check_folder, find_or_make_folder, make_folders, set_foreign_aside,
};
use crate::engine::io_choice::{self, IoChoice};
use crate::engine::maintenance::checkpoints::{self, Checkpoints};
use crate::engine::maintenance::idle_time::IdleTime;
use crate::engine::maintenance::memory_workers::MemoryWorkers;
use crate::engine::memory::POOL_FLOOR_SHARE;
use crate::engine::open_beside::open_beside_a_writer;
use crate::engine::open_checks::{
    check_log_id, check_manifest, check_pointers, explain, refuse_to_forget,
};
use crate::engine::replay::{Replayed, replay};
use crate::engine::replication::Replication;
use crate::engine::retention::RetentionHorizon;
use crate::engine::shared::joining::Entry;
use crate::engine::shared::membership::Membership;
use crate::engine::transfers::Transfers;
use crate::engine::trim::LogSpace;
use crate::engine::{Catalog, Engine, Maintenance, Opened, compact_and_free, keyspace_commits};
use crate::index::OpenIndex;
use crate::index::env::{Context, Horizon};
use crate::index::manifest::Manifest;
use crate::read::open_moments::Snapshots;
use crate::read::reader::{Owner, Reader};
use crate::read::system_records::OwnRecords;
use crate::rowcache::RowCache;
use crate::txn::applier::Applier;
use crate::txn::committer::Committer;
use crate::txn::replica::joining::Joining;
use crate::txn::sequencer::CommitSequencer;
use crate::txn::shared::floors::Floors;
use crate::txn::writer_memory::{self, WriterMemory};
use crate::types::error::{Lift, Result};
use crate::types::events;
use crate::types::keyspaces::Keyspaces;
use crate::types::machine_memory::{ceiling_bytes, check_there_is};
use crate::types::options::{Durability, Options};
use crate::types::stats::OpeningStats;
use crate::warm::{self, WARM_DIR, Warm};

/// The maximum number of threads of the background jobs: one for flushes and other jobs that others
/// wait for, and one for compaction.
const JOB_THREADS: usize = 2;

/// Opens or creates the store at `path`.
pub(crate) fn open(path: &Path, options: Options) -> Result<Arc<Engine>> {
    let store = if options.read_only || options.shared {
        let read = || read_manifest(path, &options);
        open_beside_a_writer(&read, || open_by(path, options.clone()))
    } else {
        open_by(path, options)
    }?;
    keyspace_commits::record_zstd(&store)?;
    Ok(store)
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
    let path = open_folder(path, &mut options)?;
    let entry = Entry::begin(&path, &mut options)?;
    let joining = Joining::begin(&path, &options)?;
    if joining.is_some() {
        // The order makes commits durable.
        options.durability = Durability::Buffered;
    }
    let (options, io, memory) = open_memory(options)?;
    let memory_workers = MemoryWorkers::start(&memory.pool, &options)?;
    make_folders(&path, &options)?;
    let (log, manifest, opened) = open_log(&path, &options, &memory, (&entry, &joining), &watch)?;
    let (snapshots, keyspaces) = (Arc::<Snapshots>::default(), Arc::<Keyspaces>::default());
    let sequencer = Arc::new(CommitSequencer::new(&log));
    let mut floors = Floors::of(entry.members());
    floors.has_replicas = joining.is_some();
    let horizon = Arc::new(RetentionHorizon::new(
        &options.clock,
        (&log, &sequencer),
        (&snapshots, &keyspaces),
        floors.clone(),
    ));
    let checkpoint = manifest.head.checkpoint.glsn;
    let index = open_index(&path, &options, &memory, &entry, &log, manifest, &horizon)?;
    let before_replay = watch.nanos();
    let replayed = replay(&log, &memory.budget, &index, checkpoint)?;
    let replay_nanos = watch.nanos() - before_replay;
    sequencer.replayed(replayed.last);
    let warm = start_warm(&path, &options, &memory, (&log, &index, &sequencer))?;
    let records = Arc::new(OwnRecords::new(&memory.budget, &index, &keyspaces, &snapshots));
    let replication = match joining {
        Some(joining) => {
            let applier = Applier {
                log: Arc::clone(&log),
                budget: memory.budget.clone(),
                index: Arc::clone(&index),
                sequencer: Arc::clone(&sequencer),
                records: Arc::clone(&records),
                to_load: Mutex::default(),
                must_load_records: Arc::clone(&floors.must_load_records),
            };
            Replication::of(joining.end(&options, applier)?)
        }
        None => Replication::default(),
    };
    let (peers, shared) = match replication.peers() {
        Some(replica) => (replica, None),
        None => entry.peers(&options, &memory.budget, (&log, &index, &sequencer), &records, floors),
    };
    let context =
        writer_memory::Context { index: Arc::clone(&index), sequencer: Arc::clone(&sequencer) };
    let writer_memory =
        WriterMemory::new(&memory.budget, context, options.background && !options.read_only);
    let context = checkpoints::Context {
        clock: Arc::clone(&options.clock),
        log: Arc::clone(&log),
        index: Arc::clone(&index),
        sequencer: Arc::clone(&sequencer),
        peers: Arc::clone(&peers),
        job_pool: Arc::clone(&memory.job_pool),
    };
    let checkpoints = (!options.read_only)
        .then(|| Checkpoints::start(context, options.background))
        .transpose()?;
    let Memory { budget, pool, row_cache, job_pool } = memory;
    let reader = Arc::new(Reader {
        budget,
        log,
        index,
        row_cache,
        snapshots,
        keyspaces,
        may_refresh: entry.may_refresh(&options),
        is_closed: AtomicBool::new(false),
        owner: Owner::here(),
    });
    let catalog = Arc::new(Catalog { records, horizon });
    let space = Arc::new(LogSpace {
        reader: Arc::clone(&reader),
        sequencer: Arc::clone(&sequencer),
        catalog: Arc::clone(&catalog),
        peers: Arc::clone(&peers),
        clock: Arc::clone(&options.clock),
        segment_bytes: options.segment_limit_bytes(),
        trim_lock: Mutex::new(()),
        held_back: Mutex::default(),
        holds: Mutex::default(),
    });
    let committer = Committer::new(
        Arc::clone(&reader),
        sequencer,
        Arc::new(writer_memory),
        options.clone(),
        peers,
    );
    let committer = Arc::new(committer);
    let idle_time = Arc::new(IdleTime::new(&committer, &catalog.horizon, &options.clock));
    let maintenance = Maintenance {
        pool,
        memory_workers: Mutex::new(memory_workers),
        warm,
        checkpoints,
        idle_time,
        job_pool,
    };
    let store = Arc::new(Engine {
        path,
        options,
        io,
        reader,
        committer,
        catalog,
        space,
        maintenance,
        opened: Opened { stats: OnceLock::new(), warnings: opened.warnings },
        membership: Membership::new(shared),
        replication,
        transfers: Transfers::default(),
        lock: Mutex::new(entry.lock.clone()),
    });
    begin_work(&store, &entry, checkpoint, &replayed)?;
    store.replication.start(store.options.background)?;
    note_opened(
        &store,
        OpeningStats {
            nanos: watch.nanos(),
            log_nanos: opened.log_nanos,
            replay_nanos,
            replayed: replayed.transactions,
            replayed_bytes: replayed.bytes,
            torn_bytes: opened.torn_bytes,
        },
    );
    Ok(store)
}

/// Finds or creates the store's folder, and sets a disk in `options` that watches it.
fn open_folder(path: &Path, options: &mut Options) -> Result<PathBuf> {
    find_or_make_folder(path, options)?;
    // A read-only process follows a writing one, which may recreate these folders.
    let lasting: &[&str] = if options.read_only { &[] } else { &LASTING };
    let path = match options.disk.of_store(path, lasting)? {
        Some((disk, path)) => {
            options.disk = disk;
            path
        }
        None => path.to_owned(),
    };
    check_folder(&path, options)?;
    Ok(path)
}

/// The memory budget of a store, its caches, and the threads of its background jobs.
struct Memory {
    budget: Budget,
    pool: Arc<Pool>,
    row_cache: Arc<RowCache>,
    job_pool: Arc<JobPool>,
}

fn open_memory(options: Options) -> Result<(Options, Arc<IoChoice>, Memory)> {
    let budget = Budget::with_ceiling(
        options.memory_bytes,
        ceiling_bytes(options.memory_bytes),
        Backing::Mapped,
    )?;
    let (options, io) = io_choice::choose(options, &budget);
    let pool = Pool::new(&budget, options.memory_bytes / POOL_FLOOR_SHARE).lift()?;
    let row_cache =
        if options.row_cache { RowCache::new(&budget, &pool)? } else { RowCache::none() };
    let job_pool = JobPool::new(JOB_THREADS);
    Ok((options, io, Memory { budget, pool, row_cache, job_pool }))
}

/// The results of opening the log.
struct LogOpened {
    warnings: Vec<String>,
    log_nanos: u64,
    torn_bytes: u64,
}

/// Opens the log, and reads the manifest of an index that belongs to it.
fn open_log(
    path: &Path,
    options: &Options,
    memory: &Memory,
    (entry, joining): (&Entry, &Option<Joining>),
    watch: &Stopwatch,
) -> Result<(Arc<FileLog>, Manifest, LogOpened)> {
    let manifest = read_manifest(path, options)?;
    let log_id = id_in(&*options.disk, &path.join("log"));
    if let (Some(manifest), Some(log_id)) = (&manifest, log_id) {
        check_log_id(path, manifest, log_id)?;
    }
    let id = match joining.as_ref().filter(|_| log_id.is_none()) {
        Some(joining) => Some(joining.id_of_new_log()?),
        None => None,
    };
    let before_log = watch.nanos();
    let (log, report) = FileLog::open(FileLogOptions {
        outer_lock: entry.lock.as_ref().map(Arc::downgrade),
        shared: entry.of_log(),
        id,
        ..log_options(path, options, memory, manifest.as_ref())
    })
    .map_err(|error| explain(path, error))?;
    let torn = report.cut.filter(|_| !options.read_only);
    torn.iter().for_each(events::torn_tail_cut);
    let opened = LogOpened {
        warnings: report.warnings,
        log_nanos: watch.nanos() - before_log,
        torn_bytes: torn.map_or(0, |cut| cut.bytes),
    };
    let manifest = match manifest {
        Some(manifest) => {
            let manifest = check_manifest(path, manifest, &log)?;
            // Without this condition, other processes may be writing manifests.
            if entry.is_only_writer() {
                set_foreign_aside(&*options.disk, &path.join("index"), manifest.head.number)?;
            }
            manifest
        }
        None => {
            refuse_to_forget(path, options, &log, &memory.budget)?;
            Manifest::empty(log.id())
        }
    };
    Ok((Arc::new(log), manifest, opened))
}

fn log_options(
    path: &Path,
    options: &Options,
    memory: &Memory,
    manifest: Option<&Manifest>,
) -> FileLogOptions {
    let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
    let mut log = FileLogOptions::new(
        disk,
        clock,
        path.join("log"),
        Arc::clone(&memory.pool),
        memory.budget.clone(),
    );
    if let Some(bytes) = options.segment_bytes {
        log.segment_bytes = u32::try_from(bytes).expect("checked: at most 1 GiB");
    }
    log.durability = options.durability;
    log.background = options.background;
    log.job_pool = Arc::clone(&memory.job_pool);
    log.on_poison = Some(events::poisoned);
    // An empty index knows nothing about the log.
    log.known =
        manifest.map(|manifest| manifest.head.durable).filter(|known| known.glsn > Glsn::NONE);
    log.mode = match manifest {
        _ if options.read_only => Mode::ReadOnly,
        // An index without its log is damage, not a new store.
        Some(_) => Mode::Write,
        None => Mode::Create,
    };
    log
}

fn open_index(
    path: &Path,
    options: &Options,
    memory: &Memory,
    entry: &Entry,
    log: &Arc<FileLog>,
    manifest: Manifest,
    horizon: &Arc<RetentionHorizon>,
) -> Result<Arc<OpenIndex>> {
    let context = Context {
        disk: Arc::clone(&options.disk),
        clock: Arc::clone(&options.clock),
        dir: path.join("index"),
        budget: memory.budget.clone(),
        pool: Arc::clone(&memory.pool),
        log: Arc::clone(log),
        keyspaces: Arc::clone(&horizon.keyspaces),
        row_cache: Arc::clone(&memory.row_cache),
        memtable_bytes: options.memtable_bytes,
        table_bytes: options.sizes.table_bytes,
        step_bytes: options.sizes.step_bytes,
        role: entry.role(options),
        background: options.background && !options.read_only,
        job_pool: Arc::clone(&memory.job_pool),
    };
    let horizon: Arc<dyn Horizon> = Arc::clone(horizon) as _;
    let index = OpenIndex::open(context, manifest, horizon)?;
    check_pointers(path, &index, log)?;
    Ok(index)
}

/// Starts the warm restore in the background.
fn start_warm(
    path: &Path,
    options: &Options,
    memory: &Memory,
    (log, index, sequencer): (&Arc<FileLog>, &Arc<OpenIndex>, &Arc<CommitSequencer>),
) -> Result<Option<Warm>> {
    if !options.warm {
        return Ok(None);
    }
    let context = warm::Context {
        disk: Arc::clone(&options.disk),
        clock: Arc::clone(&options.clock),
        dir: path.join(WARM_DIR),
        budget: memory.budget.clone(),
        pool: Arc::clone(&memory.pool),
        log: Arc::clone(log),
        index: Arc::clone(index),
        row_cache: Arc::clone(&memory.row_cache),
        sequencer: Arc::clone(sequencer),
        read_only: options.read_only,
        interval: options.warm_interval,
        bytes_per_second: options.warm_bytes_per_second,
        loads_at_once: options.sizes.restore_loads,
    };
    Ok(Some(Warm::start(context, options.background)?))
}

/// Reads the store's own records, then lets background work and other processes begin.
fn begin_work(
    store: &Arc<Engine>,
    entry: &Entry,
    checkpoint: Glsn,
    replayed: &Replayed,
) -> Result<()> {
    store.catalog.records.load(keyspace_commits::of_options(store), replayed.last)?;
    let sweeps = !store.options.background && store.options.sizes.sweeps_at_open;
    if let Some(checkpoints) = store.maintenance.checkpoints.as_ref().filter(|_| sweeps) {
        // With background jobs, the checkpoint job does this, and opening does not wait for it.
        checkpoints.sweep()?;
    }
    let _ = store.catalog.horizon.ready.set(());
    // Set last, because the index already runs threads and must know from which GLSN on the log is
    // retained.
    let space = Arc::downgrade(&store.space);
    store.reader.index.env.free_log_by(Box::new(move |may_flush| {
        if let Some(space) = space.upgrade() {
            compact_and_free::try_to_free_log(&space, may_flush);
        }
    }));
    let idle_time = Arc::downgrade(&store.maintenance.idle_time);
    store.reader.index.env.advance_time_by(Box::new(move || {
        if let Some(idle_time) = idle_time.upgrade() {
            // A commit that fails now is tried again at the next check.
            let _ = idle_time.advance();
        }
    }));
    entry.end(&store.path, store.committer.sequencer.visible(), checkpoint, &store.reader.index)?;
    if store.options.background {
        store.membership.start(&store.maintenance.pool, &store.space, &store.committer)?;
    }
    Ok(())
}

fn note_opened(store: &Engine, stats: OpeningStats) {
    let log_files = || store.reader.log.file_count().unwrap_or_default() as u64;
    events::opened(&store.path, &stats, log_files, || {
        store.reader.index.sources.view().infos().count() as u64
    });
    let _ = store.opened.stats.set(stats);
}

/// Measures the phases of opening, from the beginning of the call.
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
