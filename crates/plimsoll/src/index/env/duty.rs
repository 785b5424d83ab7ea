//! Which process changes the files of the index: the one that has the store open alone, none, or,
//! of several members, the keeper.

use std::io::ErrorKind;
use std::sync::Arc;

use plimsoll_log::members::Members;

use crate::types::error::Error;

/// What this process does with the files of the index.
#[derive(Clone, Debug)]
pub(crate) enum Duty {
    /// It has the store alone, and writes them.
    Alone,
    /// It only reads them.
    ReadOnly,
    /// It is a member: it writes them while it is the keeper, and otherwise follows who is.
    Member(Arc<Members>),
}

impl Duty {
    /// Whether this process may write and remove files now.
    pub(crate) fn may_write(&self) -> bool {
        self.term().is_some()
    }

    /// Names the time since this process may write the files; `None` if it may not. What was begun
    /// in one term is not finished in another: in between others have written them.
    pub(crate) fn term(&self) -> Option<u64> {
        match self {
            Self::Alone => Some(0),
            Self::ReadOnly => None,
            Self::Member(members) => members.keeper.term(),
        }
    }

    /// What a manifest of this process is named apart by while it is written: another process may
    /// be writing one of the same number.
    pub(crate) fn writer(&self) -> u64 {
        self.members().map_or(0, |members| members.table.slot() as u64 + 1)
    }

    /// Whether this process may remove files now: another member may be reading all of them.
    pub(crate) fn may_remove(&self) -> bool {
        self.may_write() && self.members().is_none_or(|members| !members.holds.are_files_held())
    }

    /// Whether the store is open read-only, and nobody is followed.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly)
    }

    /// Whether this process never writes the files: it has the store open read-only, follow whom it
    /// may.
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Self::Alone => false,
            Self::ReadOnly => true,
            Self::Member(members) => members.table.is_reader(),
        }
    }

    /// The members, if the store may have several.
    pub(crate) fn members(&self) -> Option<&Arc<Members>> {
        match self {
            Self::Member(members) => Some(members),
            Self::Alone | Self::ReadOnly => None,
        }
    }

    /// The members, while another one of them writes the files.
    pub(crate) fn followed(&self) -> Option<&Arc<Members>> {
        self.members().filter(|members| !members.keeper.is_keeper())
    }

    /// The error of a process that does not write the files now.
    pub(crate) fn not_keeper(&self) -> Error {
        Error::NotKeeper { pid: self.members().and_then(|members| members.keeper.pid()) }
    }

    /// The error of a job that was begun in `term`. If another process has replaced this one as the
    /// keeper since, the files that the job was writing may have been swept: that a file is missing
    /// only says so.
    pub(crate) fn of_job(&self, term: Option<u64>, error: Error) -> Error {
        let is_missing = matches!(error, Error::Io { kind: ErrorKind::NotFound, .. });
        if is_missing && self.term() != term { self.not_keeper() } else { error }
    }
}
