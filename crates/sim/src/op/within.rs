//! What happens within an operation: moments, deeds, and calls that fail; and what a feed yields.

use crate::content::Content;
use crate::op::Key;

/// A moment within an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Before a moment of the store is opened.
    MomentAsked,
    /// After a read has taken its sources.
    SourcesTaken,
    /// After a value was loaded, before it is kept as an object.
    ValueLoaded,
    /// After a walk has sat down in its sources.
    WalkSat,
    /// After the log is held for a new cursor, before the cursor is committed.
    CursorHeld,
    /// Within the writing of a value to a blob file.
    LargeWritten,
    /// After a trim has chosen what to free, before it frees anything.
    TrimChosen,
    /// Before a part of the warm image is written.
    ImageMade,
    /// After rows of an image were compared with the runs, before they are kept.
    RowsRead,
    /// After a flush or a merge has written its runs, before the manifest names them.
    RunsWritten,
}

impl Within {
    /// All of them, with their names.
    pub(super) const ALL: [(Within, &str); 10] = [
        (Within::MomentAsked, "moment-asked"),
        (Within::SourcesTaken, "sources-taken"),
        (Within::ValueLoaded, "value-loaded"),
        (Within::WalkSat, "walk-sat"),
        (Within::CursorHeld, "cursor-held"),
        (Within::LargeWritten, "large-written"),
        (Within::TrimChosen, "trim-chosen"),
        (Within::ImageMade, "image-made"),
        (Within::RowsRead, "rows-read"),
        (Within::RunsWritten, "runs-written"),
    ];
}

/// What is done within another operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A commit, and then a compaction.
    Commit {
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// Its value.
        value: Content,
    },
    /// A commit, of which nothing is flushed.
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
    /// A compaction, and the log is freed.
    Trim,
    /// Every cache is dropped.
    DropCaches,
    /// The power is cut.
    Cut,
    /// The process ends.
    Kill,
}

impl Deed {
    /// Whether it is one of the power or of the process, not of another thread.
    pub fn is_an_end(&self) -> bool {
        matches!(self, Deed::Cut | Deed::Kill)
    }
}

/// A call within an operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The reservation of memory behind so many others is refused.
    Reservation(u64),
    /// All reservations of memory behind so many are refused.
    Reservations(u64),
    /// This read of the disk fails (1: the next one).
    Read(u64),
}

/// What a feed yields.
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
        /// The beginning of the keys.
        prefix: Key,
    },
}
