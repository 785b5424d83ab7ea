//! The body of a segment of rows: keys and values, each with the GLSN of its version.
//!
//! ```text
//! varint key bytes | varint value bytes | varint GLSN | u8 touches | [expiry] | key | value
//! ```
//!
//! Rows follow each other without gaps. [`EXPIRES`] is added to the touches of a value that
//! expires: 8 bytes of its expiry follow.
//!
//! A key begins with the four bytes of its keyspace, so its length is never zero. A zero in place
//! of a key's length ends the body.

use plimsoll_disk::codec::{Reader, put_varint, varint_len};
use plimsoll_log::glsn::Glsn;

use crate::rowcache::warm::Row;
use crate::types::expiry::Expiry;
use crate::warm::image::SEGMENT_BYTES_MAX;
use crate::warm::segment::{HEADER_BYTES, Header};

/// Rows (key and value) larger than this are not in the image; the pages that hold them are.
pub(crate) const OBJECT_BYTES_MAX: usize = 16 << 10;

/// Added to the touches of a row whose value expires.
const EXPIRES: u8 = 4;

/// Bytes of an expiry.
const EXPIRY_BYTES: usize = 8;

/// The length of a row in the body.
fn bytes_of(row: &Row<'_>) -> usize {
    let numbers = [row.key.len() as u64, row.value.len() as u64, row.glsn.0];
    let expiry_bytes = if row.expiry.is_some() { EXPIRY_BYTES } else { 0 };
    let head_bytes = numbers.into_iter().map(varint_len).sum::<usize>() + 1 + expiry_bytes;
    head_bytes + row.key.len() + row.value.len()
}

/// The kind-specific part of a rows segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The rows' share of the shared memory, in parts of the whole (see `rowcache::share`).
    pub(crate) share: u8,
    /// The round of its rows, by the number of their accesses. More frequently accessed rows are
    /// restored earlier.
    pub(crate) round: Round,
}

/// The restore order of rows, by their accesses since they entered their place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Round {
    /// Three accesses, which is the maximum that is counted.
    Often,
    /// One or two.
    Seldom,
    /// None.
    Never,
}

impl Round {
    /// In restore order.
    pub(crate) const ALL: [Round; 3] = [Round::Often, Round::Seldom, Round::Never];

    /// The round of a row with this many accesses.
    pub(crate) fn of(touches: u8) -> Self {
        match touches {
            0 => Self::Never,
            1 | 2 => Self::Seldom,
            _ => Self::Often,
        }
    }

    /// The next round.
    pub(crate) fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|round| *round > self)
    }
}

impl Note {
    pub(crate) fn of(header: &Header) -> Self {
        let round = match header.note >> 8 & 3 {
            0 => Round::Often,
            1 => Round::Seldom,
            _ => Round::Never,
        };
        Self { share: header.note as u8, round }
    }

    pub(crate) fn encode(self) -> u32 {
        u32::from(self.share) | (self.round as u32) << 8
    }
}

/// Fills the body of a segment.
pub(crate) struct BodyWriter<'a> {
    body: &'a mut [u8],
    len: usize,
}

impl<'a> BodyWriter<'a> {
    /// Continues a body of which `len` bytes are written.
    pub(crate) fn new(body: &'a mut [u8], len: usize) -> Self {
        Self { body, len }
    }

    /// Adds a row; returns the new length, or `None` if there is no room for it.
    pub(crate) fn push(mut self, row: &Row<'_>) -> Option<usize> {
        if self.len + bytes_of(row) > self.body.len() {
            return None;
        }
        for number in [row.key.len() as u64, row.value.len() as u64, row.glsn.0] {
            self.len += put_varint(&mut self.body[self.len..], number);
        }
        let expiry = row.expiry.map(|expiry| expiry.micros().to_le_bytes());
        let flag = if expiry.is_some() { EXPIRES } else { 0 };
        let expiry = expiry.as_ref().map_or(&[][..], |bytes| bytes);
        for part in [&[row.touches | flag], expiry, row.key, row.value] {
            self.body[self.len..self.len + part.len()].copy_from_slice(part);
            self.len += part.len();
        }
        Some(self.len)
    }
}

/// Reads the row at `at` in a body; returns it and the offset of the next one. The body's checksum
/// was verified before, so an unreadable entry ends it.
pub(crate) fn read_at(body: &[u8], at: usize) -> Option<(Row<'_>, usize)> {
    let mut reader = Reader::new(body.get(at..)?);
    let key_bytes = usize::try_from(reader.varint()?).ok().filter(|bytes| *bytes >= 4)?;
    let value_bytes = usize::try_from(reader.varint()?).ok()?;
    let (glsn, flags) = (Glsn(reader.varint()?), reader.u8()?);
    let expiry = match flags & EXPIRES {
        0 => None,
        _ => Some(Expiry::from_micros(reader.u64()?)?),
    };
    let touches = flags & !EXPIRES;
    let (key, value) = (reader.take(key_bytes)?, reader.take(value_bytes)?);
    Some((Row { key, glsn, expiry, value, touches }, at + reader.position()))
}

// The largest row fits into an empty segment, whatever its lengths and GLSN.
const _: () = assert!(OBJECT_BYTES_MAX + 31 + EXPIRY_BYTES < SEGMENT_BYTES_MAX - HEADER_BYTES);

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    fn all(body: &[u8]) -> Vec<Row<'_>> {
        let mut at = 0;
        let mut found = Vec::new();
        while let Some((row, next)) = read_at(body, at) {
            found.push(row);
            at = next;
        }
        found
    }

    #[test]
    fn rows_are_read_as_written_and_trailing_zeros_are_no_rows() {
        let large = vec![7; 3000];
        let rows = [
            Row { key: b"\0\0\0\x01", glsn: Glsn(1), expiry: None, value: b"", touches: 0 },
            Row {
                key: b"\0\0\0\x01key",
                glsn: Glsn(u64::MAX),
                expiry: Expiry::from_micros(1 << 50),
                value: &large,
                touches: 3,
            },
            Row { key: &large, glsn: Glsn(300), expiry: None, value: b"v", touches: 1 },
        ];
        let mut body = vec![0; 6100];
        let mut len = 0;
        for row in &rows {
            len = BodyWriter::new(&mut body, len).push(row).unwrap();
        }
        assert_eq!(all(&body), rows);
        assert_eq!(BodyWriter::new(&mut body, len).push(&rows[1]), None);
        assert_eq!(all(&body[..len]), rows);
        assert_eq!(all(&body[..len - 1]), rows[..2]);
    }

    #[test]
    fn reading_arbitrary_bytes_terminates() {
        let mut random = Random::new(11);
        for _ in 0..2000 {
            let body: Vec<u8> = (0..random.below(90)).map(|_| random.below(256) as u8).collect();
            assert!(all(&body).len() <= 90);
        }
    }

    #[test]
    fn a_note_decodes_to_its_parts() {
        for note in Round::ALL.map(|round| Note { share: 48, round }) {
            let header = Header {
                kind: crate::warm::segment::Kind::Rows,
                log_id: 1,
                position: plimsoll_log::glsn::Position { glsn: Glsn(1), chain: 1 },
                entries: 1,
                note: note.encode(),
            };
            assert_eq!(Note::of(&header), note);
        }
        assert_eq!(
            [0, 1, 2, 3].map(Round::of),
            [Round::Never, Round::Seldom, Round::Seldom, Round::Often]
        );
        assert_eq!(Round::ALL.map(Round::next), [Some(Round::Seldom), Some(Round::Never), None]);
    }
}
