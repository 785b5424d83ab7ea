//! The on-disk format of the log (`docs/reference/format.md`), encoded and decoded by pure
//! functions.
//!
//! A segment is an array of blocks. Records are written as fragments that never cross a block
//! boundary, so each block can be checked by itself, once, when it is read from disk. Decoders
//! accept any bytes: they never panic and never allocate.

pub mod blob_trailer;
pub mod block;
pub mod content;
pub mod fragment;
pub mod layout;
pub mod offset_table;
pub mod record;
pub mod segment_header;

use plimsoll_disk::checksum::seed;

use crate::glsn::Glsn;

/// Bytes of a block: those of a page of the pool.
pub const BLOCK_BYTES: usize = plimsoll_memory::page::PAGE_BYTES;

/// The format that this version writes, and the only one that it reads. Format 1 was never
/// published.
pub const FORMAT_VERSION: u32 = 2;

/// Incompatible features that this version knows: none.
pub const KNOWN_INCOMPATIBLE: u32 = 0;

/// The only codec of format 2: uncompressed.
pub const CODEC_NONE: u8 = 0;

const SEGMENT_PLACE: u64 = 1;
const TABLE_PLACE: u64 = 2;
const BLOB_PLACE: u64 = 3;
const GENESIS: u64 = 4;

/// The part of a fragment's seed that all fragments of a segment share. Because of it, bytes of
/// another log or segment fail the check.
pub fn segment_seed(log_id: u128, first: Glsn) -> u64 {
    seed(&[place(log_id, SEGMENT_PLACE, first.0)])
}

/// The seed of the pages of an offset table.
pub fn table_seed(log_id: u128, first: Glsn) -> u64 {
    place(log_id, TABLE_PLACE, first.0)
}

/// The seed of the pages of a blob file.
pub fn blob_seed(log_id: u128, id: u64) -> u64 {
    place(log_id, BLOB_PLACE, id)
}

/// The chain hash of the empty log.
pub fn genesis_chain(log_id: u128) -> u64 {
    place(log_id, GENESIS, 0)
}

fn place(log_id: u128, what: u64, number: u64) -> u64 {
    seed(&[log_id as u64, (log_id >> 64) as u64, what, number])
}

/// `n` rounded up to a multiple of eight.
pub(crate) const fn align8(n: usize) -> usize {
    (n + 7) & !7
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut out = [0; 16];
    out.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(out)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
