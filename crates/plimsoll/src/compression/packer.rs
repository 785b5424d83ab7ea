//! Compresses a value, chunk by chunk.

use plimsoll_disk::checksum::{Running, checksum, seed};
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::Buffer;

use crate::compression::codec::Encoder;
use crate::types::compression::{Compression, DIRECTORY_ENTRY_BYTES, Packed, VALUE_CHUNK_BYTES};
use crate::types::error::Result;
use crate::types::version::running_value_sum;

/// A chunk is stored compressed if that saves this part of it (a divisor) or more.
const SAVED_PART: usize = 8;

/// Seeds of the checksums of chunks and directories.
const CHUNK_SEED: u64 = 0x4348_554e_4b31;
const DIRECTORY_SEED: u64 = 0x4348_4449_5231;

/// The checksum of the stored bytes of a chunk, seeded with the number of the chunk in its value.
pub(super) fn chunk_sum(number: u64, stored: &[u8]) -> u64 {
    checksum(seed(&[CHUNK_SEED, number]), stored)
}

/// The checksum of a directory, seeded with the length of its value.
pub(super) fn directory_sum(value_bytes: u64, directory: &[u8]) -> u64 {
    checksum(seed(&[DIRECTORY_SEED, value_bytes]), directory)
}

/// Receives the stored bytes of a value.
pub(crate) type Output<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Compresses one value.
pub(crate) struct Packer {
    encoder: Encoder,
    /// The bytes of the next chunk so far.
    input: Buffer,
    /// A compressed chunk.
    output: Buffer,
    directory: Buffer,
    value_bytes: u64,
    stored_bytes: u64,
    sum: Running,
    /// Whether a chunk of the value is compressed.
    is_packed: bool,
}

/// The properties of a value that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Bytes that it takes.
    pub(crate) len: u64,
    /// Their checksum.
    pub(crate) sum: u64,
    /// How they are compressed.
    pub(crate) packed: Option<Packed>,
}

impl Packer {
    /// A packer of a value whose chunks have at most `chunk_bytes`; `None` if values are not
    /// compressed.
    fn within(
        budget: &Budget,
        compression: Compression,
        chunk_bytes: usize,
    ) -> Result<Option<Self>, OutOfBudget> {
        let Some(encoder) = Encoder::new((budget, Kind::Staging), compression)? else {
            return Ok(None);
        };
        let empty = |bytes| Buffer::with_capacity(budget, Kind::Staging, bytes);
        let output_bytes = encoder.output_bytes(chunk_bytes);
        Ok(Some(Self {
            encoder,
            input: empty(VALUE_CHUNK_BYTES)?,
            output: empty(output_bytes)?,
            directory: empty(16 * DIRECTORY_ENTRY_BYTES)?,
            value_bytes: 0,
            stored_bytes: 0,
            sum: running_value_sum(),
            is_packed: false,
        }))
    }

    /// Adds the next bytes of the value; passes stored bytes to `out`.
    fn write(&mut self, mut bytes: &[u8], out: Output<'_>) -> Result<()> {
        while !bytes.is_empty() {
            if self.input.is_empty() && bytes.len() >= VALUE_CHUNK_BYTES {
                let (chunk, rest) = bytes.split_at(VALUE_CHUNK_BYTES);
                self.chunk(chunk, out)?;
                bytes = rest;
                continue;
            }
            let (some, rest) =
                bytes.split_at(bytes.len().min(VALUE_CHUNK_BYTES - self.input.len()));
            self.input.extend_from_slice(some);
            bytes = rest;
            if self.input.len() == VALUE_CHUNK_BYTES {
                self.end_chunk(out)?;
            }
        }
        Ok(())
    }

    fn end_chunk(&mut self, out: Output<'_>) -> Result<()> {
        let input = std::mem::take(&mut self.input);
        let done = self.chunk(&input, out);
        self.input = input;
        self.input.clear();
        done
    }

    /// Writes one chunk.
    fn chunk(&mut self, chunk: &[u8], out: Output<'_>) -> Result<()> {
        let number = self.value_bytes / VALUE_CHUNK_BYTES as u64;
        self.value_bytes += chunk.len() as u64;
        self.output.resize(self.encoder.output_bytes(chunk.len()));
        let packed_max = chunk.len() - chunk.len().div_ceil(SAVED_PART);
        let packed = self.encoder.encode(chunk, &mut self.output).filter(|len| *len <= packed_max);
        self.is_packed |= packed.is_some();
        let stored = packed.map_or(chunk, |len| &self.output[..len]);
        self.stored_bytes += stored.len() as u64;
        let end = u32::try_from(self.stored_bytes).expect("a value has at most 1 GiB");
        self.directory.reserve(DIRECTORY_ENTRY_BYTES)?;
        self.directory.extend_from_slice(&end.to_le_bytes());
        self.directory.extend_from_slice(&chunk_sum(number, stored).to_le_bytes());
        self.sum.take(stored);
        out(stored)
    }

    /// Ends the value.
    fn finish(mut self, out: Output<'_>) -> Result<Written> {
        if !self.input.is_empty() {
            self.end_chunk(out)?;
        }
        let packed = Packed { codec: self.encoder.codec(), value_bytes: self.value_bytes };
        if self.is_packed && packed.chunks() > 1 {
            let sum = directory_sum(self.value_bytes, &self.directory).to_le_bytes();
            for bytes in [&self.directory[..], &sum] {
                self.sum.take(bytes);
                self.stored_bytes += bytes.len() as u64;
                out(bytes)?;
            }
        }
        let packed = self.is_packed.then_some(packed);
        Ok(Written { len: self.stored_bytes, sum: self.sum.sum(), packed })
    }
}

/// One value that arrives in pieces and is compressed or not.
pub(crate) enum Bytes {
    Plain { len: u64, sum: Running },
    Packed(Box<Packer>),
}

impl Bytes {
    /// Begins a value. If there is no memory to compress the value, it is stored as it is.
    pub(crate) fn begin(budget: &Budget, compression: Compression) -> Self {
        match Packer::within(budget, compression, VALUE_CHUNK_BYTES) {
            Ok(Some(packer)) => Self::Packed(Box::new(packer)),
            Ok(None) | Err(OutOfBudget { .. }) => Self::Plain { len: 0, sum: running_value_sum() },
        }
    }

    /// Adds the next bytes of the value; passes stored bytes to `out`.
    pub(crate) fn write(&mut self, bytes: &[u8], out: Output<'_>) -> Result<()> {
        match self {
            Self::Plain { len, sum } => {
                *len += bytes.len() as u64;
                sum.take(bytes);
                out(bytes)
            }
            Self::Packed(packer) => packer.write(bytes, out),
        }
    }

    /// Ends the value.
    pub(crate) fn finish(self, out: Output<'_>) -> Result<Written> {
        match self {
            Self::Plain { len, sum } => Ok(Written { len, sum: sum.sum(), packed: None }),
            Self::Packed(packer) => packer.finish(out),
        }
    }
}

/// The stored bytes of a value that is in memory, and how they are compressed; `None` if it is to
/// be stored as it is.
pub(crate) fn pack(
    budget: &Budget,
    compression: Compression,
    value: &[u8],
) -> Option<(Buffer, Packed)> {
    compression.codec()?;
    // If there is no memory for the packer, the value is stored as it is.
    let mut packer =
        Packer::within(budget, compression, value.len().min(VALUE_CHUNK_BYTES)).ok()??;
    let chunks = value.len().div_ceil(VALUE_CHUNK_BYTES);
    let stored_max = value.len() + (chunks + 1) * DIRECTORY_ENTRY_BYTES;
    let mut stored = Buffer::with_capacity(budget, Kind::Staging, stored_max).ok()?;
    let mut out = |bytes: &[u8]| {
        stored.extend_from_slice(bytes);
        Ok(())
    };
    packer.write(value, &mut out).ok()?;
    let written = packer.finish(&mut out).ok()?;
    let saves = stored.len() + value.len() / SAVED_PART <= value.len();
    written.packed.filter(|_| saves).map(|packed| (stored, packed))
}
