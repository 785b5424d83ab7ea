//! The environment that every part of an open log shares: options, id, open files, and the helper
//! that takes locks.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use plimsoll_disk::vfs::{DirLock, LockError};

use crate::durability::Durability;
use crate::error::LogError;
use crate::file_log::files::names::{FileName, TablePlace};
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::options::{FileLogOptions, MIN_SEGMENT_BYTES, Mode};
use crate::glsn::Glsn;
use crate::members::Members;

/// The environment of an open log.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) options: FileLogOptions,
    /// The log's id.
    pub(crate) id: u128,
    pub(crate) files: Arc<OpenFiles>,
    /// The length at which the active segment ends even if it is not full.
    end_segments_at: AtomicU64,
    /// Whether records are accepted even if the log's time is too far ahead of the clock, because
    /// that time is about to be restarted.
    pub(crate) is_restarting_time: AtomicBool,
}

impl Env {
    /// The environment of the log with this id.
    pub(crate) fn new(options: FileLogOptions, id: u128) -> Self {
        let files = Arc::new(OpenFiles::new(Arc::clone(&options.disk), options.dir.clone()));
        Self {
            options,
            id,
            files,
            end_segments_at: AtomicU64::new(u64::MAX),
            is_restarting_time: AtomicBool::new(false),
        }
    }

    /// Ends the active segment, and those after it, at this length if it is below the size of
    /// segments.
    pub(crate) fn end_segments_at(&self, bytes: u64) {
        // Relaxed, as below: it does no harm if a segment ends a little later.
        self.end_segments_at.store(bytes.max(u64::from(MIN_SEGMENT_BYTES)), Ordering::Relaxed);
    }

    /// Whether a segment of this length ends before it is full.
    pub(crate) fn ends_segment(&self, bytes: u32) -> bool {
        u64::from(bytes) >= self.end_segments_at.load(Ordering::Relaxed)
    }

    /// Whether the log is open read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.mode == Mode::ReadOnly
    }

    /// The membership of this process, if several processes may have the log open for writing.
    pub(crate) fn members(&self) -> Option<&Members> {
        self.options.shared.as_ref().map(|shared| &*shared.members)
    }

    /// Whether space is allocated ahead of records
    /// ([`File::allocate`](plimsoll_disk::vfs::File::allocate)) instead of writing zeros. Syncs
    /// then write more metadata, and commits with [`Durability::Sync`] would wait for that.
    pub(crate) fn allocates_room(&self) -> bool {
        self.options.durability == Durability::Buffered && self.members().is_none()
    }

    /// Whether another process may trim the log.
    pub(crate) fn may_be_trimmed_elsewhere(&self) -> bool {
        self.is_read_only() || self.options.shared.is_some()
    }

    /// The path at which the table of the segment that begins with `first` is written.
    pub(crate) fn table_place(&self, first: Glsn) -> TablePlace {
        let (name, dir) = (FileName::Table(first), &self.options.dir);
        TablePlace {
            path: name.path(dir),
            draft: self.members().map(|members| name.draft_of(members.table.slot(), dir)),
        }
    }

    /// Removes a file of the log; returns whether it existed.
    pub(crate) fn remove_file(&self, name: FileName) -> Result<bool, LogError> {
        match self.options.disk.remove(&self.files.path(name)) {
            Ok(()) => {
                if let Some(members) = self.members() {
                    members.holds.note_removed();
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if the log is open read-only.
    pub(crate) fn check_writable(&self) -> Result<(), LogError> {
        if self.is_read_only() { Err(LogError::ReadOnly) } else { Ok(()) }
    }
}

/// Takes a lock. No code under these locks panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code under this lock panics")
}

/// Locks the log's folder against other writers.
pub(crate) fn lock_folder(options: &FileLogOptions) -> Result<Box<dyn DirLock>, LogError> {
    options.disk.lock(&options.dir).map_err(|error| match error {
        LockError::Held { pid, who } => LogError::Locked { path: options.dir.clone(), pid, who },
        LockError::Io(error) => error.into(),
    })
}

/// See [`FileLog::allow_time_lead`](crate::file_log::FileLog::allow_time_lead).
#[derive(Debug)]
pub struct TimeLead<'a>(pub(super) &'a AtomicBool);

impl Drop for TimeLead<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
