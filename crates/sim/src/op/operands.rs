//! The operands of operations: which keys, which moment, which view, which fault.

use std::time::Duration;

use plimsoll::Retention;

use crate::content::Content;
use crate::op::Key;

/// An update of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds to a number; another value counts as 0.
    Add(u32),
    /// Sets a value if there is none.
    IfAbsent(Content),
}

impl Change {
    /// The value after the change.
    pub fn apply(self, old: Option<Content>) -> Option<Content> {
        match self {
            Change::Add(by) => Some(match old.filter(|old| old.bytes == 8) {
                Some(old) => Content { seed: old.seed.wrapping_add(by), ..old },
                None => Content { bytes: 8, seed: by },
            }),
            Change::IfAbsent(value) => old.or(Some(value)),
        }
    }

    /// Bytes of its operand.
    pub fn bytes(self) -> u32 {
        match self {
            Change::Add(_) => 8,
            Change::IfAbsent(value) => value.bytes,
        }
    }
}

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This many reads in a thousand fail.
    Reads(u16),
    /// This many reads in a thousand return a wrong bit.
    Flips(u16),
    /// The next sync fails.
    Sync,
    /// The n-th following sync fails, of a file or of a folder (1: the next one).
    SyncLater(u64),
    /// The n-th following rename fails (1: the next one).
    RenameLater(u64),
    /// The n-th removal of a file from now fails.
    RemoveLater(u64),
    /// This many bytes are left free.
    Full(u64),
    /// Each read and sync takes up to this many microseconds.
    Slow(u32),
    /// The disk has no faults any more (lost data stays lost).
    Heal,
}

/// A part of a store's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it; the store returns to that state.
    Whole,
    /// The log; only to check the error.
    Log,
    /// The index; only to check the error.
    Index,
}

/// The view of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A transaction, including its own writes; the newest moment if none with this number is open.
    Tx(u8),
    /// A snapshot; the newest moment if none with this number is open.
    Snapshot(u8),
    /// The moment this many GLSNs before the newest.
    Back(u64),
}

/// The call that reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// `get`.
    Value,
    /// `get_reader`.
    Streamed,
    /// `contains_key`.
    Contains,
    /// `get_with`.
    Lent,
    /// Calls without a snapshot, at the newest moment.
    Now,
    /// `get_resident`.
    Resident,
}

/// The keys to delete, and the call. The numbers choose every n-th key, by its bytes
/// ([`Removal::takes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// `pop_first`.
    First,
    /// `pop_last`.
    Last,
    /// `retain`.
    Retain(u8),
    /// `extract_if`.
    Extract(u8),
    /// `delete_range`.
    Range,
}

impl Removal {
    /// Whether it deletes a key.
    pub fn takes(self, key: &[u8]) -> bool {
        let sum: u64 = key.iter().map(|byte| u64::from(*byte)).sum();
        match self {
            Removal::First | Removal::Last | Removal::Range => true,
            Removal::Retain(each) | Removal::Extract(each) => {
                sum.is_multiple_of(u64::from(each.max(1)))
            }
        }
    }
}

/// The end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Unbounded.
    Open,
    /// Inclusive.
    At(Key),
    /// Exclusive.
    Beside(Key),
}

/// A contiguous set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Between two edges.
    Range(Edge, Edge),
    /// Keys with a prefix.
    Prefix(Key),
}

/// A moment of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The newest.
    Newest,
    /// This many GLSNs before the newest.
    Back(u64),
    /// This many GLSNs after the newest, which is refused.
    Ahead(u64),
    /// The time of the clock this many microseconds ago.
    Age(u64),
    /// This many microseconds after an entry of the log was appended; 0 is the entry's own time.
    TimeOf {
        /// The entry: this many GLSNs before the newest.
        back: u64,
        /// Offset in microseconds; may be negative.
        micros: i64,
    },
}

/// A retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Every version.
    #[default]
    Forever,
    /// The latest version of each key.
    Latest,
    /// The versions visible at the last n GLSNs.
    Glsns(u64),
    /// The versions visible to readers of at most this age.
    Micros(u64),
}

impl Keep {
    /// The store's representation.
    pub fn retention(self) -> Retention {
        match self {
            Keep::Forever => Retention::Forever,
            Keep::Latest => Retention::Latest,
            Keep::Glsns(glsns) => Retention::Glsns(glsns),
            Keep::Micros(micros) => Retention::Time(Duration::from_micros(micros)),
        }
    }
}

impl Span {
    /// Whether a key belongs to it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Span::Prefix(prefix) => key.starts_with(prefix),
            Span::Range(lower, upper) => {
                let above = match lower {
                    Edge::Open => true,
                    Edge::At(edge) => key >= &edge[..],
                    Edge::Beside(edge) => key > &edge[..],
                };
                let below = match upper {
                    Edge::Open => true,
                    Edge::At(edge) => key <= &edge[..],
                    Edge::Beside(edge) => key < &edge[..],
                };
                above && below
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_contains_keys_between_its_edges() {
        let range = Span::Range(Edge::At(b"b".to_vec()), Edge::Beside(b"d".to_vec()));
        assert!(range.contains(b"b") && range.contains(b"czz"));
        assert!(!range.contains(b"a") && !range.contains(b"d"));
        let open = Span::Range(Edge::Beside(b"b".to_vec()), Edge::Open);
        assert!(open.contains(b"b\0") && !open.contains(b"b"));
        assert!(
            Span::Prefix(b"ab".to_vec()).contains(b"abc")
                && !Span::Prefix(b"ab".to_vec()).contains(b"b")
        );
    }
}
