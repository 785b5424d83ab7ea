//! Exit codes and error messages: one code for each kind of outcome, and one message for each
//! failure.
//!
//! Invariant: a code never changes its meaning, because scripts test it. `--help` prints the same
//! table.

use std::fmt;
use std::io;
use std::process::ExitCode;

use plimsoll::order::OrderError;
use plimsoll::{Error, InvalidInput, MemoryKind};

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Success.
    Done = 0,
    /// Success with a negative answer: no such key, or differences, problems or conflicts were
    /// found.
    No = 1,
    /// The command line or its input is invalid.
    Usage = 2,
    /// The store cannot be opened: it does not exist, or its format is unknown.
    Store = 3,
    /// Data on disk is damaged.
    Corrupt = 4,
    /// The memory budget is too small for the request.
    Memory = 5,
    /// The system refused: no space, no permission, a missing program; or another process does not
    /// respond.
    System = 6,
    /// Another transaction committed first.
    Conflict = 7,
    /// Another process has exclusive use of the store, or the maximum number of processes share it.
    Locked = 8,
    /// Stopped by Ctrl-C or SIGTERM; committed data stays.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Reported to the user on stderr.
    Message {
        /// The exit code.
        exit: Exit,
        /// The error and the remedy.
        message: String,
        /// Whether the store no longer holds the requested moment.
        gone: bool,
    },
    /// The reader of the output has closed it; the command ends silently.
    ReaderLeft,
}

/// The outcome of a command.
pub(crate) type Outcome = Result<Exit, Failure>;

impl Failure {
    /// A failure with its own exit code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Message { exit, message: message.into(), gone: false }
    }

    /// The command line or its input is invalid.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The system refused.
    pub(crate) fn system(message: impl Into<String>) -> Self {
        Self::new(Exit::System, message)
    }

    /// A failure to write to stdout; a closed pipe is not an error.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderLeft,
            _ => Self::system(format!("cannot write the output: {error}")),
        }
    }

    /// The exit code of a failure; `None` if the reader of the output has closed it, which is not
    /// an error.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Self::Message { exit, .. } => Some(*exit),
            Self::ReaderLeft => None,
        }
    }

    /// Prepends words to the message.
    pub(crate) fn lead(self, words: &str) -> Self {
        match self {
            Self::Message { exit, message, gone } => {
                Self::Message { exit, message: format!("{words}{message}"), gone }
            }
            Self::ReaderLeft => Self::ReaderLeft,
        }
    }

    /// Appends a sentence to the message.
    pub(crate) fn advise(self, advice: &str) -> Self {
        match self {
            Self::Message { exit, message, gone } => {
                Self::Message { exit, message: format!("{message}\n{advice}"), gone }
            }
            Self::ReaderLeft => Self::ReaderLeft,
        }
    }

    /// Whether the store no longer holds the requested moment.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Message { gone: true, .. })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { message, .. } => {
                f.write_str(message.lines().next().unwrap_or_default())
            }
            Self::ReaderLeft => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        if let Some(advice) = advice(&error) {
            message = format!("{message}\n{advice}");
        }
        Self::Message { exit: code(&error), message, gone: matches!(error, Error::Trimmed { .. }) }
    }
}

fn code(error: &Error) -> Exit {
    match error {
        Error::Conflict { .. } | Error::InvalidInput(InvalidInput::BranchMoved { .. }) => {
            Exit::Conflict
        }
        Error::Trimmed { .. }
        | Error::TimeTrimmed { .. }
        | Error::Future { .. }
        | Error::InvalidInput { .. } => Exit::Usage,
        Error::Locked { .. } => Exit::Locked,
        Error::NotAStore { .. } | Error::ReadOnly | Error::Format { .. } => Exit::Store,
        Error::Corrupt { .. } | Error::Forked { .. } | Error::Dropped { .. } => Exit::Corrupt,
        Error::OutOfBudget(_) => Exit::Memory,
        Error::Cancelled => Exit::Interrupted,
        _ => Exit::System,
    }
}

impl From<plimsoll_git::Error> for Failure {
    fn from(error: plimsoll_git::Error) -> Self {
        use plimsoll_git::Error as Git;
        let (exit, advice) = match &error {
            Git::Store(store) => return store.clone().into(),
            Git::NotARepository { .. }
            | Git::NoBranch { .. }
            | Git::Ambiguous { .. }
            | Git::Incomplete { .. }
            | Git::NotEmpty { .. }
            | Git::Destination { .. } => (Exit::Usage, None),
            Git::Diverged { .. } => {
                (Exit::Usage, Some("`--force` moves the branches and tags nevertheless."))
            }
            Git::NotReproduced { .. } => (Exit::Corrupt, None),
            Git::NoCommits { .. } => {
                (Exit::Usage, Some("`--branch NAME` imports the history of another branch."))
            }
            Git::OtherRepository { .. } | Git::Rewritten { .. } => {
                (Exit::Usage, Some("`--keyspace NAME` imports into another keyspace."))
            }
            Git::NoCommit { .. } => {
                (Exit::No, Some("`plimsoll log STORE` lists the imported commits."))
            }
            Git::AnotherImport { .. } => (Exit::Conflict, None),
            Git::Bookmark { .. } => (Exit::Corrupt, None),
            Git::Unreadable { .. } => (
                Exit::System,
                Some(
                    "`git fsck` checks the repository; run the import again to \
                     continue.",
                ),
            ),
            _ => (Exit::System, None),
        };
        let failure = Self::new(exit, error.to_string());
        match advice {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }
}

impl From<plimsoll_archive::Error> for Failure {
    fn from(error: plimsoll_archive::Error) -> Self {
        use plimsoll_archive::Error as Archive;
        let exit = match &error {
            Archive::Store(store) => return store.clone().into(),
            Archive::Url { .. }
            | Archive::NotEmpty { .. }
            | Archive::NotApart { .. }
            | Archive::OtherStore { .. }
            | Archive::OtherHistory { .. }
            | Archive::NotArchived { .. }
            | Archive::DestinationExists { .. } => Exit::Usage,
            Archive::NotAnArchive { .. } | Archive::Format { .. } => Exit::Store,
            Archive::OtherArchiver { .. } => Exit::Locked,
            Archive::Damaged { .. } => Exit::Corrupt,
            _ => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<plimsoll_replica::Error> for Failure {
    fn from(error: plimsoll_replica::Error) -> Self {
        use plimsoll_replica::Error as Replica;
        let exit = match error {
            Replica::Store(store) => return store.into(),
            Replica::Archive(archive) => return archive.into(),
            Replica::ClusterExists { .. }
            | Replica::NotEmpty { .. }
            | Replica::NotAMember { .. }
            | Replica::IsAMember { .. }
            | Replica::OtherCluster { .. }
            | Replica::OtherUrl { .. }
            | Replica::Moved { .. }
            | Replica::Diverged { .. }
            | Replica::WouldLose { .. }
            | Replica::EmptyBucket { .. }
            | Replica::NoMember
            | Replica::Unusable { .. }
            | Replica::DestinationExists { .. } => Exit::Usage,
            Replica::NotACluster { .. } | Replica::Format { .. } => Exit::Store,
            Replica::Damaged { .. } | Replica::Order(OrderError::Corrupt(_)) => Exit::Corrupt,
            _ => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

#[cfg(feature = "replay")]
impl From<plimsoll_replay::Error> for Failure {
    fn from(error: plimsoll_replay::Error) -> Self {
        use plimsoll_replay::Error as Replay;
        let exit = match &error {
            Replay::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                return Self::usage(format!("{}: there is no such file", path.display()));
            }
            Replay::Malformed { .. } => Exit::Usage,
            Replay::Budget { .. } => Exit::Memory,
            _ => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

/// Advice in terms of the command line, which the library's own message cannot give.
fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::OutOfBudget(refusal) if refusal.kind == MemoryKind::Memtable => Some(
            "Raise the budget with --memory, e.g. --memory 256MiB. A read-only command cannot \
             flush memtables, so it needs room for those of the store's writers: an eighth of \
             each writer's budget, at most 64 MiB.",
        ),
        Error::OutOfBudget(_) => Some("Raise the budget with --memory, e.g. --memory 256MiB."),
        Error::Io { kind: io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, .. } => Some(
            "Earlier commits are kept; free some space and run the command again. If the store \
             alone fills the disk, `plimsoll trim STORE --until newest` frees its log (it needs a \
             few MiB to start); `plimsoll log` then no longer lists earlier commits.",
        ),
        Error::InvalidInput(InvalidInput::NotFastForward { .. }) => Some(
            "`plimsoll pull` merges them into the branch of this store; `plimsoll push --force` \
             replaces the state there, and keeps its commits in the history.",
        ),
        Error::InvalidInput(InvalidInput::HistoryTrimmed { .. }) => Some(
            "`plimsoll backup` copies a store with what is left of its history, and `plimsoll \
             clone --depth N` clones it without the older commits; a store that is to exchange \
             commits with others keeps its log until they have them.",
        ),
        Error::InvalidInput(InvalidInput::CloneTarget { .. }) => {
            Some("`plimsoll pull STORE` continues an interrupted clone.")
        }
        Error::Io { kind: io::ErrorKind::ReadOnlyFilesystem, .. } => Some(
            "Read-only commands work there; to write, copy the store to a writable file system.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::Glsn;

    use super::*;

    #[test]
    fn closed_pipe_is_not_an_error() {
        assert!(matches!(
            Failure::of_output(&io::ErrorKind::BrokenPipe.into()),
            Failure::ReaderLeft
        ));
    }

    #[test]
    fn store_errors_map_to_documented_exit_codes() {
        let cases = [
            (Error::Future { asked: Glsn(2), newest: Glsn(1) }, Exit::Usage),
            (Error::Locked { path: "x".into(), pid: None, who: String::new() }, Exit::Locked),
            (Error::NotAStore { path: "x".into(), what: String::new() }, Exit::Store),
            (Error::Corrupt { file: None, glsn: None, message: String::new() }, Exit::Corrupt),
            (Error::Conflict { key: vec![], at: Glsn(1), by: Glsn(2) }, Exit::Conflict),
            (InvalidInput::BranchMoved { name: "main".into() }.into(), Exit::Conflict),
            (InvalidInput::NotFastForward { branch: "main".into() }.into(), Exit::Usage),
            (
                Error::Io {
                    kind: io::ErrorKind::StorageFull,
                    message: String::new(),
                    source: None,
                },
                Exit::System,
            ),
            (Error::Cancelled, Exit::Interrupted),
            (Error::Poisoned { cause: String::new() }, Exit::System),
        ];
        for (error, exit) in cases {
            assert_eq!(code(&error), exit, "{error:?}");
        }
    }
}
