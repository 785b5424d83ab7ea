//! The id of a Git object.

use std::fmt;

/// The id of a Git object: 40 hexadecimal digits (SHA-1) or 64 (SHA-256).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    digits: [u8; 64],
    length: u8,
}

impl ObjectId {
    /// Parses an id; `None` unless it is 40 or 64 hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let valid = matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit);
        valid.then(|| {
            let mut digits = [0; 64];
            digits[..text.len()].copy_from_slice(text);
            Self { digits, length: text.len() as u8 }
        })
    }

    /// The id with these 20 or 32 bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        Self::parse(hex::encode(bytes).as_bytes())
    }

    /// The 20 or 32 bytes of the id.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        hex::decode(self.as_str()).expect("parse() took hexadecimal digits only")
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.digits[..usize::from(self.length)])
            .expect("parse() took hexadecimal digits only")
    }

    /// The first 12 digits, for messages.
    pub fn short(&self) -> &str {
        &self.as_str()[..12]
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ids_are_parsed() {
        let sha1 = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(ObjectId::parse(sha1.as_bytes()).unwrap().to_string(), sha1);
        assert!(ObjectId::parse(&[b'a'; 64]).is_some());
        for wrong in [&b"abc"[..], &[b'g'; 40], &[b'a'; 41]] {
            assert_eq!(ObjectId::parse(wrong), None);
        }
    }
}
