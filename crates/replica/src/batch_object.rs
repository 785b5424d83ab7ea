//! The bytes of the object that holds a batch: a header, the batch or its hash, and a checksum of
//! both.
//!
//! ```text
//! 0   8  magic "PLIMBTCH"
//! 8   4  format: 1
//! 12  4  0: the batch follows; 1: the hash of a blob that is the batch follows
//! 16  16 a number that no other append has
//! 32  8  position
//! 40  8  length of the batch
//! 48  …  the batch, or the 32 bytes of its BLAKE3 hash
//!     16 XXH3 (128 bits) of everything before
//! ```
//!
//! All numbers are little-endian. The unique number decides an append whose answer was lost: the
//! object under the name either has it, or belongs to another append, even one with an equal batch.

use plimsoll_disk::checksum::Running;

use crate::blobs::PUT_BACK;

const MAGIC: &[u8; 8] = b"PLIMBTCH";
const FORMAT: u32 = 1;
const INLINE: u32 = 0;
const BLOB: u32 = 1;
const HEADER_BYTES: usize = 48;
/// The bytes of the checksum at the end of an object.
pub(crate) const SUM_BYTES: usize = 16;

/// The bytes of an object beside its batch.
pub(crate) const FRAME_BYTES: usize = HEADER_BYTES + SUM_BYTES;

/// The body of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// The batch.
    Inline(&'a [u8]),
    /// The hash of the batch, which is stored as a blob, and its length.
    Blob([u8; 32], u64),
}

/// The object of a batch.
pub(crate) fn encode(nonce: u128, position: u64, body: Body<'_>) -> Vec<u8> {
    let (kind, length, bytes) = match &body {
        Body::Inline(batch) => (INLINE, batch.len() as u64, *batch),
        Body::Blob(hash, length) => (BLOB, *length, &hash[..]),
    };
    let mut object = Vec::with_capacity(FRAME_BYTES + bytes.len());
    object.extend_from_slice(MAGIC);
    object.extend_from_slice(&FORMAT.to_le_bytes());
    object.extend_from_slice(&kind.to_le_bytes());
    object.extend_from_slice(&nonce.to_le_bytes());
    object.extend_from_slice(&position.to_le_bytes());
    object.extend_from_slice(&length.to_le_bytes());
    object.extend_from_slice(bytes);
    let sum = sum_of(&object);
    object.extend_from_slice(&sum.to_le_bytes());
    object
}

/// The body of the object at a position; if it is not that, the damage and the remedy.
pub(crate) fn decode(object: &[u8], position: u64) -> Result<Body<'_>, String> {
    let damaged = |what: &str| Err(format!("{what}; {PUT_BACK}"));
    if object.len() < FRAME_BYTES {
        return damaged(&format!("it is truncated to {} bytes", object.len()));
    }
    let (framed, stored) = object.split_at(object.len() - SUM_BYTES);
    if framed[..8] != *MAGIC {
        return damaged("it does not begin as a batch of a cluster does");
    }
    // Another format may have another checksum.
    let format = number(&framed[8..12]);
    if format != u128::from(FORMAT) {
        return Err(format!(
            "it has format {format}, and this version knows format {FORMAT}: use the version of \
             Plimsoll that wrote it"
        ));
    }
    if number(stored) != sum_of(framed) {
        return damaged("its checksum does not match: it is changed or truncated");
    }
    let found = number(&framed[32..40]);
    if found != u128::from(position) {
        return damaged(&format!("it is the batch of position {found}"));
    }
    let (length, bytes) = (number(&framed[40..48]), &framed[HEADER_BYTES..]);
    match number(&framed[12..16]) as u32 {
        INLINE if bytes.len() as u128 == length => Ok(Body::Inline(bytes)),
        BLOB => match bytes.try_into() {
            Ok(hash) => Ok(Body::Blob(hash, length as u64)),
            Err(_) => damaged("it names no blob"),
        },
        _ => damaged("its length does not match"),
    }
}

/// A little-endian number of at most 16 bytes.
fn number(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn sum_of(bytes: &[u8]) -> u128 {
    let mut sum = Running::new(0);
    sum.take(bytes);
    sum.sum128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_decode_to_their_bodies() {
        for body in [Body::Inline(b"batch"), Body::Inline(b""), Body::Blob([7; 32], 1 << 40)] {
            let object = encode(9, 3, body);
            assert_eq!(decode(&object, 3), Ok(body));
            let other = format!("it is the batch of position 3; {PUT_BACK}");
            assert_eq!(decode(&object, 4), Err(other));
        }
        assert_ne!(encode(1, 3, Body::Inline(b"x")), encode(2, 3, Body::Inline(b"x")));
    }

    #[test]
    fn an_object_of_another_format_is_told_as_such() {
        let mut object = encode(9, 3, Body::Inline(b"batch"));
        object[8] = 2;
        let refused = decode(&object, 3).unwrap_err();
        assert!(refused.contains("it has format 2"), "{refused}");
    }

    #[test]
    fn every_changed_or_missing_byte_is_found() {
        let object = encode(9, 3, Body::Inline(b"batch"));
        for at in 0..object.len() {
            assert!(decode(&object[..at], 3).is_err(), "cut at {at}");
            let mut changed = object.clone();
            changed[at] ^= 0x10;
            assert!(decode(&changed, 3).is_err(), "changed at {at}");
        }
        assert!(decode(&[&object[..], b"x"].concat(), 3).is_err());
    }
}
