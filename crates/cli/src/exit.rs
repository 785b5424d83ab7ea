//! How the command ends: one exit code for each kind of outcome, and the sentence that goes with a
//! failure.
//!
//! Law: a number here never changes its meaning, for scripts test it. `--help` prints the same
//! table.

use std::fmt;
use std::io;
use std::process::ExitCode;

use plimsoll::{Error, MemoryKind};

/// What the exit code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done as asked.
    Done = 0,
    /// Done, and the answer is no: no such key, or there are differences or problems.
    No = 1,
    /// The command line or its input is wrong.
    Usage = 2,
    /// The store cannot be opened: there is none, or it is of another format.
    Store = 3,
    /// Bytes on disk are not what was written.
    Corrupt = 4,
    /// The memory budget is too small for the request.
    Memory = 5,
    /// The system refused: no space, no permission, a program that is missing; or another process
    /// does not answer.
    System = 6,
    /// Another transaction was faster.
    Conflict = 7,
    /// Another process has the store for itself, or as many share it as can.
    Locked = 8,
    /// Stopped by Ctrl-C or SIGTERM; what was committed stays.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Said to the user on stderr.
    Said {
        /// The code to end with.
        exit: Exit,
        /// What happened and what to do.
        message: String,
        /// Whether the store does not hold the moment any more that was read.
        gone: bool,
    },
    /// Whoever read our output has read enough: end without a word.
    ReaderLeft,
}

/// How a command ends.
pub(crate) type Outcome = Result<Exit, Failure>;

impl Failure {
    /// A failure with a code of its own.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Said { exit, message: message.into(), gone: false }
    }

    /// The command line or its input is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The system refused.
    pub(crate) fn system(message: impl Into<String>) -> Self {
        Self::new(Exit::System, message)
    }

    /// A failure to write to stdout: a closed pipe is no failure of ours.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderLeft,
            _ => Self::system(format!("cannot write the output: {error}")),
        }
    }

    /// The exit code of a failure; `None` if the reader of the output has left, which is no
    /// failure.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Self::Said { exit, .. } => Some(*exit),
            Self::ReaderLeft => None,
        }
    }

    /// The same failure with more words before its message.
    pub(crate) fn lead(self, words: &str) -> Self {
        match self {
            Self::Said { exit, message, gone } => {
                Self::Said { exit, message: format!("{words}{message}"), gone }
            }
            Self::ReaderLeft => Self::ReaderLeft,
        }
    }

    /// The same failure with one more sentence for the user.
    pub(crate) fn advise(self, advice: &str) -> Self {
        match self {
            Self::Said { exit, message, gone } => {
                Self::Said { exit, message: format!("{message}\n{advice}"), gone }
            }
            Self::ReaderLeft => Self::ReaderLeft,
        }
    }

    /// Whether the store does not hold the moment any more that was read.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Said { gone: true, .. })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said { message, .. } => f.write_str(message.lines().next().unwrap_or_default()),
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
        Self::Said { exit: code(&error), message, gone: matches!(error, Error::Trimmed { .. }) }
    }
}

fn code(error: &Error) -> Exit {
    match error {
        Error::Conflict { .. } => Exit::Conflict,
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
            Git::NotARepository { .. } | Git::NoBranch { .. } | Git::Ambiguous { .. } => {
                (Exit::Usage, None)
            }
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
                    "`git fsck` tells whether the repository is sound; run the import again to \
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

/// What to do, where the library's own message cannot know it because it knows nothing of a command
/// line.
fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::OutOfBudget(refusal) if refusal.kind == MemoryKind::Memtable => Some(
            "Give it more with --memory, e.g. --memory 256MiB. A command that only reads flushes \
             nothing: it holds what the store's writers had in memory, an eighth of their budget, \
             up to 64 MiB for each.",
        ),
        Error::OutOfBudget(_) => Some("Give it more with --memory, e.g. --memory 256MiB."),
        Error::Corrupt { .. } => {
            Some("`plimsoll verify STORE` lists all that is damaged, and what helps.")
        }
        Error::Io { kind: io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, .. } => Some(
            "What was committed before is kept; free some space and run the command again. If the \
             store alone fills the disk, `plimsoll trim STORE --until newest` frees its log, for \
             which it needs a few MiB at first; `plimsoll log` then lists no earlier commits.",
        ),
        Error::Io { kind: io::ErrorKind::ReadOnlyFilesystem, .. } => Some(
            "Commands that only read work there; to write, copy the store to a file system that \
             can be written.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::Glsn;

    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert!(matches!(
            Failure::of_output(&io::ErrorKind::BrokenPipe.into()),
            Failure::ReaderLeft
        ));
    }

    #[test]
    fn each_error_of_the_store_has_the_code_that_help_prints() {
        let cases = [
            (Error::Future { asked: Glsn(2), newest: Glsn(1) }, Exit::Usage),
            (Error::Locked { path: "x".into(), pid: None, who: String::new() }, Exit::Locked),
            (Error::NotAStore { path: "x".into(), what: String::new() }, Exit::Store),
            (Error::Corrupt { file: None, glsn: None, message: String::new() }, Exit::Corrupt),
            (Error::Conflict { key: vec![], at: Glsn(1), by: Glsn(2) }, Exit::Conflict),
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
