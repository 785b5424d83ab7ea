//! Invalid requests, with the limit or the name that they broke.

use std::path::PathBuf;

use plimsoll_log::glsn::Glsn;

use crate::types::retention::Retention;

/// What is wrong with a request. The message says what is allowed, or what to call instead.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
/// use plimsoll::{Error, InvalidInput};
///
/// let notes = db.keyspace("notes")?;
/// match db.put(&notes, vec![b'x'; 5000], "one") {
///     Err(Error::InvalidInput(InvalidInput::KeyTooLong { bytes, limit_bytes })) => assert!(bytes > limit_bytes),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInput {
    /// The key, prefix or bound is too long.
    #[error("a key has at most {limit_bytes} bytes, this one has {bytes}")]
    KeyTooLong {
        /// Length of the key.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The value is too long.
    #[error("a value has at most {limit_bytes} bytes ({} GiB), this one has {bytes}", limit_bytes >> 30)]
    ValueTooLong {
        /// Its bytes.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The metadata of a transaction is too long.
    #[error("metadata has at most {limit_bytes} bytes, this has {bytes}")]
    MetadataTooLong {
        /// Length of the metadata.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Entries appended together are too long.
    #[error("a record's body is at most {limit_bytes} bytes, this one has {bytes}")]
    RecordTooLong {
        /// Total length of the entries.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The name of a keyspace or cursor is not allowed.
    #[error("a keyspace's name has 1 to {limit_bytes} bytes and no control characters, unlike {name:?}")]
    Name {
        /// The name.
        name: String,
        /// The maximum length of a name.
        limit_bytes: u64,
    },
    /// There is no keyspace with this name, and the store is read-only, so it cannot be created.
    #[error("there is no keyspace {name:?}, and the store is open to read only")]
    NoKeyspace {
        /// The name.
        name: String,
    },
    /// The keyspace was dropped: create a new one.
    #[error("keyspace {name:?} was dropped: nothing can be put into it; make it anew by Db::keyspace")]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// The handle of a keyspace belongs to another store, or to an earlier opening of this one.
    #[error(
        "the handle of keyspace {name:?} belongs to another store, or to an earlier opening of this one; get it from the Db that is used here, by \
         Db::keyspace"
    )]
    ForeignKeyspace {
        /// Its name.
        name: String,
    },
    /// The keyspace exists with another retention.
    #[error(
        "keyspace {name:?} exists and keeps {keeps}, not {asked}; open it by Db::keyspace, or change it by Db::set_retention"
    )]
    OtherRetention {
        /// Its name.
        name: String,
        /// Its retention.
        keeps: Retention,
        /// The requested retention.
        asked: Retention,
    },
    /// There is no cursor with this name.
    #[error("there is no cursor {name:?}; make it by Log::cursor")]
    NoCursor {
        /// The name.
        name: String,
    },
    /// A cursor cannot move backwards.
    #[error("cursor {name:?} is at GLSN {at} and does not go back to {asked}: what lies below may be trimmed")]
    CursorGoesBack {
        /// Its name.
        name: String,
        /// Its position.
        at: Glsn,
        /// The requested position.
        asked: Glsn,
    },
    /// The memory budget is below the minimum.
    #[error(
        "a memory budget of {bytes} bytes is below the minimum of {min_bytes} bytes ({} MiB); give it more",
        min_bytes >> 20
    )]
    BudgetTooSmall {
        /// The budget.
        bytes: u64,
        /// The minimum.
        min_bytes: u64,
    },
    /// The memory budget is more than the machine or the container has.
    #[error(
        "a memory budget of {bytes} bytes cannot be kept: {whose} {limit_bytes} bytes ({} MiB); give the store at most that, better a half",
        limit_bytes >> 20
    )]
    BudgetTooLarge {
        /// The budget.
        bytes: u64,
        /// The available memory.
        limit_bytes: u64,
        /// The limit that applies.
        whose: &'static str,
    },
    /// The destination of a backup already exists.
    #[error("{}: this path is in use already; give a backup a new or empty folder", path.display())]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
    /// The destination of a backup is inside the store.
    #[error("{}: this is inside the store; give a backup a folder outside of it", path.display())]
    DestinationInside {
        /// The destination.
        path: PathBuf,
    },
    /// Any other invalid request.
    #[error("{message}")]
    Other {
        /// What is wrong and what is allowed.
        message: String,
    },
}
