//! The compression setting of a keyspace, and the description of a compressed value.

use std::fmt;
use std::str::FromStr;

use plimsoll_disk::codec::{Reader, push_varint};

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// Levels of zstd that a keyspace can have.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// The level of `zstd` without a number.
const ZSTD_LEVEL: i32 = 3;

/// A compressed value consists of chunks of this many bytes of the value; the last one is shorter.
pub(crate) const VALUE_CHUNK_BYTES: usize = 64 << 10;

/// Bytes of an entry of a compressed value's directory: the end of the chunk, and its checksum.
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 12;

/// Bytes of the checksum after a directory.
pub(crate) const DIRECTORY_SUM_BYTES: usize = 8;

/// The compression of the values of a keyspace, and of its pages of the index.
///
/// The setting applies to values above 1 KiB ([`crate::INLINE_BYTES`]) and to pages of the index
/// (keys and smaller values) that are written after it was set. Existing values and pages are
/// unchanged and remain readable; compaction rewrites pages. A value or a page is stored compressed
/// only if that saves an eighth of it or more. Values that an update computes under the commit lock
/// are not compressed.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let pages = db.keyspace("pages")?;
/// db.set_compression(&pages, Compression::Lz4)?;
/// db.put(&pages, "index.html", "<p>".repeat(10_000))?;
/// let size = db.keyspace_size(&pages, 1000)?;
/// assert!(size.stored_bytes < size.bytes / 10);
/// assert_eq!("zstd:9".parse(), Ok(Compression::Zstd(9)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Values are stored as they are (the default).
    #[default]
    None,
    /// LZ4: fast, for values that are read often.
    Lz4,
    /// Zstandard at a level from 1 to 22: smaller. Needs the feature `zstd` of the crate, in every
    /// program that opens the store.
    Zstd(i32),
}

/// In the syntax of the command: `none`, `lz4` or `zstd:3`.
impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// Reads `none`, `lz4`, `zstd` (level 3) or `zstd:LEVEL`.
impl FromStr for Compression {
    type Err = InvalidInput;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidInput> {
        let level = |level: &str| level.parse().ok().filter(|level| ZSTD_LEVELS.contains(level));
        match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            None if text == "lz4" => Some(Self::Lz4),
            None if text == "zstd" => Some(Self::Zstd(ZSTD_LEVEL)),
            Some(("zstd", text)) => level(text).map(Self::Zstd),
            _ => None,
        }
        .ok_or_else(|| InvalidInput::UnknownCompression { text: text.to_owned() })
    }
}

impl Compression {
    /// The codec; `None` if values are not compressed.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Lz4 => Some(Codec::Lz4),
            Self::Zstd(_) => Some(Codec::Zstd),
        }
    }

    /// Rejects a level out of bounds, and a codec that this build does not contain.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Zstd(level) if !ZSTD_LEVELS.contains(&level) => {
                Err(InvalidInput::UnknownCompression { text: self.to_string() }.into())
            }
            Self::Zstd(_) if !HAS_ZSTD => {
                Err(InvalidInput::NoZstd { text: self.to_string() }.into())
            }
            _ => Ok(()),
        }
    }
}

/// Whether this build contains zstd.
pub(crate) const HAS_ZSTD: bool = cfg!(feature = "zstd");

/// The error for zstd data in a build without zstd.
pub(crate) fn no_zstd(what: &str) -> Error {
    Error::format(format!(
        "{what} is compressed with zstd, which this program was built without; build it with the \
         feature `zstd` of the crate plimsoll"
    ))
}

/// A compression method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    /// The codec with this number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The form in which a compressed value is stored: its bytes in the log or in a blob file are
/// chunks, and a directory of them if there are several (`docs/reference/format.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Its codec.
    pub(crate) codec: Codec,
    /// Length of the value, uncompressed.
    pub(crate) value_bytes: u64,
}

impl Packed {
    /// The maximum length of an encoding.
    pub(crate) const MAX_BYTES: usize = 1 + 5;

    /// Number of its chunks.
    pub(crate) fn chunks(self) -> u64 {
        self.value_bytes.div_ceil(VALUE_CHUNK_BYTES as u64)
    }

    /// Bytes of its directory without the checksum after it; 0 if it has none.
    pub(crate) fn directory_bytes(self) -> u64 {
        if self.chunks() > 1 { self.chunks() * DIRECTORY_ENTRY_BYTES as u64 } else { 0 }
    }

    /// Bytes after the last chunk.
    pub(crate) fn tail_bytes(self) -> u64 {
        match self.directory_bytes() {
            0 => 0,
            bytes => bytes + DIRECTORY_SUM_BYTES as u64,
        }
    }

    /// Appends the encoding.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.push(self.codec as u8);
        push_varint(out, self.value_bytes);
    }

    /// Reads an encoding.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let codec = Codec::from_number(reader.u8()?)?;
        Some(Self { codec, value_bytes: reader.varint()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_compression_parses_back() {
        for text in ["none", "lz4", "zstd:1", "zstd:22"] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Compression::Zstd(ZSTD_LEVEL)));
        for text in ["", "LZ4", "zstd:", "zstd:0", "zstd:23", "zstd:x", "lz4:1", "gzip"] {
            let refused = text.parse::<Compression>();
            assert!(matches!(refused, Err(InvalidInput::UnknownCompression { .. })), "{text}");
        }
    }
}
