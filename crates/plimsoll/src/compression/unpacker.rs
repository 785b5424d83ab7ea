//! Reads the chunks of a compressed value.
//!
//! Invariants:
//! 1. No byte is decompressed before its checksum was verified: this shows that the stored bytes
//!    are those that were written at this place of the value.
//! 2. A reader of a whole value compares the checksum of all its stored bytes with that of the
//!    version ([`Unpacker::check_all`]), as for a plain value.

use plimsoll_disk::checksum::Running;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;

use crate::compression::codec::Decoder;
use crate::compression::packer::{chunk_sum, directory_sum};
use crate::types::compression::{
    DIRECTORY_ENTRY_BYTES, DIRECTORY_SUM_BYTES, Packed, VALUE_CHUNK_BYTES,
};
use crate::types::error::{Error, Result};
use crate::types::version::{Stored, running_value_sum, value_sum};

/// Reads stored bytes of the value from an offset on.
pub(crate) type Fetch<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>;

/// Reads one compressed value.
pub(crate) struct Unpacker {
    budget: Budget,
    glsn: Glsn,
    stored: Stored<'static>,
    packed: Packed,
    decoder: Decoder,
    /// Followed by its checksum; empty for a value of one chunk.
    directory: Buffer,
    /// The checksum of the first `summed` chunks.
    sum: Running,
    summed: u64,
}

impl Unpacker {
    /// Begins to read the value of the version at `glsn`.
    ///
    /// # Errors
    /// As for `fetch`; the budget; the value's directory is damaged; this build does not contain
    /// the codec.
    pub(crate) fn begin(
        budget: &Budget,
        glsn: Glsn,
        (stored, packed): (Stored<'static>, Packed),
        fetch: Fetch<'_>,
    ) -> Result<Self> {
        let decoder = Decoder::new((budget, Kind::Staging), packed.codec, "a value")?;
        let tail_bytes = packed.tail_bytes();
        let mut directory = Buffer::zeroed(budget, Kind::Staging, tail_bytes as usize)?;
        if tail_bytes > 0 {
            let at = stored.stored_bytes().checked_sub(tail_bytes);
            fetch(at.ok_or_else(|| damaged(glsn, stored))?, &mut directory)?;
            let (entries, sum) = directory.split_at(directory.len() - DIRECTORY_SUM_BYTES);
            if directory_sum(packed.value_bytes, entries).to_le_bytes() != *sum {
                return Err(damaged(glsn, stored));
            }
        }
        let (budget, sum) = (budget.clone(), running_value_sum());
        Ok(Self { budget, glsn, stored, packed, decoder, directory, sum, summed: 0 })
    }

    /// Length of a chunk, uncompressed.
    pub(crate) fn chunk_bytes(&self, number: u64) -> usize {
        let chunk_bytes = VALUE_CHUNK_BYTES as u64;
        self.packed.value_bytes.saturating_sub(number * chunk_bytes).min(chunk_bytes) as usize
    }

    /// Fills `into`, which has [`Unpacker::chunk_bytes`], with a chunk.
    ///
    /// # Errors
    /// As for `fetch`; the budget; the chunk is damaged.
    pub(crate) fn chunk(&mut self, number: u64, into: &mut [u8], fetch: Fetch<'_>) -> Result<()> {
        assert_eq!(into.len(), self.chunk_bytes(number));
        let (start, end) = self.place(number).ok_or_else(|| self.damaged())?;
        let stored_bytes = (end - start) as usize;
        if stored_bytes > into.len() {
            return Err(self.damaged());
        }
        if stored_bytes == into.len() && !self.directory.is_empty() {
            fetch(start, into)?;
            self.check_chunk(number, into)?;
            return Ok(());
        }
        let mut stored = Buffer::zeroed(&self.budget, Kind::Staging, stored_bytes)?;
        fetch(start, &mut stored)?;
        self.check_chunk(number, &stored)?;
        match self.decoder.decode(&stored, into) {
            true => Ok(()),
            false => Err(self.damaged()),
        }
    }

    /// The stored bytes of a chunk: where they begin and end.
    fn place(&self, number: u64) -> Option<(u64, u64)> {
        if self.directory.is_empty() {
            return Some((0, self.stored.stored_bytes()));
        }
        let start = match number.checked_sub(1) {
            None => 0,
            Some(before) => self.end(before),
        };
        let chunks_end = self.stored.stored_bytes() - self.directory.len() as u64;
        let end = self.end(number);
        let is_last = number + 1 == self.packed.chunks();
        (start < end && end <= chunks_end && (!is_last || end == chunks_end))
            .then_some((start, end))
    }

    fn entry(&self, number: u64) -> &[u8] {
        &self.directory[number as usize * DIRECTORY_ENTRY_BYTES..][..DIRECTORY_ENTRY_BYTES]
    }

    fn end(&self, number: u64) -> u64 {
        let entry = self.entry(number);
        u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
    }

    /// Verifies the stored bytes of a chunk.
    fn check_chunk(&mut self, number: u64, stored: &[u8]) -> Result<()> {
        if self.directory.is_empty() {
            self.stored.check_sum(self.glsn, value_sum(stored))?;
        } else if chunk_sum(number, stored).to_le_bytes() != self.entry(number)[4..] {
            return Err(self.damaged());
        }
        if number == self.summed {
            self.sum.take(stored);
            self.summed += 1;
        }
        Ok(())
    }

    /// Compares the checksum of all stored bytes with that of the version. Every chunk must have
    /// been read.
    pub(crate) fn check_all(&self) -> Result<()> {
        assert_eq!(self.summed, self.packed.chunks(), "every chunk was read");
        let mut sum = self.sum.clone();
        sum.take(&self.directory);
        self.stored.check_sum(self.glsn, sum.sum())
    }

    fn damaged(&self) -> Error {
        damaged(self.glsn, self.stored)
    }
}

/// Fills `into` with the whole value of the version at `glsn`.
///
/// # Errors
/// As for [`Unpacker::begin`] and [`Unpacker::chunk`]; the value is not the one that was written.
pub(crate) fn unpack(
    budget: &Budget,
    glsn: Glsn,
    (stored, packed): (Stored<'static>, Packed),
    into: &mut [u8],
    fetch: Fetch<'_>,
) -> Result<()> {
    let mut unpacker = Unpacker::begin(budget, glsn, (stored, packed), fetch)?;
    for (chunk, number) in into.chunks_mut(VALUE_CHUNK_BYTES).zip(0..) {
        unpacker.chunk(number, chunk, fetch)?;
    }
    unpacker.check_all()
}

fn damaged(glsn: Glsn, stored: Stored<'_>) -> Error {
    Error::damaged(format_args!(
        "a part of the compressed value of {} bytes written at GLSN {glsn} is damaged",
        stored.value_bytes()
    ))
    .at_glsn(glsn)
}

#[cfg(test)]
mod tests;
