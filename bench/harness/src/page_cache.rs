//! The interface of a page cache for measurements of hits: one word of a resident page. Each
//! contestant is an adapter in its own file.
//!
//! All of them hold the same pages, whose words are derived from their position, so that every
//! result can be checked.

mod direct;
#[cfg(feature = "peers")]
mod foyer;
mod line;
#[cfg(feature = "peers")]
mod mutex_lru;
mod pread;
#[cfg(feature = "peers")]
mod quick_cache;

use std::path::Path;

use anyhow::Result;
use plimsoll_memory::page::PAGE_BYTES;

use crate::payload;

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// A cache with all pages resident. Called from many threads concurrently.
pub(crate) trait PageCache: Send + Sync {
    /// The name in tables and results.
    fn name(&self) -> &'static str;

    /// Finds a page, reads one of its words, and releases the page.
    fn read(&self, page: u32, word: usize) -> u64;
}

/// The word at a place.
pub(crate) fn word_at(page: u32, word: usize) -> u64 {
    payload::mix(u64::from(page) << 16 | word as u64)
}

/// Fills a page.
pub(crate) fn fill(page: u32, bytes: &mut [u8]) {
    for (word, place) in bytes.chunks_exact_mut(8).enumerate() {
        place.copy_from_slice(&word_at(page, word).to_le_bytes());
    }
}

fn read_word(page: &[u8], word: usize) -> u64 {
    u64::from_le_bytes(page[word * 8..][..8].try_into().expect("a word has eight bytes"))
}

#[cfg(feature = "peers")]
fn boxed_page(page: u32) -> std::sync::Arc<[u8]> {
    let mut bytes = vec![0; PAGE_BYTES];
    fill(page, &mut bytes);
    bytes.into()
}

/// The pages themselves, each word one load away: the baseline.
pub(crate) fn direct(pages: u32) -> Result<Box<dyn PageCache>> {
    Ok(Box::new(direct::Direct::make(pages)?))
}

/// All contestants of this build, with all pages loaded; the first is ours.
pub(crate) fn contestants(pages: u32, folder: &Path) -> Result<Vec<Box<dyn PageCache>>> {
    Ok(vec![
        Box::new(line::Line::make(pages)?),
        #[cfg(feature = "peers")]
        Box::new(foyer::Foyer::make(pages)),
        #[cfg(feature = "peers")]
        Box::new(quick_cache::QuickCache::make(pages)),
        #[cfg(feature = "peers")]
        Box::new(mutex_lru::MutexLru::make(pages)),
        Box::new(pread::Pread::make(pages, folder)?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_has_every_word_at_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let mut caches = contestants(40, folder.path()).unwrap();
        caches.push(direct(40).unwrap());
        for cache in caches {
            for (page, word) in
                (0..40).flat_map(|page| [0, 7, PAGE_WORDS - 1].map(|word| (page, word)))
            {
                assert_eq!(cache.read(page, word), word_at(page, word), "{}", cache.name());
            }
        }
    }
}
