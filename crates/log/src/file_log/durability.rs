//! Makes appends durable: writes the buffer to the active segment's file and syncs it, once for all
//! waiters.
//!
//! Invariant: after a failed write or sync, or once the folder's lock is lost, this process makes
//! nothing more durable: the log is poisoned.

pub(crate) mod flusher;
pub(crate) mod group_commit;
pub(crate) mod leading;
pub(crate) mod shared_sync;
pub(crate) mod syncing;
pub(crate) mod unsynced_blobs;
pub(crate) mod writer;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use plimsoll_disk::vfs::{DirLock, File};

use crate::blob::BlobId;
use crate::durability::Durability;
use crate::error::LogError;
use crate::file_log::durability::flusher::{FlushSignal, Flusher};
use crate::file_log::durability::group_commit::GroupCommit;
use crate::file_log::durability::leading::Leading;
use crate::file_log::durability::shared_sync::{Wanted, sync};
use crate::file_log::durability::syncing::Syncing;
use crate::file_log::durability::unsynced_blobs::{Ready, UnsyncedBlobs};
use crate::file_log::durability::writer::SegmentWriter;
use crate::file_log::env::{Env, lock};
use crate::file_log::tail::Tail;
use crate::file_log::tail::order::End;
use crate::glsn::{Glsn, Position};
use crate::members::Members;

/// A divisor: appends wait for a sync while more than this part of the budget is unsynced, within
/// the bounds below. These bytes are dirty in the page cache, and are lost in a crash.
const BACKLOG_PART: u64 = 8;
const BACKLOG_MIN: u64 = 4 << 20;
const BACKLOG_MAX: u64 = 64 << 20;

/// Divisor: when deciding whether a background sync is due, a byte of a blob file counts as this
/// part of a byte of the log, because it fills no buffer and each file needs its own sync.
const BLOB_PART: u64 = 4;

/// The durable end of an open log, and the state needed to advance it.
#[derive(Debug)]
pub(crate) struct DurabilityState {
    env: Arc<Env>,
    tail: Arc<Tail>,
    /// The durable position, the waiters, and whether the log is poisoned.
    pub(crate) group: GroupCommit,
    /// The threads that wait for their posts. They are kept apart from the waiters of `group`,
    /// because the leader here waits for the turn, and holders of the turn wait for `group`.
    pub(crate) posts: Leading,
    /// Held across a sync; taken before the writer.
    syncing: Mutex<Syncing>,
    /// `None` if the log is open read-only and not shared.
    writer: Option<Mutex<SegmentWriter>>,
    unsynced_blobs: UnsyncedBlobs,
    /// The number of bytes that were appended, or written to blob files to be synced later.
    /// `synced_bytes` counts those of them that were synced.
    appended_bytes: AtomicU64,
    synced_bytes: AtomicU64,
    /// Shared with the writer.
    group_bytes: Arc<AtomicU64>,
    /// Keeps other writers out; `None` once the log is closed, or if it is open read-only or
    /// shared.
    folder_lock: Mutex<Option<Box<dyn DirLock>>>,
    /// Wakes the flusher.
    pub(crate) signal: Arc<FlushSignal>,
}

impl DurabilityState {
    /// Creates the state of a log. All records in `tail` count as durable, except those after the
    /// durable end that other members have published.
    pub(crate) fn new(
        env: &Arc<Env>,
        tail: &Arc<Tail>,
        writer: Option<SegmentWriter>,
        folder_lock: Option<Box<dyn DirLock>>,
    ) -> Self {
        let end = tail.read().end;
        let mut durable = Position { glsn: Glsn(end.next.0 - 1), chain: end.chain };
        if let Some(beside) = env.options.shared.as_ref().filter(|shared| !shared.is_first) {
            // Perhaps the other members have not synced all of it yet.
            let theirs = beside.members.marks.durable();
            if theirs.next < end.next {
                durable =
                    Position { glsn: Glsn(theirs.next.0.saturating_sub(1)), chain: theirs.chain };
            }
        }
        Self {
            env: Arc::clone(env),
            tail: Arc::clone(tail),
            group: GroupCommit::new(durable, env.options.on_poison),
            posts: Leading::default(),
            group_bytes: writer
                .as_ref()
                .map_or_else(Arc::default, |writer| Arc::clone(&writer.group_bytes)),
            syncing: Mutex::default(),
            writer: writer.map(Mutex::new),
            unsynced_blobs: UnsyncedBlobs::default(),
            appended_bytes: AtomicU64::new(0),
            synced_bytes: AtomicU64::new(0),
            folder_lock: Mutex::new(folder_lock),
            signal: Arc::new(FlushSignal::new(env.options.background)),
        }
    }

    /// Starts the thread that syncs appends without a waiter.
    pub(crate) fn start_flusher(self: &Arc<Self>) -> Result<Flusher, LogError> {
        let durability = Arc::clone(self);
        // A failure poisons the log, and the next append returns it. A timeout while waiting for
        // another process does not poison the log; the sync is retried.
        let sync = move || {
            !matches!(durability.wait(durability.tail.last()), Err(LogError::Stalled { .. }))
        };
        Flusher::start(&self.signal, sync)
    }

    /// The right to write to the active segment.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, SegmentWriter>, LogError> {
        self.writer.as_ref().map(lock).ok_or(LogError::ReadOnly)
    }

    /// The end up to which the active segment may be written now. Syncs the blob files that its
    /// records name. Covers all records if the caller holds the order.
    pub(crate) fn ready(&self) -> Result<Ready, LogError> {
        Ready::make(&self.tail, &self.unsynced_blobs, &self.env)
    }

    /// The right to write to the active segment, and the end up to which it may be written.
    pub(crate) fn writer_and_ready(
        &self,
    ) -> Result<(MutexGuard<'_, SegmentWriter>, Ready), LogError> {
        // The writer is not held while blob files are synced.
        let ready = self.ready()?;
        let writer = self.writer()?;
        let ready = ready.or_later(&self.tail, &self.unsynced_blobs);
        Ok((writer, ready))
    }

    /// Writes about `bytes` bytes of the oldest full chunks of the buffer, unless that would wait
    /// for another thread or for a blob file.
    pub(crate) fn write_oldest(&self, bytes: u64) -> Result<(), LogError> {
        let Some(Ok(mut writer)) = self.writer.as_ref().map(Mutex::try_lock) else { return Ok(()) };
        let Some(ready) = Ready::without_sync(&self.tail, &self.unsynced_blobs) else {
            self.signal.due();
            return Ok(());
        };
        self.check_locks()?;
        writer.write_oldest(&self.tail, ready, bytes)
    }

    /// A moving average of the bytes per sync.
    pub(crate) fn group_bytes(&self) -> u64 {
        self.group_bytes.load(Ordering::Relaxed)
    }

    /// Waits until `glsn` is durable, or makes it so.
    pub(crate) fn wait(&self, glsn: Glsn) -> Result<(), LogError> {
        self.group.wait(glsn, &*self.env.options.clock, &|| self.write_and_sync())
    }

    /// As [`DurabilityState::wait`], if `glsn` is loaded; `NotYet` otherwise.
    pub(crate) fn wait_if_there(&self, glsn: Glsn) -> Result<(), LogError> {
        let last = self.tail.last();
        if glsn > last {
            Err(LogError::NotYet { asked: glsn, next: last.next() })
        } else {
            self.wait(glsn)
        }
    }

    /// Writes all appended bytes and syncs them. Afterwards the active segment has its final name.
    pub(crate) fn write_and_sync(&self) -> Result<End, LogError> {
        self.sync_holding(&mut lock(&self.syncing))
    }

    fn sync_holding(&self, syncing: &mut Syncing) -> Result<End, LogError> {
        self.group.check()?;
        let appended_bytes = self.appended_bytes.load(Ordering::Relaxed);
        if let Some(members) = self.env.members() {
            let end = syncing.run(|| self.sync_with(members))?;
            self.synced_bytes.fetch_max(appended_bytes, Ordering::Relaxed);
            return Ok(end);
        }
        self.check_locks()?;
        let (end, unsynced) = {
            let (mut writer, ready) = self.writer_and_ready()?;
            (writer.write_out(&self.tail, ready)?, writer.take_unsynced())
        };
        syncing.sync(&unsynced, &self.env)?;
        if unsynced.unnamed.is_some() {
            // No other segment can have begun, because that would have waited for this one's name.
            self.writer()?.unnamed = None;
        }
        self.synced_bytes.fetch_max(appended_bytes, Ordering::Relaxed);
        Ok(end)
    }

    /// This process's right to sync, for a sync other than that of appended bytes.
    pub(crate) fn hold_sync(&self) -> MutexGuard<'_, Syncing> {
        lock(&self.syncing)
    }

    /// Waits for the sync that is in progress, including the writes before it.
    pub(crate) fn wait_for_sync(&self) {
        drop(lock(&self.syncing));
    }

    /// Makes the records durable that this process has ordered or loaded; one sync serves all
    /// members.
    fn sync_with(&self, members: &Members) -> Result<End, LogError> {
        let (mut end, wanted) = {
            // Nothing is written here, because published records are in the file already, and
            // unpublished ones may only be written under the turn.
            let mut writer = self.writer()?;
            writer.take_unsynced();
            let tail = self.tail.read();
            (
                tail.end,
                Wanted { file: Arc::clone(&writer.file), segment: tail.first, next: tail.end.next },
            )
        };
        let published = members.marks.end();
        if published.next < end.next {
            // Another thread is publishing the newest record, so sync only the published ones.
            end = End {
                offset: published.offset,
                next: published.next,
                chain: published.chain,
                ..end
            };
        }
        sync(members, &self.env, &Wanted { next: end.next, ..wanted }, &|| {
            self.check_beside(members)
        })?;
        Ok(end)
    }

    /// Counts bytes appended with [`Durability::Buffered`], which the flusher syncs. If too many
    /// are unsynced, waits for a sync; if that sync fails, the next append returns the error.
    pub(crate) fn appended(&self, bytes: u64) {
        self.wrote(bytes, bytes);
    }

    /// Whether a blob file that a record will name may be synced after the record was ordered. This
    /// is not allowed in a log that several processes share, because they read a record from the
    /// file as soon as it is published.
    pub(crate) fn syncs_blobs_later(&self) -> bool {
        self.env.options.durability == Durability::Buffered && self.env.members().is_none()
    }

    /// Counts bytes that were written to a blob file through the page cache, as
    /// [`DurabilityState::appended`].
    pub(crate) fn wrote_blob(&self, id: BlobId, file: &Arc<dyn File>, bytes: u64) {
        self.unsynced_blobs.add(id, file);
        self.wrote(bytes, bytes / BLOB_PART);
    }

    /// Forgets a blob file that is about to be removed, or that its writer syncs.
    pub(crate) fn forget_blob(&self, id: BlobId) {
        self.unsynced_blobs.forget(id);
    }

    /// Counts `bytes` unsynced bytes; `due` is their weight when deciding whether a background sync
    /// is due.
    fn wrote(&self, bytes: u64, due: u64) {
        let appended = self.appended_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.signal.unsynced(due);
        let backlog_max =
            (self.env.options.budget.limit_bytes() / BACKLOG_PART).clamp(BACKLOG_MIN, BACKLOG_MAX);
        let is_behind = || {
            let unsynced = appended.saturating_sub(self.synced_bytes.load(Ordering::Relaxed));
            unsynced > backlog_max || self.unsynced_blobs.are_many()
        };
        if is_behind() {
            let mut syncing = lock(&self.syncing);
            // The sync that was in progress may have been enough.
            if is_behind() {
                let _ = self.publish_synced(self.sync_holding(&mut syncing));
            }
        }
    }

    /// As [`DurabilityState::write_and_sync`], and publishes the result. A failure poisons the log.
    /// Covers all appends if the caller holds the order.
    pub(crate) fn sync_to_end(&self) -> Result<End, LogError> {
        self.group.check()?;
        self.publish_synced(self.write_and_sync())
    }

    fn publish_synced(&self, synced: Result<End, LogError>) -> Result<End, LogError> {
        let end = synced.map_err(|error| match error {
            stalled @ LogError::Stalled { .. } => stalled,
            error => self.group.poison(&error),
        })?;
        self.group.publish(&end);
        Ok(end)
    }

    /// Fails if the locks of this process no longer keep other writers out of the folder.
    pub(crate) fn check_locks(&self) -> Result<(), LogError> {
        self.env.check_writable()?;
        if let Some(own) = lock(&self.folder_lock).as_ref() {
            own.check()?;
        }
        match self.env.options.outer_lock.as_ref().and_then(Weak::upgrade) {
            Some(outer) => Ok(outer.check()?),
            None => Ok(()),
        }
    }

    /// As [`DurabilityState::check_locks`], for a log that several processes write and that
    /// therefore has no lock of its own.
    fn check_beside(&self, members: &Members) -> Result<(), LogError> {
        members.files.check_files()?;
        self.check_locks()?;
        let options = &self.env.options;
        options.disk.check_own()?;
        if options.disk.entry(&options.dir)?.is_some() {
            return Ok(());
        }
        let what = "the log was removed or moved while it was open for writing; close the store \
                    and check what else was changed";
        Err(io::Error::other(format!("{}: {what}", options.dir.display())).into())
    }

    /// As [`DurabilityState::check_locks`], for everything that the store's disk watches. Called
    /// before a file is created, removed or renamed. A failure poisons the log.
    pub(crate) fn check_own(&self) -> Result<(), LogError> {
        self.env.check_writable()?;
        let checked = match self.env.members() {
            Some(members) => self.check_beside(members),
            None => self.check_locks().and_then(|()| Ok(self.env.options.disk.check_own()?)),
        };
        checked.map_err(|error| self.group.poison(&error))
    }

    /// Fails, and poisons the log, if processes share it and this process must not continue.
    pub(crate) fn check_shared(&self) -> Result<(), LogError> {
        self.group.check()?;
        match self.env.members().filter(|members| !members.table.is_reader()) {
            Some(members) => {
                let checked = members.health.check().and_then(|()| self.check_beside(members));
                checked.map_err(|error| self.group.poison(&error))
            }
            None => Ok(()),
        }
    }

    /// Unlocks the folder for other writers.
    pub(crate) fn unlock_folder(&self) {
        lock(&self.folder_lock).take();
    }
}
