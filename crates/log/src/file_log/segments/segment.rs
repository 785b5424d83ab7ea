//! One segment: its header, its pages in the pool, and the way from a GLSN to a place in it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, RwLock, Weak};

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile};

use crate::file_log::files::names::{FileName, unfinished};
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::segments::offset_table::Table;
use crate::file_log::tail::TailLock;
use crate::format::block::{BadBlock, check_block, first_fragment};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::Glsn;

/// A segment of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// What it says about itself.
    pub(crate) header: SegmentHeader,
    /// Its blocks.
    pub(crate) pages: PoolFile,
    /// Where its entries are, once it is sealed and somebody asked.
    pub(crate) table: RwLock<Option<Arc<Table>>>,
    /// What follows it, once it is sealed.
    behind: OnceLock<Behind>,
    end: Arc<AtomicU32>,
}

/// What follows a sealed segment, as the next one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// GLSN behind its last entry.
    pub(crate) next: Glsn,
    /// Chain hash of its last record.
    pub(crate) chain: u64,
    /// Where its fragments end.
    pub(crate) end: u32,
}

/// Where a segment ends that is not sealed: not known to its pages.
const OPEN: u32 = u32::MAX;

/// Bytes of heap that a segment's description takes, with its place in the list of segments and in the pool.
pub(crate) const SEGMENT_LEASE_BYTES: u64 = 512;

impl Segment {
    pub(crate) fn new(
        header: SegmentHeader,
        caching: Caching,
        pool: &Arc<Pool>,
        files: &Arc<OpenFiles>,
        tail: Weak<TailLock>,
    ) -> Self {
        let end = Arc::new(AtomicU32::new(OPEN));
        let source = SegmentSource {
            first: header.first,
            seed: segment_seed(header.log_id, header.first),
            end: Arc::clone(&end),
            caching,
            files: Arc::clone(files),
            tail,
        };
        Self { header, pages: pool.attach(Arc::new(source)), table: RwLock::new(None), behind: OnceLock::new(), end }
    }

    /// From now on nothing is appended to it: another segment, with the header `next`, follows.
    pub(crate) fn seal(&self, next: &SegmentHeader) {
        let behind = Behind { next: next.first, chain: next.previous_chain, end: next.previous_end };
        self.behind.get_or_init(|| behind);
        // Relaxed: it chooses how the file is read, and both ways read the same bytes; and what is checked of blocks that were complete
        // before.
        self.end.store(behind.end, Ordering::Relaxed);
    }

    /// What follows it, if it is sealed.
    pub(crate) fn behind(&self) -> Option<Behind> {
        self.behind.get().copied()
    }

    /// Its first GLSN.
    pub(crate) fn first(&self) -> Glsn {
        self.header.first
    }
}

/// Blocks of a segment: from the tail's buffer while they are not written yet, else from the file.
struct SegmentSource {
    first: Glsn,
    seed: u64,
    /// Where the segment's fragments end, once it is sealed.
    end: Arc<AtomicU32>,
    caching: Caching,
    files: Arc<OpenFiles>,
    /// Weak: the tail holds the active segment.
    tail: Weak<TailLock>,
}

impl SegmentSource {
    /// Fills `page` with a block that is not written yet; `false` if it is.
    fn copy_from_tail(&self, number: u32, page: &mut [u8]) -> bool {
        self.tail.upgrade().is_some_and(|tail| tail.read().copy_block(self.first, number, page))
    }

    /// Fills `pages` from the file and checks each of them.
    fn read(&self, first: u32, pages: &mut [u8], caching: Caching) -> Result<(), LoadError> {
        let file = self.files.get(FileName::Segment(self.first), caching)?;
        // Before it is read: what is appended meanwhile need not be in it.
        let end = self.known_end();
        let n = file.read_at(pages, u64::from(first) * BLOCK_BYTES as u64)?;
        // Zeros behind the end: a sealed segment ends with the block of its last record.
        pages[n..].fill(0);
        for (number, page) in (first..).zip(pages.chunks_exact(BLOCK_BYTES)) {
            check_whole_block(page, number, self.seed, end).map_err(|bad| LoadError::Corrupt {
                message: format!("{} (at {} of block {number})", bad.what, bad.at),
            })?;
        }
        Ok(())
    }

    fn is_sealed(&self) -> bool {
        self.end.load(Ordering::Relaxed) != OPEN
    }

    /// Where the fragments of the segment end, as far as known.
    fn known_end(&self) -> KnownEnd {
        let end = self.end.load(Ordering::Relaxed);
        if end != OPEN {
            return KnownEnd::At(end);
        }
        let Some(tail) = self.tail.upgrade() else { return KnownEnd::NotBefore(0) };
        let tail = tail.read();
        KnownEnd::NotBefore(if tail.first == self.first { tail.end.offset } else { 0 })
    }
}

/// What is known of where a segment's fragments end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownEnd {
    /// It is sealed.
    At(u32),
    /// It is being appended to.
    NotBefore(u32),
}

/// Checks a block, and that its segment's records reach as far in it as they must.
pub(crate) fn check_whole_block(block: &[u8], number: u32, seed: u64, end: KnownEnd) -> Result<(), BadBlock> {
    let filled = check_block(block, number, seed)?;
    check_end(number, filled, end).map_err(|what| BadBlock { at: filled, what: what.to_owned() })
}

/// Compares where the fragments of a block end with where those of its segment do: zeros in the place of a block are good only behind
/// all records.
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
            if u64::from(end) <= start + BLOCK_BYTES as u64 && start + filled as u64 != u64::from(end) =>
        {
            Err("the last records of the segment are missing")
        }
        _ => Ok(()),
    }
}

impl PageSource for SegmentSource {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        if self.copy_from_tail(number, page) {
            return Ok(());
        }
        // The active segment is written through the page cache: reading past it would flush it each time.
        let caching = if self.is_sealed() { self.caching } else { Caching::Buffered };
        self.read(number, page, caching)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        if self.is_sealed() {
            return self.read(first, pages, self.caching);
        }
        (first..).zip(pages.chunks_exact_mut(BLOCK_BYTES)).try_for_each(|(number, page)| self.load(number, page))
    }
}

/// Zeros to write.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Writes zeros from `from` up to `to`.
pub(crate) fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// Whether the system refused for want of room, so that the same may succeed later: a full disk, a quota, a limit to the size of files
/// (where the process ignores SIGXFSZ, which ends it otherwise).
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Why a segment was not made.
#[derive(Debug)]
pub(crate) enum NotCreated {
    /// Nothing happened.
    Cleanly(io::Error),
    /// It may stand under its name, and that may not be durable.
    Perhaps(io::Error),
}

/// Makes a segment's file with its header and `zeroed` bytes in all, durable under its name. It comes into being whole: until it
/// is renamed nobody takes it for a segment.
pub(crate) fn create_segment(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    zeroed: u64,
) -> Result<Arc<dyn File>, NotCreated> {
    let path = FileName::Segment(header.first).path(dir);
    let draft = unfinished(&path);
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(NotCreated::Cleanly(error)),
        _ => {}
    }
    if let Err(error) = write_new_segment(disk, &draft, header, zeroed) {
        let _ = disk.remove(&draft);
        return Err(NotCreated::Cleanly(error));
    }
    if let Err(error) = disk.rename(&draft, &path) {
        let _ = disk.remove(&draft);
        // Any other failure may be one of telling, over a network say: whatever had this name before is gone then.
        return Err(if has_no_room(&error) { NotCreated::Cleanly(error) } else { NotCreated::Perhaps(error) });
    }
    disk.sync_dir(dir).and_then(|()| disk.open(&path, Open::ReadWrite, Caching::Buffered)).map_err(NotCreated::Perhaps)
}

fn write_new_segment(disk: &dyn Disk, draft: &Path, header: &SegmentHeader, zeroed: u64) -> io::Result<()> {
    let file = disk.open(draft, Open::CreateNew, Caching::Buffered)?;
    file.write_at(&header.encode(), 0)?;
    write_zeros(&*file, SEGMENT_HEADER_BYTES as u64, zeroed)?;
    file.sync()
}
