//! Reads and writes a manifest's file as a sequence of bytes with one checksum.
//!
//! Invariants:
//! 1. The checksum covers every byte: each block's checksum is seeded with that of the previous
//!    block, and the last one is stored at the end.
//! 2. Writing and reading need one small buffer, whatever the file's length.

use std::io;

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::codec::push_varint;
use plimsoll_disk::vfs::File;

use crate::types::error::Error;

const BLOCK_BYTES: usize = 16 << 10;
const SUM_BYTES: u64 = 8;
/// Maximum length of a manifest; a longer file is damaged.
const MAX_BYTES: u64 = 4 << 30;

/// Why a manifest could not be read.
pub(super) enum Failure {
    Damaged(&'static str),
    Newer(&'static str),
    Error(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Error(error.into())
    }
}

pub(super) const CUT: Failure = Failure::Damaged("the manifest ends within a field");
pub(super) const IMPOSSIBLE_RUN: Failure =
    Failure::Damaged("the manifest describes an impossible run");

/// Computes the checksum of blocks and writes them.
pub(super) struct Writer<'f> {
    file: &'f dyn File,
    /// Bytes to be written. Call [`Writer::drain`] before it has grown by another block.
    pub(super) block: Vec<u8>,
    at: u64,
    sum: u64,
}

impl<'f> Writer<'f> {
    pub(super) fn new(file: &'f dyn File) -> Self {
        Self { file, block: Vec::with_capacity(2 * BLOCK_BYTES), at: 0, sum: 0 }
    }

    /// Appends a varint.
    pub(super) fn number(&mut self, number: u64) -> io::Result<()> {
        push_varint(&mut self.block, number);
        self.drain()
    }

    /// Writes full blocks.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        while self.block.len() >= BLOCK_BYTES {
            self.write(BLOCK_BYTES)?;
        }
        Ok(())
    }

    fn write(&mut self, len: usize) -> io::Result<()> {
        let block = &self.block[..len];
        self.sum = checksum(self.sum, block);
        self.file.write_at(block, self.at)?;
        self.at += len as u64;
        self.block.drain(..len);
        Ok(())
    }

    /// Writes the last block and the checksum.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.drain()?;
        if !self.block.is_empty() {
            self.write(self.block.len())?;
        }
        self.file.write_at(&self.sum.to_le_bytes(), self.at)
    }
}

/// Reads a file sequentially, a block at a time. Its output must not be used before
/// [`Input::check_sum`] has succeeded. The bytes are read only once, because a second read might
/// return different ones.
pub(super) struct Input<'f> {
    file: &'f dyn File,
    /// The offset of the next block.
    at: u64,
    end: u64,
    block: Vec<u8>,
    used: usize,
    /// Checksum of the bytes read so far.
    sum: u64,
}

impl<'f> Input<'f> {
    /// Starts at the first byte of the file, which must be long enough for `least` bytes and the
    /// checksum.
    pub(super) fn new(file: &'f dyn File, least: usize) -> Result<Self, Failure> {
        let len = file.len()?;
        let end = len.checked_sub(SUM_BYTES).filter(|&end| end >= least as u64 && len <= MAX_BYTES);
        let end = end.ok_or(Failure::Damaged("the manifest's length is invalid"))?;
        Ok(Self { file, at: 0, end, block: Vec::with_capacity(BLOCK_BYTES), used: 0, sum: 0 })
    }

    /// The end of a field of this length that begins here; damage if it exceeds the file.
    pub(super) fn end_of(&self, len: u64) -> Result<u64, Failure> {
        self.place().checked_add(len).filter(|end| *end <= self.end).ok_or(IMPOSSIBLE_RUN)
    }

    /// The number of bytes returned so far.
    pub(super) fn place(&self) -> u64 {
        self.at - (self.block.len() - self.used) as u64
    }

    pub(super) fn byte(&mut self) -> Result<u8, Failure> {
        if self.used == self.block.len() && !self.next_block()? {
            return Err(CUT);
        }
        self.used += 1;
        Ok(self.block[self.used - 1])
    }

    /// Reads the next block; false at the end.
    fn next_block(&mut self) -> Result<bool, Failure> {
        let len = (self.end - self.at).min(BLOCK_BYTES as u64) as usize;
        if len == 0 {
            return Ok(false);
        }
        self.block.resize(len, 0);
        self.file.read_exact_at(&mut self.block, self.at)?;
        self.sum = checksum(self.sum, &self.block);
        self.at += len as u64;
        self.used = 0;
        Ok(true)
    }

    /// Damage if any bytes follow those returned so far.
    pub(super) fn must_be_at_end(&self) -> Result<(), Failure> {
        if self.place() == self.end {
            Ok(())
        } else {
            Err(Failure::Damaged("the manifest has bytes after its end"))
        }
    }

    /// Reads to the end and verifies everything against the stored checksum.
    pub(super) fn check_sum(mut self) -> Result<(), Failure> {
        while self.at < self.end {
            self.next_block()?;
        }
        let mut expected = [0; SUM_BYTES as usize];
        self.file.read_exact_at(&mut expected, self.end)?;
        if self.sum.to_le_bytes() == expected {
            Ok(())
        } else {
            Err(Failure::Damaged("the manifest does not match its checksum"))
        }
    }

    pub(super) fn u64(&mut self) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn varint(&mut self) -> Result<u64, Failure> {
        let mut bytes = [0; 10];
        for at in 0..bytes.len() {
            bytes[at] = self.byte()?;
            if bytes[at] & 0x80 == 0 {
                return plimsoll_disk::codec::Reader::new(&bytes[..=at])
                    .varint()
                    .ok_or(IMPOSSIBLE_RUN);
            }
        }
        Err(IMPOSSIBLE_RUN)
    }
}
