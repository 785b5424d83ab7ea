//! The payload of a transaction's log entry.
//!
//! ```text
//! u8      version of this encoding: 2
//! u8      flags: bit 0: the writes are in runs (blob files), not in operations; bit 2: with ranges
//! bytes   metadata (varint length first)
//! ranges, if bit 2 is set: varint count, then for each:
//!     bytes   first index key (varint length first)
//!     bytes   end: the index key behind the range (varint length first)
//! operations:  varint count, then for each
//!     kind 3 first, if the value expires: u8 3, u64 time (microseconds since 1970 UTC)
//!     u8      kind: 0 delete, 1 put, 2 put of a value in a blob file, 4 to 7 reserved (merge,
//!             ...), 8 and 9 puts of compressed values
//!     bytes   index key (varint length first): keyspace id, big-endian, and the key
//!     kind 1: bytes value (varint length first); if it is longer than 1024 bytes, u64 its checksum
//!     kind 2: varint blob id, varint offset, varint length, u64 checksum of the value
//!     kind 8: u8 codec, varint length of the value, bytes compressed value (varint length first),
//!             u64 checksum of these bytes
//!     kind 9: as kind 2, of the compressed value; then u8 codec, varint length of the value
//! runs:        varint count, newest first, then for each
//!     varint count of tables, varint blob id of each
//! ```
//!
//! Operations are sorted by key, one per key. Ranges are sorted, not empty and disjoint; each is in
//! one keyspace. A range deletes the previous versions of its keys; the transaction's own
//! operations come after it.

use plimsoll_disk::codec::{Reader, push_bytes, push_varint};
use plimsoll_log::blob::BlobId;

use crate::index::ranges::MAX_BOUND_BYTES;
use crate::types::compression::Packed;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::IndexKey;
use crate::types::version::{INLINE_BYTES, Stored, value_sum};

const VERSION: u8 = 2;
const FLAG_RUNS: u8 = 1;
/// Reserved for newer versions: the id of the branch that the transaction writes to follows the
/// flags. Not set for main.
const FLAG_BRANCH: u8 = 2;
const FLAG_RANGES: u8 = 4;
const DELETE: u8 = 0;
const PUT: u8 = 1;
const PUT_BLOB: u8 = 2;
const EXPIRING: u8 = 3;
const PUT_PACKED: u8 = 8;
const PUT_BLOB_PACKED: u8 = 9;

/// Maximum size of a transaction's metadata: 64 KiB.
pub const MAX_METADATA_BYTES: usize = 64 << 10;

/// Appends the head for `operations` operations.
pub(crate) fn encode_head(
    metadata: &[u8],
    ranges: &[DeletedRange],
    operations: u64,
    out: &mut Vec<u8>,
) {
    encode_beginning(0, metadata, ranges, out);
    push_varint(out, operations);
}

fn encode_beginning(flags: u8, metadata: &[u8], ranges: &[DeletedRange], out: &mut Vec<u8>) {
    let with_ranges = if ranges.is_empty() { 0 } else { FLAG_RANGES };
    out.extend_from_slice(&[VERSION, flags | with_ranges]);
    push_bytes(out, metadata);
    if !ranges.is_empty() {
        push_varint(out, ranges.len() as u64);
        for range in ranges {
            push_bytes(out, &range.first);
            push_bytes(out, &range.end);
        }
    }
}

/// Appends a whole payload whose writes are in runs, newest first.
pub(crate) fn encode_runs(
    metadata: &[u8],
    ranges: &[DeletedRange],
    runs: &[Vec<BlobId>],
    out: &mut Vec<u8>,
) {
    encode_beginning(FLAG_RUNS, metadata, ranges, out);
    push_varint(out, runs.len() as u64);
    for run in runs {
        push_varint(out, run.len() as u64);
        run.iter().for_each(|blob| push_varint(out, blob.0));
    }
}

/// Appends an operation without the bytes of an inline value. Returns these bytes, which the caller
/// must append.
///
/// # Panics
/// The value is in the log or lost, which no transaction writes.
pub(crate) fn encode_operation<'a>(key: &[u8], stored: Stored<'a>, out: &mut Vec<u8>) -> &'a [u8] {
    match stored {
        Stored::Deleted => {
            out.push(DELETE);
            push_bytes(out, key);
        }
        Stored::Inline(value) => {
            encode_put(key, value.len() as u64, None, out);
            return value;
        }
        Stored::InBlob { blob, offset, len, sum, packed } => {
            out.push(if packed.is_some() { PUT_BLOB_PACKED } else { PUT_BLOB });
            push_bytes(out, key);
            push_varint(out, blob.0);
            push_varint(out, offset);
            push_varint(out, len);
            out.extend_from_slice(&sum.to_le_bytes());
            packed.iter().for_each(|packed| packed.encode(out));
        }
        Stored::Expiring(_) => {
            encode_expiry(stored.expiry(), out);
            return encode_operation(key, stored.value(), out);
        }
        Stored::InLog { .. } | Stored::Dropped { .. } => {
            unreachable!("a transaction's value is inline or in a blob file")
        }
    }
    &[]
}

/// Appends the expiry of the put that follows, if it has one.
pub(crate) fn encode_expiry(expiry: Option<Expiry>, out: &mut Vec<u8>) {
    if let Some(expiry) = expiry {
        out.push(EXPIRING);
        out.extend_from_slice(&expiry.micros().to_le_bytes());
    }
}

/// Appends the part of a put that precedes the stored bytes of its value. The stored bytes follow,
/// and then their checksum if they are compressed or more than [`INLINE_BYTES`].
pub(crate) fn encode_put(key: &[u8], stored_bytes: u64, packed: Option<Packed>, out: &mut Vec<u8>) {
    out.push(if packed.is_some() { PUT_PACKED } else { PUT });
    push_bytes(out, key);
    packed.iter().for_each(|packed| packed.encode(out));
    push_varint(out, stored_bytes);
}

/// A range of index keys that a transaction deletes: from `first` up to `end`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeletedRange {
    pub(crate) first: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl DeletedRange {
    /// An upper bound of its size in a payload.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.first.len() + self.end.len() + 4
    }
}

/// A decoded payload.
#[derive(Debug)]
pub(crate) struct Payload<'a> {
    /// The user's metadata of the commit.
    pub(crate) metadata: &'a [u8],
    /// The ranges that the transaction deletes before it writes: first keys and ends.
    pub(crate) ranges: Vec<(&'a [u8], &'a [u8])>,
    /// The writes.
    pub(crate) writes: Writes<'a>,
}

/// The writes of a transaction.
#[derive(Debug)]
pub(crate) enum Writes<'a> {
    /// As operations in the payload.
    Operations(Operations<'a>),
    /// Runs in blob files, newest first.
    Runs(Vec<Vec<BlobId>>),
}

/// The operations of a payload, in key order.
#[derive(Clone, Debug)]
pub(crate) struct Operations<'a> {
    reader: Reader<'a>,
    left: u64,
    /// The value of the last operation, if the payload holds it.
    value: &'a [u8],
    /// Whether values are verified against their checksums.
    compared: bool,
    /// Whether values that are compressed or longer than [`INLINE_BYTES`] are missing from the
    /// bytes that are read.
    misses_values: bool,
    /// Number of missing bytes before the reader's position.
    missing_bytes: u64,
}

impl<'a> Payload<'a> {
    /// Decodes a payload. Its operations are checked during iteration.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(Error::format(format!(
                "a transaction has encoding version {version}, but this build of Plimsoll reads \
                 only version {VERSION}; use a newer one"
            )));
        }
        let flags = reader.u8().ok_or_else(damaged)?;
        if flags & FLAG_BRANCH != 0 {
            let what = "a transaction of a branch, written by a newer version of Plimsoll";
            return Err(Error::format(format!("{what} (flags {flags:#x}); use that version")));
        }
        let metadata = reader.bytes().ok_or_else(damaged)?;
        let ranges = match flags & FLAG_RANGES {
            0 => Vec::new(),
            _ => decode_ranges(&mut reader).ok_or_else(damaged)?,
        };
        let count = reader.varint().ok_or_else(damaged)?;
        let writes = match flags & !FLAG_RANGES {
            0 => Writes::Operations(Operations {
                reader,
                left: count,
                value: &[],
                compared: true,
                misses_values: false,
                missing_bytes: 0,
            }),
            FLAG_RUNS => Writes::Runs(decode_runs(&mut reader, count).ok_or_else(damaged)?),
            _ => {
                return Err(Error::format(format!(
                    "a transaction has flags {flags:#x} that this version does not know; use a \
                     newer Plimsoll"
                )));
            }
        };
        Ok(Self { metadata, ranges, writes })
    }
}

fn decode_ranges<'a>(reader: &mut Reader<'a>) -> Option<Vec<(&'a [u8], &'a [u8])>> {
    let mut ranges: Vec<(&[u8], &[u8])> = Vec::new();
    for _ in 0..reader.varint()? {
        let (first, end) = (reader.bytes()?, reader.bytes()?);
        let is_sound = IndexKey::is_valid_len(first.len())
            && end.len() <= MAX_BOUND_BYTES
            && first < end
            && ranges.last().is_none_or(|before| before.1 <= first);
        if !is_sound {
            return None;
        }
        ranges.push((first, end));
    }
    (!ranges.is_empty()).then_some(ranges)
}

fn decode_runs(reader: &mut Reader<'_>, count: u64) -> Option<Vec<Vec<BlobId>>> {
    // Each id takes at least a byte, so no count can exceed the remaining bytes.
    let bounded = |reader: &Reader<'_>, n: u64| (n <= reader.remaining() as u64).then_some(n);
    let mut runs = Vec::new();
    for _ in 0..bounded(reader, count)? {
        let tables = reader.varint()?;
        let tables = bounded(reader, tables)?;
        runs.push((0..tables).map(|_| reader.varint().map(BlobId)).collect::<Option<Vec<_>>>()?);
    }
    (reader.remaining() == 0).then_some(runs)
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation<'a> {
    /// The index key.
    pub(crate) key: &'a [u8],
    /// The value that the index stores for it.
    pub(crate) stored: Stored<'a>,
}

impl<'a> Operations<'a> {
    /// A copy for a second iteration, which does not verify values again.
    pub(crate) fn uncompared(&self) -> Self {
        Self { compared: false, ..self.clone() }
    }

    /// `count` operations from which the values that are compressed or longer than
    /// [`INLINE_BYTES`] were left out. In the payload `head_bytes` precede them.
    pub(crate) fn without_values(head_bytes: usize, count: u64, bytes: &'a [u8]) -> Self {
        let missing_bytes = head_bytes as u64;
        Self {
            reader: Reader::new(bytes),
            left: count,
            value: &[],
            compared: false,
            misses_values: true,
            missing_bytes,
        }
    }

    /// The next operation; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Operation<'a>>> {
        if self.left == 0 {
            return if self.reader.remaining() == 0 { Ok(None) } else { Err(damaged()) };
        }
        self.left -= 1;
        self.read().map(Some)
    }

    /// The next operation with its value, which is empty if the payload does not hold it.
    pub(crate) fn next_with_value(&mut self) -> Result<Option<(Operation<'a>, &'a [u8])>> {
        self.value = &[];
        let operation = self.next()?;
        Ok(operation.map(|operation| (operation, self.value)))
    }

    fn read(&mut self) -> Result<Operation<'a>> {
        let mut kind = self.reader.u8().ok_or_else(damaged)?;
        let mut expiry = None;
        if kind == EXPIRING {
            let micros = self.reader.u64().ok_or_else(damaged)?;
            expiry = Some(Expiry::from_micros(micros).ok_or_else(damaged)?);
            kind = self.reader.u8().filter(|kind| *kind != DELETE).ok_or_else(damaged)?;
        }
        let key = self.reader.bytes().ok_or_else(damaged)?;
        if !IndexKey::is_valid_len(key.len()) {
            return Err(damaged());
        }
        let stored = match kind {
            DELETE => Stored::Deleted,
            PUT => self.put(key, None)?,
            PUT_PACKED => {
                let packed = Packed::decode(&mut self.reader).ok_or_else(damaged)?;
                self.put(key, Some(packed))?
            }
            PUT_BLOB => self.put_blob(false).ok_or_else(damaged)?,
            PUT_BLOB_PACKED => self.put_blob(true).ok_or_else(damaged)?,
            _ => {
                return Err(Error::format(format!(
                    "a transaction holds an operation of kind {kind} that this version does not \
                     know; use a newer Plimsoll"
                )));
            }
        };
        Ok(Operation { key, stored: stored.expiring(expiry) })
    }

    fn put(&mut self, key: &[u8], packed: Option<Packed>) -> Result<Stored<'a>> {
        let (offset, len) = self.place().ok_or_else(damaged)?;
        let is_inline = packed.is_none() && len <= INLINE_BYTES as u64;
        let value = if self.misses_values && !is_inline {
            self.missing_bytes += len;
            &[]
        } else {
            usize::try_from(len).ok().and_then(|len| self.reader.take(len)).ok_or_else(damaged)?
        };
        self.value = value;
        if is_inline {
            return Ok(Stored::Inline(value));
        }
        let sum = self.reader.u64().ok_or_else(damaged)?;
        if self.compared && value_sum(value) != sum {
            return Err(Error::damaged(format_args!(
                "the value of {} bytes that a transaction wrote to {} does not match its checksum",
                value.len(),
                IndexKey::new(key).user_key().escape_ascii()
            )));
        }
        let stored = Stored::InLog { offset, len, sum, packed };
        if stored.has_possible_lengths() { Ok(stored) } else { Err(damaged()) }
    }

    /// The offset in the whole payload, and the length, of a value that begins here.
    fn place(&mut self) -> Option<(u64, u64)> {
        let len = self.reader.varint()?;
        Some((self.reader.position() as u64 + self.missing_bytes, len))
    }

    fn put_blob(&mut self, is_packed: bool) -> Option<Stored<'a>> {
        let reader = &mut self.reader;
        let (blob, offset) = (BlobId(reader.varint()?), reader.varint()?);
        let (len, sum) = (reader.varint()?, reader.u64()?);
        let packed = if is_packed { Some(Packed::decode(reader)?) } else { None };
        let stored = Stored::InBlob { blob, offset, len, sum, packed };
        stored.has_possible_lengths().then_some(stored)
    }
}

fn damaged() -> Error {
    Error::damaged(
        "a transaction's entry in the log cannot be decoded although its checksum is valid",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::compression::Codec;

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        let ranges = [(b"a", b"b"), (b"d", b"e")].map(|(first, end)| DeletedRange {
            first: [b"\0\0\0\x01", &first[..]].concat(),
            end: [b"\0\0\0\x01", &end[..]].concat(),
        });
        encode_head(b"meta", &ranges, 4, &mut out);
        let blob =
            Stored::InBlob { blob: BlobId(7), offset: 5, len: 1 << 21, sum: 9, packed: None };
        for (key, stored) in [
            (b"\0\0\0\x01a", Stored::Deleted),
            (b"\0\0\0\x01b", Stored::Inline(b"xyz")),
            (b"\0\0\0\x01c", blob),
        ] {
            let value = encode_operation(key, stored, &mut out);
            out.extend_from_slice(value);
        }
        encode_put(b"\0\0\0\x01d", 2000, None, &mut out);
        out.extend_from_slice(&[8; 2000]);
        out.extend_from_slice(&value_sum(&[8; 2000]).to_le_bytes());
        out
    }

    #[test]
    fn operations_round_trip() {
        let bytes = sample();
        let payload = Payload::decode(&bytes).unwrap();
        assert_eq!(payload.metadata, b"meta");
        let range = |first, end| (&b"\0\0\0\x01"[..], first, end);
        let seen = payload.ranges.iter().map(|(first, end)| (&first[..4], first[4], end[4]));
        assert_eq!(seen.collect::<Vec<_>>(), [range(b'a', b'b'), range(b'd', b'e')]);
        let Writes::Operations(mut operations) = payload.writes else {
            panic!("the payload has operations")
        };
        let mut seen = Vec::new();
        while let Some(operation) = operations.next().unwrap() {
            seen.push((operation.key[4], operation.stored));
        }
        let blob =
            Stored::InBlob { blob: BlobId(7), offset: 5, len: 1 << 21, sum: 9, packed: None };
        let (offset, sum) = ((bytes.len() - 2008) as u64, value_sum(&[8; 2000]));
        let long = Stored::InLog { offset, len: 2000, sum, packed: None };
        assert_eq!(
            seen,
            [(b'a', Stored::Deleted), (b'b', Stored::Inline(b"xyz")), (b'c', blob), (b'd', long)]
        );
    }

    #[test]
    fn a_changed_long_value_is_refused() {
        let mut bytes = sample();
        let at = bytes.len() - 1000;
        bytes[at] ^= 1;
        let Writes::Operations(mut operations) = Payload::decode(&bytes).unwrap().writes else {
            panic!("operations")
        };
        let mut uncompared = operations.uncompared();
        (0..3).for_each(|_| assert!(operations.next().is_ok()));
        assert!(matches!(operations.next(), Err(Error::Corrupt { .. })));
        (0..4).for_each(|_| assert!(uncompared.next().is_ok()));
    }

    #[test]
    fn compressed_values_come_back_as_they_were_written() {
        let packed = |value_bytes| Some(Packed { codec: Codec::Lz4, value_bytes });
        let blob = |value_bytes| {
            let packed = packed(value_bytes);
            Stored::InBlob { blob: BlobId(7), offset: 5, len: 1 << 20, sum: 9, packed }
        };
        let mut out = Vec::new();
        encode_head(b"", &[], 2, &mut out);
        encode_operation(b"\0\0\0\x01a", blob(1 << 21), &mut out);
        encode_put(b"\0\0\0\x01b", 300, packed(5000), &mut out);
        out.extend_from_slice(&[8; 300]);
        let sum = value_sum(&[8; 300]);
        out.extend_from_slice(&sum.to_le_bytes());
        let decode = |bytes: &[u8]| -> Result<Vec<Option<Packed>>> {
            let Writes::Operations(mut operations) = Payload::decode(bytes)?.writes else {
                panic!("operations were written")
            };
            let mut seen = Vec::new();
            while let Some(operation) = operations.next()? {
                seen.push(operation.stored.packed());
            }
            Ok(seen)
        };
        assert_eq!(decode(&out), Ok(vec![packed(1 << 21), packed(5000)]));
        (0..out.len()).for_each(|len| assert!(decode(&out[..len]).is_err(), "cut at {len}"));
        let mut bomb = Vec::new();
        encode_head(b"", &[], 1, &mut bomb);
        encode_operation(b"\0\0\0\x01a", blob(1 << 31), &mut bomb);
        assert!(matches!(decode(&bomb), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn lists_of_runs_round_trip() {
        let runs = vec![vec![BlobId(9)], vec![BlobId(3), BlobId(300)]];
        let mut out = Vec::new();
        encode_runs(b"", &[], &runs, &mut out);
        let Writes::Runs(seen) = Payload::decode(&out).unwrap().writes else {
            panic!("the payload has runs")
        };
        assert_eq!(seen, runs);
    }

    #[test]
    fn a_transaction_of_a_branch_is_reported_as_newer() {
        for flags in [FLAG_BRANCH, FLAG_BRANCH | FLAG_RUNS] {
            let mut bytes = sample();
            bytes[1] = flags;
            let Err(Error::Format { message, .. }) = Payload::decode(&bytes) else {
                panic!("{flags}")
            };
            assert!(message.contains("newer version"), "{message}");
        }
    }

    #[test]
    fn a_truncated_payload_is_refused() {
        let bytes = sample();
        for len in 0..bytes.len() {
            let walked = Payload::decode(&bytes[..len]).and_then(|payload| match payload.writes {
                Writes::Operations(mut operations) => {
                    while operations.next()?.is_some() {}
                    Ok(())
                }
                Writes::Runs(_) => Ok(()),
            });
            assert!(walked.is_err(), "cut at {len}");
        }
    }
}
