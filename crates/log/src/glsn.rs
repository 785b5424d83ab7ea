//! Positions in the log.

use std::cmp::Ordering;
use std::fmt;
use std::num::ParseIntError;
use std::ops::{Add, Sub};
use std::str::FromStr;

/// Global log sequence number (elsewhere LSN): the position of an entry in the total order. Dense
/// from 1; 0 is "before the first".
///
/// A `u64` can be added to it, subtracted from it and compared with it. The difference of two GLSNs
/// is a `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glsn(pub u64);

impl Glsn {
    /// Before the first entry.
    pub const NONE: Glsn = Glsn(0);
    /// The first entry.
    pub const FIRST: Glsn = Glsn(1);
    /// Beyond every entry.
    pub const MAX: Glsn = Glsn(u64::MAX);

    /// The next number.
    pub fn next(self) -> Glsn {
        Glsn(self.0 + 1)
    }

    /// The GLSN `entries` before this one, or [`Glsn::NONE`].
    pub fn saturating_sub(self, entries: u64) -> Glsn {
        Glsn(self.0.saturating_sub(entries))
    }
}

impl Add<u64> for Glsn {
    type Output = Glsn;

    fn add(self, entries: u64) -> Glsn {
        Glsn(self.0 + entries)
    }
}

impl Sub<u64> for Glsn {
    type Output = Glsn;

    fn sub(self, entries: u64) -> Glsn {
        Glsn(self.0 - entries)
    }
}

impl Sub for Glsn {
    type Output = u64;

    fn sub(self, earlier: Glsn) -> u64 {
        self.0 - earlier.0
    }
}

impl PartialEq<u64> for Glsn {
    fn eq(&self, number: &u64) -> bool {
        self.0 == *number
    }
}

impl PartialOrd<u64> for Glsn {
    fn partial_cmp(&self, number: &u64) -> Option<Ordering> {
        self.0.partial_cmp(number)
    }
}

impl FromStr for Glsn {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl From<u64> for Glsn {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Glsn> for u64 {
    fn from(glsn: Glsn) -> Self {
        glsn.0
    }
}

impl fmt::Display for Glsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An ordered stream within the one order. Stream 0 carries the store's transactions; streams of
/// users begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The store's transactions.
    pub const TRANSACTIONS: StreamId = StreamId(0);
    /// Damaged entries that are lost: only their GLSNs remain.
    pub const DROPPED: StreamId = StreamId(u32::MAX);
}

/// The last GLSN of a record, and the chain hash there. Two logs with the same position have the
/// same records up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Last GLSN of a record (0: the empty log).
    pub glsn: Glsn,
    /// The chain hash of that record: the hash of its content, which includes the chain hash of the
    /// record before it. In the empty log, a hash of the log's id.
    pub chain: u64,
}

/// The bounds of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The first GLSN that is not trimmed (equals `next` if the log has no entries).
    pub first: Glsn,
    /// The GLSN that the next entry will get.
    pub next: Glsn,
    /// Every entry up to here survives a power cut.
    pub durable: Glsn,
}
