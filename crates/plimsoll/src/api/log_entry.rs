//! Log entries as they were appended.

use std::fmt;
use std::ops::Deref;
use std::time::SystemTime;

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::types::times::of_micros;

/// The stream of lost entries, which a recovery could not read. A scan returns such an entry with
/// an empty payload, a read returns [`Error::Dropped`](crate::Error::Dropped), and a follower skips
/// it.
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
    /// Position in the log's total order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// Time of the append. It never decreases from entry to entry, except after
    /// [`Log::restart_time`](crate::Log::restart_time).
    pub time: SystemTime,
    entry: Entry,
}

impl LogEntry {
    pub(crate) fn new(entry: Entry) -> Self {
        let meta = entry.meta;
        Self {
            glsn: meta.glsn,
            stream: meta.stream.0,
            time: of_micros(meta.timestamp_micros),
            entry,
        }
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

/// An entry borrowed from a scan until the scan's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntryRef<'a> {
    /// Position in the log's total order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// Time of the append.
    pub time: SystemTime,
    /// Its payload.
    pub payload: &'a [u8],
}
