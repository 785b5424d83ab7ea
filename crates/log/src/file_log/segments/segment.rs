//! One segment: its header, its pages in the pool, its offset table.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, RwLock, Weak};

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::vfs::{Caching, File};
use plimsoll_memory::pool::{LoadError, PageSource, PoolFile};

use crate::file_log::env::Env;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::segments::offset_table::OffsetTable;
use crate::format::block::{BadBlock, blank_damage, check_block, first_fragment, has_fragment};
use crate::format::segment_header::SegmentHeader;
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::Glsn;

/// The unwritten end of the log, as the pages of the active segment need it.
pub(crate) trait Unwritten: Debug + Send + Sync {
    /// Copies a block of the segment that begins with `first`, if it is in the buffer.
    fn copy_block(&self, first: Glsn, block: u32, into: &mut [u8]) -> bool;

    /// The offset where the complete records of the segment that begins with `first` end; 0 if it
    /// is not the active one.
    fn end_of(&self, first: Glsn) -> u32;
}

/// A segment of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    /// Its blocks.
    pub(crate) pages: PoolFile,
    /// The offset table, once the segment is sealed and the table was asked for.
    pub(crate) table: RwLock<Option<Arc<OffsetTable>>>,
    /// Where it ends, once it is sealed.
    sealed: OnceLock<SegmentEnd>,
    known: Arc<KnownBySource>,
}

/// The end of a sealed segment, as the header of the next segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    /// GLSN after its last entry.
    pub(crate) next: Glsn,
    /// Chain hash of its last record.
    pub(crate) chain: u64,
    /// Where its fragments end.
    pub(crate) end: u32,
}

/// The `end` in [`KnownBySource`] of a segment that is not sealed.
const OPEN: u32 = u32::MAX;

/// The facts that the page source knows about the end of its segment.
#[derive(Debug)]
struct KnownBySource {
    /// Where its fragments end; [`OPEN`] while it is not sealed.
    end: AtomicU32,
    /// Whether all of it was written in the epoch of its header: a cut raises the epoch.
    was_never_cut: AtomicBool,
}

/// Heap bytes of a segment's description, with its entries in the list of segments and in the pool.
pub(crate) const SEGMENT_LEASE_BYTES: u64 = 512;

impl Segment {
    /// The segment with this header; `unwritten` has the bytes that are not in its file yet.
    pub(crate) fn new(
        header: SegmentHeader,
        env: &Env,
        unwritten: Weak<dyn Unwritten>,
    ) -> Arc<Self> {
        let known = Arc::new(KnownBySource {
            end: AtomicU32::new(OPEN),
            was_never_cut: AtomicBool::new(false),
        });
        let source = SegmentSource {
            first: header.first,
            epoch: header.epoch,
            seed: segment_seed(header.log_id, header.first),
            known: Arc::clone(&known),
            caching: env.options.caching,
            files: Arc::clone(&env.files),
            unwritten,
        };
        let pages = env.options.pool.attach(Arc::new(source));
        Arc::new(Self { header, pages, table: RwLock::new(None), sealed: OnceLock::new(), known })
    }

    /// Marks the segment as sealed: another segment, with the header `next`, follows it.
    pub(crate) fn seal(&self, next: &SegmentHeader) {
        let sealed =
            SegmentEnd { next: next.first, chain: next.previous_chain, end: next.previous_end };
        self.sealed.get_or_init(|| sealed);
        // Relaxed: the values only select how the file is read, where both ways return the same
        // bytes, and how blocks are checked that were complete before.
        self.known.was_never_cut.store(next.epoch == self.header.epoch, Ordering::Relaxed);
        self.known.end.store(sealed.end, Ordering::Relaxed);
    }

    /// Where it ends, if it is sealed.
    pub(crate) fn sealed(&self) -> Option<SegmentEnd> {
        self.sealed.get().copied()
    }

    /// Whether it is sealed and no torn tail was ever cut in it: each fragment that passes its
    /// checksum is the one that was written there.
    pub(crate) fn was_never_cut(&self) -> bool {
        self.known.was_never_cut.load(Ordering::Relaxed)
    }

    /// Its first GLSN.
    pub(crate) fn first(&self) -> Glsn {
        self.header.first
    }
}

/// Blocks of a segment: from the tail's buffer until they are written, else from the file.
struct SegmentSource {
    first: Glsn,
    epoch: u32,
    seed: u64,
    known: Arc<KnownBySource>,
    caching: Caching,
    files: Arc<OpenFiles>,
    /// Weak: the tail holds the active segment.
    unwritten: Weak<dyn Unwritten>,
}

impl SegmentSource {
    /// Fills `page` with a block that is not written yet; `false` if it is written.
    fn copy_unwritten(&self, number: u32, page: &mut [u8]) -> bool {
        self.unwritten.upgrade().is_some_and(|tail| tail.copy_block(self.first, number, page))
    }

    /// Fills `pages` from the file and checks each of them.
    fn read(&self, first: u32, pages: &mut [u8], caching: Caching) -> Result<(), LoadError> {
        let file = self.files.get(FileName::Segment(self.first), caching)?;
        // Read first: bytes that are appended meanwhile need not be in the file.
        let end = self.known_end();
        let n = file.read_at(pages, u64::from(first) * BLOCK_BYTES as u64)?;
        // Zeros after the file's end: a sealed segment ends with the block of its last record.
        pages[n..].fill(0);
        for (number, page) in (first..).zip(pages.chunks_exact_mut(BLOCK_BYTES)) {
            match check_whole_block(page, number, self.seed, end) {
                // Nothing has checked the bytes after the fragments. A fragment whose header turned
                // to zeros ends the fragments too early.
                Ok(filled) if is_complete(number, end) => page[filled..].fill(0),
                Ok(_) => {}
                Err(_) if self.save_sound_part(&*file, number, page)? => {}
                Err(bad) => {
                    let message = format!("{} (at {} of block {number})", bad.what, bad.at);
                    return Err(LoadError::Corrupt { message });
                }
            }
        }
        Ok(())
    }

    /// Reads a damaged block once more and leaves its sound fragments in `page`; false if it has
    /// none, or if sound fragments cannot be told from damaged ones.
    fn save_sound_part(
        &self,
        file: &dyn File,
        number: u32,
        page: &mut [u8],
    ) -> Result<bool, LoadError> {
        if !self.known.was_never_cut.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let before = checksum(0, page);
        let n = file.read_at(page, u64::from(number) * BLOCK_BYTES as u64)?;
        page[n..].fill(0);
        if let Ok(filled) = check_whole_block(page, number, self.seed, self.known_end()) {
            page[filled..].fill(0);
            return Ok(true);
        }
        // If two reads differ, the file itself is not damaged, and the page must not stay in
        // memory.
        Ok(checksum(0, page) == before && blank_damage(page, number, self.seed, self.epoch))
    }

    fn is_sealed(&self) -> bool {
        self.known.end.load(Ordering::Relaxed) != OPEN
    }

    /// Where the fragments of the segment end, as far as known.
    fn known_end(&self) -> KnownEnd {
        let end = self.known.end.load(Ordering::Relaxed);
        if end != OPEN {
            return KnownEnd::At(end);
        }
        KnownEnd::NotBefore(self.unwritten.upgrade().map_or(0, |tail| tail.end_of(self.first)))
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
fn is_complete(number: u32, end: KnownEnd) -> bool {
    let (KnownEnd::At(least) | KnownEnd::NotBefore(least)) = end;
    (u64::from(number) + 1) * BLOCK_BYTES as u64 <= u64::from(least)
}

/// Compares the end of a block's fragments with the end of the segment's: an empty block is valid
/// only after all records.
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

impl PageSource for SegmentSource {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        if self.copy_unwritten(number, page) {
            return Ok(());
        }
        // The active segment is written through the page cache, and direct reads would flush that
        // each time.
        let caching = if self.is_sealed() { self.caching } else { Caching::Buffered };
        self.read(number, page, caching)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        if self.is_sealed() {
            return self.read(first, pages, self.caching);
        }
        (first..)
            .zip(pages.chunks_exact_mut(BLOCK_BYTES))
            .try_for_each(|(number, page)| self.load(number, page))
    }
}
