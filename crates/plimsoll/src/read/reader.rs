//! The shared state of all reads of an open store, and the retry of a read or an iterator's step in
//! newer sources.
//!
//! Invariant: data that a view needs (log entries, blob files, another process's runs) may be gone
//! once the view was replaced. A failed read is retried if there is a newer view; its error is
//! returned only if there is none.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use plimsoll_disk::fork::Origin;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::index::OpenIndex;
use crate::index::iter::handle::{Detachable, IteratorHandle};
use crate::index::sources::view::View;
use crate::read::open_moments::Snapshots;
use crate::rowcache::RowCache;
use crate::types::branch_key::user_keyspace;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspaces;

/// Reads of one open store.
pub(crate) struct Reader {
    pub(crate) budget: Budget,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) row_cache: Arc<RowCache>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    /// Whether another process may replace the sources.
    pub(crate) may_refresh: bool,
    /// Whether all reads are rejected.
    pub(crate) is_closed: AtomicBool,
    pub(crate) owner: Owner,
}

/// The process that opened a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pid: u32,
    origin: Origin,
}

impl Owner {
    /// This process.
    pub(crate) fn here() -> Self {
        Self { pid: std::process::id(), origin: Origin::here() }
    }

    /// Whether this process is a forked child of the owner. Costs one load from memory.
    #[inline]
    pub(crate) fn is_foreign(self) -> bool {
        self.origin.is_foreign()
    }

    /// Returns an error in a forked child.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.is_foreign() { Err(Error::InForkedChild { pid: self.pid }) } else { Ok(()) }
    }
}

impl Reader {
    /// Reads in the current sources. If the read fails and the sources were replaced meanwhile, it
    /// is retried in the new ones, because log entries and blob files that only the old ones needed
    /// may be gone.
    pub(crate) fn read<T>(&self, mut read: impl FnMut(&Arc<View>) -> Result<T>) -> Result<T> {
        self.check_open()?;
        let view = self.index.sources.current_view();
        let mut failed = match read(&view) {
            Err(error) => (error, Arc::downgrade(&view)),
            done => return done,
        };
        drop(view);
        loop {
            let (error, failed_in) = failed;
            let view = self.newer_view(&failed_in).ok_or(error)?;
            match read(&view) {
                Err(error) => failed = (error, Arc::downgrade(&view)),
                done => return done,
            }
        }
    }

    /// Takes a step of an iterator, in the sources that it holds or in the current ones. If it
    /// fails and the sources were replaced meanwhile, it is retried in the new ones, as for
    /// [`Reader::read`].
    pub(crate) fn step<W: Detachable + 'static, T>(
        &self,
        handle: &mut IteratorHandle<W>,
        key: &mut Vec<u8>,
        mut step: impl FnMut(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let mut failed_in = Weak::new();
            let done = handle.step(
                key,
                || self.index.sources.view(),
                |iter, key| {
                    step(iter, key).inspect_err(|_| {
                        failed_in =
                            iter.detach().map_or_else(Weak::new, |view| Arc::downgrade(&view));
                    })
                },
            );
            match done {
                Err(error) if Weak::ptr_eq(&failed_in, &Weak::new()) => return Err(error),
                Err(error) => drop(self.newer_view(&failed_in).ok_or(error)?),
                done => return done,
            }
        }
    }

    /// The current sources, if they differ from `view`. In a read-only store another process may
    /// have replaced them, so its manifest is read first.
    pub(crate) fn newer_view(&self, view: &Weak<View>) -> Option<Arc<View>> {
        let newer = || {
            Some(self.index.sources.view()).filter(|now| !Weak::ptr_eq(&Arc::downgrade(now), view))
        };
        newer().or_else(|| {
            // An unreadable manifest is ignored: the caller returns the error that led here, which
            // describes the fault.
            let _ = self.may_refresh.then(|| self.index.memtables.refresh());
            newer()
        })
    }

    /// Time of a commit in microseconds since 1970 UTC; `None` for the empty store, or if the log
    /// no longer holds it and nothing has kept its time.
    pub(crate) fn time_of(&self, glsn: Glsn) -> Result<Option<u64>> {
        let kept = || Ok(self.snapshots.kept_time(glsn));
        if glsn == Glsn::NONE || glsn < self.log.bounds().first {
            return kept();
        }
        match self.log.meta(glsn) {
            Ok(meta) => Ok(Some(meta.timestamp_micros)),
            // The log was trimmed between the two lookups.
            Err(LogError::Trimmed { .. }) => kept(),
            Err(error) => Err(Error::of_log(error)),
        }
    }

    /// Converts an error of reading a commit's data from the log. Returns [`Error::Trimmed`] if its
    /// blob files are gone because this or another process trimmed the log.
    pub(crate) fn trimmed_or(&self, glsn: Glsn, error: Error) -> Error {
        if matches!(error, Error::Io { kind: ErrorKind::NotFound, .. }) {
            self.log.notice_trim();
        }
        let first = self.log.bounds().first;
        match error {
            // A file that is missing when it is opened is reported as damage. If it disappears
            // later, reading more of its pages reports `NotFound`.
            Error::Corrupt { .. } | Error::Io { kind: ErrorKind::NotFound, .. } if glsn < first => {
                Error::trimmed(glsn, first)
            }
            error => error,
        }
    }

    /// Fails once the store is closed: another process may then own and change the folder. Fails in
    /// a forked child.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.owner.check()?;
        // Acquire: pairs with the swap in `close`.
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// When a value that is put now under an index key expires; `None` if the key's keyspace has no
    /// time to live.
    ///
    /// # Errors
    /// The value would expire after the year 9999.
    pub(crate) fn expiry_of_put(&self, key: &[u8]) -> Result<Option<Expiry>> {
        let ttl = self.keyspaces.ttl(user_keyspace(key));
        ttl.map(|ttl| Expiry::after(self.log.now_micros(), ttl)).transpose()
    }

    /// Rejects all reads from now on; returns whether they were rejected before.
    pub(crate) fn close(&self) -> bool {
        self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// The oldest moment at which a keyspace can be read.
    pub(crate) fn oldest_readable(&self, keyspace: u32) -> Glsn {
        self.index.sources.current_view().oldest_readable_in(keyspace)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({:?})", self.index)
    }
}
