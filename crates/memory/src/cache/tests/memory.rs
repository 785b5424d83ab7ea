//! Memory that the cache takes and returns, and the fraction that entries fill.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::random::Random;

use super::{budget, cache_of};
use crate::budget::Kind;
use crate::budget::chunk::CHUNK_BYTES;
use crate::cache::{Cache, CacheOptions, MIN_CACHE_BYTES};

/// Fills a cache with four times as many entries as it holds; if `replace`, one in three of them
/// replaces another. Returns the number of entries, the bytes of their keys and values, and the
/// bytes that the budget has charged for them.
fn churned(
    bytes: u64,
    replace: bool,
    mut some_len: impl FnMut(&mut Random) -> usize,
) -> (Cache, [u64; 3]) {
    let budget = budget(4 * bytes);
    let cache = Cache::new(&budget, CacheOptions::of_bytes(bytes)).unwrap();
    let mut random = Random::new(5);
    let name =
        |key: u64| [key.wrapping_mul(0x9e37_79b9_7f4a_7c15), key].map(u64::to_le_bytes).concat();
    let mean = (0..1000).map(|_| some_len(&mut random)).sum::<usize>() as u64 / 1000 + 16;
    let keys = bytes / mean * 4;
    for key in 0..keys {
        let among = if replace && key % 3 == 0 { key / 2 } else { key };
        let len = some_len(&mut random);
        cache.insert(&name(among), &vec![1; len]);
        // Read some entries, so that they are promoted.
        cache.get(&name(random.below(key + 1)));
    }
    let (mut entries, mut bytes) = (0, 0);
    for key in 0..keys {
        let found = cache.peek(&name(key), |value| 16 + value.len() as u64);
        entries += u64::from(found.is_some());
        bytes += found.unwrap_or(0);
    }
    cache.check();
    (cache, [entries, bytes, budget.usage().of(Kind::Objects)])
}

/// Regression: the head of an entry, including its key, is in one segment. With keys of 4 KiB, the
/// unused ends of segments exceed the threshold of cleaning. Cleaning only recreated them, and so
/// never ended.
#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn cache_of_long_keys_makes_room() {
    // Segments of 4, 16 and 64 KiB; a head is a quarter of one at most.
    for (bytes, key_bytes) in [
        (1 << 20, [400, 700, 850, 1000]),
        (4 << 20, [2100, 2700, 3000, 4000]),
        (16 << 20, [4000, 5600, 7000, 12_000]),
    ] {
        for key_bytes in key_bytes {
            let cache = cache_of(bytes);
            let name = |number: u64| [&number.to_le_bytes()[..], &vec![7; key_bytes]].concat();
            let mut random = Random::new(9);
            let keys = bytes / key_bytes as u64 * 4;
            for number in 0..keys {
                assert!(cache.insert(&name(number), &[1; 8]), "{key_bytes} in {bytes}");
                cache.get(&name(random.below(number + 1)));
                if number % 5 == 0 {
                    cache.insert(&name(number / 2), &[2; 100]);
                }
            }
            cache.check();
            let stats = cache.stats();
            assert!(
                stats.live_bytes * 100 >= stats.memory_bytes * 75,
                "{key_bytes} in {bytes}: {stats:?}"
            );
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn overhead_of_a_small_entry_after_churn_is_forty_bytes() {
    // Half of the entries have less than 100 bytes, half have more.
    let some_len = |random: &mut Random| match random.chance(0.5) {
        true => 9 + random.below(75) as usize,
        false => 84 + random.below(220) as usize,
    };
    for bytes in [1 << 20, 16 << 20, 48 << 20] {
        let (cache, [entries, of_entries, charged]) = churned(bytes, true, some_len);
        let stats = cache.stats();
        let overhead = (charged - of_entries) as f64 / entries as f64;
        assert!(
            charged <= bytes && overhead <= 40.0,
            "{overhead} bytes in addition to {} of an entry: {stats:?}",
            of_entries / entries
        );
        // All memory outside the index: entries, dead bytes, partly filled segments, room to move.
        let queues = charged - stats.index_bytes - stats.table_bytes;
        assert!(stats.live_bytes * 100 >= queues * 90, "{stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn entries_fill_nine_tenths_of_memory_after_churn() {
    for bytes in [1 << 20, 16 << 20] {
        let (cache, [_, _, charged]) =
            churned(bytes, true, |random| 80 + random.below(900) as usize);
        let stats = cache.stats();
        assert!(charged <= bytes && stats.live_bytes * 100 >= charged * 90, "{charged}: {stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn entries_of_100_bytes_fill_nine_tenths_of_memory_after_churn() {
    // The readers' lines and the fingerprints of passed entries take half a percent in 1 MiB.
    for (bytes, percent) in [(1 << 20, 88), (4 << 20, 89), (16 << 20, 90), (48 << 20, 91)] {
        for replace in [false, true] {
            let (cache, [entries, of_entries, charged]) = churned(bytes, replace, |_| 100);
            let stats = cache.stats();
            assert!(
                of_entries == entries * 116 && stats.refusals * 10_000 <= stats.insertions,
                "{stats:?}"
            );
            assert!(
                charged <= bytes && stats.live_bytes * 100 >= charged * percent,
                "{replace}, {charged}: {stats:?}"
            );
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn lower_limit_and_reclaim_release_memory() {
    let budget = budget(16 << 20);
    let cache = Cache::new(&budget, CacheOptions::of_bytes(8 << 20)).unwrap();
    for key in 0..20_000u64 {
        cache.insert(&key.to_le_bytes(), &[1; 500]);
    }
    let full = budget.usage().of(Kind::Objects);
    cache.set_memory(2 << 20);
    cache.check();
    assert!(cache.stats().memory_bytes <= 2 << 20);
    assert!(budget.usage().of(Kind::Objects) < full - (5 << 20));
    assert!(cache.stats().entries > 2000);
    let others: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
    assert!(others.len() * CHUNK_BYTES > 15 << 20, "{} chunks", others.len());
    cache.check();
    cache.insert(b"no room, or hardly any", &[0; 1000]);
    cache.check();
    drop(others);
    assert!(cache.insert(b"room", &[0; 1000]));
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn one_step_to_a_lower_limit_evicts_little() {
    let budget = budget(64 << 20);
    let cache = Cache::new(&budget, CacheOptions::of_bytes(32 << 20)).unwrap();
    for key in 0..100_000u64 {
        cache.insert(&key.to_le_bytes(), &[1; 400]);
    }
    let (before, mut steps) = (cache.stats(), 0);
    loop {
        let entries = cache.stats().entries;
        let (limit, is_there) = cache.approach_memory(16 << 20);
        let stats = cache.stats();
        assert_eq!((limit, stats.memory_bytes <= limit), (stats.limit_bytes, true));
        // A step evicts at most 256 KiB, and the segments being written.
        assert!(
            (entries - stats.entries) * 416 <= (256 << 10) + 4 * CHUNK_BYTES as u64,
            "{entries}, {stats:?}"
        );
        steps += 1;
        if is_there {
            break;
        }
    }
    assert!(steps >= 60 && cache.stats().limit_bytes <= 16 << 20, "{steps} steps from {before:?}");
    cache.check();
    assert!(cache.approach_memory(32 << 20).1, "the limit grows at once");
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn cache_is_created_or_refused_under_concurrent_takes() {
    let budget = budget(2 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect::<Vec<_>>());
            }
        });
        let (mut made, mut refused) = (0, 0);
        while (made < 100 || refused < 100) && made + refused < 20_000 {
            match Cache::new(&budget, CacheOptions::of_bytes(MIN_CACHE_BYTES)) {
                Ok(cache) => made += u32::from(cache.is_empty()),
                Err(refusal) => refused += u32::from(refusal.needed_bytes > 0),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(made + refused > 0);
    });
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn index_shrinks_with_the_cache_and_grows_again() {
    let budget = budget(64 << 20);
    let cache = Cache::new(&budget, CacheOptions::of_bytes(32 << 20)).unwrap();
    let keys = if cfg!(miri) { 20_000 } else { 1_200_000 };
    for key in 0..keys {
        cache.insert(&u64::to_le_bytes(key), b"");
    }
    let before = cache.stats();
    for number in [before.memory_bytes / 2, before.memory_bytes / 8] {
        cache.set_memory(number);
        let stats = cache.stats();
        cache.check();
        assert!(
            stats.memory_bytes <= number && budget.usage().of(Kind::Objects) <= number,
            "{number}, {stats:?}"
        );
        assert!(
            stats.index_bytes <= before.index_bytes * stats.entries / before.entries * 2 + 65_536,
            "{stats:?}"
        );
        let kept = (0..keys).filter(|key| cache.peek(&key.to_le_bytes(), |_| ()).is_some()).count();
        assert_eq!(kept as u64, stats.entries, "every counted entry is found");
    }
    let least = cache.set_memory(MIN_CACHE_BYTES);
    // Twelve segments, and the pages for as many of these entries as they hold.
    assert!(
        least <= cache.stats().table_bytes + 24 * CHUNK_BYTES as u64,
        "{least}, {:?}",
        cache.stats()
    );
    for key in 0..1000u64 {
        assert!(cache.insert(&key.to_le_bytes(), b"again"));
        assert_eq!(cache.get(&key.to_le_bytes()).as_deref(), Some(&b"again"[..]));
    }
    cache.check();
    // Grow again.
    assert_eq!(cache.set_memory(32 << 20).div_ceil(1 << 20), 32);
    for key in 0..keys {
        cache.insert(&u64::to_le_bytes(key), b"");
    }
    assert!(cache.insert(b"large", &[7; 1 << 20]));
    assert!(cache.stats().entries > before.entries / 10 * 8, "{:?}", cache.stats());
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn larger_entries_shrink_the_index() {
    let cache = cache_of(16 << 20);
    for key in 0..400_000u64 {
        cache.insert(&key.to_le_bytes(), b"");
    }
    let before = cache.stats();
    for key in 0..100_000u64 {
        cache.insert(&key.to_le_bytes(), &[1; 1000]);
    }
    let after = cache.stats();
    assert!(after.index_bytes * 4 < before.index_bytes, "{before:?}, {after:?}");
    assert!(after.live_bytes * 100 >= after.memory_bytes * 90, "{after:?}");
    cache.check();
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn ghosts_of_large_entries_fit_and_small_entries_take_precedence() {
    let ghosts_for_an_entry = |value_bytes: usize| {
        let cache = cache_of(3 << 20);
        let many = 4 * (3 << 20) / value_bytes as u32;
        (0..many).for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &vec![1; value_bytes])));
        cache.check();
        let stats = cache.stats();
        stats.ghosts as f64 / stats.entries as f64
    };
    // At least as many ghosts as evictions while 4/3 of the cache's size pass.
    let of_large = ghosts_for_an_entry(4096);
    assert!((1.2..2.0).contains(&of_large), "{of_large}");
    let of_small = ghosts_for_an_entry(64);
    assert!(of_small < 0.9, "{of_small}");
}
