//! The pages themselves, in the same kind of memory as the pool's: a read is one load that depends
//! on the one before.
//!
//! Chunks of a budget, because they are on huge pages like the pool's. The list of their addresses
//! (16 bytes per 64 KiB) stays in the processor's caches.

use anyhow::{Result, ensure};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::PAGE_BYTES;

use super::{PageCache, fill, read_word};

const PAGES_PER_CHUNK: usize = CHUNK_BYTES / PAGE_BYTES;

pub(super) struct Direct {
    chunks: Vec<Chunk>,
}

impl Direct {
    pub(super) fn make(pages: u32) -> Result<Self> {
        ensure!(pages > 0, "a measurement of hits needs pages");
        let count = (pages as usize).div_ceil(PAGES_PER_CHUNK);
        let budget = Budget::new((count * CHUNK_BYTES) as u64, Backing::Mapped)?;
        let mut chunks =
            (0..count).map(|_| Ok(budget.take(Kind::Staging)?)).collect::<Result<Vec<_>>>()?;
        for page in 0..pages {
            let at = page as usize % PAGES_PER_CHUNK * PAGE_BYTES;
            fill(page, &mut chunks[page as usize / PAGES_PER_CHUNK][at..at + PAGE_BYTES]);
        }
        Ok(Self { chunks })
    }
}

impl PageCache for Direct {
    fn name(&self) -> &'static str {
        "load"
    }

    fn read(&self, page: u32, word: usize) -> u64 {
        let chunk = &self.chunks[page as usize / PAGES_PER_CHUNK];
        read_word(&chunk[page as usize % PAGES_PER_CHUNK * PAGE_BYTES..], word)
    }
}
