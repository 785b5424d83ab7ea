//! A commit read back from the log: what changed, and what travelled with it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::txn::payload::{Payload, Writes};
use crate::txn::spill::side_runs;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::CURSORS;
use crate::types::times::of_micros;
use crate::types::version::Stored;

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// Name of the keyspace; `None` for the store's own records.
    pub keyspace: Option<Arc<str>>,
    /// The key.
    pub key: &'a [u8],
    /// What happened to it.
    pub change: OpChange,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpChange {
    /// It got a value of this many bytes.
    Put {
        /// The value's length.
        bytes: u64,
    },
    /// It was deleted.
    Delete,
}

/// A commit, as the log has it.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let mut tx = db.begin();
/// tx.put(&notes, "a", "one")?;
/// tx.set_metadata(b"by Ada")?;
/// let glsn = tx.commit()?;
/// let commit = db.log().changes(glsn)?.expect("it is a commit");
/// assert_eq!(commit.metadata()?, b"by Ada");
/// commit.for_each(|op| {
///     assert_eq!((op.key, op.change), (&b"a"[..], OpChange::Put { bytes: 3 }));
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct Commit {
    store: Arc<Engine>,
    entry: Entry,
}

impl Commit {
    pub(crate) fn new(store: &Arc<Engine>, entry: Entry) -> Self {
        Self { store: Arc::clone(store), entry }
    }

    /// Its GLSN.
    pub fn glsn(&self) -> Glsn {
        self.entry.meta.glsn
    }

    /// When it was made; to the microsecond.
    pub fn time(&self) -> SystemTime {
        of_micros(self.entry.meta.timestamp_micros)
    }

    /// The GLSN that its transaction read at.
    pub fn read_at(&self) -> Glsn {
        self.entry.meta.read_at
    }

    /// What travelled with it.
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn metadata(&self) -> Result<&[u8]> {
        Ok(Payload::decode(&self.entry)?.metadata)
    }

    /// Whether all that it did was to make, move or drop a named cursor ([`crate::Log::cursor`]): a follower that moves its own one leaves these out.
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn moves_cursor(&self) -> Result<bool> {
        let Writes::Operations(mut operations) = Payload::decode(&self.entry)?.writes else { return Ok(false) };
        // A cursor is moved by a transaction of its own.
        Ok(operations.next()?.is_some_and(|operation| operation.key.starts_with(&CURSORS.to_be_bytes())))
    }

    /// Gives every change to `visit`, in the order of keyspaces and keys.
    ///
    /// # Errors
    /// The disk, the budget, corruption, or what `visit` returns.
    pub fn for_each(&self, mut visit: impl FnMut(Op<'_>) -> Result<()>) -> Result<()> {
        self.walk(&mut visit).map_err(|error| match error {
            // Its blob files went when the log was trimmed, here or by another process.
            Error::Corrupt { .. } if self.entry.meta.glsn < self.store.reader.log.bounds().first => {
                Error::Trimmed { asked: self.glsn(), first: self.store.reader.log.bounds().first }
            }
            error => error,
        })
    }

    fn walk(&self, visit: &mut impl FnMut(Op<'_>) -> Result<()>) -> Result<()> {
        match Payload::decode(&self.entry)?.writes {
            Writes::Operations(mut operations) => {
                while let Some(operation) = operations.next()? {
                    visit(self.op(operation.key, operation.stored))?;
                }
            }
            Writes::Runs(runs) => {
                let mut merged = side_runs(&self.store.reader.log, &self.store.reader.budget, &runs, self.glsn())?;
                while let Some(version) = merged.next()? {
                    visit(self.op(version.key, version.stored))?;
                }
            }
        }
        Ok(())
    }

    fn op<'a>(&self, key: &'a [u8], stored: Stored<'_>) -> Op<'a> {
        let (id, key) = key.split_at(4);
        let id = u32::from_be_bytes(id.try_into().expect("split at four"));
        let change = match stored {
            Stored::Deleted => OpChange::Delete,
            _ => OpChange::Put { bytes: stored.value_bytes() },
        };
        Op { keyspace: self.store.reader.keyspaces.name(id), key, change }
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commit({}, {} bytes)", self.glsn(), self.entry.len())
    }
}
