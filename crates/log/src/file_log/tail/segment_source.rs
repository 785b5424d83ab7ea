//! Reads the blocks of a segment: from the tail's buffer until they are written, else from the
//! file.

use std::sync::{Arc, Weak};

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::vfs::{Caching, File};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::file_log::env::Env;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::segments::segment::{
    KnownBySource, KnownEnd, Segment, check_whole_block, is_complete,
};
use crate::file_log::tail::Tail;
use crate::format::block::blank_damage;
use crate::format::segment_header::SegmentHeader;
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::Glsn;

/// The segment with this header; `tail` has the bytes that are not in its file yet.
pub(crate) fn new_segment(header: SegmentHeader, env: &Env, tail: Weak<Tail>) -> Arc<Segment> {
    let known = Arc::new(KnownBySource::new());
    let source = SegmentSource {
        first: header.first,
        epoch: header.epoch,
        seed: segment_seed(header.log_id, header.first),
        known: Arc::clone(&known),
        caching: env.options.caching,
        files: Arc::clone(&env.files),
        tail,
    };
    Segment::new(header, env.options.pool.attach(Arc::new(source)), known)
}

/// The blocks of a segment.
struct SegmentSource {
    first: Glsn,
    epoch: u32,
    seed: u64,
    known: Arc<KnownBySource>,
    caching: Caching,
    files: Arc<OpenFiles>,
    /// Has the bytes that are not in the segment's file yet. Weak: the tail holds the active
    /// segment.
    tail: Weak<Tail>,
}

impl SegmentSource {
    /// Fills `page` with a block that is not written yet; `false` if it is written.
    fn copy_unwritten(&self, number: u32, page: &mut [u8]) -> bool {
        self.tail.upgrade().is_some_and(|tail| tail.read().copy_block(self.first, number, page))
    }

    /// Fills `pages` from the file and checks each of them.
    fn read(&self, first: u32, pages: &mut [u8], caching: Caching) -> Result<(), LoadError> {
        let file = self.files.get(FileName::Segment(self.first), caching)?;
        // Read the end first, because bytes that are appended meanwhile need not be in the file.
        let end = self.known_end();
        let n = file.read_at(pages, u64::from(first) * BLOCK_BYTES as u64)?;
        // Bytes after the file's end are zeros, because a sealed segment ends with the block of its
        // last record.
        pages[n..].fill(0);
        for (number, page) in (first..).zip(pages.chunks_exact_mut(BLOCK_BYTES)) {
            match check_whole_block(page, number, self.seed, end) {
                // Clear the bytes after the fragments, which nothing has checked. They include the
                // rest of a fragment whose header turned to zeros.
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

    /// Reads a damaged block again and leaves its intact fragments in `page`; false if it has none,
    /// or if intact fragments cannot be distinguished from damaged ones.
    fn save_sound_part(
        &self,
        file: &dyn File,
        number: u32,
        page: &mut [u8],
    ) -> Result<bool, LoadError> {
        if !self.known.was_never_cut() {
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
        self.known.sealed_end().is_some()
    }

    /// The end of the fragments of the segment, as far as known.
    fn known_end(&self) -> KnownEnd {
        match self.known.sealed_end() {
            Some(end) => KnownEnd::At(end),
            None => {
                KnownEnd::NotBefore(self.tail.upgrade().map_or(0, |tail| tail.end_of(self.first)))
            }
        }
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
