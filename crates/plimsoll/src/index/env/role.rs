//! Which process changes the files of the index: the only process, none, or, among several members,
//! the keeper.

use std::io::ErrorKind;
use std::sync::Arc;

use plimsoll_log::members::Members;

use crate::types::error::Error;

/// The role of this process towards the files of the index.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// This process has the store exclusively, and writes the files.
    Alone,
    /// This process only reads the files.
    ReadOnly,
    /// This process is a member: it writes the files while it is the keeper, and follows the keeper
    /// otherwise.
    Member(Arc<Members>),
}

impl Role {
    /// Whether this process may write and remove files now.
    pub(crate) fn may_write(&self) -> bool {
        self.term().is_some()
    }

    /// The current term of this process as a writer; `None` if it may not write. A job that began
    /// in one term does not finish in another, because other processes may have written the files
    /// in between.
    pub(crate) fn term(&self) -> Option<u64> {
        match self {
            Self::Alone => Some(0),
            Self::ReadOnly => None,
            Self::Member(members) => members.keeper.term(),
        }
    }

    /// Distinguishes the temporary names of manifests: another process may be writing one of the
    /// same number.
    pub(crate) fn writer(&self) -> u64 {
        self.members().map_or(0, |members| members.table.slot() as u64 + 1)
    }

    /// Whether this process may remove files now. It may not while another member is reading all of
    /// them.
    pub(crate) fn may_remove(&self) -> bool {
        self.may_write() && self.members().is_none_or(|members| !members.holds.are_files_held())
    }

    /// Whether the store is open read-only without following other members.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly)
    }

    /// Whether this process never writes the files, because it has the store open read-only,
    /// whether or not it follows other members.
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

    /// The members, while another of them writes the files.
    pub(crate) fn followed(&self) -> Option<&Arc<Members>> {
        self.members().filter(|members| !members.keeper.is_keeper())
    }

    /// The error for a write by a process that may not write now.
    pub(crate) fn not_keeper(&self) -> Error {
        Error::NotKeeper { pid: self.members().and_then(|members| members.keeper.pid()) }
    }

    /// Replaces the error of a job that began in `term` by [`Error::NotKeeper`] if another process
    /// has become the keeper since. That process may have swept the files that the job was writing,
    /// so a missing file is only a consequence of that.
    pub(crate) fn of_job(&self, term: Option<u64>, error: Error) -> Error {
        let is_missing = matches!(error, Error::Io { kind: ErrorKind::NotFound, .. });
        if is_missing && self.term() != term { self.not_keeper() } else { error }
    }
}
