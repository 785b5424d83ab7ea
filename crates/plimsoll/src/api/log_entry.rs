//! Entries of the log as they were appended.

use std::fmt;
use std::ops::Deref;
use std::time::SystemTime;

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::types::times::of_micros;

/// The stream of entries that were damaged and that a salvage dropped: a scan passes them with an empty payload, reading one is
/// [`Error::Dropped`](crate::Error::Dropped), and a follower does not see them.
pub const DROPPED_STREAM: u32 = StreamId::DROPPED.0;

/// An entry of the log.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let glsns = db.log().append(7, &[b"one"])?;
/// let entry = db.log().read(*glsns.start())?;
/// assert_eq!((entry.stream, entry.payload()), (7, &b"one"[..]));
/// # Ok(())
/// # }
/// ```
pub struct LogEntry {
    /// Its place in the one order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// When it was appended; it never goes back from entry to entry.
    pub time: SystemTime,
    entry: Entry,
}

impl LogEntry {
    pub(crate) fn new(entry: Entry) -> Self {
        let meta = entry.meta;
        Self { glsn: meta.glsn, stream: meta.stream.0, time: of_micros(meta.timestamp_micros), entry }
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        self.entry.deref()
    }

    pub(crate) fn into_entry(self) -> Entry {
        self.entry
    }
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogEntry({}, stream {}, {} bytes)", self.glsn, self.stream, self.payload().len())
    }
}

/// An entry that a scan lends until its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntryRef<'a> {
    /// Its place in the one order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// When it was appended.
    pub time: SystemTime,
    /// Its payload.
    pub payload: &'a [u8],
}
