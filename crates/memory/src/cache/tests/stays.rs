//! Eviction: entries in use stay.

use super::{budget, cache_of, value_of};
use crate::budget::chunk::CHUNK_BYTES;
use crate::budget::{Budget, Kind};
use crate::cache::{Cache, CacheOptions};

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn replacing_one_key_for_ever_keeps_everybody_else() {
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
fn a_value_that_takes_anothers_place_takes_its_standing_over_and_enters_nowhere_else() {
    let cache = cache_of(1 << 20);
    assert!(!cache.replace(b"key", &[b"value"]));
    assert_eq!(cache.get(b"key"), None);
    cache.insert(b"key", &[1; 100]);
    for _ in 0..3 {
        cache.get(b"key");
    }
    assert!(cache.replace(b"key", &[&[2; 50], &[3; 90]]));
    // As much as the probation queue ever holds passes by; accessed entries stay.
    for key in 0..if cfg!(miri) { 300 } else { 20_000u32 } {
        cache.insert(&key.to_le_bytes(), &[7; 100]);
    }
    assert_eq!(cache.get(b"key").as_deref(), Some(&[[2; 50].as_slice(), &[3; 90]].concat()[..]));
    let too_large = vec![0; 600 << 10];
    assert!(!cache.replace(b"key", &[&too_large]));
    assert_eq!(
        cache.get(b"key"),
        None,
        "what does not fit leaves nothing behind that is no longer true"
    );
    cache.check();
}

#[test]
fn a_value_is_written_over_its_predecessor_if_it_fits_and_nobody_looks() {
    let cache = cache_of(1 << 20);
    let dead = || cache.stats().dead_bytes;
    assert!(cache.insert(b"key", &[1; 100]) && cache.insert(b"key", &[2; 101]));
    assert_eq!((cache.get(b"key"), dead()), (Some(vec![2; 101]), 0));
    // A word is left of 8 + 3 + 101 bytes.
    assert!(cache.insert(b"key", &[3; 90]));
    assert_eq!((cache.get(b"key"), dead()), (Some(vec![3; 90]), 8));
    cache.check();
    let seen = cache.read(b"key", |held| {
        assert!(cache.insert(b"key", &[4; 90]));
        assert_eq!(cache.get(b"key"), Some(vec![4; 90]));
        held.to_vec()
    });
    assert_eq!((seen, dead()), (Some(vec![3; 90]), 112), "what somebody looks at stays");
    assert!(cache.insert(b"key", &[5; 120]));
    assert_eq!(
        (cache.get(b"key"), dead()),
        (Some(vec![5; 120]), 112 + 104),
        "a larger one has no room there"
    );
    assert_eq!((cache.stats().entries, cache.stats().insertions), (1, 5));
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn a_large_value_that_is_used_goes_round_and_one_that_is_not_leaves() {
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
fn a_scan_does_not_flush_what_is_in_use() {
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
fn what_left_too_early_is_known_by_its_ghost() {
    let cache = cache_of(1 << 20);
    for key in 0..1100u64 {
        cache.insert(&key.to_le_bytes(), &[1; 900]);
    }
    let gone = (0..1100u64).find(|key| cache.get(&key.to_le_bytes()).is_none()).unwrap();
    assert!(cache.stats().ghosts > 0);
    cache.insert(&gone.to_le_bytes(), &[1; 900]);
    assert_eq!(cache.stats().returns, 1);
}

/// A cache whose entries all have the maximum of touches, except for the younger half.
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
fn what_is_used_stays_when_a_cache_becomes_smaller() {
    for bytes in [2 << 20, 32 << 20] {
        let budget = budget(4 * bytes);
        let cache = half_hot(&budget, bytes);
        cache.set_memory(bytes * 2 / 5);
        cache.check();
        let kept = hot_percent(&cache, bytes);
        assert!(kept >= 95, "{kept} of a hundred hot ones");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn what_is_used_stays_when_others_need_the_memory() {
    let bytes = 32 << 20;
    let budget = budget(2 * bytes);
    let cache = half_hot(&budget, bytes);
    let held = budget.usage().of(Kind::Objects);
    let wanted = (budget.free_bytes() + held * 2 / 5) / CHUNK_BYTES as u64;
    let _others: Vec<_> = (0..wanted).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    cache.check();
    let kept = hot_percent(&cache, bytes);
    assert!(kept >= 95, "{kept} of a hundred hot ones: {:?}", cache.stats());
}
