//! The counts of an import: imported data, and skipped files and commits.

use crate::object_id::ObjectId;

/// Number of skipped items that are listed.
const NAMED_MAX: usize = 5;

/// The counts of one import.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Transactions, one per commit.
    pub transactions: u64,
    /// Keys that were put or deleted.
    pub versions: u64,
    /// Bytes of file contents.
    pub bytes_in: u64,
    /// Submodules that were skipped.
    pub submodules: u64,
    /// Files whose contents are missing from the repository.
    pub missing: LeftOut<LeftOutFile>,
    /// Files that a store cannot hold.
    pub unfit: LeftOut<LeftOutFile>,
    /// Commits that could not be read or compared. The next commit includes their changes.
    pub commits: LeftOut<LeftOutCommit>,
    /// Branches of the repository that do not contain the commits of the store's branch of the same
    /// name, so that the store's branch was not moved.
    pub diverged: LeftOut<String>,
}

/// Skipped items: their number, and the first few of them.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeftOut<T> {
    /// Number of items.
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

/// A skipped version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOutFile {
    /// The file's path.
    pub path: Vec<u8>,
    /// The commit.
    pub commit: ObjectId,
    /// Why it was skipped.
    pub why: FileReason,
}

/// Why a version of a file was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileReason {
    /// The path is too long for a key.
    PathTooLong,
    /// The content is too long for a value.
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The content is missing from the repository.
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

/// A skipped commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOutCommit {
    /// The commit.
    pub id: ObjectId,
    /// Git's message.
    pub why: String,
}
