//! Points within operations, operations nested at these points, failing calls, and the items of
//! feeds.

use crate::content::Content;
use crate::op::Key;

/// A point within an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Before a snapshot is opened.
    MomentAsked,
    /// After a read has taken its sources.
    SourcesTaken,
    /// After a value was loaded, before it enters the row cache.
    ValueLoaded,
    /// After an iterator has positioned itself in its sources.
    IteratorAttached,
    /// After the log is pinned for a new cursor, before the cursor is committed.
    CursorHeld,
    /// While a value is written to a blob file.
    LargeWritten,
    /// After a trim has read what is flushed, before it reads what the runs need.
    TrimAsked,
    /// After a trim has chosen the entries to free, before it frees any.
    TrimChosen,
    /// Before a part of the warm image is written.
    ImageMade,
    /// After rows of an image were validated against the runs, before they are inserted.
    RowsRead,
    /// After a flush or a merge has written its runs, before the manifest names them.
    RunsWritten,
    /// After a commit is encoded, before it takes the commit lock.
    CommitEncoded,
}

impl Within {
    /// All of them, with their names.
    pub(super) const ALL: [(Within, &str); 12] = [
        (Within::MomentAsked, "moment-asked"),
        (Within::SourcesTaken, "sources-taken"),
        (Within::ValueLoaded, "value-loaded"),
        (Within::IteratorAttached, "iterator-attached"),
        (Within::CursorHeld, "cursor-held"),
        (Within::LargeWritten, "large-written"),
        (Within::TrimAsked, "trim-asked"),
        (Within::TrimChosen, "trim-chosen"),
        (Within::ImageMade, "image-made"),
        (Within::RowsRead, "rows-read"),
        (Within::RunsWritten, "runs-written"),
        (Within::CommitEncoded, "commit-encoded"),
    ];
}

/// An operation nested within another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NestedOp {
    /// A commit, and then a compaction.
    Commit {
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// Its value.
        value: Content,
    },
    /// A commit that is not flushed.
    Put {
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// Its value.
        value: Content,
    },
    /// A compaction.
    Compact,
    /// A flush.
    Flush,
    /// A compaction and a trim of the log.
    Trim,
    /// A drop of all caches.
    DropCaches,
    /// A power cut.
    Cut,
    /// The end of the process.
    Kill,
}

impl NestedOp {
    /// Whether it is a power cut or the end of the process, rather than work of another thread.
    pub fn is_an_end(&self) -> bool {
        matches!(self, NestedOp::Cut | NestedOp::Kill)
    }
}

/// A failing call within an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The memory reservation after this many others is refused.
    Reservation(u64),
    /// All memory reservations after this many are refused.
    Reservations(u64),
    /// This read of the disk fails (1: the next one).
    Read(u64),
}

/// The items of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Entries of the log, of one stream or of all.
    Entries(Option<u32>),
    /// Commits.
    Commits,
    /// Commits that changed keys with a prefix.
    Watch {
        /// The keyspace's number.
        space: u8,
        /// The prefix of the keys.
        prefix: Key,
    },
}
