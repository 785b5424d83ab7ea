//! The counts of an import: its work, and the files and commits that it left out.

use crate::object_id::ObjectId;

/// How many of the things that were left out are named.
const NAMED_MAX: usize = 5;

/// The work of one import.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Transactions, one for each commit.
    pub transactions: u64,
    /// Keys that were put or deleted.
    pub versions: u64,
    /// Bytes of file contents.
    pub bytes_in: u64,
    /// Submodules that were skipped.
    pub submodules: u64,
    /// Files whose contents the repository does not hold.
    pub missing: LeftOut<LeftOutFile>,
    /// Files that a store cannot hold.
    pub unfit: LeftOut<LeftOutFile>,
    /// Commits that could not be read or compared. Their changes arrive with the next commit.
    pub commits: LeftOut<LeftOutCommit>,
}

/// Things that were left out: how many, and the first few of them.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeftOut<T> {
    /// How many.
    pub count: u64,
    /// The first few.
    pub first: Vec<T>,
}

impl<T> Default for LeftOut<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> LeftOut<T> {
    pub(crate) fn add(&mut self, make: impl FnOnce() -> T) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(make());
        }
    }
}

/// A version of a file that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOutFile {
    /// The file's path.
    pub path: Vec<u8>,
    /// The commit.
    pub commit: ObjectId,
    /// Why it was left out.
    pub why: FileReason,
}

/// Why a version of a file was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileReason {
    /// The path is too long for a key.
    PathTooLong,
    /// The content is too long for a value.
    TooLarge {
        /// How long it is.
        bytes: u64,
    },
    /// The repository does not hold the content.
    Missing {
        /// The content's object.
        object: ObjectId,
    },
    /// The content is damaged.
    Damaged {
        /// The content's object.
        object: ObjectId,
        /// Git's message.
        message: String,
    },
}

/// A commit that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOutCommit {
    /// The commit.
    pub id: ObjectId,
    /// Git's message.
    pub why: String,
}
