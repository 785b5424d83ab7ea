//! A version of a key in the index: an index key (`index_key`), the GLSN of the commit that wrote
//! it, and what was stored:
//!
//! ```text
//! 0                     deleted
//! 1 bytes...            the value itself (at most INLINE_BYTES)
//! 2 offset len sum      (varints, u64) the value is in the payload of the version's log entry
//! 3 blob offset len sum (varints, u64) the value is in a blob file of plain bytes
//! 2, 3: then, if the value is compressed: u8 codec, varint length of the value
//! 0 len                 (varint, above INLINE_BYTES) damaged: a recovery could not read the value
//! 0 1 time tag bytes... a value that expires at this time (u64, microseconds since 1970 UTC); then
//!                       the value in one of the forms above
//! ```
//!
//! `len` is the number of stored bytes. `sum` is the checksum of all of them ([`value_sum`]),
//! computed when they were written, and copied with the version. It is verified whenever the whole
//! value is read, because pages and blocks that are individually valid may still be the wrong ones.
//! The stored bytes of a value that is not compressed are the value.

use plimsoll_disk::checksum::{Running, checksum};
use plimsoll_disk::codec::{Reader, push_varint};
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;

use crate::types::compression::Packed;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::IndexKey;
use crate::types::invalid_input::InvalidInput;
use crate::types::value::Value;

/// The maximum length of a value in bytes: 1 GiB.
pub const MAX_VALUE_BYTES: u64 = 1 << 30;

/// Rejects a value that is too long.
pub(crate) fn check_value_bytes(bytes: u64) -> Result<()> {
    if bytes > MAX_VALUE_BYTES {
        return Err(InvalidInput::ValueTooLong { bytes, limit_bytes: MAX_VALUE_BYTES }.into());
    }
    Ok(())
}

/// Values up to this many bytes are stored in the index itself; longer ones stay where the log
/// wrote them.
pub const INLINE_BYTES: usize = 1024;

/// The maximum length of an encoded [`Stored`].
pub(crate) const MAX_STORED_BYTES: usize = EXPIRY_BYTES + 1 + INLINE_BYTES;

/// The maximum length of an encoded [`Stored`] other than an inline value: a tag, three varints, a
/// checksum, and how it is compressed.
pub(crate) const MAX_POINTER_BYTES: usize = EXPIRY_BYTES + 39 + Packed::MAX_BYTES;

/// Bytes of an expiry in front of a value's encoding: two that mark it, and the time.
const EXPIRY_BYTES: usize = 2 + size_of::<u64>();

/// The byte after tag 0 that marks an expiry. The length in the encoding of a dropped value does
/// not begin with this byte.
const EXPIRES: u8 = 1;

/// Checksum seed that marks the checksum of a whole value.
const VALUE_SEED: u64 = 0x5641_4c55_4531;

/// The checksum of the stored bytes of a whole value.
pub(crate) fn value_sum(value: &[u8]) -> u64 {
    checksum(VALUE_SEED, value)
}

/// Starts the checksum of a value that arrives in pieces.
pub(crate) fn running_value_sum() -> Running {
    Running::new(VALUE_SEED)
}

/// Tag of [`Stored::Inline`] in the encoding.
pub(crate) const INLINE_TAG: u64 = 1;

/// The stored content of a version. Whether a version has a value at some time:
/// [`Stored::is_live`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored<'a> {
    /// The key was deleted.
    Deleted,
    /// The value itself.
    Inline(&'a [u8]),
    /// The value is stored in the log entry at the version's GLSN.
    InLog {
        /// Byte offset in the entry's payload.
        offset: u64,
        /// Number of stored bytes.
        len: u64,
        /// Their checksum.
        sum: u64,
        /// How they are compressed.
        packed: Option<Packed>,
    },
    /// The value is in a blob file of plain bytes.
    InBlob {
        /// The blob file.
        blob: BlobId,
        /// Byte offset.
        offset: u64,
        /// Number of stored bytes.
        len: u64,
        /// Their checksum.
        sum: u64,
        /// How they are compressed.
        packed: Option<Packed>,
    },
    /// The value was damaged, and a recovery could not read it.
    Dropped {
        /// Its length.
        len: u64,
    },
    /// A value that expires.
    Expiring(Expiring<'a>),
}

/// A value that expires; made by [`Stored::expiring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiring<'a> {
    expiry: Expiry,
    value: Lasting<'a>,
}

/// A [`Stored`] that is a value and has no expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasting<'a> {
    Inline(&'a [u8]),
    InLog { offset: u64, len: u64, sum: u64, packed: Option<Packed> },
    InBlob { blob: BlobId, offset: u64, len: u64, sum: u64, packed: Option<Packed> },
    Dropped { len: u64 },
}

impl<'a> Stored<'a> {
    /// This value with a different expiry, or with none. A deletion stays as it is.
    #[inline]
    pub(crate) fn expiring(self, expiry: Option<Expiry>) -> Self {
        let Some(expiry) = expiry else { return self.value() };
        let value = match self.value() {
            Stored::Deleted | Stored::Expiring(_) => return self,
            Stored::Inline(value) => Lasting::Inline(value),
            Stored::InLog { offset, len, sum, packed } => {
                Lasting::InLog { offset, len, sum, packed }
            }
            Stored::InBlob { blob, offset, len, sum, packed } => {
                Lasting::InBlob { blob, offset, len, sum, packed }
            }
            Stored::Dropped { len } => Lasting::Dropped { len },
        };
        Stored::Expiring(Expiring { expiry, value })
    }

    /// The same without an expiry.
    #[inline]
    pub(crate) fn value(self) -> Self {
        let Stored::Expiring(Expiring { value, .. }) = self else { return self };
        match value {
            Lasting::Inline(value) => Stored::Inline(value),
            Lasting::InLog { offset, len, sum, packed } => {
                Stored::InLog { offset, len, sum, packed }
            }
            Lasting::InBlob { blob, offset, len, sum, packed } => {
                Stored::InBlob { blob, offset, len, sum, packed }
            }
            Lasting::Dropped { len } => Stored::Dropped { len },
        }
    }

    /// The expiry of the value, if it has one.
    #[inline]
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        match self {
            Stored::Expiring(Expiring { expiry, .. }) => Some(*expiry),
            _ => None,
        }
    }

    /// Whether the key has a value at a time (microseconds since 1970 UTC), if this is its newest
    /// version.
    #[inline]
    pub(crate) fn is_live(&self, micros: u64) -> bool {
        match self {
            Stored::Deleted => false,
            Stored::Expiring(Expiring { expiry, .. }) => !expiry.has_passed(micros),
            _ => true,
        }
    }

    /// Appends the encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let body = self.encode_head(out);
        out.extend_from_slice(body);
    }

    /// Appends the encoding except the bytes of an inline value, which follow it and are returned.
    pub(crate) fn encode_head(&self, out: &mut Vec<u8>) -> &'a [u8] {
        match *self {
            Stored::Deleted => out.push(0),
            Stored::Inline(value) => {
                out.push(1);
                return value;
            }
            Stored::InLog { offset, len, sum, packed } => {
                out.push(2);
                push_varint(out, offset);
                push_varint(out, len);
                out.extend_from_slice(&sum.to_le_bytes());
                packed.iter().for_each(|packed| packed.encode(out));
            }
            Stored::InBlob { blob, offset, len, sum, packed } => {
                out.push(3);
                push_varint(out, blob.0);
                push_varint(out, offset);
                push_varint(out, len);
                out.extend_from_slice(&sum.to_le_bytes());
                packed.iter().for_each(|packed| packed.encode(out));
            }
            Stored::Dropped { len } => {
                out.push(0);
                push_varint(out, len);
            }
            Stored::Expiring(Expiring { expiry, .. }) => {
                out.extend_from_slice(&[0, EXPIRES]);
                out.extend_from_slice(&expiry.micros().to_le_bytes());
                return self.value().encode_head(out);
            }
        }
        &[]
    }

    /// Upper bound on the bytes of the encoding.
    pub(crate) fn max_bytes(&self) -> usize {
        match self {
            Stored::Inline(value) => 1 + value.len(),
            Stored::Expiring(_) => EXPIRY_BYTES + self.value().max_bytes(),
            _ => MAX_POINTER_BYTES,
        }
    }

    /// The content as one that borrows nothing; `None` for an inline value.
    pub(crate) fn elsewhere(self) -> Option<Stored<'static>> {
        match self {
            Stored::Expiring(Expiring { expiry, .. }) => {
                self.value().elsewhere().map(|value| value.expiring(Some(expiry)))
            }
            Stored::Inline(_) => None,
            Stored::Deleted => Some(Stored::Deleted),
            Stored::InLog { offset, len, sum, packed } => {
                Some(Stored::InLog { offset, len, sum, packed })
            }
            Stored::InBlob { blob, offset, len, sum, packed } => {
                Some(Stored::InBlob { blob, offset, len, sum, packed })
            }
            Stored::Dropped { len } => Some(Stored::Dropped { len }),
        }
    }

    /// Decodes an encoding that fills `bytes`; `None` if it is invalid.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&tag, body) = bytes.split_first()?;
        Self::from_parts(tag, body)
    }

    /// Decodes an encoding whose first byte is stored apart from the others.
    #[inline]
    pub(crate) fn from_parts(tag: u8, body: &'a [u8]) -> Option<Self> {
        if u64::from(tag) == INLINE_TAG {
            return (body.len() <= INLINE_BYTES).then_some(Stored::Inline(body));
        }
        Self::from_other_parts(tag, body)
    }

    /// The value, if it is inline and does not expire.
    #[inline]
    pub(crate) fn inline_value(&self) -> Option<&'a [u8]> {
        match *self {
            Stored::Inline(value) => Some(value),
            _ => None,
        }
    }

    /// Whether the stored form with this tag and this many bytes of body is [`Stored::Deleted`].
    #[inline]
    pub(crate) fn is_deletion(tag: u8, body_bytes: usize) -> bool {
        tag == 0 && body_bytes == 0
    }

    /// Decodes a content other than an inline value.
    fn from_other_parts(tag: u8, body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let stored = match tag {
            0 if body.is_empty() => Stored::Deleted,
            0 if body[0] == EXPIRES => {
                let expiry = expiry_in(tag, body)?;
                let (&tag, body) = body[EXPIRY_BYTES - 1..].split_first()?;
                // A deletion does not expire, and a value has one expiry.
                let is_value = tag != 0 || body.first().is_some_and(|first| *first != EXPIRES);
                let value = if is_value { Self::from_parts(tag, body)? } else { return None };
                return Some(value.expiring(Some(expiry)));
            }
            0 => Stored::Dropped { len: reader.varint().filter(|len| *len > INLINE_BYTES as u64)? },
            2 => Stored::InLog {
                offset: reader.varint()?,
                len: reader.varint()?,
                sum: reader.u64()?,
                packed: read_packed(&mut reader)?,
            },
            3 => Stored::InBlob {
                blob: BlobId(reader.varint()?),
                offset: reader.varint()?,
                len: reader.varint()?,
                sum: reader.u64()?,
                packed: read_packed(&mut reader)?,
            },
            _ => return None,
        };
        (reader.remaining() == 0 && stored.has_possible_lengths()).then_some(stored)
    }

    /// Compares the checksum `read` of the bytes read with the one computed when the value was
    /// written.
    ///
    /// # Errors
    /// The checksums differ, so the bytes read are not the bytes written.
    pub(crate) fn check_sum(&self, glsn: Glsn, read: u64) -> Result<()> {
        let (place, len, sum) = match self.value() {
            Stored::InLog { len, sum, .. } => ("its entry in the log".to_owned(), len, sum),
            Stored::InBlob { blob, len, sum, .. } => (format!("blob file {}", blob.0), len, sum),
            _ => return Ok(()),
        };
        if sum == read {
            return Ok(());
        }
        Err(Error::damaged(format_args!(
            "the value of {len} bytes written at GLSN {glsn} does not match its checksum in \
             {place}: computed {read:016x}, expected {sum:016x}"
        ))
        .at_glsn(glsn))
    }

    /// How the value is compressed.
    #[inline]
    pub(crate) fn packed(&self) -> Option<Packed> {
        match self.value() {
            Stored::InLog { packed, .. } | Stored::InBlob { packed, .. } => packed,
            _ => None,
        }
    }

    /// Whether a value of this length can be stored in this many bytes. This bounds the memory that
    /// is allocated for a damaged or forged length.
    pub(crate) fn has_possible_lengths(&self) -> bool {
        let (value_bytes, stored_bytes) = (self.value_bytes(), self.stored_bytes());
        let is_possible = |packed: Packed| {
            value_bytes > INLINE_BYTES as u64
                && stored_bytes > packed.tail_bytes()
                && stored_bytes <= value_bytes + packed.tail_bytes()
        };
        value_bytes <= MAX_VALUE_BYTES && self.packed().is_none_or(is_possible)
    }

    /// Length of the value in bytes; 0 for a deletion.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.packed().map_or_else(|| self.stored_bytes(), |packed| packed.value_bytes)
    }

    /// Bytes that are stored for the value: fewer than its length if it is compressed.
    pub(crate) fn stored_bytes(&self) -> u64 {
        match self.value() {
            Stored::Deleted | Stored::Expiring(_) => 0,
            Stored::Inline(value) => value.len() as u64,
            Stored::InLog { len, .. } | Stored::InBlob { len, .. } | Stored::Dropped { len } => len,
        }
    }
}

/// The expiry in a stored form with this tag and this body, if it has one.
#[inline]
pub(crate) fn expiry_in(tag: u8, body: &[u8]) -> Option<Expiry> {
    if tag != 0 || *body.first()? != EXPIRES {
        return None;
    }
    let micros = body.get(1..EXPIRY_BYTES - 1)?.try_into().ok()?;
    Expiry::from_micros(u64::from_le_bytes(micros))
}

/// Reads how a value is compressed, if it is; `None` if the bytes are invalid.
fn read_packed(reader: &mut Reader<'_>) -> Option<Option<Packed>> {
    if reader.remaining() == 0 {
        return Some(None);
    }
    Packed::decode(reader).map(Some)
}

/// An owned copy of the stored content of a version, without its expiry.
#[derive(Clone)]
pub(crate) enum OwnedStored {
    /// The value itself.
    Inline(Value),
    /// Any content but an inline value.
    Elsewhere(Stored<'static>),
}

impl OwnedStored {
    /// A copy.
    pub(crate) fn new(stored: Stored<'_>) -> Self {
        match (stored.value().inline_value(), stored.value().elsewhere()) {
            (Some(value), _) => Self::Inline(value.to_vec().into()),
            (None, elsewhere) => Self::Elsewhere(elsewhere.expect("it is not inline")),
        }
    }

    /// The content.
    pub(crate) fn get(&self) -> Stored<'_> {
        match self {
            Self::Inline(value) => Stored::Inline(value),
            Self::Elsewhere(stored) => *stored,
        }
    }
}

/// One version, borrowed from its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    /// The index key.
    pub(crate) key: &'a [u8],
    /// The commit that wrote it.
    pub(crate) glsn: Glsn,
    /// Its stored content.
    pub(crate) stored: Stored<'a>,
}

impl<'a> Version<'a> {
    /// The keyspace of its key.
    #[inline]
    pub(crate) fn keyspace(&self) -> u32 {
        IndexKey::new(self.key).keyspace()
    }

    /// The user's key.
    #[inline]
    pub(crate) fn user_key(&self) -> &'a [u8] {
        IndexKey::new(self.key).user_key()
    }
}

/// The key of a version, the commit that wrote it, and whether it is a deletion or expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionHead<'a> {
    /// The index key.
    pub(crate) key: &'a [u8],
    /// The commit that wrote it.
    pub(crate) glsn: Glsn,
    /// The key was deleted.
    pub(crate) is_deleted: bool,
    /// The expiry of the value, if it has one.
    pub(crate) expiry: Option<Expiry>,
}

impl<'a> From<Version<'a>> for VersionHead<'a> {
    fn from(version: Version<'a>) -> Self {
        let Version { key, glsn, stored } = version;
        Self { key, glsn, is_deleted: stored == Stored::Deleted, expiry: stored.expiry() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::compression::Codec;

    fn packed(codec: Codec, value_bytes: u64) -> Option<Packed> {
        Some(Packed { codec, value_bytes })
    }

    #[test]
    fn stored_contents_decode_to_themselves() {
        let all = [
            Stored::Deleted,
            Stored::Inline(b""),
            Stored::Inline(b"value"),
            Stored::InLog { offset: 70_000, len: 1 << 20, sum: 7, packed: None },
            Stored::InLog { offset: 7, len: 900, sum: 7, packed: packed(Codec::Lz4, 5000) },
            Stored::InBlob {
                blob: BlobId(9),
                offset: 1 << 33,
                len: 1 << 30,
                sum: u64::MAX,
                packed: None,
            },
            Stored::InBlob {
                blob: BlobId(u64::MAX),
                offset: u64::MAX,
                len: 1 << 29,
                sum: u64::MAX,
                packed: packed(Codec::Zstd, MAX_VALUE_BYTES),
            },
            Stored::Dropped { len: 70_000 },
        ];
        let expiry = Expiry::from_micros(1 << 50);
        for stored in all.into_iter().flat_map(|stored| [stored, stored.expiring(expiry)]) {
            let mut bytes = Vec::new();
            stored.encode(&mut bytes);
            assert_eq!(Stored::decode(&bytes), Some(stored));
            assert!(bytes.len() <= stored.max_bytes());
            assert_eq!(expiry_in(bytes[0], &bytes[1..]), stored.expiry());
            let elsewhere = stored.elsewhere().map_or(stored, |elsewhere| elsewhere);
            assert_eq!(elsewhere, stored);
        }
    }

    #[test]
    fn a_value_is_live_until_it_expires_and_a_deletion_never() {
        let (seven, nine) = (Expiry::from_micros(7), Expiry::from_micros(9));
        let value = Stored::Inline(b"value").expiring(seven);
        assert_eq!([6, 7, 8].map(|now| value.is_live(now)), [true, false, false]);
        assert_eq!(value.expiring(nine).expiry(), nine);
        assert_eq!(value.expiring(None), Stored::Inline(b"value"));
        assert!(Stored::Inline(b"value").is_live(u64::MAX));
        assert_eq!(Stored::Deleted.expiring(seven), Stored::Deleted);
        assert!(!Stored::Deleted.is_live(0));
    }

    #[test]
    fn a_length_that_the_stored_bytes_cannot_hold_is_refused() {
        let fits = |value_bytes, len| {
            let packed = packed(Codec::Lz4, value_bytes);
            Stored::InLog { offset: 0, len, sum: 0, packed }.has_possible_lengths()
        };
        assert!(fits(2000, 100) && fits(2000, 2000));
        assert!(!fits(2000, 2001) && !fits(2000, 0) && !fits(1024, 100));
        assert!(fits(MAX_VALUE_BYTES, 1 << 20), "each chunk takes a few bytes");
        assert!(!fits(MAX_VALUE_BYTES, 100_000), "its directory is longer");
        assert!(!fits(MAX_VALUE_BYTES + 1, 1 << 20));
    }

    #[test]
    fn invalid_encodings_are_refused() {
        for bytes in [
            &[][..],
            &[9],
            &[0, 0],
            &[2, 1],
            &[3, 1, 1],
            &[2, 1, 1],
            &[2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[2, 1, 100, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0x80, 0x10],
            &[2, 1, 100, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0x10, 0],
            &[2, 1, 100, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0x01],
            &[2, 1, 100, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x81, 0x80, 0x80, 0x80, 0x04],
            // Invalid: an expiry without a value, on a deletion, in 1970, or on a value that
            // already has one.
            &[0, 1, 9, 0, 0, 0, 0, 0, 0, 0],
            &[0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'a'],
            &[0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 1, b'a'],
        ] {
            assert_eq!(Stored::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Stored::decode(&[1; INLINE_BYTES + 2]), None);
    }
}
