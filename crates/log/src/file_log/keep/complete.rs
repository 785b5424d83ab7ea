//! The pages of the log that never change again, for the warm image.

use plimsoll_memory::pool::PoolFile;

use crate::file_log::open_log::OpenLog;
use crate::format::BLOCK_BYTES;
use crate::format::layout::block_of;
use crate::glsn::Glsn;

/// The part of a segment that never changes again.
#[derive(Clone, Debug)]
pub struct CompletePages {
    /// The segment's first GLSN, which is its name.
    pub first: Glsn,
    /// Pages from the front that never change again.
    pub pages: u32,
    /// Its pages in the pool.
    pub file: PoolFile,
}

impl OpenLog {
    /// All segments at this time, oldest first; of the active segment, only the blocks before the
    /// one being filled.
    pub(crate) fn complete_pages(&self) -> Vec<CompletePages> {
        let (active, filled) = {
            let tail = self.tail.read();
            (tail.first, block_of(u64::from(tail.end.offset)) as u32)
        };
        let segments = self.segments.read();
        let complete = segments.iter().filter_map(|segment| {
            let pages = match segment.sealed() {
                Some(sealed) => sealed.end.div_ceil(BLOCK_BYTES as u32),
                None if segment.first() == active => filled,
                None => return None,
            };
            Some(CompletePages { first: segment.first(), pages, file: segment.pages.clone() })
        });
        complete.collect()
    }
}
