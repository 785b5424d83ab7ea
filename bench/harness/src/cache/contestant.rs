//! Caches under the same requests: ours, and others configured as documented, bounded by bytes of
//! values.
//!
//! A request is read-through: a missing value is created by copying from a filler, and inserted. A
//! found value is read, one byte of each cache line.

use std::hint::black_box;

use anyhow::{Context as _, Result, bail};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache, CacheOptions};
use plimsoll_memory::chunk::CHUNK_BYTES;

use super::requests::Key;

/// The names of all caches in this build; the first is ours.
pub(super) const NAMES: &[&str] = &[
    "plimsoll",
    #[cfg(feature = "caches")]
    "quick_cache",
    #[cfg(feature = "caches")]
    "moka",
    #[cfg(feature = "caches")]
    "foyer-s3fifo",
    #[cfg(feature = "caches")]
    "foyer-lfu",
    #[cfg(feature = "caches")]
    "mutex-lru",
];

/// A cache below this size uses heap memory.
const SMALL_BYTES: u64 = 32 << 20;

/// A cache. Called from many threads concurrently.
pub(super) trait Contestant<K>: Send + Sync {
    /// Requests a value of the given size; returns whether it was present.
    fn request(&self, key: &K, value_bytes: usize) -> bool;
}

/// Creates an empty cache. `mean_bytes` is the average size of values, for caches that need it.
pub(super) fn make<K: Key>(
    name: &str,
    capacity: u64,
    filler: Vec<u8>,
    mean_bytes: u64,
) -> Result<Box<dyn Contestant<K>>> {
    let _ = mean_bytes;
    Ok(match name {
        "plimsoll" => Box::new(Ours::make(capacity, filler)?),
        #[cfg(feature = "caches")]
        "quick_cache" => Box::new(peers::QuickCache::make(capacity, filler, mean_bytes)),
        #[cfg(feature = "caches")]
        "moka" => Box::new(peers::Moka::make(capacity, filler)),
        #[cfg(feature = "caches")]
        "foyer-s3fifo" => Box::new(peers::Foyer::s3_fifo(capacity, filler)),
        #[cfg(feature = "caches")]
        "foyer-lfu" => Box::new(peers::Foyer::lfu(capacity, filler)),
        #[cfg(feature = "caches")]
        "mutex-lru" => Box::new(peers::MutexLru::make(capacity, filler)),
        _ => bail!("no cache is called {name:?}; built are {NAMES:?}"),
    })
}

pub(super) fn look_at(bytes: &[u8]) -> u64 {
    black_box(bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum())
}

struct Ours {
    cache: Cache,
    filler: Vec<u8>,
}

impl Ours {
    fn make(capacity: u64, filler: Vec<u8>) -> Result<Self> {
        // Mapped memory grows by huge pages of 2 MiB, too coarse to compare small caches. Heap
        // memory is resident as a whole.
        let backing = if capacity < SMALL_BYTES { Backing::Heap } else { Backing::Mapped };
        // Two chunks more than the cache needs, for rounding of leases.
        let budget = Budget::new(capacity + 2 * CHUNK_BYTES as u64, backing)?;
        let cache =
            Cache::new(&budget, CacheOptions::of_bytes(capacity)).context("the cache's tables")?;
        Ok(Self { cache, filler })
    }
}

impl<K: Key> Contestant<K> for Ours {
    fn request(&self, key: &K, value_bytes: usize) -> bool {
        let seen = self.cache.read(key.as_ref(), |value| value.pieces().map(look_at).sum::<u64>());
        if seen.is_none() {
            self.cache.insert(key.as_ref(), &self.filler[..value_bytes]);
        }
        seen.is_some()
    }
}

#[cfg(feature = "caches")]
mod peers {
    use std::sync::{Arc, Mutex};

    use foyer_memory::{CacheBuilder, LfuConfig, S3FifoConfig};
    use lru::LruCache;

    use super::{Contestant, Key, look_at};

    type Bytes = Arc<[u8]>;

    #[derive(Clone)]
    struct Weight;

    impl<K: Key> quick_cache::Weighter<K, Bytes> for Weight {
        fn weight(&self, _: &K, value: &Bytes) -> u64 {
            value.len() as u64
        }
    }

    pub(super) struct QuickCache<K> {
        cache: quick_cache::sync::Cache<K, Bytes, Weight>,
        filler: Vec<u8>,
    }

    impl<K: Key> QuickCache<K> {
        pub(super) fn make(capacity: u64, filler: Vec<u8>, mean_bytes: u64) -> Self {
            let items = (capacity / mean_bytes.max(1)).max(16) as usize;
            Self { cache: quick_cache::sync::Cache::with_weighter(items, capacity, Weight), filler }
        }
    }

    impl<K: Key> Contestant<K> for QuickCache<K> {
        fn request(&self, key: &K, value_bytes: usize) -> bool {
            match self.cache.get(key) {
                Some(value) => _ = look_at(&value),
                None => {
                    self.cache.insert(key.clone(), Bytes::from(&self.filler[..value_bytes]));
                    return false;
                }
            }
            true
        }
    }

    pub(super) struct Moka<K> {
        cache: moka::sync::Cache<K, Bytes>,
        filler: Vec<u8>,
    }

    impl<K: Key> Moka<K> {
        pub(super) fn make(capacity: u64, filler: Vec<u8>) -> Self {
            let weigher = |_: &K, value: &Bytes| u32::try_from(value.len()).unwrap_or(u32::MAX);
            Self {
                cache: moka::sync::Cache::builder().max_capacity(capacity).weigher(weigher).build(),
                filler,
            }
        }
    }

    impl<K: Key> Contestant<K> for Moka<K> {
        fn request(&self, key: &K, value_bytes: usize) -> bool {
            match self.cache.get(key) {
                Some(value) => _ = look_at(&value),
                None => {
                    self.cache.insert(key.clone(), Bytes::from(&self.filler[..value_bytes]));
                    return false;
                }
            }
            true
        }
    }

    pub(super) struct Foyer<K: Key> {
        cache: foyer_memory::Cache<K, Bytes>,
        filler: Vec<u8>,
    }

    impl<K: Key> Foyer<K> {
        pub(super) fn s3_fifo(capacity: u64, filler: Vec<u8>) -> Self {
            let builder =
                CacheBuilder::new(capacity as usize).with_eviction_config(S3FifoConfig::default());
            Self {
                cache: builder.with_weighter(|_: &K, value: &Bytes| value.len()).build(),
                filler,
            }
        }

        pub(super) fn lfu(capacity: u64, filler: Vec<u8>) -> Self {
            let builder =
                CacheBuilder::new(capacity as usize).with_eviction_config(LfuConfig::default());
            Self {
                cache: builder.with_weighter(|_: &K, value: &Bytes| value.len()).build(),
                filler,
            }
        }
    }

    impl<K: Key> Contestant<K> for Foyer<K> {
        fn request(&self, key: &K, value_bytes: usize) -> bool {
            match self.cache.get(key) {
                Some(entry) => _ = look_at(entry.value()),
                None => {
                    self.cache.insert(key.clone(), Bytes::from(&self.filler[..value_bytes]));
                    return false;
                }
            }
            true
        }
    }

    /// The simplest cache: a list and a map behind one lock, bounded by bytes.
    pub(super) struct MutexLru<K> {
        state: Mutex<(LruCache<K, Bytes>, u64)>,
        capacity: u64,
        filler: Vec<u8>,
    }

    impl<K: Key> MutexLru<K> {
        pub(super) fn make(capacity: u64, filler: Vec<u8>) -> Self {
            Self { state: Mutex::new((LruCache::unbounded(), 0)), capacity, filler }
        }
    }

    impl<K: Key> Contestant<K> for MutexLru<K> {
        fn request(&self, key: &K, value_bytes: usize) -> bool {
            let found = self.state.lock().expect("nobody panics under it").0.get(key).cloned();
            if let Some(value) = found {
                look_at(&value);
                return true;
            }
            let value = Bytes::from(&self.filler[..value_bytes]);
            if value_bytes as u64 > self.capacity {
                return false;
            }
            let mut state = self.state.lock().expect("nobody panics under it");
            let (cache, bytes) = &mut *state;
            *bytes += value_bytes as u64;
            if let Some(before) = cache.put(key.clone(), value) {
                *bytes -= before.len() as u64;
            }
            while *bytes > self.capacity {
                let (_, value) = cache.pop_lru().expect("what has bytes has entries");
                *bytes -= value.len() as u64;
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_keeps_requested_values_within_its_capacity() {
        for name in NAMES {
            let cache = make::<[u8; 8]>(name, 4 << 20, vec![7; 4096], 1000).unwrap();
            let ask = |key: u64| cache.request(&key.to_be_bytes(), 1000);
            assert!((0..500).all(|key| !ask(key)), "{name}: the cache is empty at first");
            assert!((0..500).filter(|key| ask(*key)).count() > 450, "{name}: everything fits");
            (0..100_000).for_each(|key| _ = ask(key));
            let kept = (0..100_000).rev().take(50_000).filter(|key| ask(*key)).count();
            assert!(kept < 6000, "{name} keeps {kept} of 1000 bytes in 4 MiB");
        }
        assert!(make::<[u8; 8]>("no such cache", 1 << 20, Vec::new(), 1).is_err());
    }
}
