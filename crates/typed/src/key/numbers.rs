//! Numbers, `bool` and `char` as keys: all have a fixed length.

use super::{AsKey, Key, KeyError, take};

/// Integers: big-endian; `$flip` is the sign bit of signed ones, which makes negative ones less.
macro_rules! integers {
    ($($int:ty, $flip:expr;)*) => {$(
        impl AsKey<$int> for $int {
            fn encode_part(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(self ^ $flip).to_be_bytes());
            }
        }

        impl Key for $int {
            fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
                Ok(<$int>::from_be_bytes(take(from)?) ^ $flip)
            }
        }
    )*};
}

integers! {
    u8, 0;
    u16, 0;
    u32, 0;
    u64, 0;
    u128, 0;
    i8, i8::MIN;
    i16, i16::MIN;
    i32, i32::MIN;
    i64, i64::MIN;
    i128, i128::MIN;
}

/// The bits of a float as an integer that compares like [`f32::total_cmp`]. Its own inverse.
fn ordered_32(bits: i32) -> i32 {
    // The arithmetic shift copies the sign bit, so that all other bits of a negative float are
    // flipped.
    bits ^ ((bits >> 31) & i32::MAX)
}

/// As [`ordered_32`], for [`f64::total_cmp`].
fn ordered_64(bits: i64) -> i64 {
    bits ^ ((bits >> 63) & i64::MAX)
}

/// Ordered by [`f32::total_cmp`], so `-0.0` and `0.0` are different keys, and so are different
/// `NaN`s.
impl AsKey<f32> for f32 {
    fn encode_part(&self, out: &mut Vec<u8>) {
        ordered_32(self.to_bits().cast_signed()).encode_part(out);
    }
}

impl Key for f32 {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        i32::decode_part(from).map(|bits| Self::from_bits(ordered_32(bits).cast_unsigned()))
    }
}

/// Ordered by [`f64::total_cmp`], so `-0.0` and `0.0` are different keys, and so are different
/// `NaN`s.
impl AsKey<f64> for f64 {
    fn encode_part(&self, out: &mut Vec<u8>) {
        ordered_64(self.to_bits().cast_signed()).encode_part(out);
    }
}

impl Key for f64 {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        i64::decode_part(from).map(|bits| Self::from_bits(ordered_64(bits).cast_unsigned()))
    }
}

impl AsKey<bool> for bool {
    fn encode_part(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        match take(from)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(KeyError::Invalid { what: "a bool is 00 or 01" }),
        }
    }
}

impl AsKey<char> for char {
    fn encode_part(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode_part(out);
    }
}

impl Key for char {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        Self::from_u32(u32::decode_part(from)?)
            .ok_or(KeyError::Invalid { what: "a char is a Unicode scalar value" })
    }
}
