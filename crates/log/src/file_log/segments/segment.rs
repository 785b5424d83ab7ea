//! One segment: its header, its pages in the pool, its offset table.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use plimsoll_memory::pool::PoolFile;

use crate::file_log::segments::offset_table::OffsetTable;
use crate::format::BLOCK_BYTES;
use crate::format::block::{BadBlock, check_block, first_fragment, has_fragment};
use crate::format::segment_header::SegmentHeader;
use crate::glsn::Glsn;

/// A segment of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    /// Its blocks.
    pub(crate) pages: PoolFile,
    /// The offset table, once the segment is sealed and the table was asked for.
    pub(crate) table: RwLock<Option<Arc<OffsetTable>>>,
    /// Its end, once it is sealed.
    sealed: OnceLock<SegmentEnd>,
    known: Arc<KnownBySource>,
}

/// The end of a sealed segment, according to the header of the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    /// GLSN after its last entry.
    pub(crate) next: Glsn,
    /// Chain hash of its last record.
    pub(crate) chain: u64,
    /// The end of its fragments, as an offset.
    pub(crate) end: u32,
}

/// The `end` in [`KnownBySource`] of a segment that is not sealed.
const OPEN: u32 = u32::MAX;

/// The facts that the page source knows about the end of its segment.
#[derive(Debug)]
pub(crate) struct KnownBySource {
    /// The end of its fragments; [`OPEN`] while it is not sealed.
    end: AtomicU32,
    /// Whether all of it was written in the epoch of its header. A cut raises the epoch.
    was_never_cut: AtomicBool,
}

impl KnownBySource {
    /// The facts about a segment that is not sealed.
    pub(crate) fn new() -> Self {
        Self { end: AtomicU32::new(OPEN), was_never_cut: AtomicBool::new(false) }
    }

    /// The end of its fragments, if it is sealed.
    pub(crate) fn sealed_end(&self) -> Option<u32> {
        Some(self.end.load(Ordering::Relaxed)).filter(|end| *end != OPEN)
    }

    /// Whether it is sealed and no torn tail was ever cut in it.
    pub(crate) fn was_never_cut(&self) -> bool {
        self.was_never_cut.load(Ordering::Relaxed)
    }
}

/// Heap bytes of a segment's description, with its entries in the list of segments and in the pool.
pub(crate) const SEGMENT_LEASE_BYTES: u64 = 512;

impl Segment {
    /// The segment with this header; `pages` has its blocks, and reads them according to `known`.
    pub(crate) fn new(
        header: SegmentHeader,
        pages: PoolFile,
        known: Arc<KnownBySource>,
    ) -> Arc<Self> {
        Arc::new(Self { header, pages, table: RwLock::new(None), sealed: OnceLock::new(), known })
    }

    /// Marks the segment as sealed: another segment, with the header `next`, follows it.
    pub(crate) fn seal(&self, next: &SegmentHeader) {
        let sealed =
            SegmentEnd { next: next.first, chain: next.previous_chain, end: next.previous_end };
        self.sealed.get_or_init(|| sealed);
        // Relaxed: the two values only select how the file is read (both ways return the same
        // bytes), and how blocks that were complete before are checked.
        self.known.was_never_cut.store(next.epoch == self.header.epoch, Ordering::Relaxed);
        self.known.end.store(sealed.end, Ordering::Relaxed);
    }

    /// Its end, if it is sealed.
    pub(crate) fn sealed(&self) -> Option<SegmentEnd> {
        self.sealed.get().copied()
    }

    /// Whether it is sealed and no torn tail was ever cut in it. Each fragment that passes its
    /// checksum is then the one that was written there.
    pub(crate) fn was_never_cut(&self) -> bool {
        self.known.was_never_cut()
    }

    /// Its first GLSN.
    pub(crate) fn first(&self) -> Glsn {
        self.header.first
    }
}

/// The known end of a segment's fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownEnd {
    /// Exactly here: it is sealed.
    At(u32),
    /// Here or later: it is active.
    NotBefore(u32),
}

/// Checks a block, and that the segment's records reach as far into it as they must; returns where
/// its fragments end.
pub(crate) fn check_whole_block(
    block: &[u8],
    number: u32,
    seed: u64,
    end: KnownEnd,
) -> Result<usize, BadBlock> {
    let filled = check_block(block, number, seed)?;
    let is_behind = || is_complete(number, end) && has_fragment(block, filled, number, seed);
    let checked = match check_end(number, filled, end) {
        Ok(()) if is_behind() => Err("zeros in place of a fragment"),
        checked => checked,
    };
    checked.map(|()| filled).map_err(|what| BadBlock { at: filled, what: what.to_owned() })
}

/// Whether the log continues after the block.
pub(crate) fn is_complete(number: u32, end: KnownEnd) -> bool {
    let (KnownEnd::At(least) | KnownEnd::NotBefore(least)) = end;
    (u64::from(number) + 1) * BLOCK_BYTES as u64 <= u64::from(least)
}

/// Compares the end of a block's fragments with the end of the segment's fragments: an empty block
/// is valid only after all records.
fn check_end(number: u32, filled: usize, end: KnownEnd) -> Result<(), &'static str> {
    let start = u64::from(number) * BLOCK_BYTES as u64;
    let (KnownEnd::At(least) | KnownEnd::NotBefore(least)) = end;
    if start + first_fragment(number) as u64 >= u64::from(least) {
        return Ok(());
    }
    if filled == first_fragment(number) {
        return Err("an empty block where the log has records");
    }
    match end {
        KnownEnd::At(end)
            if u64::from(end) <= start + BLOCK_BYTES as u64
                && start + filled as u64 != u64::from(end) =>
        {
            Err("the last records of the segment are missing")
        }
        _ => Ok(()),
    }
}
