//! The simplest cache: an LRU list with a map behind one lock; the page is read outside the lock.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;

use super::{PageCache, boxed_page, read_word};

type Pages = LruCache<(u64, u32), Arc<[u8]>>;

pub(super) struct MutexLru {
    cache: Mutex<Pages>,
}

impl MutexLru {
    pub(super) fn make(pages: u32) -> Self {
        let mut cache = LruCache::new(NonZeroUsize::MIN.saturating_add(pages as usize));
        for page in 0..pages {
            cache.put((1, page), boxed_page(page));
        }
        Self { cache: Mutex::new(cache) }
    }
}

impl PageCache for MutexLru {
    fn name(&self) -> &'static str {
        "mutex-lru"
    }

    fn read(&self, page: u32, word: usize) -> u64 {
        let found = self.cache.lock().expect("nobody panics under it").get(&(1, page)).cloned();
        read_word(&found.expect("all pages fit"), word)
    }
}
