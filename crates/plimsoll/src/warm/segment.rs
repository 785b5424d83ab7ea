//! The format of a segment of the image: its header and checksums.
//!
//! ```text
//! 0          8        12           16             20     24       40     48      56        64
//! | PLIMWARM | format | compatible | incompatible | kind | log id | GLSN | chain | entries | body
//!
//! 68     72          80    88
//! | note | sum(body) | sum | body ...
//! ```
//!
//! The last checksum covers bytes 0 to 80 and is seeded with the segment's kind and number, so a
//! valid segment under another name is rejected. `docs/reference/format.md` describes the bytes.

use std::fmt;

use plimsoll_disk::checksum::{checksum, seed};
use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::{Glsn, Position};

use crate::types::error::Error;

/// Bytes before the body.
pub(crate) const HEADER_BYTES: usize = 88;

const MAGIC: [u8; 8] = *b"PLIMWARM";
const FORMAT: u32 = 1;
/// Domain separator in checksum seeds for image segments.
const SEED: u64 = 0x5741_524d;

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Names of pages ([`super::pages`]).
    Pages = 1,
    /// Rows ([`super::rows`]).
    Rows = 2,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The log's id.
    pub(crate) log_id: u128,
    /// The durable log position for which it is valid.
    pub(crate) position: Position,
    /// The number of entries.
    pub(crate) entries: u64,
    /// Kind-specific data; 0 for names of pages.
    pub(crate) note: u32,
}

/// A segment on disk. If a new segment has the same checksum, it need not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentOnDisk {
    pub(crate) number: u32,
    /// The checksum of its body.
    pub(crate) sum: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// Why a segment is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The bytes differ from the written ones.
    Damaged { what: &'static str },
    /// A format that this version does not read.
    Format { what: String },
    /// It belongs to another store.
    Foreign,
    /// A position that the log has not reached.
    Ahead { glsn: Glsn, durable: Glsn },
    /// The log's history differs.
    Forked { glsn: Glsn },
    /// It could not be read, or compared.
    Unread { message: String },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { what } => write!(f, "it is damaged ({what})"),
            Self::Format { what } => write!(f, "this version cannot read it ({what})"),
            Self::Foreign => f.write_str("it belongs to another store"),
            Self::Ahead { glsn, durable } => {
                write!(
                    f,
                    "it is at GLSN {glsn}, and the log ends at {durable}: it belongs to another \
                     copy of the store"
                )
            }
            Self::Forked { glsn } => {
                write!(f, "the log's history differs at GLSN {glsn}")
            }
            Self::Unread { message } => f.write_str(message),
        }
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::Unread { message: error.to_string() }
    }
}

fn seed_of(kind: Kind, number: u64) -> u64 {
    seed(&[SEED, kind as u64, number])
}

/// The checksum of a body; equal checksums count as equal bodies.
pub(crate) fn body_sum(kind: Kind, number: u64, body: &[u8]) -> u64 {
    checksum(seed_of(kind, number), body)
}

/// Writes the header in front of the body of segment `number`, which fills the rest of `bytes`.
pub(crate) fn seal(header: &Header, number: u64, bytes: &mut [u8]) {
    let (head, body) = bytes.split_at_mut(HEADER_BYTES);
    let body_bytes = u32::try_from(body.len()).expect("a segment fits into a chunk");
    let mut at = 0;
    let mut put = |field: &[u8]| {
        head[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&MAGIC);
    put(&FORMAT.to_le_bytes());
    put(&[0; 8]);
    put(&(header.kind as u32).to_le_bytes());
    put(&header.log_id.to_le_bytes());
    put(&header.position.glsn.0.to_le_bytes());
    put(&header.position.chain.to_le_bytes());
    put(&header.entries.to_le_bytes());
    put(&body_bytes.to_le_bytes());
    put(&header.note.to_le_bytes());
    put(&body_sum(header.kind, number, body).to_le_bytes());
    let sum = checksum(seed_of(header.kind, number), &head[..HEADER_BYTES - 8]);
    head[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the header at the start of segment `number` of `kind`; its file has `file_bytes`.
pub(crate) fn read_header(
    head: &[u8],
    kind: Kind,
    number: u64,
    file_bytes: u64,
) -> Result<(Header, u64), Rejection> {
    let damaged = |what| Rejection::Damaged { what };
    let head = head.get(..HEADER_BYTES).ok_or(damaged("it is truncated"))?;
    let (fields, sum) = head.split_at(HEADER_BYTES - 8);
    if fields[..8] != MAGIC {
        return Err(damaged("it has no header of an image"));
    }
    let cannot = "the header has a fixed length";
    let mut reader = Reader::new(&fields[8..]);
    let format = reader.u32().expect(cannot);
    if sum != checksum(seed_of(kind, number), fields).to_le_bytes() {
        // The checksum of another format may be in another place.
        return Err(match format {
            FORMAT => damaged("the header's checksum does not match"),
            _ => Rejection::Format { what: format!("format {format}, not {FORMAT}") },
        });
    }
    let (_compatible, incompatible) = (reader.u32().expect(cannot), reader.u32().expect(cannot));
    if (format, incompatible) != (FORMAT, 0) {
        let what =
            format!("format {format} with features {incompatible:#x}, not {FORMAT} with none");
        return Err(Rejection::Format { what });
    }
    if reader.u32().expect(cannot) != kind as u32 {
        return Err(damaged("it is an image of another kind"));
    }
    let log_id = reader.u128().expect(cannot);
    let glsn = Glsn(reader.u64().expect(cannot));
    let position = Position { glsn, chain: reader.u64().expect(cannot) };
    let entries = reader.u64().expect(cannot);
    let body_bytes = u64::from(reader.u32().expect(cannot));
    if HEADER_BYTES as u64 + body_bytes != file_bytes {
        return Err(damaged("its length differs from the one in its header"));
    }
    let note = reader.u32().expect(cannot);
    let sum = reader.u64().expect(cannot);
    Ok((Header { kind, log_id, position, entries, note }, sum))
}

/// Reads segment `number` of `kind`: its header, its body and the checksum of that.
pub(crate) fn open(
    bytes: &[u8],
    kind: Kind,
    number: u64,
) -> Result<(Header, &[u8], u64), Rejection> {
    let (header, sum) = read_header(bytes, kind, number, bytes.len() as u64)?;
    let body = &bytes[HEADER_BYTES..];
    if body_sum(kind, number, body) != sum {
        return Err(Rejection::Damaged { what: "its checksum does not match" });
    }
    Ok((header, body, sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        kind: Kind::Pages,
        log_id: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
        position: Position { glsn: Glsn(77), chain: 0xfeed },
        entries: 3,
        note: 9,
    };

    fn segment() -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + 20];
        bytes[HEADER_BYTES..].copy_from_slice(b"twenty bytes of body");
        seal(&HEADER, 5, &mut bytes);
        bytes
    }

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        let bytes = segment();
        assert_eq!(
            open(&bytes, Kind::Pages, 5),
            Ok((
                HEADER,
                &b"twenty bytes of body"[..],
                body_sum(Kind::Pages, 5, &bytes[HEADER_BYTES..])
            ))
        );
    }

    #[test]
    fn a_segment_that_is_cut_anywhere_or_has_any_bit_changed_is_rejected() {
        let bytes = segment();
        for len in 0..bytes.len() {
            assert!(open(&bytes[..len], Kind::Pages, 5).is_err(), "cut at {len}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(open(&bytes, Kind::Pages, 5).is_err(), "byte {at}, bit {bit}");
            }
        }
        assert!(open(&[&bytes[..], b"x"].concat(), Kind::Pages, 5).is_err());
        assert!(open(&bytes, Kind::Pages, 6).is_err(), "under another number");
    }

    #[test]
    fn another_format_is_distinguished_from_damage() {
        let mut bytes = segment();
        bytes[8] = 2;
        assert!(matches!(open(&bytes, Kind::Pages, 5), Err(Rejection::Format { .. })));
        let mut bytes = segment();
        bytes[16] = 1;
        let sum = checksum(seed_of(Kind::Pages, 5), &bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(open(&bytes, Kind::Pages, 5), Err(Rejection::Format { .. })));
    }
}
