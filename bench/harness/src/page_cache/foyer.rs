//! foyer's in-memory cache, configured as documented: one entry per page with weight one, S3-FIFO
//! and eight shards by default.

use std::sync::Arc;

use foyer_memory::{Cache, CacheBuilder};

use super::{PageCache, boxed_page, read_word};

pub(super) struct Foyer {
    cache: Cache<(u64, u32), Arc<[u8]>>,
}

impl Foyer {
    pub(super) fn make(pages: u32) -> Self {
        // Its shards divide the capacity evenly and the keys by hash: twice as much, so that no
        // shard evicts.
        let cache = CacheBuilder::new(2 * pages as usize + 64).build();
        for page in 0..pages {
            cache.insert((1, page), boxed_page(page));
        }
        Self { cache }
    }
}

impl PageCache for Foyer {
    fn name(&self) -> &'static str {
        "foyer"
    }

    fn read(&self, page: u32, word: usize) -> u64 {
        read_word(self.cache.get(&(1, page)).expect("no shard is full").value(), word)
    }
}
