//! The files of the index: who made them, who uses them, and when their names go.
//!
//! Laws:
//! 1. A run file that no manifest names is removed: when the last one who uses it lets go of it, or else at the next open.
//! 2. The id of a run file is never used again.
//! 3. What is known of a partition is heap memory, charged to the budget before it is kept. A reserve is held for what flush and
//!    compaction are about to make, so that they can free memory when there is none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};
use plimsoll_memory::pool::{Pool, PoolFile};

use crate::index::Ground;
use crate::index::manifest::NEW_MANIFEST;
use crate::index::run::file::{RunFileSink, open_run, run_file_name, run_id_of};
use crate::index::run::partition::{Partition, PartitionId, PartitionInfo};
use crate::index::source::Member;
use crate::types::error::{Error, Result};

/// Held beyond what is used: a dozen descriptions of the longest keys.
const RESERVE_BYTES: u64 = 96 << 10;

/// What a partition costs beside its keys: its description twice (in a run and in the one that replaces it), guard, file and handle.
const PARTITION_OVERHEAD_BYTES: u64 = 768;

/// The files of an index.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    pool: Arc<Pool>,
    log: Arc<dyn Log>,
    read_only: bool,
    next_run: AtomicU64,
    metadata: Mutex<Metadata>,
}

/// The account of what is known of partitions.
#[derive(Debug)]
struct Metadata {
    lease: Lease,
    used_bytes: u64,
}

/// Keeps the file of one partition, for as many runs and views as share it.
pub(crate) struct FileGuard {
    files: Arc<Files>,
    id: PartitionId,
    obsolete: AtomicBool,
    charged_bytes: AtomicU64,
}

impl Files {
    /// The files in the ground's folder; the next new one gets an id of at least `next_run`.
    pub(crate) fn new(ground: &Ground, next_run: u64) -> Result<Arc<Self>> {
        let lease = ground.budget.lease(Kind::Metadata, RESERVE_BYTES)?;
        let mut next = next_run;
        let names = match ground.disk.names(&ground.dir) {
            // A salvage moved the folder aside: the next process that writes makes it anew.
            Err(error) if ground.read_only && error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        for name in names {
            // Also behind what an earlier life left and no manifest names.
            next = next.max(run_id_of(&name).map_or(0, |id| id.saturating_add(1)));
        }
        Ok(Arc::new(Self {
            disk: Arc::clone(&ground.disk),
            dir: ground.dir.clone(),
            pool: Arc::clone(&ground.pool),
            log: Arc::clone(&ground.log),
            read_only: ground.read_only,
            next_run: AtomicU64::new(next),
            metadata: Mutex::new(Metadata { lease, used_bytes: 0 }),
        }))
    }

    /// The disk that they stand on.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Their folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id that the next new file will get.
    pub(crate) fn next_run(&self) -> u64 {
        self.next_run.load(Ordering::Relaxed)
    }

    /// Where a run's file stands.
    pub(crate) fn path_of(&self, run: u64) -> PathBuf {
        self.dir.join(run_file_name(run))
    }

    /// Starts a new file. It is removed when its guard is dropped, unless a manifest comes to name it.
    pub(crate) fn create(self: &Arc<Self>, budget: &Budget) -> Result<(Arc<FileGuard>, RunFileSink)> {
        let id = self.next_run.fetch_add(1, Ordering::Relaxed);
        let sink = RunFileSink::create(&self.disk, &self.dir, id, self.log.id(), budget)?;
        Ok((self.guard(PartitionId::Run(id), true), sink.warm(&self.pool)))
    }

    fn guard(self: &Arc<Self>, id: PartitionId, obsolete: bool) -> Arc<FileGuard> {
        let (obsolete, charged_bytes) = (AtomicBool::new(obsolete), AtomicU64::new(0));
        Arc::new(FileGuard { files: Arc::clone(self), id, obsolete, charged_bytes })
    }

    /// Opens what was just written; `file` where the pool knows it already.
    pub(crate) fn open_new(
        &self,
        info: PartitionInfo,
        guard: Arc<FileGuard>,
        file: Option<PoolFile>,
    ) -> Result<Member> {
        self.charge(&guard, &info)?;
        let partition = match file {
            Some(file) => Partition { info: Arc::new(info), file },
            None => open_run(&*self.disk, &self.dir, &self.pool, self.log.id(), info)?,
        };
        Ok(Member { partition, guard })
    }

    /// Opens what the manifest names.
    pub(crate) fn open(self: &Arc<Self>, info: PartitionInfo) -> Result<Member> {
        let guard = self.guard(info.id, false);
        self.charge(&guard, &info)?;
        self.open_kept(info, guard)
    }

    /// Opens what the record of a transaction names, which has its place in the log already: where the budget has no room and the reserve
    /// does not suffice, the account is overdrawn until it has.
    pub(crate) fn adopt(self: &Arc<Self>, info: PartitionInfo) -> Result<Member> {
        let guard = self.guard(info.id, false);
        if self.charge(&guard, &info).is_err() {
            let bytes = metadata_bytes(&info);
            self.metadata().used_bytes += bytes;
            guard.charged_bytes.store(bytes, Ordering::Relaxed);
        }
        self.open_kept(info, guard)
    }

    /// Makes sure that so many bytes of descriptions find room.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), OutOfBudget> {
        self.metadata().make_room(bytes)
    }

    fn open_kept(&self, info: PartitionInfo, guard: Arc<FileGuard>) -> Result<Member> {
        let partition = match info.id {
            PartitionId::Run(id) => open_run(&*self.disk, &self.dir, &self.pool, self.log.id(), info)
                .map_err(|error| self.missing(id, error))?,
            PartitionId::Blob(blob) => self.open_blob(blob, info)?,
        };
        Ok(Member { partition, guard })
    }

    fn missing(&self, id: u64, error: Error) -> Error {
        match error {
            // Beside a process that writes, the manifest that was read may be of yesterday: reading it again helps.
            Error::Io { kind: io::ErrorKind::NotFound, message } if !self.read_only => Error::corrupt(format!(
                "{message}: the manifest names {}, which is missing; `plimsoll verify` says what helps",
                self.path_of(id).display()
            )),
            error => error,
        }
    }

    fn open_blob(&self, id: BlobId, info: PartitionInfo) -> Result<Partition> {
        let blob = self.log.open_blob(id)?;
        if blob.pages != info.pages {
            return Err(Error::corrupt(format!(
                "blob file {} has {} pages, the index says {}; `plimsoll verify` says what helps",
                id.0, blob.pages, info.pages
            )));
        }
        Ok(Partition { info: Arc::new(info), file: blob.file })
    }

    /// Removes what an earlier life left: run files that `is_named` does not know, and a manifest that was not finished.
    pub(crate) fn sweep(&self, is_named: impl Fn(u64) -> bool) -> Result<()> {
        let mut removed = false;
        for name in self.disk.names(&self.dir)? {
            if name == NEW_MANIFEST || run_id_of(&name).is_some_and(|id| !is_named(id)) {
                self.disk.remove(&self.dir.join(&name))?;
                removed = true;
            }
        }
        if removed {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn metadata(&self) -> MutexGuard<'_, Metadata> {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, guard: &FileGuard, info: &PartitionInfo) -> Result<(), OutOfBudget> {
        let bytes = metadata_bytes(info);
        self.metadata().charge(bytes)?;
        guard.charged_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// What a partition's description takes.
pub(crate) fn metadata_bytes(info: &PartitionInfo) -> u64 {
    let keys = (info.first_key.len() + info.last_key.len()) as u64;
    PARTITION_OVERHEAD_BYTES + keys + (info.blobs.len() * size_of::<BlobId>()) as u64
}

impl Metadata {
    fn make_room(&mut self, bytes: u64) -> Result<(), OutOfBudget> {
        let wanted = self.used_bytes + bytes;
        // First with the reserve on top, for the next who come; at need without.
        let missing = (wanted + RESERVE_BYTES).saturating_sub(self.lease.bytes());
        match self.lease.grow(missing) {
            Err(refusal) if wanted > self.lease.bytes() => Err(refusal),
            _ => Ok(()),
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<(), OutOfBudget> {
        self.make_room(bytes)?;
        self.used_bytes += bytes;
        Ok(())
    }

    fn release(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
        let spare = self.lease.bytes().saturating_sub(self.used_bytes);
        self.lease.shrink(spare.saturating_sub(RESERVE_BYTES));
    }
}

/// The id of the run file that a partition stands in, if it stands in one.
pub(crate) fn run_of(info: &PartitionInfo) -> Option<u64> {
    match info.id {
        PartitionId::Run(id) => Some(id),
        PartitionId::Blob(_) => None,
    }
}

impl FileGuard {
    /// Says whether the file is to be removed once nobody uses it.
    pub(crate) fn set_obsolete(&self, yes: bool) {
        // Relaxed: whoever drops the last `Arc` sees what was stored before the other drops.
        self.obsolete.store(yes, Ordering::Relaxed);
    }
}

impl Drop for FileGuard {
    fn drop(&mut self) {
        self.files.metadata().release(*self.charged_bytes.get_mut());
        if let PartitionId::Run(id) = self.id
            && *self.obsolete.get_mut()
            && !self.files.read_only
        {
            // What cannot be removed now is swept at the next open.
            let _ = self.files.disk.remove(&self.files.path_of(id));
        }
    }
}

impl fmt::Debug for FileGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileGuard({})", self.id)
    }
}
