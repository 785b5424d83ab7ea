//! Our own pool.

use std::sync::Arc;

use anyhow::{Result, ensure};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile, Touch};

use super::{PageCache, fill, read_word};

pub(super) struct Line {
    file: PoolFile,
    _pool: Arc<Pool>,
}

struct Filled;

impl PageSource for Filled {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        fill(number, page);
        Ok(())
    }
}

impl Line {
    pub(super) fn make(pages: u32) -> Result<Self> {
        // A sixteenth more, for the pool's own tables and the memory that it leaves to other uses.
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        let budget = Budget::new(bytes + bytes / 16 + (4 << 20), Backing::Mapped)?;
        let pool = Pool::new(&budget, 1 << 20)?;
        let file = pool.attach(Arc::new(Filled));
        for page in 0..pages {
            file.get(page, Touch::Point)?;
        }
        ensure!(pool.stats().resident == u64::from(pages), "all pages are resident: {pool:?}");
        Ok(Self { file, _pool: pool })
    }
}

impl PageCache for Line {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn read(&self, page: u32, word: usize) -> u64 {
        read_word(&self.file.get(page, Touch::Point).expect("a resident page needs no load"), word)
    }
}
