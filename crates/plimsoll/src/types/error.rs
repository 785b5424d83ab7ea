//! Errors of the store, named by what the caller should do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use plimsoll_disk::io_cause::IoCause;
use plimsoll_log::error::{LogError, VERIFY_ADVICE};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::pool::LoadError;

use crate::types::invalid_input::InvalidInput;
use crate::types::times::{of_micros, show_time};

/// Why a request failed. Every variant says what to do next.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// use plimsoll::Error;
///
/// let stock = db.keyspace("stock")?;
/// let mut tx = db.begin();
/// let before = tx.get(&stock, "tea")?;
/// assert!(before.is_none());
/// tx.put(&stock, "tea", "1")?;
/// db.put(&stock, "tea", "2")?;
/// match tx.commit() {
///     Err(Error::Conflict { key, .. }) => assert_eq!(key, b"tea", "run it again"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction changed a key that this one read, or a value that it read has expired:
    /// run it again.
    #[error("conflict on key {}: {}; run the transaction again", show_key(key), change(*at, *by))]
    Conflict {
        /// The key. If the transaction read a range: the first changed key in it.
        key: Vec<u8>,
        /// The snapshot that the transaction read.
        at: Glsn,
        /// The commit that changed the key; `at` if its value has expired.
        by: Glsn,
    },
    /// The store no longer retains this moment: ask for `first` or later.
    #[error(
        "GLSN {asked} is no longer retained{}; the oldest moment that can be read is {first}",
        keyspace.as_ref().map_or_else(String::new, |name| format!(" in the keyspace `{name}`"))
    )]
    Trimmed {
        /// The requested moment.
        asked: Glsn,
        /// The oldest readable moment.
        first: Glsn,
        /// The keyspace that does not retain it, if the request concerned several keyspaces.
        keyspace: Option<String>,
    },
    /// The log is trimmed, and the times of its older commits are gone: use a time from `since` on,
    /// or a moment given by its GLSN.
    #[error(
        "times before {} can no longer be looked up, because the log was trimmed; give a later \
         time, or give the moment as a GLSN ({first} is the GLSN at that time)",
        show_time(*since)
    )]
    TimeTrimmed {
        /// The earliest time that can be looked up.
        since: SystemTime,
        /// The moment at that time.
        first: Glsn,
    },
    /// The store has not reached this moment: ask for `newest` or earlier, or wait.
    #[error(
        "GLSN {asked} is in the future; the newest is {newest}: ask for that or an earlier one, or \
         wait"
    )]
    Future {
        /// The requested moment.
        asked: Glsn,
        /// The newest readable moment.
        newest: Glsn,
    },
    /// The request is invalid: the value states the limit that it exceeds, or the name that is not
    /// allowed.
    #[error("{0}")]
    InvalidInput(InvalidInput),
    /// The last commit's time is ahead of this machine's clock by more than a day, so versions
    /// would not age: set the clock if it is wrong; if it is right, restart the log's time
    /// ([`Log::restart_time`](crate::Log::restart_time)). Reads continue.
    #[error(
        "the last commit's time is {} ahead of this machine's clock; set the clock if it is \
         wrong, or, if it is right, restart the log's time (Log::restart_time, `plimsoll \
         restart-time`)",
        in_words(*ahead)
    )]
    ClockBehind {
        /// The difference.
        ahead: Duration,
    },
    /// There is no store at this path, or it holds something else.
    #[error("{}: {what}", path.display())]
    NotAStore {
        /// The path.
        path: PathBuf,
        /// The contents found there, and the remedy.
        what: String,
    },
    /// Another process, or another handle of this one, has the store open for writing: close it, or
    /// open read-only. Or [`MAX_PROCESSES`](crate::MAX_PROCESSES) processes share the store: close
    /// it in one of them.
    #[error("{}: the store is open for writing {who}", path.display())]
    Locked {
        /// The store.
        path: PathBuf,
        /// The holder's process id, if known.
        pid: Option<u32>,
        /// The holder, and what to do about it.
        who: String,
    },
    /// The store was closed, by this handle or by a clone of it: open it again.
    #[error("the store is closed; open it again")]
    Closed,
    /// This process was forked from the one that opened the store, which still owns it: open the
    /// store here.
    #[error(
        "process {pid} opened the store, and this one was forked from it: open the store in this \
         process, or start processes with fork and exec"
    )]
    InForkedChild {
        /// The process id of the one that opened it.
        pid: u32,
    },
    /// The request was cancelled by the flag that its caller set; nothing of it was kept.
    #[error("the request was cancelled and left no changes")]
    Cancelled,
    /// The store was opened read-only.
    #[error("the store is open read-only; open it for writing")]
    ReadOnly,
    /// The store has a format that this version cannot read: the message says which.
    #[error("{message}")]
    Format {
        /// The file, if known.
        path: Option<PathBuf>,
        /// The format that was found, and the remedy.
        message: String,
    },
    /// Bytes on disk differ from the bytes written: restore a backup, or
    /// [recover](crate::Db::recover) the store.
    #[error("{message}")]
    Corrupt {
        /// The file, if known: relative to the store's folder, e.g. `index/12.run`, or its whole
        /// path.
        file: Option<String>,
        /// The commit, or the first of several, if known.
        glsn: Option<Glsn>,
        /// Place and nature of the damage, and what to do.
        message: String,
    },
    /// The requested data was damaged, and a recovery could not read it. It is lost. Other keys,
    /// other moments and later writes are unaffected.
    #[error(
        "the data that GLSN {glsn} wrote here is lost, because it was damaged when the store was \
         recovered"
    )]
    Dropped {
        /// The commit that wrote it.
        glsn: Glsn,
    },
    /// The index was not made from this log, the store is not the one that a copy of its files
    /// began with, or the history of a replica's order differs from that of the replica's log.
    #[error("{message}")]
    Forked {
        /// The entry at which they differ, if known.
        glsn: Option<Glsn>,
        /// The place and the kind of the difference, and the remedy.
        message: String,
    },
    /// A write or sync failed earlier: close the store and open it again.
    #[error("the store is poisoned by an earlier failure: {cause}; close it and open it again")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// Commits of other processes or replicas could not be applied, so a read would not return the
    /// newest state: retry in a new snapshot or transaction. A snapshot that was opened meanwhile
    /// can never be read. Opening returns this error if other processes kept changing the log
    /// meanwhile: open the store again.
    #[error("commits of other processes or replicas could not be applied: {cause}")]
    Behind {
        /// Why they could not be applied, and the remedy.
        cause: String,
    },
    /// Another process that has the store open holds a lock that all of them need, and does not
    /// release it: resume or kill that process. Reads continue meanwhile. A commit that failed with
    /// this error may still have been ordered, and may become visible once that process continues
    /// or ends: check before retrying it.
    #[error(
        "timed out waiting for {}, which is suspended or hangs; resume or kill it (a commit that \
         waited for it may still succeed)",
        pid.map_or_else(
            || "another process that has the store open".to_owned(),
            |pid| format!("process {pid}")
        )
    )]
    Stalled {
        /// Its process id, if known.
        pid: Option<u32>,
    },
    /// The order of a replica ([`Options::order`](crate::Options::order)) cannot be reached. The
    /// commit was not made: make it again later. Reads continue.
    #[error(
        "the order of this replica has been unavailable since {}: {cause}; nothing was committed, \
         try again later",
        show_time(*since)
    )]
    Unavailable {
        /// The time of the first call that failed.
        since: SystemTime,
        /// The report of the order.
        cause: String,
    },
    /// It is unknown whether the order of a replica has the commit. If it has, the commit becomes
    /// visible here: call [`Db::sync`](crate::Db::sync) until it succeeds, and check.
    #[error(
        "it is unknown whether the commit at position {position} of the order was made: {cause}; \
         call Db::sync until it succeeds, then check whether the commit is visible"
    )]
    InDoubt {
        /// The position in the order that the commit has, if it was made.
        position: u64,
        /// The report of the order.
        cause: String,
    },
    /// Another process performs this operation for all processes that have the store open, and did
    /// not succeed. The same call in that process returns the reason.
    #[error(
        "{} performs this operation for all processes that share the store, and it failed there; \
         try again, or run the operation in that process to see the error",
        pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    NotKeeper {
        /// Its process id, if known.
        pid: Option<u32>,
    },
    /// The other store of a transfer, or the connection to it, failed: the message says how.
    /// Correct that, and repeat the transfer, which continues.
    #[error("{message}")]
    Remote {
        /// The failure there, and the remedy.
        message: String,
    },
    /// The memory budget is exhausted: the message lists what holds the memory. The transaction is
    /// aborted, the store keeps working. Raise the budget, or use less memory at a time:
    /// `get_reader` reads a long value in pieces.
    #[error(
        "{0}; raise the budget, or use less memory at a time: long values can be read in pieces"
    )]
    OutOfBudget(OutOfBudget),
    /// The operating system reported an error.
    #[error("{message}")]
    Io {
        /// Kind of the system's error, e.g. `StorageFull`.
        kind: io::ErrorKind,
        /// The system's message, with the path.
        message: String,
        /// The system's error, with path and number, if there is one.
        source: Option<IoCause>,
    },
}

/// Result of a call to the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Corruption in a file that is still unknown; see [`Error::in_file`].
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt { file: None, glsn: None, message: message.into() }
    }

    /// As [`Error::corrupt`], for damage in a store, with the advice to run `plimsoll verify`,
    /// which lists all damage.
    pub(crate) fn damaged(what: impl fmt::Display) -> Self {
        Self::corrupt(format!("{what}{VERIFY_ADVICE}"))
    }

    /// Adds the file to a corruption error that has none yet.
    pub(crate) fn in_file(mut self, name: impl FnOnce() -> String) -> Self {
        if let Self::Corrupt { file: file @ None, .. } = &mut self {
            *file = Some(name());
        }
        self
    }

    /// Adds the commit to a corruption error that has none yet.
    pub(crate) fn at_glsn(mut self, at: Glsn) -> Self {
        if let Self::Corrupt { glsn: glsn @ None, .. } = &mut self {
            *glsn = Some(at);
        }
        self
    }

    /// The error for a path that is a file.
    pub(crate) fn is_a_file(path: &Path) -> Self {
        let what = "this is a file, but a store is a folder; give another path".to_owned();
        Self::NotAStore { path: path.to_owned(), what }
    }

    pub(crate) fn format(message: impl Into<String>) -> Self {
        Self::Format { path: None, message: message.into() }
    }

    pub(crate) fn trimmed(asked: Glsn, first: Glsn) -> Self {
        Self::Trimmed { asked, first, keyspace: None }
    }

    /// Adds to [`Error::Trimmed`] the keyspace that does not retain the moment, for a request that
    /// concerns several keyspaces.
    pub(crate) fn in_keyspace(self, name: &str) -> Self {
        match self {
            Self::Trimmed { asked, first, .. } => {
                Self::Trimmed { asked, first, keyspace: Some(name.to_owned()) }
            }
            error => error,
        }
    }

    /// Converts an error of the log.
    pub(crate) fn of_log(error: LogError) -> Self {
        let message = error.to_string();
        match error {
            LogError::Trimmed { asked, first } => Self::trimmed(asked, first),
            LogError::TimeTrimmed { since_micros, first } => {
                Self::TimeTrimmed { since: of_micros(since_micros), first }
            }
            LogError::ClockBehind { ahead_micros } => {
                Self::ClockBehind { ahead: Duration::from_micros(ahead_micros) }
            }
            LogError::NotYet { asked, next } => {
                Self::Future { asked, newest: Glsn(next.0.saturating_sub(1)) }
            }
            LogError::TooLarge { bytes, limit_bytes } => {
                InvalidInput::RecordTooLong { bytes, limit_bytes }.into()
            }
            LogError::InvalidDraft { .. } | LogError::Conflict { .. } => {
                InvalidInput::InvalidRecord { what: message }.into()
            }
            LogError::Locked { path, pid, who } => Self::Locked { path, pid, who },
            LogError::Dropped { glsn } => Self::Dropped { glsn },
            LogError::Forked { glsn, .. } => Self::Forked { glsn: Some(glsn), message },
            LogError::Poisoned { cause } => Self::Poisoned { cause },
            LogError::Unsettled => {
                let cause = "other processes keep changing the log; open the store again";
                Self::Behind { cause: cause.to_owned() }
            }
            LogError::Format { message } => Self::format(message),
            LogError::ReadOnly => Self::ReadOnly,
            LogError::Stalled { pid, .. } => Self::Stalled { pid },
            LogError::OutOfBudget(refusal) => Self::OutOfBudget(refusal),
            LogError::Io { kind, message, source } => Self::Io { kind, message, source },
            LogError::Corrupt { glsn, file, .. } => Self::Corrupt {
                file: (!file.is_empty()).then(|| format!("log/{file}")),
                glsn: (glsn > Glsn::NONE).then_some(glsn),
                message,
            },
            _ => Self::corrupt(message),
        }
    }

    /// Converts an error of the page pool.
    pub(crate) fn of_load(error: LoadError) -> Self {
        match error {
            LoadError::Io { kind, message, source } => Self::Io { kind, message, source },
            LoadError::Corrupt { message } => Self::damaged(message),
            LoadError::OutOfBudget(refusal) => Self::OutOfBudget(refusal),
        }
    }
}

/// Removes the advice of [`Error::damaged`] from a message, for a report that lists the damage
/// itself.
pub(crate) fn strip_advice(message: &str) -> &str {
    message.strip_suffix(VERIFY_ADVICE).unwrap_or(message)
}

/// Converts a result of the crates below. This is not `From`, because that would be public, and the
/// errors of these crates are not part of the API.
pub(crate) trait Lift<T> {
    /// As a result of the store: `log.read(glsn).lift()?`.
    fn lift(self) -> Result<T>;
}

impl<T> Lift<T> for Result<T, LogError> {
    #[inline]
    fn lift(self) -> Result<T> {
        self.map_err(Error::of_log)
    }
}

impl<T> Lift<T> for Result<T, LoadError> {
    #[inline]
    fn lift(self) -> Result<T> {
        self.map_err(Error::of_load)
    }
}

impl From<OutOfBudget> for Error {
    fn from(refusal: OutOfBudget) -> Self {
        Self::OutOfBudget(refusal)
    }
}

impl From<InvalidInput> for Error {
    fn from(what: InvalidInput) -> Self {
        Self::InvalidInput(what)
    }
}

/// Returns the store's error if a [`crate::ValueReader`] has wrapped one.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return inner.clone();
        }
        Self::Io {
            kind: error.kind(),
            message: error.to_string(),
            source: Some(IoCause::new(error)),
        }
    }
}

/// Describes the change of a key after a snapshot.
fn change(at: Glsn, by: Glsn) -> String {
    match by > at {
        true => format!("changed at GLSN {by}, after the snapshot at {at}"),
        false => format!("its value has expired since the snapshot at {at} was made"),
    }
}

/// Formats a duration of at least a day.
fn in_words(duration: Duration) -> String {
    let hours = duration.as_secs() / 3600;
    if hours < 72 { format!("{hours} hours") } else { format!("{} days", hours / 24) }
}

/// A key for display: as text if it is valid text, otherwise in hex.
pub(crate) fn show_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => key.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
