//! Text and byte strings as keys.
//!
//! A whole key is stored as it is. A part of a larger key has an end: `00 01` follows, and each
//! `00` within is written as `00 FF`. So a string sorts before all longer ones that begin with it,
//! because `00 01` is less than every continuation: `00 FF`, or a byte above `00`.

use super::{AsKey, Key, KeyError, take};

/// Follows `00`: the string ends.
const END: u8 = 0x01;

/// Follows `00`: the string has a zero byte here.
const ZERO: u8 = 0xFF;

fn encode_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for (number, piece) in bytes.split(|&byte| byte == 0).enumerate() {
        if number > 0 {
            out.extend_from_slice(&[0, ZERO]);
        }
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(&[0, END]);
}

fn decode_escaped(from: &mut &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut bytes = Vec::new();
    loop {
        let zero = from.iter().position(|&byte| byte == 0).ok_or(KeyError::Truncated)?;
        bytes.extend_from_slice(&from[..zero]);
        *from = &from[zero + 1..];
        match take(from)? {
            [END] => return Ok(bytes),
            [ZERO] => bytes.push(0),
            _ => {
                let what = "a string contains 00 that is not followed by 01 or FF";
                return Err(KeyError::Invalid { what });
            }
        }
    }
}

fn text(bytes: Vec<u8>) -> Result<String, KeyError> {
    String::from_utf8(bytes).map_err(|_| KeyError::Invalid { what: "a string is not valid UTF-8" })
}

impl AsKey<Vec<u8>> for [u8] {
    fn encode_part(&self, out: &mut Vec<u8>) {
        encode_escaped(self, out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl AsKey<Vec<u8>> for Vec<u8> {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self[..].encode_part(out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self[..].encode(out);
    }
}

/// Lets `b"text"` be a key of a `TypedKeyspace<Vec<u8>, V>`.
impl<const N: usize> AsKey<Vec<u8>> for [u8; N] {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self[..].encode_part(out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self[..].encode(out);
    }
}

impl Key for Vec<u8> {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        decode_escaped(from)
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        Ok(bytes.to_vec())
    }
}

impl AsKey<String> for str {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_part(out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl AsKey<String> for String {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_part(out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Key for String {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        text(decode_escaped(from)?)
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        text(bytes.to_vec())
    }
}

impl<const N: usize> AsKey<[u8; N]> for [u8; N] {
    fn encode_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Key for [u8; N] {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        take(from)
    }
}
