//! The inserter's state: the chunk that is being filled, the reservations, and the height limit of
//! the next tower.
//!
//! Invariant: if [`Writer::has_room_for`] accepts an amount, entries whose [`room_of`] adds up to
//! it fit, in any order and with towers of any height.

use std::ptr::NonNull;

use super::deferred::Deferred;
use super::entries::{BITS_A_LEVEL, Gap, HEADER_BYTES, LINK_BYTES, MAX_HEIGHT, PREFIX_BYTES};
use crate::budget::Lease;
use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::pieces::Piece;

/// Links that each insert earns for its tower and those after it; four thirds are needed on
/// average.
const LINKS_EARNED: usize = 2;

/// Upper bound on saved links.
const LINKS_SAVED_MAX: usize = 64;

/// An entry of this size or more pays for the room that it may leave unused at the end of the chunk
/// before it.
const LARGE_BYTES: usize = CHUNK_BYTES / 16 - MAX_HEIGHT * LINK_BYTES;

/// Memory for entries.
pub(super) enum Holding {
    Piece(Piece),
    Chunk(Chunk),
}

impl Holding {
    pub(super) fn address(&self) -> NonNull<u8> {
        match self {
            Self::Piece(piece) => piece.address(),
            Self::Chunk(chunk) => chunk.address(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Piece(piece) => piece.len(),
            Self::Chunk(chunk) => chunk.len(),
        }
    }
}

/// Memory held and reserved; under the map's lock.
pub(super) struct Writer {
    /// Chunks; in a map that begins small, pieces of chunks first.
    pub(super) chunks: Vec<Holding>,
    /// Covers the table of chunks and `chunks` itself.
    pub(super) tables: Option<Lease>,
    /// The index of the chunk that is being filled.
    pub(super) current: usize,
    /// Bytes used of that chunk.
    pub(super) filled: usize,
    /// Bytes reserved and not inserted yet.
    pub(super) promised: usize,
    links_saved: usize,
    random: u64,
    /// The gap after the last insert, where the next entry of an ascending series goes.
    pub(super) gap: Gap,
    /// Entries written and not linked yet.
    pub(super) deferred: Deferred,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            tables: None,
            current: 0,
            filled: 0,
            promised: 0,
            links_saved: LINKS_SAVED_MAX,
            random: 0x9e37_79b9_7f4a_7c15,
            gap: Gap::whole(),
            deferred: Deferred::default(),
        }
    }

    /// Accounts for an entry: adds the earned links and spends `height` of them.
    pub(super) fn pay_for(&mut self, height: usize) {
        self.links_saved = (self.links_saved + LINKS_EARNED).min(LINKS_SAVED_MAX + height) - height;
    }

    /// Whether entries that add up to `promised` fit into the memory held (without pieces), in any
    /// order and with towers of any height.
    pub(super) fn has_room_for(&self, promised: usize) -> bool {
        // Saved links may all be spent at once.
        let needed = promised + LINKS_SAVED_MAX * LINK_BYTES * 9 / 8;
        let started = usize::from(self.filled > 0);
        let rest = started * (CHUNK_BYTES - self.filled);
        // Either the rest of the current chunk has room for all the needed bytes, or the spare
        // chunks suffice without that rest.
        needed <= rest || needed <= (self.chunks.len() - self.current - started) * CHUNK_BYTES
    }

    /// Draws a height: each further level has a chance of one in four, as far as the saved links
    /// allow.
    pub(super) fn draw_height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let drawn = 1
            + (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).trailing_zeros() as usize
                / BITS_A_LEVEL;
        drawn.min(MAX_HEIGHT).min(self.links_saved + LINKS_EARNED)
    }
}

/// Upper bound on the bytes of an entry with this many bytes of key and value, including the rest
/// of a chunk that it may leave unused.
pub(super) fn room_of(payload_bytes: usize) -> usize {
    // Padding of up to one link's size on each side.
    let own =
        LINKS_EARNED * LINK_BYTES + HEADER_BYTES + payload_bytes.max(PREFIX_BYTES) + 2 * LINK_BYTES;
    // A chunk is closed when an entry does not fit. If that entry is small, the chunk is at least
    // 15/16 full, and the surcharge of an eighth on each of its own entries pays for the unused
    // rest. If the entry is large, it pays for the rest itself, by at most its own size.
    let for_a_chunk_before = if own > LARGE_BYTES { own + MAX_HEIGHT * LINK_BYTES } else { 0 };
    own + own.div_ceil(8) + for_a_chunk_before
}
