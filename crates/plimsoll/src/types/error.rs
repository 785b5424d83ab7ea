//! Errors of the store, named by what the caller does next.

use std::io;
use std::path::PathBuf;

use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::pool::LoadError;

/// Why the store did not do what it was asked. Every variant says what to do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction changed a key this one read: run it again.
    #[error(
        "conflict on key {}: changed at GLSN {by}, after the snapshot at {at}; run the transaction again",
        show_key(key)
    )]
    Conflict {
        /// The key (for a range that was read: the first changed key in it).
        key: Vec<u8>,
        /// The snapshot that the transaction read at.
        at: Glsn,
        /// The commit that changed it.
        by: Glsn,
    },
    /// The store does not hold this moment any more: ask for `first` or later.
    #[error("GLSN {asked} is no longer retained; the oldest moment that can be read is {first}")]
    Trimmed {
        /// What was asked for.
        asked: Glsn,
        /// The oldest that can be read.
        first: Glsn,
    },
    /// The store has not come so far: ask for `newest` or earlier, or wait.
    #[error("GLSN {asked} is in the future; the newest is {newest}")]
    Future {
        /// What was asked for.
        asked: Glsn,
        /// The newest that can be read.
        newest: Glsn,
    },
    /// The request cannot be served as it stands: the message says which bound was passed.
    #[error("{message}")]
    InvalidInput {
        /// What is wrong and what is allowed.
        message: String,
    },
    /// There is no store at this path (or something else stands there).
    #[error("{}: {what}", path.display())]
    NotAStore {
        /// Where.
        path: PathBuf,
        /// What was found there and what to do.
        what: String,
    },
    /// Another process, or another handle of this one, has the store open for writing: close it, or open read-only.
    #[error("{}: the store is open for writing {who}", path.display())]
    Locked {
        /// The store.
        path: PathBuf,
        /// The holder's process id, where known.
        pid: Option<u32>,
        /// Who has it open, and what to do about it.
        who: String,
    },
    /// The store was closed, by this handle or by a clone of it: open it again.
    #[error("the store is closed; open it again")]
    Closed,
    /// The store was opened to read only.
    #[error("the store is open to read only")]
    ReadOnly,
    /// The store is of a format that this version cannot read: the message says which.
    #[error("{message}")]
    Format {
        /// What was found and what to do.
        message: String,
    },
    /// Bytes on disk are not what was written: restore a backup, `rebuild` the index, or `salvage` the log.
    #[error("{message}")]
    Corrupt {
        /// Where and what; and what to do.
        message: String,
    },
    /// What was asked for was damaged, and a salvage dropped it: it is gone for good. Other keys, other moments and what was written later are there.
    #[error(
        "what GLSN {glsn} wrote here was damaged and has been dropped by `plimsoll salvage`; it cannot be read any more"
    )]
    Dropped {
        /// The commit that wrote it.
        glsn: Glsn,
    },
    /// The log is not the one that the index was made from.
    #[error("{message}")]
    Forked {
        /// Where they differ and what to do.
        message: String,
    },
    /// A write or sync failed earlier: close the store and open it again.
    #[error("the store is poisoned by an earlier failure: {cause}; close it and open it again")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The memory budget has no room: who holds what is in the message. The transaction is aborted, the store goes on.
    #[error(transparent)]
    OutOfBudget(#[from] OutOfBudget),
    /// The system refused.
    #[error("{message}")]
    Io {
        /// Kind of the system's error, e.g. `StorageFull`.
        kind: io::ErrorKind,
        /// What the system said, with the path.
        message: String,
    },
}

/// Result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidInput { message: message.into() }
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt { message: message.into() }
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        let message = error.to_string();
        match error {
            LogError::Trimmed { asked, first } => Self::Trimmed { asked, first },
            LogError::NotYet { asked, next } => Self::Future { asked, newest: Glsn(next.0.saturating_sub(1)) },
            LogError::TooLarge { .. } | LogError::InvalidDraft { .. } | LogError::Conflict { .. } => {
                Self::InvalidInput { message }
            }
            LogError::Locked { path, pid, who } => Self::Locked { path, pid, who },
            LogError::Dropped { glsn } => Self::Dropped { glsn },
            LogError::Forked { .. } => Self::Forked { message },
            LogError::Poisoned { cause } => Self::Poisoned { cause },
            LogError::Format { message } => Self::Format { message },
            LogError::ReadOnly => Self::ReadOnly,
            LogError::OutOfBudget(refusal) => Self::OutOfBudget(refusal),
            LogError::Io { kind, message } => Self::Io { kind, message },
            _ => Self::Corrupt { message },
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Io { kind, message } => Self::Io { kind, message },
            LoadError::Corrupt { message } => Self::Corrupt { message },
            LoadError::OutOfBudget(refusal) => Self::OutOfBudget(refusal),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io { kind: error.kind(), message: error.to_string() }
    }
}

/// A key for people: text where it is text, else hex.
pub(crate) fn show_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => key.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
