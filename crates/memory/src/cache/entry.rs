//! The byte layout of an entry.
//!
//! ```text
//! u32 value bytes | u16 key bytes | u16 flags | u64 expires at, in ms (if it does) | key | value
//! ```
//!
//! Entries are stored consecutively in a queue, and continue from one segment into the next; only
//! the part before the value is contiguous. If that part does not fit, a *filler* (a header with
//! its own flag) skips to the next segment.

use super::policy::Queue;
use super::segments::Segments;

const EXPIRES: u16 = 1;
const FILLER: u16 = 2;

/// Bytes of the fixed part.
const HEADER_BYTES: usize = 8;
const EXPIRY_BYTES: usize = 8;

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
    pub(super) expires: bool,
    is_filler: bool,
}

impl Header {
    pub(super) fn new(key: &[u8], value_bytes: usize, expires: bool) -> Self {
        Self { key_bytes: key.len(), value_bytes, expires, is_filler: false }
    }

    /// A filler that skips `bytes` (a multiple of 8, with this header).
    pub(super) fn filler(bytes: usize) -> Self {
        Self { key_bytes: 0, value_bytes: bytes - HEADER_BYTES, expires: false, is_filler: true }
    }

    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let flags = u16::from(self.expires) * EXPIRES + u16::from(self.is_filler) * FILLER;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.value_bytes as u32).to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.key_bytes as u16).to_le_bytes());
        bytes[6..].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    #[inline]
    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let [v0, v1, v2, v3, k0, k1, f0, f1] = bytes;
        let flags = u16::from_le_bytes([f0, f1]);
        Self {
            value_bytes: u32::from_le_bytes([v0, v1, v2, v3]) as usize,
            key_bytes: usize::from(u16::from_le_bytes([k0, k1])),
            expires: flags & EXPIRES > 0,
            is_filler: flags & FILLER > 0,
        }
    }

    pub(super) fn is_filler(self) -> bool {
        self.is_filler
    }

    /// Offset of the key.
    #[inline]
    pub(super) fn key_at(self) -> usize {
        HEADER_BYTES + usize::from(self.expires) * EXPIRY_BYTES
    }

    /// Offset of the value.
    #[inline]
    pub(super) fn value_at(self) -> usize {
        self.key_at() + self.key_bytes
    }

    /// Size in a queue, in words of 8 bytes.
    #[inline]
    pub(super) fn words(self) -> u64 {
        (self.value_at() + self.value_bytes).div_ceil(8) as u64
    }

    /// Size in a queue, in bytes.
    pub(super) fn bytes(self) -> u64 {
        self.words() * 8
    }
}

/// An entry to be inserted.
pub(super) struct Arrival<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a [u8],
    /// The parts of the value, in order.
    pub(super) value: &'a [&'a [u8]],
    pub(super) expires_at: Option<u64>,
}

impl Arrival<'_> {
    pub(super) fn header(&self) -> Header {
        Header::new(
            self.key,
            self.value.iter().map(|part| part.len()).sum(),
            self.expires_at.is_some(),
        )
    }
}

/// An entry in its place. Exists only while its bytes cannot change.
#[derive(Clone, Copy)]
pub(super) struct Placed<'a> {
    segments: &'a Segments,
    pub(super) queue: Queue,
    /// The segment of the first word.
    pub(super) segment: u32,
    offset: usize,
    pub(super) header: Header,
}

/// A view of a value while the cache keeps it in its place.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    bytes: Bytes<'a>,
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Placed(Placed<'a>),
    /// Used if every reader line was taken.
    Copied(&'a [u8]),
}

impl<'a> Placed<'a> {
    /// Reads the header at a place that the caller may read ([`Segments::slice`]).
    ///
    /// # Safety
    /// An entry or filler begins there, and its first segment is not written while the result is in
    /// use. If the value is read, the entry's other segments are not written either.
    #[allow(unsafe_code, reason = "reads bytes that the caller protects")]
    #[inline]
    pub(super) unsafe fn at(
        segments: &'a Segments,
        queue: Queue,
        segment: u32,
        offset: usize,
    ) -> Self {
        // SAFETY: the caller guarantees it.
        let bytes = unsafe { segments.slice(segment, offset, HEADER_BYTES) };
        let header = Header::decode(bytes.try_into().expect("the slice has the requested length"));
        Self { segments, queue, segment, offset, header }
    }

    #[allow(unsafe_code, reason = "as in `at`")]
    #[inline]
    fn in_first(&self, from: usize, len: usize) -> &'a [u8] {
        // SAFETY: the creator of `self` protects the bytes; the requested range is in one segment.
        unsafe { self.segments.slice(self.segment, self.offset + from, len) }
    }

    #[inline]
    pub(super) fn key(&self) -> &'a [u8] {
        self.in_first(self.header.key_at(), self.header.key_bytes)
    }

    /// Whether it is the entry of this key.
    #[inline]
    pub(super) fn is_of(&self, key: &[u8]) -> bool {
        let own = self.key();
        own.len() == key.len() && are_same(own, key)
    }

    /// Expiry time in milliseconds, if it has one.
    #[inline]
    pub(super) fn expires_at(&self) -> Option<u64> {
        let bytes = self.header.expires.then(|| self.in_first(HEADER_BYTES, EXPIRY_BYTES))?;
        Some(u64::from_le_bytes(bytes.try_into().expect("the slice has the requested length")))
    }

    /// The number of segments that the entry lies in.
    #[inline]
    pub(super) fn segment_count(&self) -> u64 {
        let end = self.offset + self.header.value_at() + self.header.value_bytes;
        end.div_ceil(self.segments.bytes()) as u64
    }

    /// All words of it, if they are in one segment.
    pub(super) fn whole(&self) -> Option<&'a [u8]> {
        let bytes = self.header.bytes() as usize;
        (self.offset + bytes <= self.segments.bytes()).then(|| self.in_first(0, bytes))
    }

    pub(super) fn pieces(&self) -> Pieces<'a> {
        let offset = self.offset + self.header.value_at();
        let left = self.header.value_bytes;
        Pieces { place: Some((self.segments, self.segment)), offset, left, copied: &[] }
    }
}

/// Compares two byte strings of equal length, without a call for typical key lengths.
#[inline]
fn are_same(one: &[u8], other: &[u8]) -> bool {
    const WORD: usize = 8;
    if !(WORD..=8 * WORD).contains(&one.len()) {
        return one == other;
    }
    // Whole words, and the last word, which may overlap them.
    let mut words = one.as_chunks::<WORD>().0.iter().zip(other.as_chunks::<WORD>().0);
    words.all(|(one, other)| one == other) && one.last_chunk::<WORD>() == other.last_chunk::<WORD>()
}

/// The pieces of a value, one for each segment that it lies in.
#[derive(Clone)]
pub struct Pieces<'a> {
    place: Option<(&'a Segments, u32)>,
    offset: usize,
    left: usize,
    copied: &'a [u8],
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[allow(unsafe_code, reason = "as in `Placed::at`")]
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let Some((segments, segment)) = &mut self.place else {
            self.left = 0;
            return Some(self.copied);
        };
        if self.offset == segments.bytes() {
            *segment = segments.next(*segment);
            self.offset = 0;
        }
        let len = self.left.min(segments.bytes() - self.offset);
        // SAFETY: bytes of the value, which the creator of the `Placed` protects.
        let piece = unsafe { segments.slice(*segment, self.offset, len) };
        self.left -= len;
        self.offset += len;
        Some(piece)
    }
}

impl<'a> Value<'a> {
    #[inline]
    pub(super) fn new(placed: Placed<'a>) -> Self {
        Self { bytes: Bytes::Placed(placed) }
    }

    /// A view of copied bytes.
    pub(super) fn copied(bytes: &'a [u8]) -> Self {
        Self { bytes: Bytes::Copied(bytes) }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self.bytes {
            Bytes::Placed(placed) => placed.header.value_bytes,
            Bytes::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, in one piece for each segment that it lies in: usually one.
    pub fn pieces(&self) -> Pieces<'a> {
        match self.bytes {
            Bytes::Placed(placed) => placed.pieces(),
            Bytes::Copied(copied) => Pieces { place: None, offset: 0, left: copied.len(), copied },
        }
    }

    /// Appends a copy to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        self.pieces().for_each(|piece| out.extend_from_slice(piece));
    }

    /// A copy of it.
    #[inline]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_same_compares_every_byte() {
        let bytes: Vec<u8> = (1..=80).collect();
        for len in (0..=80).step_by(if cfg!(miri) { 13 } else { 1 }) {
            assert!(are_same(&bytes[..len], &bytes.clone()[..len]));
            for at in 0..len {
                let mut other = bytes[..len].to_vec();
                other[at] = 0;
                assert!(!are_same(&bytes[..len], &other), "{at} of {len}");
            }
        }
    }

    #[test]
    fn header_round_trips() {
        for header in [
            Header::new(b"key", 1 << 31, true),
            Header::new(&[0; 65_535], 0, false),
            Header::filler(8),
        ] {
            assert_eq!(Header::decode(header.encode()), header);
        }
        assert_eq!(Header::new(b"key", 5, false).words(), 2);
        assert_eq!(Header::new(b"key", 6, true).words(), 4);
        assert_eq!(Header::filler(8).words(), 1);
    }
}
