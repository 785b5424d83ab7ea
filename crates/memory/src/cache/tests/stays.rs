//! Eviction: entries in use stay.

use super::{budget, cache_of, value_of};
use crate::budget::chunk::CHUNK_BYTES;
use crate::budget::{Budget, Kind};
use crate::cache::{Cache, CacheOptions};

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn repeated_replacement_evicts_no_other_key() {
    let cache = cache_of(1 << 20);
    for key in 0..1000u32 {
        cache.insert(&key.to_le_bytes(), &[7; 100]);
    }
    for round in 0..50_000u32 {
        cache.insert(b"again and again", &round.to_le_bytes());
    }
    cache.check();
    let found = (0..1000u32).filter(|key| cache.get(&key.to_le_bytes()).is_some()).count();
    assert_eq!((found, cache.stats().entries), (1000, 1001));
}

#[test]
fn replace_inherits_queue_and_touches() {
    let cache = cache_of(1 << 20);
    assert!(!cache.replace(b"key", &[b"value"]));
    assert_eq!(cache.get(b"key"), None);
    cache.insert(b"key", &[1; 100]);
    for _ in 0..3 {
        cache.get(b"key");
    }
    assert!(cache.replace(b"key", &[&[2; 50], &[3; 90]]));
    // Insert more than the probation queue ever holds; accessed entries stay.
    for key in 0..if cfg!(miri) { 300 } else { 20_000u32 } {
        cache.insert(&key.to_le_bytes(), &[7; 100]);
    }
    assert_eq!(cache.get(b"key").as_deref(), Some(&[[2; 50].as_slice(), &[3; 90]].concat()[..]));
    let too_large = vec![0; 600 << 10];
    assert!(!cache.replace(b"key", &[&too_large]));
    assert_eq!(cache.get(b"key"), None, "a refused value removes its stale predecessor");
    cache.check();
}

#[test]
fn insert_overwrites_in_place_when_it_fits_and_has_no_reader() {
    let cache = cache_of(1 << 20);
    let dead = || cache.stats().dead_bytes;
    assert!(cache.insert(b"key", &[1; 100]) && cache.insert(b"key", &[2; 101]));
    assert_eq!((cache.get(b"key"), dead()), (Some(vec![2; 101]), 0));
    // One of the words for 8 + 3 + 101 bytes stays unused.
    assert!(cache.insert(b"key", &[3; 90]));
    assert_eq!((cache.get(b"key"), dead()), (Some(vec![3; 90]), 8));
    cache.check();
    let seen = cache.read(b"key", |held| {
        assert!(cache.insert(b"key", &[4; 90]));
        assert_eq!(cache.get(b"key"), Some(vec![4; 90]));
        held.to_vec()
    });
    assert_eq!(
        (seen, dead()),
        (Some(vec![3; 90]), 112),
        "a value under a reader is not overwritten"
    );
    assert!(cache.insert(b"key", &[5; 120]));
    assert_eq!(
        (cache.get(b"key"), dead()),
        (Some(vec![5; 120]), 112 + 104),
        "a larger value does not fit in place"
    );
    assert_eq!((cache.stats().entries, cache.stats().insertions), (1, 5));
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn used_large_value_stays_and_unused_one_is_evicted() {
    let cache = cache_of(4 << 20);
    let large = value_of(1, 1, 900 << 10);
    cache.insert(b"used", &large);
    for key in 0..40_000u64 {
        if key % 4 == 0 {
            assert_eq!(cache.get(b"used").as_ref(), Some(&large), "after {key}");
        }
        cache.insert(&key.to_le_bytes(), &[1; 200]);
        if key == 1000 {
            cache.insert(b"unused", &large);
        }
    }
    assert_eq!(cache.get(b"unused"), None);
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn scan_does_not_evict_the_working_set() {
    let cache = cache_of(1 << 20);
    let hot = |key: u64| [b"hot".as_slice(), &key.to_le_bytes()].concat();
    for round in 0..4 {
        for key in 0..500 {
            if cache.get(&hot(key)).is_none() {
                assert_eq!(round, 0);
                cache.insert(&hot(key), &[1; 500]);
            }
        }
    }
    for key in 0..20_000u64 {
        cache.insert(&key.to_le_bytes(), &[2; 500]);
    }
    let kept = (0..500).filter(|key| cache.get(&hot(*key)).is_some()).count();
    assert!(kept > 450, "{kept} of 500");
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn ghost_brings_an_early_eviction_back_protected() {
    let cache = cache_of(1 << 20);
    for key in 0..1100u64 {
        cache.insert(&key.to_le_bytes(), &[1; 900]);
    }
    let gone = (0..1100u64).find(|key| cache.get(&key.to_le_bytes()).is_none()).unwrap();
    assert!(cache.stats().ghosts > 0);
    cache.insert(&gone.to_le_bytes(), &[1; 900]);
    assert_eq!(cache.stats().returns, 1);
}

/// A cache in which the older half of the entries has the maximum of touches.
fn half_hot(budget: &Budget, bytes: u64) -> Cache {
    let cache = Cache::new(budget, CacheOptions::of_bytes(bytes)).unwrap();
    for key in 0..bytes / 1600 {
        cache.insert(&key.to_le_bytes(), &[1; 400]);
    }
    for _ in 0..3 {
        (0..bytes / 1600).for_each(|key| _ = cache.get(&key.to_le_bytes()).unwrap());
    }
    for key in 0..bytes / 1600 {
        cache.insert(&(key | 1 << 32).to_le_bytes(), &[2; 400]);
    }
    cache
}

fn hot_percent(cache: &Cache, bytes: u64) -> u64 {
    let hot = bytes / 1600;
    (0..hot).filter(|key| cache.peek(&key.to_le_bytes(), |_| ()).is_some()).count() as u64 * 100
        / hot
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn used_entries_survive_a_lower_limit() {
    for bytes in [2 << 20, 32 << 20] {
        let budget = budget(4 * bytes);
        let cache = half_hot(&budget, bytes);
        cache.set_memory(bytes * 2 / 5);
        cache.check();
        let kept = hot_percent(&cache, bytes);
        assert!(kept >= 95, "{kept} of a hundred hot entries");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn used_entries_survive_reclaim() {
    let bytes = 32 << 20;
    let budget = budget(2 * bytes);
    let cache = half_hot(&budget, bytes);
    let held = budget.usage().of(Kind::Objects);
    let wanted = (budget.free_bytes() + held * 2 / 5) / CHUNK_BYTES as u64;
    let _others: Vec<_> = (0..wanted).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    cache.check();
    let kept = hot_percent(&cache, bytes);
    assert!(kept >= 95, "{kept} of a hundred hot entries: {:?}", cache.stats());
}
