//! What processes write into streams of the log, read there, and pass with cursors that several of them use.
//!
//! An entry names the commit that made it, so that one of a commit in doubt is found.

use plimsoll::{Db, Error, Glsn, LogFollow, Result};

use crate::content::Content;
use crate::members::life::{Answer, CURSORS};

/// The most entries that a process takes from a follower, or behind a cursor, at a time.
const TAKEN_MAX: usize = 3;

/// An entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) stream: u64,
    /// The commit that made it, and its place among the entries of that.
    id: u64,
    number: u64,
    bytes: u64,
}

impl Note {
    /// What the commit `id` appends.
    pub(super) fn of_commit(id: u64, stream: u64, count: u64, bytes: u64) -> Vec<Self> {
        (0..count).map(|number| Self { stream, id, number, bytes }).collect()
    }

    /// Its bytes.
    pub(super) fn payload(&self) -> Vec<u8> {
        let mut payload = [self.id.to_be_bytes(), self.number.to_be_bytes()].concat();
        payload.extend(Content { bytes: self.bytes as u32, seed: self.id as u32 }.make());
        payload
    }
}

/// An entry that was read; of a commit without its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) glsn: u64,
    pub(super) stream: u64,
    pub(super) payload: Vec<u8>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of stream {}: {:02x?}", self.glsn, self.stream, &self.payload[..self.payload.len().min(16)])
    }
}

/// Follows a stream.
pub(super) struct Follower {
    stream: u64,
    follow: LogFollow,
}

/// Appends entries.
pub(super) fn append(db: &Db, notes: &[Note]) -> Result<Answer> {
    let Some(first) = notes.first() else { return Ok(Answer::Done) };
    let payloads: Vec<Vec<u8>> = notes.iter().map(Note::payload).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let glsns = db.log().append(first.stream as u32, &payloads)?;
    Ok(Answer::Appended { first: *glsns.start(), last: *glsns.end() })
}

/// All entries from one on, or from the first that is left.
pub(super) fn entries(db: &Db, from: u64) -> Result<Vec<Found>> {
    let mut from = Glsn(from);
    loop {
        match entries_from(db, from) {
            // Another process has freed the log, and this one did not know.
            Err(Error::Trimmed { asked, first }) if first > asked => from = first,
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
        let payload = if entry.stream == 0 { Vec::new() } else { entry.payload.to_vec() };
        found.push(Found { glsn: entry.glsn.0, stream: u64::from(entry.stream), payload });
    }
    Ok(found)
}

/// The place of a commit's first entry, which was ordered at `from` or later, if it is there.
pub(super) fn place_of(db: &Db, from: u64, notes: &[Note]) -> Result<Option<u64>> {
    let Some(first) = notes.first() else { return Ok(None) };
    let payload = first.payload();
    let found = entries(db, from)?.into_iter().find(|found| found.stream == first.stream && found.payload == payload);
    Ok(found.map(|found| found.glsn))
}

impl Follower {
    /// Begins so many GLSNs before the newest.
    pub(super) fn begin(db: &Db, stream: u64, back: u64) -> Result<Self> {
        let mut from = Glsn(db.newest().0.saturating_sub(back));
        loop {
            match db.log().follow(from.max(db.log().bounds().first), Some(stream as u32)) {
                Ok(follow) => return Ok(Self { stream, follow }),
                Err(Error::Trimmed { asked, first }) if first > asked => from = first,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next entries.
    pub(super) fn take(&mut self) -> Result<Answer> {
        let from = self.follow.position().0;
        let mut found = Vec::new();
        while found.len() < TAKEN_MAX {
            match self.follow.next_timeout(std::time::Duration::ZERO) {
                Ok(Some(entry)) => found.push(Found {
                    glsn: entry.glsn.0,
                    stream: u64::from(entry.stream),
                    payload: entry.payload().to_vec(),
                }),
                Ok(None) => break,
                // Those before it were there; it is to be begun anew.
                Err(Error::Trimmed { asked, first }) if first > asked => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Answer::Taken { stream: Some(self.stream), from, to: self.follow.position().0, found, cursor: None })
    }
}

/// Reads the next entries behind a cursor, and moves it past them.
pub(super) fn consume(db: &Db, name: u64) -> Result<Answer> {
    let cursor = CURSORS[name as usize % CURSORS.len()];
    let Some(from) = db.log().cursors().into_iter().find(|known| known.name == cursor).map(|known| known.next.0) else {
        return Ok(Answer::Done);
    };
    let mut found = entries(db, from)?;
    found.truncate(TAKEN_MAX);
    let to = found.last().map_or(from, |found| found.glsn + 1);
    if to > from {
        db.log().advance_cursor(cursor, Glsn(to))?;
    }
    found.retain(|found| found.stream > 0);
    Ok(Answer::Taken { stream: None, from, to, found, cursor: Some(name) })
}
