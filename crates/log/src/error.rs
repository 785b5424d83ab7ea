//! Errors of the log, named by what the caller does next.

use std::io;
use std::path::PathBuf;

use plimsoll_disk::io_cause::IoCause;
use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::pool::LoadError;

use crate::glsn::Glsn;

/// The end of the message of an error for damage in a store.
pub const VERIFY_ADVICE: &str =
    "; `plimsoll verify STORE` lists the damage, the data that it affects, and the remedy";

/// Why a call to the log failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The entry was trimmed; read from `first` on.
    #[error("GLSN {asked} was trimmed; the oldest retained GLSN is {first}")]
    Trimmed {
        /// The GLSN that was asked for.
        asked: Glsn,
        /// The first GLSN that remains.
        first: Glsn,
    },
    /// The log was trimmed and no longer knows which entry was the last at the requested time: ask
    /// for `since_micros` or a later time.
    #[error("the log was trimmed; times can be looked up only from GLSN {first} on")]
    TimeTrimmed {
        /// The earliest time that can be looked up, in microseconds since 1970 UTC.
        since_micros: u64,
        /// The last GLSN at `since_micros`. Its entry may be trimmed.
        first: Glsn,
    },
    /// The entry does not exist yet: wait for it.
    #[error("GLSN {asked} is not written yet; the next entry gets GLSN {next}")]
    NotYet {
        /// The GLSN that was asked for.
        asked: Glsn,
        /// The GLSN that the next entry will get.
        next: Glsn,
    },
    /// Another append came first: read the entries in between, then decide again.
    #[error(
        "another entry was appended first: the next GLSN is {next}, not {expected}; read the \
         entries in between, then decide again"
    )]
    Conflict {
        /// The GLSN that the caller expected.
        expected: Glsn,
        /// The actual next GLSN.
        next: Glsn,
    },
    /// The record or entry is too large: append the entries in several calls, or put a payload into
    /// a blob file.
    #[error(
        "the payloads have {bytes} bytes or more together; one append takes at most {limit_bytes}: \
         append them in several calls"
    )]
    TooLarge {
        /// Total length of the entries, or of those that were counted until the limit was exceeded.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Bytes on disk are not those that were written: restore a backup, or recover the log.
    #[error("the log is corrupt{}: {what}{}", place(*glsn, file, *offset), VERIFY_ADVICE)]
    Corrupt {
        /// The first GLSN that cannot be read, as far as is known; [`Glsn::NONE`] if it is unknown.
        glsn: Glsn,
        /// The file; empty if it is unknown.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// A description of the damage.
        what: String,
    },
    /// The entry, or a page of a blob file that it names, was damaged, and a recovery could not
    /// read it. It is permanently lost.
    #[error(
        "the data of GLSN {glsn} is lost, because it was damaged when the store was \
         recovered"
    )]
    Dropped {
        /// The GLSN.
        glsn: Glsn,
    },
    /// The log differs from the one that was seen before (forked, truncated or replaced): find the
    /// right folder.
    #[error(
        "the log was forked, truncated or replaced: at GLSN {glsn} {what}; restore the right log"
    )]
    Forked {
        /// The GLSN at which they differ.
        glsn: Glsn,
        /// A description of the difference.
        what: String,
    },
    /// A write or sync failed earlier; the log accepts nothing more until it is reopened.
    #[error("the log is poisoned by an earlier failure: {cause}; open it again")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// There is no log here, or it has another format; see the message.
    #[error("{message}")]
    Format {
        /// The cause, and what to do.
        message: String,
    },
    /// The last record's time is ahead of the clock by more than the log allows: set the clock, or
    /// restart the log's time ([`crate::file_log::FileLog::restart_time`]).
    #[error(
        "the time of the log's last record is {} hours ahead of this machine's clock; set the \
         clock, or restart the log's time",
        ahead_micros / 3_600_000_000
    )]
    ClockBehind {
        /// The difference in microseconds.
        ahead_micros: u64,
    },
    /// The record would not be committed within the times of its draft
    /// ([`crate::draft::CommitTimes`]). Nothing was appended.
    #[error(
        "the record would be committed at {micros} µs since 1970, which its draft does not allow; \
         nothing was appended: make a new draft"
    )]
    Late {
        /// The time at which it would be committed, in microseconds since 1970 UTC.
        micros: u64,
    },
    /// The log cannot be opened because other processes keep changing it: open it again.
    #[error("cannot open the log, because other processes keep changing it; try again")]
    Unsettled,
    /// The draft breaks a rule; see the message.
    #[error("nothing was appended: {what}")]
    InvalidDraft {
        /// The rule.
        what: String,
    },
    /// Another process (or another handle in this one) has the log open for writing: close it
    /// first, or open read-only.
    #[error("{}: the log is open for writing {who}", path.display())]
    Locked {
        /// The log's folder.
        path: PathBuf,
        /// The holder's process id, where it is known.
        pid: Option<u32>,
        /// The holder, and what to do about it.
        who: String,
    },
    /// Another process that has the log open is suspended or hangs, and holds a lock that every
    /// process needs. Resume or kill it; reads continue meanwhile.
    #[error(
        "timed out waiting for {}, which holds a lock that every process needs; resume or kill \
         it, then retry",
        holder_of(*pid)
    )]
    Stalled {
        /// Its process id, where it is known.
        pid: Option<u32>,
        /// The time at which it took the lock, in microseconds since 1970 UTC; 0 if it is unknown.
        since_micros: u64,
    },
    /// The log was opened read-only.
    #[error("the log is open read-only; open it for writing")]
    ReadOnly,
    /// The memory budget has no room.
    #[error(transparent)]
    OutOfBudget(#[from] OutOfBudget),
    /// The operating system returned an error.
    #[error("{message}")]
    Io {
        /// Kind of the system's error.
        kind: io::ErrorKind,
        /// The system's message, with the path.
        message: String,
        /// The system's error, where there is one.
        source: Option<IoCause>,
    },
}

/// Names the place of damage, as far as it is known.
fn place(glsn: Glsn, file: &str, offset: u64) -> String {
    match file {
        "" => String::new(),
        file if glsn == Glsn::NONE => format!(" ({file}, offset {offset})"),
        file => format!(" at GLSN {glsn} ({file}, offset {offset})"),
    }
}

/// Names the process that others wait for.
fn holder_of(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        Self::Io {
            kind: error.kind(),
            message: error.to_string(),
            source: Some(IoCause::new(error)),
        }
    }
}

impl From<LoadError> for LogError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Io { kind, message, source } => Self::Io { kind, message, source },
            LoadError::OutOfBudget(refusal) => Self::OutOfBudget(refusal),
            LoadError::Corrupt { message } => {
                Self::Corrupt { glsn: Glsn::NONE, file: String::new(), offset: 0, what: message }
            }
        }
    }
}
