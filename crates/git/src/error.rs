//! The errors of imports, exports and lookups in an imported history.

use std::path::PathBuf;

use crate::object_id::ObjectId;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an import, an export, or a lookup in an imported history failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] plimsoll::Error),
    /// There is no Git repository at the path: give the path of one.
    #[error("{}: {why}", .path.display())]
    NotARepository {
        /// The path.
        path: PathBuf,
        /// The reason, and the kind of path to give.
        why: &'static str,
    },
    /// The repository has no commit at `HEAD`: commit something, or name a branch.
    #[error(
        "{}: the repository has no commits yet, or the commit that HEAD points to is missing; \
         commit something, or name a branch",
        .path.display()
    )]
    NoCommits {
        /// The repository.
        path: PathBuf,
    },
    /// The branch does not exist: name another.
    #[error(
        "{}: there is no branch, tag or commit `{branch}`; `git branch --all` lists the branches",
        .path.display()
    )]
    NoBranch {
        /// The repository.
        path: PathBuf,
        /// The name that was given.
        branch: String,
    },
    /// The keyspace holds the history of another repository: import into another keyspace or store.
    #[error(
        "{}: the store holds the history of another repository (up to commit {}, which this one \
         does not have); import this one into another store or another keyspace",
        .path.display(),
        .commit.short()
    )]
    OtherRepository {
        /// The repository.
        path: PathBuf,
        /// The last imported commit.
        commit: ObjectId,
    },
    /// The last imported commit is no longer part of the branch: import into another keyspace or
    /// store.
    #[error(
        "{}: the last imported commit {} is not an ancestor of {branch}: the history was \
         rewritten, or this is another branch; import it into another store or another keyspace",
        .path.display(),
        .commit.short()
    )]
    Rewritten {
        /// The repository.
        path: PathBuf,
        /// The last imported commit.
        commit: ObjectId,
        /// The branch.
        branch: String,
    },
    /// Another import has continued the history since this one began: open a new import, which
    /// continues after it.
    #[error(
        "another import has continued the history in keyspace `{keyspace}`; run this one again to \
         continue after it"
    )]
    AnotherImport {
        /// The keyspace of the history.
        keyspace: String,
    },
    /// A record of the import, such as that of the last imported commit, is damaged: import into a
    /// new store.
    #[error(
        "a record of an import (in {keyspace}) is damaged, or was not written by an import; import \
         the repository into a new store"
    )]
    Bookmark {
        /// The keyspace of the record, or `the store's own records`.
        keyspace: &'static str,
    },
    /// No imported commit has this id.
    #[error("there is no commit {id} in keyspace `{keyspace}`: {why}")]
    NoCommit {
        /// The prefix of the id, as given.
        id: String,
        /// The keyspace.
        keyspace: String,
        /// The reason, as far as the store knows it.
        why: &'static str,
    },
    /// Several imported commits have ids with this prefix: give more digits.
    #[error(
        "commit id {id} is ambiguous: it may be {}{}; write more digits",
        .candidates.join(", "),
        if *.more { ", ..." } else { "" }
    )]
    Ambiguous {
        /// The prefix of the id, as given.
        id: String,
        /// The first few of the commits.
        candidates: Vec<String>,
        /// Whether there are more than these.
        more: bool,
    },
    /// The repository lacks a part of its history: fetch it.
    #[error("{}: the repository is incomplete: {why}", .path.display())]
    Incomplete {
        /// The repository.
        path: PathBuf,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// The store has commits of another origin: import into a new store.
    #[error("the store already has {what}; import the whole repository into a new store")]
    NotEmpty {
        /// The history that it has.
        what: &'static str,
    },
    /// The exported commit has another id than the imported one: verify the store, then import the
    /// repository into a new one.
    #[error(
        "cannot export commit {commit}: its contents in the store do not have that id; verify the \
         store, then import the repository into a new one"
    )]
    NotReproduced {
        /// The commit in the imported repository.
        commit: ObjectId,
    },
    /// A branch or tag of the destination has commits that the store lacks: import them, or export
    /// to another repository.
    #[error(
        "{}: {name} has commits that the exported history does not contain; import them first, or \
         export to another repository",
        .path.display()
    )]
    Diverged {
        /// The destination.
        path: PathBuf,
        /// The ref.
        name: String,
    },
    /// The history cannot be exported to the destination.
    #[error("{}: {why}", .path.display())]
    Destination {
        /// The path.
        path: PathBuf,
        /// The reason, and what to do.
        why: String,
    },
    /// Git is not installed, or a git command failed.
    #[error("{message}")]
    Git {
        /// The message of git or of the system.
        message: String,
    },
    /// Git failed while reading the history; the repository may be damaged. Commits imported before
    /// stay.
    #[error("{message}")]
    Unreadable {
        /// The message of git or of the system.
        message: String,
    },
}

impl Error {
    pub(crate) fn git(message: impl Into<String>) -> Self {
        Self::Git { message: message.into() }
    }

    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self::Unreadable { message: message.into() }
    }
}
