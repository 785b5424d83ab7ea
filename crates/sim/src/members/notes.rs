//! Streams: entries that processes append to the log, read there, and pass with shared cursors.
//!
//! An entry names its commit, so that entries of a commit in doubt can be found.

use std::ops::RangeInclusive;

use plimsoll::{Db, Error, Glsn, LogFollow, Result};

use crate::content::Content;

/// Names of cursors.
pub(super) const CURSORS: [&str; 3] = ["one", "two", "three"];

/// The most entries that a process takes at a time from a follower or a cursor.
const TAKEN_MAX: usize = 3;

/// An entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) stream: u64,
    /// Its commit, and its index among the commit's entries.
    id: u64,
    number: u64,
    bytes: u64,
}

impl Note {
    /// The entries of commit `id`.
    pub(super) fn of_commit(id: u64, stream: u64, count: u64, bytes: u64) -> Vec<Self> {
        (0..count).map(|number| Self { stream, id, number, bytes }).collect()
    }

    /// Its bytes.
    pub(super) fn payload(&self) -> Vec<u8> {
        let mut payload = [self.id.to_be_bytes(), self.number.to_be_bytes()].concat();
        payload.extend(Content { bytes: self.bytes as u32, seed: self.id as u32 }.make());
        payload
    }

    /// The entry as it is read back.
    pub(super) fn at(&self, glsn: u64) -> Found {
        Found { glsn, stream: self.stream, payload: self.payload() }
    }
}

/// An entry as read; for a commit, without its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) glsn: u64,
    pub(super) stream: u64,
    pub(super) payload: Vec<u8>,
}

impl Found {
    fn new(glsn: Glsn, stream: u32, payload: &[u8]) -> Self {
        let payload = if stream == 0 { Vec::new() } else { payload.to_vec() };
        Self { glsn: glsn.0, stream: u64::from(stream), payload }
    }
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of stream {}: {:02x?}",
            self.glsn,
            self.stream,
            &self.payload[..self.payload.len().min(16)]
        )
    }
}

/// Entries that a process took from a range of GLSNs.
#[derive(Debug)]
pub(super) struct TakenEntries {
    /// The stream; `None` for all streams.
    pub(super) stream: Option<u64>,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) found: Vec<Found>,
    /// Whether the process saw the end of the stream.
    pub(super) is_at_end: bool,
    /// The cursor that it moved past them.
    pub(super) cursor: Option<u64>,
}

/// Follows a stream.
pub(super) struct Follower {
    stream: u64,
    follow: LogFollow,
}

/// Appends entries, all to the stream of the first.
pub(super) fn append(db: &Db, notes: &[Note]) -> Result<RangeInclusive<Glsn>> {
    let stream = notes.first().map_or(0, |note| note.stream);
    let payloads: Vec<Vec<u8>> = notes.iter().map(Note::payload).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    db.log().append(stream as u32, &payloads)
}

/// All entries from this GLSN on, or from the first remaining one.
pub(super) fn entries(db: &Db, from: u64) -> Result<Vec<Found>> {
    let mut from = Glsn(from);
    loop {
        match entries_from(db, from) {
            // Another process has trimmed the log, which this one did not know.
            Err(Error::Trimmed { asked, first, .. }) if first > asked => from = first,
            read => return read,
        }
    }
}

fn entries_from(db: &Db, from: Glsn) -> Result<Vec<Found>> {
    let log = db.log();
    let mut scan = log.scan(from.max(log.bounds().first).., None)?;
    let mut found = Vec::new();
    while let Some(entry) = scan.next() {
        let entry = entry?;
        found.push(Found::new(entry.glsn, entry.stream, entry.payload));
    }
    Ok(found)
}

/// The entries of a commit from `from` on that exist.
pub(super) fn entries_of(db: &Db, from: u64, notes: &[Note]) -> Result<Vec<Found>> {
    let payloads: Vec<(u64, Vec<u8>)> =
        notes.iter().map(|note| (note.stream, note.payload())).collect();
    let is_one = |found: &Found| {
        payloads
            .iter()
            .any(|(stream, payload)| (*stream, payload) == (found.stream, &found.payload))
    };
    let mut found = entries(db, from)?;
    found.retain(is_one);
    Ok(found)
}

impl Follower {
    /// Begins this many GLSNs before the newest.
    pub(super) fn begin(db: &Db, stream: u64, back: u64) -> Result<Self> {
        let mut from = Glsn(db.newest().0.saturating_sub(back));
        loop {
            match db.log().follow(from.max(db.log().bounds().first), Some(stream as u32)) {
                Ok(follow) => return Ok(Self { stream, follow }),
                Err(Error::Trimmed { asked, first, .. }) if first > asked => from = first,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next entries.
    pub(super) fn take(&mut self, db: &Db) -> Result<TakenEntries> {
        let from = self.follow.position().0;
        let (mut found, mut is_at_end) = (Vec::new(), false);
        while found.len() < TAKEN_MAX {
            match self.follow.next_timeout(std::time::Duration::ZERO) {
                Ok(Some(entry)) => {
                    found.push(Found::new(entry.glsn, entry.stream, entry.payload()))
                }
                Ok(None) => {
                    is_at_end = true;
                    break;
                }
                // The log was trimmed beyond the follower's position. Restart the follower.
                Err(Error::Trimmed { .. }) if self.follow.position() < db.log().bounds().first => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let to = self.follow.position().0;
        Ok(TakenEntries { stream: Some(self.stream), from, to, found, is_at_end, cursor: None })
    }
}

/// Reads the next entries after a cursor, and moves it past them.
pub(super) fn consume(db: &Db, name: u64) -> Result<Option<TakenEntries>> {
    let cursor = CURSORS[name as usize % CURSORS.len()];
    let Some(from) =
        db.log().cursors().into_iter().find(|known| known.name == cursor).map(|known| known.next.0)
    else {
        return Ok(None);
    };
    let mut found = entries(db, from)?;
    let is_at_end = found.len() <= TAKEN_MAX;
    found.truncate(TAKEN_MAX);
    let to = found.last().map_or(from, |found| found.glsn + 1);
    if to > from {
        db.log().advance_cursor(cursor, Glsn(to))?;
    }
    Ok(Some(TakenEntries { stream: None, from, to, found, is_at_end, cursor: Some(name) }))
}
