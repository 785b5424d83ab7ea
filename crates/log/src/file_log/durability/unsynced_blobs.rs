//! Blob files that were written through the page cache and are not synced yet: those of commits
//! with [`Durability::Buffered`](crate::durability::Durability::Buffered).
//!
//! Invariant: no byte of a record that names a blob file is written to a segment's file, not even
//! into the page cache, before the blob file and its name are durable. The system may write the
//! segment's bytes to the disk at any time, and recovery relies on every blob file of every record
//! that it finds. Each writer to the active segment needs a [`Ready`], which only a sync of these
//! files returns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use plimsoll_disk::vfs::File;

use crate::blob::BlobId;
use crate::error::LogError;
use crate::file_log::env::{Env, lock};
use crate::file_log::tail::Tail;
use crate::file_log::tail::order::End;
use crate::glsn::Glsn;

/// The most unsynced files before a sync is due; each has an open handle.
const FILES_MAX: usize = 64;

/// Blob files that are not synced.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedBlobs {
    files: Mutex<BTreeMap<BlobId, Arc<dyn File>>>,
    /// Held during a sync; contains the error of a sync that failed. Nothing is synced after that,
    /// because the system reports lost bytes only once.
    syncing: Mutex<Option<LogError>>,
}

impl UnsyncedBlobs {
    /// Adds a file to which bytes were written.
    pub(crate) fn add(&self, id: BlobId, file: &Arc<dyn File>) {
        lock(&self.files).entry(id).or_insert_with(|| Arc::clone(file));
    }

    /// Removes a file that is about to be deleted or that its writer syncs itself.
    pub(crate) fn forget(&self, id: BlobId) {
        lock(&self.files).remove(&id);
    }

    /// Whether a sync is due because of the number of files.
    pub(crate) fn are_many(&self) -> bool {
        lock(&self.files).len() >= FILES_MAX
    }

    /// Makes all files durable, with their names, including those that another thread is syncing
    /// now.
    fn sync(&self, env: &Env) -> Result<(), LogError> {
        let mut failed = lock(&self.syncing);
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let files = Vec::from_iter(std::mem::take(&mut *lock(&self.files)).into_values());
        if files.is_empty() {
            return Ok(());
        }
        let synced = sync_all(&files, env);
        *failed = synced.as_ref().err().cloned();
        synced
    }

    /// Whether no file is unsynced or being synced.
    fn are_none(&self) -> bool {
        self.syncing.try_lock().is_ok_and(|failed| failed.is_none() && lock(&self.files).is_empty())
    }
}

fn sync_all(files: &[Arc<dyn File>], env: &Env) -> Result<(), LogError> {
    env.options.disk.sync_files(files)?;
    Ok(env.options.disk.sync_dir(&env.options.dir)?)
}

/// The end up to which the active segment may be written. All blob files that the records up to
/// this end name are durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    segment: Glsn,
    end: End,
}

impl Ready {
    /// Syncs the blob files that the records up to now name.
    pub(crate) fn make(tail: &Tail, blobs: &UnsyncedBlobs, env: &Env) -> Result<Self, LogError> {
        // Read the end first, because each file was written before the record that names it was
        // ordered.
        let ready = Self::now(tail);
        blobs.sync(env)?;
        Ok(ready)
    }

    /// The end that is ready without a sync; `None` if a blob file is not durable yet.
    pub(crate) fn without_sync(tail: &Tail, blobs: &UnsyncedBlobs) -> Option<Self> {
        // Read the end first, as in `make`.
        let ready = Self::now(tail);
        blobs.are_none().then_some(ready)
    }

    /// Extends this to later records if no blob file is unsynced.
    pub(crate) fn or_later(self, tail: &Tail, blobs: &UnsyncedBlobs) -> Self {
        let now = Self::now(tail);
        if blobs.are_none() { now } else { self }
    }

    /// The end up to which it is ready. It may be in a segment before the active one; in that case
    /// all earlier segments were written.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// Whether the end is in the segment that begins with `active`.
    pub(crate) fn is_in(&self, active: Glsn) -> bool {
        self.segment == active
    }

    fn now(tail: &Tail) -> Self {
        let tail = tail.read();
        Self { segment: tail.first, end: tail.end }
    }
}
