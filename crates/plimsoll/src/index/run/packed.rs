//! Packed tables: run files whose pages are stored compressed, back to back.
//!
//! ```text
//! | blocks ...  | directory   | its copy |
//! ```
//!
//! The *stream* is the stored form of all pages, in order, without gaps. It is cut into *blocks* of
//! 4 KiB, each with a checksum ([`blocks`]). The *directory* says where the stored form of a page
//! ends, and how it is compressed ([`directory`]). Both take whole pages of the file: the last
//! blocks are filled with zeros.
//!
//! Everything above [`PageSource`] sees the pages of an unpacked table, by the same numbers.
//!
//! Invariants:
//! 1. The checksum of a block, which is bound to its place, is verified before its bytes are
//!    decompressed. Decompression writes nothing beyond the page that it was given.
//! 2. The checksum of a page, which is bound to its number, is verified after it was decompressed,
//!    so a directory that leads to another page is detected as damage.
//! 3. No part of the directory is kept outside the budget, because its pages are in the pool.
//!
//! [`PageSource`]: plimsoll_memory::pool::PageSource

mod blocks;
mod decoders;
mod directory;
mod reader;
mod writer;

pub(crate) use blocks::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, check_blocks, seal_block,
};
pub(crate) use decoders::Decoders;
pub(crate) use directory::Shape;
pub(crate) use reader::Access;
pub(super) use reader::PackedFile;
pub(super) use writer::PagePacker;
