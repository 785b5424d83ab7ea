//! Look-ups return the last inserted value, or none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::random::Random;

use super::{budget, cache_of, some_len, value_of};
use crate::budget::Kind;
use crate::budget::chunk::CHUNK_BYTES;
use crate::cache::{Cache, CacheOptions};

#[test]
fn inserted_keys_are_found_and_removed_keys_are_not() {
    let cache = cache_of(1 << 20);
    assert_eq!(cache.get(b"a"), None);
    assert!(cache.insert(b"a", b"1"));
    assert!(cache.insert(b"b", b""));
    assert_eq!(cache.get(b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(cache.get(b"b").as_deref(), Some(&b""[..]));
    assert!(cache.insert(b"a", b"2"));
    assert_eq!(cache.get(b"a").as_deref(), Some(&b"2"[..]));
    assert!(cache.remove(b"a"));
    assert!(!cache.remove(b"a"));
    assert_eq!(cache.get(b"a"), None);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.hits, stats.misses), (1, 3, 2));
    cache.check();
}

/// One random run: every answer equals the map's or is none, and all counters are correct.
fn compare_with_a_map(seed: u64) {
    let mut random = Random::new(seed);
    let bytes = (128 * 1024) << random.below(3);
    let budget = budget(8 << 20);
    let mut options = CacheOptions::of_bytes(bytes);
    options.largest_part = 0.5;
    let cache = Cache::new(&budget, options).unwrap();
    let mut map: HashMap<u64, Vec<u8>> = HashMap::new();
    let keys = 1 + random.below(4000);
    let skewed = random.chance(0.5);
    for step in 0..if cfg!(miri) { 50 } else { 6000 } {
        let among = if skewed { 1 + random.below(keys) } else { keys };
        let key = random.below(among);
        let name = format!("key {key}");
        match random.below(1000) {
            0..500 => {
                if let Some(found) = cache.get(name.as_bytes()) {
                    assert_eq!(Some(&found), map.get(&key), "seed {seed}, step {step}, {name}");
                }
            }
            500..900 => {
                let value = value_of(key, step, some_len(&mut random));
                cache.insert(name.as_bytes(), &value);
                map.insert(key, value);
            }
            900..990 => {
                cache.remove(name.as_bytes());
                map.remove(&key);
            }
            990..998 => cache.check(),
            _ => cache.clear(),
        }
        let stats = cache.stats();
        assert!(stats.memory_bytes <= bytes, "seed {seed}: {stats:?}");
    }
    cache.check();
    let held = budget.usage().of(Kind::Objects);
    assert!(cache.stats().memory_bytes <= held.next_multiple_of(CHUNK_BYTES as u64), "seed {seed}");
    drop(cache);
    assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}: all memory is given back");
}

#[test]
fn random_operations_agree_with_a_map() {
    (0..if cfg!(miri) { 1 } else { 16 }).for_each(compare_with_a_map);
}

#[test]
fn insert_if_joins_parts_and_requires_currency() {
    let cache = cache_of(1 << 20);
    assert!(cache.is_empty());
    assert!(!cache.insert_if(b"key", &[b"no"], || false));
    assert!(cache.insert_if(b"key", &[b"12345678", b"", b"rest"], || true));
    assert_eq!(cache.get(b"key").as_deref(), Some(&b"12345678rest"[..]));
    assert!(!cache.insert_if(b"key", &[b"no"], || false) && !cache.is_empty());
    assert_eq!(
        cache.get(b"key").as_deref(),
        Some(&b"12345678rest"[..]),
        "a refusal changes nothing"
    );
    cache.check();
}

#[test]
fn value_larger_than_a_chunk_is_found_whole() {
    // Larger than a segment of the smaller cache, and larger than a chunk.
    let bytes: u64 = if cfg!(miri) { 256 << 10 } else { 8 << 20 };
    let cache = cache_of(bytes);
    let large = value_of(1, 1, bytes as usize / 8);
    assert!(cache.insert(b"large", &large));
    for key in 0..bytes as u32 / 40_000 {
        cache.insert(&key.to_le_bytes(), &[0; 1000]);
    }
    assert_eq!(cache.get(b"large"), Some(large.clone()));
    let pieces = cache.read(b"large", |value| value.pieces().count()).unwrap();
    assert!(cfg!(miri) && pieces > 8 || pieces > 16);
    assert!(!cache.insert(b"too large", &vec![0; bytes as usize / 8 * 3]));
    cache.check();
}

#[test]
fn rejected_read_counts_as_miss_and_peek_counts_as_nothing() {
    let cache = cache_of(1 << 20);
    cache.insert(b"key", b"value");
    assert_eq!(cache.read_if(b"key", |_| None::<()>), None);
    assert_eq!(cache.peek(b"key", |value| value.len()), Some(5));
    assert_eq!(cache.peek(b"no key", |value| value.len()), None);
    assert_eq!(cache.read_if(b"key", |value| Some(value.len())), Some(5));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (1, 1));
}

#[test]
fn expired_entry_is_not_found() {
    let clock = Arc::new(ManualClock::new(0));
    let mut options = CacheOptions::of_bytes(1 << 20);
    options.clock = clock.clone();
    let cache = Cache::new(&budget(4 << 20), options).unwrap();
    cache.insert_for(b"short", b"1", Duration::from_secs(1));
    cache.insert_for(b"long", b"2", Duration::from_secs(100));
    cache.insert(b"for ever", b"3");
    clock.advance(Duration::from_millis(999));
    assert!(cache.get(b"short").is_some());
    clock.advance(Duration::from_millis(1));
    assert!(cache.get(b"short").is_none() && !cache.remove(b"short"));
    assert!(cache.get(b"long").is_some());
    clock.advance(Duration::from_secs(1000));
    assert!(cache.get(b"long").is_none() && cache.get(b"for ever").is_some());
    cache.check();
}
