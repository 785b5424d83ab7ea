//! The files of the index: their creation, their users, and their removal.
//!
//! Invariants:
//! 1. A run file that no manifest names is removed when its last user releases it, or at the next
//!    open.
//! 2. The id of a run file is never used again. Each open leaves a gap above the highest known id,
//!    because removed files that no manifest named also had ids.
//! 3. A table's metadata is heap memory, charged to the budget before it is kept. A reserve is held
//!    for the tables that flush and compaction are about to create, so that they can free memory
//!    when the budget is exhausted. A commit gets no room in a memtable unless the reserve is full,
//!    and only a flush may use all of it, so a flush is never refused.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_disk::random::first_id_after;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};
use plimsoll_memory::pool::{Pool, PoolFile};

use crate::index::env::Context;
use crate::index::env::role::Role;
use crate::index::manifest::names::is_leftover;
use crate::index::run::file::{Readers, RunFileSink, open_run, run_id_of};
use crate::index::run::packed::Decoders;
use crate::index::run::table::{Table, TableId, TableInfo, run_file_name};
use crate::types::error::{Error, Lift, Result};
use crate::types::keyspaces::Keyspaces;
use crate::types::lock::lock;

/// Size of the reserve, in addition to the metadata in use: room for a dozen table descriptions
/// with keys of maximum length.
const RESERVE_BYTES: u64 = 96 << 10;

/// The gap that each open leaves in the 64-bit ids of runs.
const GAP_BITS: u32 = 32;

/// From this budget on, the memory of a few more table descriptions is negligible.
const PLENTY_BYTES: u64 = 64 << 20;

/// Part of the reserve that only flushes may use.
const FLUSH_RESERVE_BYTES: u64 = 64 << 10;

/// Memory of a table besides its keys: its description twice (in a run and in the replacing run),
/// guard, file and handle.
const TABLE_OVERHEAD_BYTES: u64 = 768;

/// Memory of the handle of a packed table's directory.
const DIRECTORY_OVERHEAD_BYTES: u64 = 384;

/// The files of an index.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    pool: Arc<Pool>,
    log: Arc<FileLog>,
    role: Role,
    next_run: AtomicU64,
    budget: Budget,
    /// How the pages of new files are compressed.
    keyspaces: Arc<Keyspaces>,
    decoders: Arc<Decoders>,
    metadata: Mutex<Metadata>,
    /// Obsolete files whose removal was deferred because another member was reading all files.
    left: Mutex<Vec<u64>>,
}

/// How much of the reserve a job may use for the tables that it creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// All of it: a flush.
    Whole,
    /// All but the part that is kept for flushes: any other job.
    Rest,
}

impl Reserve {
    /// Bytes of the reserve that must remain.
    fn kept_bytes(self) -> u64 {
        match self {
            Reserve::Whole => 0,
            Reserve::Rest => FLUSH_RESERVE_BYTES,
        }
    }
}

/// The memory account of table metadata.
#[derive(Debug)]
struct Metadata {
    lease: Lease,
    used_bytes: u64,
}

/// Keeps the file of one table alive; shared by the runs and views that use it.
pub(crate) struct FileGuard {
    files: Arc<Files>,
    id: TableId,
    obsolete: AtomicBool,
    charged_bytes: AtomicU64,
}

impl Files {
    /// Lists the files in the index's folder. New files get ids above those of all listed files,
    /// starting at `next_run` at the earliest.
    pub(crate) fn new(context: &Context, next_run: u64) -> Result<Arc<Self>> {
        let lease = context.budget.lease(Kind::Metadata, RESERVE_BYTES)?;
        let mut next = next_run;
        let names = match context.disk.names(&context.dir) {
            // The folder was removed; the next writing process creates it again.
            Err(error) if !context.role.may_write() && error.kind() == io::ErrorKind::NotFound => {
                Vec::new()
            }
            names => names?,
        };
        for name in names {
            // Skip the ids of files that an earlier process left and no manifest names.
            next = next.max(run_id_of(&name).map_or(0, |id| id.saturating_add(1)));
        }
        // Leave a gap even without a manifest: the pages of a previous index must not be taken for
        // pages of the new one. Only a log without commits certainly had no index.
        if context.role.may_write() && context.log.bounds().next > Glsn::FIRST {
            next = first_id_after(next.saturating_sub(1), context.clock.wall_micros(), GAP_BITS);
        }
        Ok(Arc::new(Self {
            disk: Arc::clone(&context.disk),
            dir: context.dir.clone(),
            pool: Arc::clone(&context.pool),
            log: Arc::clone(&context.log),
            role: context.role.clone(),
            next_run: AtomicU64::new(next),
            budget: context.budget.clone(),
            keyspaces: Arc::clone(&context.keyspaces),
            decoders: Arc::new(Decoders::new(&context.budget)),
            metadata: Mutex::new(Metadata { lease, used_bytes: 0 }),
            left: Mutex::default(),
        }))
    }

    /// From now on, new files get ids above those of all files in the folder, after a gap like that
    /// of an open.
    pub(crate) fn skip_ids_in_folder(&self, wall_micros: u64) -> Result<()> {
        let names = self.disk.names(&self.dir)?;
        let ids = names.iter().filter_map(|name| run_id_of(name));
        let next = ids.max().map_or(0, |id| id.saturating_add(1)).max(self.next_run());
        let next = first_id_after(next.saturating_sub(1), wall_micros, GAP_BITS);
        self.next_run.fetch_max(next, Ordering::AcqRel);
        Ok(())
    }

    /// Skips the ids below this one, which another process has used.
    pub(crate) fn skip_to(&self, next_run: u64) {
        self.next_run.fetch_max(next_run, Ordering::AcqRel);
    }

    /// Removes the files whose removal was deferred, unless another member is still reading all
    /// files.
    pub(crate) fn remove_left(&self) {
        if self.role.may_remove() {
            for id in std::mem::take(&mut *lock(&self.left)) {
                // A file that cannot be removed now is swept at the next open.
                let _ = self.disk.remove(&self.path_of(id));
            }
        }
    }

    /// The disk that holds the files.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// The folder of the files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id that the next new file will get.
    pub(crate) fn next_run(&self) -> u64 {
        self.next_run.load(Ordering::Relaxed)
    }

    /// The path of a run's file.
    pub(crate) fn path_of(&self, run: u64) -> PathBuf {
        self.dir.join(run_file_name(run))
    }

    /// Creates a file. Dropping its guard removes the file unless a manifest names it.
    pub(crate) fn create(
        self: &Arc<Self>,
        budget: &Budget,
    ) -> Result<(Arc<FileGuard>, RunFileSink)> {
        self.log.check_own().lift()?;
        let id = self.next_run.fetch_add(1, Ordering::Relaxed);
        let sink = RunFileSink::create(&self.disk, &self.dir, id, self.log.id(), budget)?
            .compress(&self.keyspaces, budget, &self.decoders)
            .warm(&self.pool, self.readers());
        Ok((self.guard(TableId::Run(id), true), sink))
    }

    /// Which processes will read the files that are written now.
    fn readers(&self) -> Readers {
        match self.role.members() {
            Some(members) if members.slots.has_others() => Readers::Others,
            _ => Readers::Here,
        }
    }

    fn guard(self: &Arc<Self>, id: TableId, obsolete: bool) -> Arc<FileGuard> {
        let (obsolete, charged_bytes) = (AtomicBool::new(obsolete), AtomicU64::new(0));
        Arc::new(FileGuard { files: Arc::clone(self), id, obsolete, charged_bytes })
    }

    /// Opens a table that was just written. `file`: its file in the pool, if the pool already knows
    /// it.
    pub(crate) fn open_new(
        &self,
        info: TableInfo,
        guard: Arc<FileGuard>,
        file: Option<PoolFile>,
        reserve: Reserve,
    ) -> Result<Member> {
        self.charge(&guard, &info, reserve)?;
        let table = match file {
            Some(file) => Table { info: Arc::new(info), file },
            None => self.open_run(info)?,
        };
        Ok(Member { table, guard })
    }

    /// Opens a table that the manifest names.
    pub(crate) fn open(self: &Arc<Self>, info: TableInfo) -> Result<Member> {
        let guard = self.guard(info.id, false);
        self.charge(&guard, &info, Reserve::Rest)?;
        self.open_kept(info, guard)
    }

    /// Adopts a table that a transaction's record names. This cannot fail, because the record is
    /// already ordered in the log. If neither the budget nor the reserve suffices, the account is
    /// overdrawn until the budget has room.
    pub(crate) fn adopt(self: &Arc<Self>, table: Table) -> Member {
        let guard = self.guard(table.info.id, false);
        if self.charge(&guard, &table.info, Reserve::Rest).is_err() {
            let bytes = metadata_bytes(&table.info);
            self.metadata().used_bytes += bytes;
            guard.charged_bytes.store(bytes, Ordering::Relaxed);
        }
        Member { table, guard }
    }

    /// Reserves this many bytes for metadata.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), OutOfBudget> {
        self.metadata().reserve(bytes, FLUSH_RESERVE_BYTES)
    }

    /// Refills the reserve if jobs have used some of it.
    ///
    /// # Errors
    /// The budget has no room.
    pub(crate) fn fill_reserve(&self) -> Result<(), OutOfBudget> {
        self.metadata().reserve(0, RESERVE_BYTES)
    }

    /// Whether a table may be cut before it is full; every table's description takes memory.
    pub(crate) fn may_cut(&self) -> bool {
        let has_reserve = || {
            let metadata = self.metadata();
            metadata.lease.bytes() >= metadata.used_bytes + FLUSH_RESERVE_BYTES
        };
        (self.budget.limit_bytes() >= PLENTY_BYTES || self.pool.has_free_memory()) && has_reserve()
    }

    fn open_kept(&self, info: TableInfo, guard: Arc<FileGuard>) -> Result<Member> {
        let table = match info.id {
            TableId::Run(id) => self.open_run(info).map_err(|error| self.missing(id, error))?,
            TableId::Blob(blob) => self.open_blob(blob, info)?,
        };
        Ok(Member { table, guard })
    }

    fn open_run(&self, info: TableInfo) -> Result<Table> {
        let pools = (&self.pool, &self.decoders);
        open_run(&*self.disk, &self.dir, pools, self.log.id(), info)
    }

    fn missing(&self, id: u64, error: Error) -> Error {
        match error {
            // A former keeper reports `NotKeeper` instead (`Role::of_job`). A process that only
            // reads retries with the next manifest before it returns this error
            // (`open_beside_a_writer`, `Runs::refresh`).
            Error::Io { kind: io::ErrorKind::NotFound, message, .. }
                if self.role.may_write() || self.role.only_reads() =>
            {
                Error::damaged(format_args!(
                    "{message}: the manifest names {}, which is missing",
                    self.path_of(id).display()
                ))
                .in_file(|| TableId::Run(id).file())
            }
            error => error,
        }
    }

    fn open_blob(&self, id: BlobId, info: TableInfo) -> Result<Table> {
        let blob = self.log.open_blob(id).lift()?;
        if blob.pages != info.pages {
            return Err(Error::damaged(format_args!(
                "blob file {} has {} pages, the index says {}",
                id.0, blob.pages, info.pages
            ))
            .in_file(|| info.id.file()));
        }
        Ok(Table { info: Arc::new(info), file: blob.file })
    }

    /// The names of all files in the folder.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        Ok(self.disk.names(&self.dir)?)
    }

    /// Removes files among `names` that earlier processes left: run files for which `is_named` is
    /// false, and manifests that are unfinished or older than the kept ones.
    pub(crate) fn sweep(
        &self,
        names: &[String],
        newest_manifest: u64,
        is_named: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let mut removed = false;
        for name in names {
            if is_leftover(name, newest_manifest) || run_id_of(name).is_some_and(|id| !is_named(id))
            {
                match self.disk.remove(&self.dir.join(name)) {
                    // The file belonged to a member that is closing and has removed it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    swept => swept?,
                }
                removed = true;
            }
        }
        if removed {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Like [`Files::sweep`], but only for run files, and their removal is deferred to
    /// [`Files::remove_left`]. No later manifest may name any of these files.
    pub(crate) fn leave(&self, names: &[String], is_named: impl Fn(u64) -> bool) {
        lock(&self.left)
            .extend(names.iter().filter_map(|name| run_id_of(name)).filter(|run| !is_named(*run)));
    }

    fn metadata(&self) -> MutexGuard<'_, Metadata> {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(
        &self,
        guard: &FileGuard,
        info: &TableInfo,
        reserve: Reserve,
    ) -> Result<(), OutOfBudget> {
        let bytes = metadata_bytes(info);
        self.metadata().charge(bytes, reserve)?;
        guard.charged_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Memory of a table's metadata.
pub(crate) fn metadata_bytes(info: &TableInfo) -> u64 {
    let keys = (info.first_key.len() + info.last_key.len()) as u64;
    let directory = if info.packed.is_some() { DIRECTORY_OVERHEAD_BYTES } else { 0 };
    TABLE_OVERHEAD_BYTES + directory + keys + (info.blobs.len() * size_of::<BlobId>()) as u64
}

impl Metadata {
    /// Makes room for `bytes` and at least `kept_bytes` of the reserve, or for all of the reserve
    /// if the budget allows it.
    fn reserve(&mut self, bytes: u64, kept_bytes: u64) -> Result<(), OutOfBudget> {
        let missing = |kept_bytes: u64| {
            (self.used_bytes + bytes + kept_bytes).saturating_sub(self.lease.bytes())
        };
        let (wanted, needed) = (missing(RESERVE_BYTES), missing(kept_bytes));
        if wanted == 0 {
            return Ok(());
        }
        match self.lease.grow(wanted) {
            Err(_) if needed == 0 => Ok(()),
            Err(_) if needed < wanted => self.lease.grow(needed),
            grown => grown,
        }
    }

    fn charge(&mut self, bytes: u64, reserve: Reserve) -> Result<(), OutOfBudget> {
        self.reserve(bytes, reserve.kept_bytes())?;
        self.used_bytes += bytes;
        Ok(())
    }

    fn release(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
        let spare = self.lease.bytes().saturating_sub(self.used_bytes);
        self.lease.shrink(spare.saturating_sub(RESERVE_BYTES));
    }
}

/// The id of the run file that holds a table; `None` if it is not in a run file.
pub(crate) fn run_of(info: &TableInfo) -> Option<u64> {
    match info.id {
        TableId::Run(id) => Some(id),
        TableId::Blob(_) => None,
    }
}

/// A table with the guard of its file.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) table: Table,
    pub(crate) guard: Arc<FileGuard>,
}

impl Member {
    /// The table's metadata.
    pub(crate) fn info(&self) -> &TableInfo {
        &self.table.info
    }

    /// Bytes of the table's pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.info().bytes()
    }
}

impl FileGuard {
    /// Sets whether the file is removed when its last user releases it.
    pub(crate) fn set_obsolete(&self, yes: bool) {
        // Relaxed: dropping the last `Arc` synchronizes with the other drops and the stores before
        // them.
        self.obsolete.store(yes, Ordering::Relaxed);
    }
}

impl Drop for FileGuard {
    fn drop(&mut self) {
        self.files.metadata().release(*self.charged_bytes.get_mut());
        let TableId::Run(id) = self.id else { return };
        if !*self.obsolete.get_mut() || !self.files.role.may_write() {
            return;
        }
        if self.files.role.may_remove() {
            // A file that cannot be removed now is swept at the next open.
            let _ = self.files.disk.remove(&self.files.path_of(id));
        } else {
            lock(&self.files.left).push(id);
        }
    }
}

impl fmt::Debug for FileGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileGuard({})", self.id)
    }
}
