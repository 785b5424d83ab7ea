//! Encodes integers: little-endian, and LEB128 varints. Every reader checks lengths and never
//! panics on bad input.

/// A reader over bytes from disk. Every method returns `None` if bytes are missing.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte to read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let out = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(out)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self) -> Option<u128> {
        self.take(16)?.try_into().ok().map(u128::from_le_bytes)
    }

    /// A LEB128 varint of at most 64 bits. Overlong encodings are rejected, so that each number has
    /// one encoding.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return (byte != 0 || shift == 0).then_some(value);
            }
        }
        None
    }

    /// A varint length followed by that many bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }
}

/// Bytes that [`put_varint`] writes for `value`: 1 to 10.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Writes a LEB128 varint into the front of `out` and returns its length. `out` must have room for
/// [`varint_len`] bytes.
pub fn put_varint(out: &mut [u8], mut value: u64) -> usize {
    let mut at = 0;
    while value >= 0x80 {
        out[at] = (value as u8 & 0x7f) | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

/// Appends a LEB128 varint.
pub fn push_varint(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; 10];
    let len = put_varint(&mut bytes, value);
    out.extend_from_slice(&bytes[..len]);
}

/// Appends a varint length and the bytes.
pub fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_round_trips() {
        for value in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            push_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value));
            assert_eq!(Reader::new(&out).varint(), Some(value));
        }
    }

    #[test]
    fn truncated_or_overlong_varint_is_refused() {
        assert_eq!(Reader::new(&[0x80]).varint(), None);
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), None);
        assert_eq!(Reader::new(&[0xff; 11]).varint(), None);
        assert_eq!(Reader::new(&[]).varint(), None);
    }

    #[test]
    fn length_beyond_the_end_is_refused() {
        assert_eq!(Reader::new(&[5, 1, 2]).bytes(), None);
        assert_eq!(Reader::new(&[2, 1, 2]).bytes(), Some(&[1u8, 2][..]));
    }
}
