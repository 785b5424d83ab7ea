//! The cache against a plain map, its counts against a recount, and its readers against its writer.
#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::random::Random;

use super::{Cache, CacheOptions, Counting, Eviction, MIN_CACHE_BYTES, slot};
use crate::budget::{Backing, Budget, Kind};
use crate::chunk::CHUNK_BYTES;

fn budget(bytes: u64) -> Budget {
    Budget::new(bytes, Backing::Heap).unwrap()
}

fn cache_of(bytes: u64) -> Cache {
    Cache::new(&budget(4 * bytes), CacheOptions::of_bytes(bytes)).unwrap()
}

/// A value that says whose it is and which.
fn value_of(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new((key << 32) | version);
    let mut value = Vec::with_capacity(len + 16);
    value.extend_from_slice(&key.to_le_bytes());
    value.extend_from_slice(&version.to_le_bytes());
    while value.len() < len {
        value.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    value
}

/// Sizes from nothing to several segments, mostly small.
fn some_len(random: &mut Random) -> usize {
    match random.below(100) {
        0..80 => random.below(200) as usize,
        80..98 => random.below(3000) as usize,
        _ => random.below(40_000) as usize,
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn of_large_entries_all_ghosts_that_count_have_room_and_of_small_ones_entries_come_first() {
    let ghosts_for_an_entry = |value_bytes: usize| {
        let cache = cache_of(3 << 20);
        let many = 4 * (3 << 20) / value_bytes as u32;
        (0..many).for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &vec![1; value_bytes])));
        cache.check();
        let stats = cache.stats();
        stats.ghosts as f64 / stats.entries as f64
    };
    // At least as many as leave while a cache and a third passes.
    let of_large = ghosts_for_an_entry(4096);
    assert!((1.2..2.0).contains(&of_large), "{of_large}");
    let of_small = ghosts_for_an_entry(64);
    assert!(of_small < 0.9, "{of_small}");
}

#[test]
fn what_was_entered_is_found_and_what_was_removed_is_not() {
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

/// One random run: every answer is the map's or none, and every count holds.
fn compare_with_a_map(seed: u64, eviction: Eviction, counting: Counting) {
    let mut random = Random::new(seed);
    let bytes = (128 * 1024) << random.below(3);
    let budget = budget(8 << 20);
    let mut options = CacheOptions::of_bytes(bytes);
    options.eviction = eviction;
    options.counting = counting;
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
        if counting == Counting::Everything {
            assert!(stats.memory_bytes <= bytes, "seed {seed}: {stats:?}");
        }
    }
    cache.check();
    let held = budget.usage().of(Kind::Objects);
    assert!(cache.stats().memory_bytes <= held.next_multiple_of(CHUNK_BYTES as u64), "seed {seed}");
    drop(cache);
    assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}: everything is given back");
}

#[test]
fn every_policy_agrees_with_a_map() {
    for eviction in Eviction::ALL {
        for seed in 0..if cfg!(miri) { 1 } else { 8 } {
            compare_with_a_map(seed, eviction, Counting::Everything);
        }
        compare_with_a_map(100, eviction, Counting::Values);
    }
}

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

/// What is left of a cache after four times as many entries as it holds have passed through it, one in three of them to replace another if any
/// `replace`: entries, bytes of their keys and values, and bytes that the budget has counted out for them.
fn churned(bytes: u64, replace: bool, mut some_len: impl FnMut(&mut Random) -> usize) -> (Cache, [u64; 3]) {
    let budget = budget(4 * bytes);
    let cache = Cache::new(&budget, CacheOptions::of_bytes(bytes)).unwrap();
    let mut random = Random::new(5);
    let name = |key: u64| [key.wrapping_mul(0x9e37_79b9_7f4a_7c15), key].map(u64::to_le_bytes).concat();
    let mean = (0..1000).map(|_| some_len(&mut random)).sum::<usize>() as u64 / 1000 + 16;
    let keys = bytes / mean * 4;
    for key in 0..keys {
        let among = if replace && key % 3 == 0 { key / 2 } else { key };
        let len = some_len(&mut random);
        cache.insert(&name(among), &vec![1; len]);
        // Some are read, so that some move on.
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

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn after_churn_a_small_entry_costs_forty_bytes_beside_key_and_value_with_everything_counted() {
    // Half of them have less than 100 bytes, half of them more.
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
            "{overhead} bytes beside {} of an entry: {stats:?}",
            of_entries / entries
        );
        // All that is not the index: entries, what is left of dead ones, segments that are not full, room to move.
        let queues = charged - stats.index_bytes - stats.table_bytes;
        assert!(stats.live_bytes * 100 >= queues * 90, "{stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn after_churn_nine_tenths_of_the_memory_are_entries() {
    for bytes in [1 << 20, 16 << 20] {
        let (cache, [_, _, charged]) = churned(bytes, true, |random| 80 + random.below(900) as usize);
        let stats = cache.stats();
        assert!(charged <= bytes && stats.live_bytes * 100 >= charged * 90, "{charged}: {stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn after_churn_nine_tenths_of_the_memory_are_entries_also_where_values_have_a_hundred_bytes() {
    // What was replaced is dead until it is a 32nd of the cache: that comes on top.
    for (bytes, replace, percent) in [(4 << 20, false, 90), (48 << 20, false, 91), (16 << 20, true, 87)] {
        let (cache, [entries, of_entries, charged]) = churned(bytes, replace, |_| 100);
        let stats = cache.stats();
        assert_eq!(of_entries, entries * 116);
        assert!(charged <= bytes && stats.live_bytes * 100 >= charged * percent, "{charged}: {stats:?}");
    }
}

#[test]
fn a_value_in_parts_is_one_value_and_enters_only_while_it_is_current() {
    let cache = cache_of(1 << 20);
    assert!(cache.is_empty());
    assert!(!cache.insert_if(b"key", &[b"no"], || false));
    assert!(cache.insert_if(b"key", &[b"12345678", b"", b"rest"], || true));
    assert_eq!(cache.get(b"key").as_deref(), Some(&b"12345678rest"[..]));
    assert!(!cache.insert_if(b"key", &[b"no"], || false) && !cache.is_empty());
    assert_eq!(cache.get(b"key").as_deref(), Some(&b"12345678rest"[..]), "a refusal changes nothing");
    cache.check();
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
    // As much as the small queue ever holds passes by; what was touched stays.
    for key in 0..if cfg!(miri) { 300 } else { 20_000u32 } {
        cache.insert(&key.to_le_bytes(), &[7; 100]);
    }
    assert_eq!(cache.get(b"key").as_deref(), Some(&[[2; 50].as_slice(), &[3; 90]].concat()[..]));
    let too_large = vec![0; 600 << 10];
    assert!(!cache.replace(b"key", &[&too_large]));
    assert_eq!(cache.get(b"key"), None, "what does not fit leaves nothing behind that is no longer true");
    cache.check();
}

#[test]
fn a_value_larger_than_a_chunk_is_kept_and_found_whole() {
    // Larger than a segment of the smaller cache, and than a chunk.
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

/// A thread that reads within a read has a line for each, and there are 64.
#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn one_thread_may_read_within_a_read_as_deep_as_it_likes_and_enter_what_it_found() {
    fn read_within(cache: &Cache, depth: u32) -> u32 {
        if depth == 0 {
            return 0;
        }
        let seen = cache.read(&depth.to_le_bytes(), |value| {
            assert_eq!(value.to_vec(), vec![depth as u8; depth as usize * 100]);
            assert_eq!(value.pieces().map(<[u8]>::len).sum::<usize>(), value.len());
            assert!(cache.insert(b"entered on the way", &depth.to_le_bytes()));
            read_within(cache, depth - 1)
        });
        seen.expect("it was entered") + 1
    }
    let cache = cache_of(4 << 20);
    for depth in 1..=150u32 {
        cache.insert(&depth.to_le_bytes(), &vec![depth as u8; depth as usize * 100]);
    }
    assert_eq!(read_within(&cache, 150), 150);
    assert_eq!(cache.stats().hits, 150);
    cache.check();
}

#[test]
fn what_was_loaded_for_a_time_is_loaded_again_after_it() {
    let clock = Arc::new(ManualClock::new(0));
    let mut options = CacheOptions::of_bytes(1 << 20);
    options.clock = clock.clone();
    let cache = Cache::new(&budget(4 << 20), options).unwrap();
    let load = |value: &'static [u8]| move || Ok::<_, std::io::Error>(value.to_vec());
    let second = Duration::from_secs(1);
    assert_eq!(cache.get_or_load_for(b"key", second, load(b"1")).unwrap(), b"1");
    assert_eq!(cache.get_or_load_for(b"key", second, load(b"2")).unwrap(), b"1");
    clock.advance(second);
    assert_eq!(cache.get_or_load_for(b"key", second, load(b"3")).unwrap(), b"3");
    cache.check();
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

#[test]
fn an_entry_is_not_found_once_its_time_has_passed() {
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

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn a_smaller_number_gives_memory_back_and_the_budget_can_ask_for_all_of_it() {
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

/// A cache whose entries were all touched up to now as often as is counted, but for the younger half.
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
    (0..hot).filter(|key| cache.peek(&key.to_le_bytes(), |_| ()).is_some()).count() as u64 * 100 / hot
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

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn a_step_to_a_smaller_number_displaces_little() {
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
        // 256 KiB, and the segments that are in work.
        assert!((entries - stats.entries) * 416 <= (256 << 10) + 4 * CHUNK_BYTES as u64, "{entries}, {stats:?}");
        steps += 1;
        if is_there {
            break;
        }
    }
    assert!(steps >= 60 && cache.stats().limit_bytes <= 16 << 20, "{steps} steps from {before:?}");
    cache.check();
    assert!(cache.approach_memory(32 << 20).1, "larger at once");
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn a_cache_is_made_or_refused_while_others_take_what_is_free() {
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
fn what_was_looked_at_in_vain_is_a_miss_and_a_peek_is_nothing() {
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
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn the_index_becomes_smaller_with_the_cache_and_grows_again() {
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
        assert!(stats.memory_bytes <= number && budget.usage().of(Kind::Objects) <= number, "{number}, {stats:?}");
        assert!(stats.index_bytes <= before.index_bytes * stats.entries / before.entries * 2 + 65_536, "{stats:?}");
        let kept = (0..keys).filter(|key| cache.peek(&key.to_le_bytes(), |_| ()).is_some()).count();
        assert_eq!(kept as u64, stats.entries, "what is there is found");
    }
    let least = cache.set_memory(MIN_CACHE_BYTES);
    // Twelve segments, and the pages for as many of these entries as they hold.
    assert!(least <= cache.stats().table_bytes + 24 * CHUNK_BYTES as u64, "{least}, {:?}", cache.stats());
    for key in 0..1000u64 {
        assert!(cache.insert(&key.to_le_bytes(), b"again"));
        assert_eq!(cache.get(&key.to_le_bytes()).as_deref(), Some(&b"again"[..]));
    }
    cache.check();
    // And up again.
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
fn entries_that_become_larger_leave_the_index_smaller() {
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
fn what_is_there_is_found_also_while_the_index_becomes_smaller() {
    let bytes = if cfg!(miri) { 1 << 20 } else { 16 << 20 };
    let cache = cache_of(bytes);
    let (kept, passing) = if cfg!(miri) { (20, 500) } else { (1000, 300_000) };
    let name = |key: u64| [key.wrapping_mul(0x9e37_79b9_7f4a_7c15), key].map(u64::to_le_bytes).concat();
    for key in 0..kept {
        cache.insert(&name(key), &[1; 40]);
        (0..3).for_each(|_| _ = cache.get(&name(key)));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while !done.load(Ordering::Relaxed) {
                    let key = random.below(kept);
                    assert!(cache.peek(&name(key), |value| assert_eq!(value.to_vec(), [1; 40])).is_some(), "key {key}");
                }
            });
        }
        let mut most = 0;
        for round in 0..3 {
            (kept..kept + passing).for_each(|key| _ = cache.insert(&name(key), b""));
            most = most.max(cache.stats().index_bytes);
            (kept..kept + passing).for_each(|key| _ = cache.remove(&name(key)));
            cache.approach_memory(bytes - round);
            while !cache.approach_memory(bytes - round).1 {}
            assert!(cfg!(miri) || cache.stats().index_bytes * 4 < most, "{most}, {:?}", cache.stats());
        }
        done.store(true, Ordering::Relaxed);
    });
    cache.check();
}

#[test]
fn eight_threads_never_exceed_the_number_and_never_see_a_wrong_value() {
    let cache = cache_of(if cfg!(miri) { 64 << 10 } else { 1 << 20 });
    let stop = AtomicBool::new(false);
    let threads = if cfg!(miri) { 3 } else { 8 };
    let rounds = if cfg!(miri) { 15 } else { 40_000 };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for version in 0..rounds {
                        let among = 1 + random.below(6000);
                        let key = random.below(among);
                        let name = key.to_le_bytes();
                        if let Some(found) = cache.get(&name) {
                            let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                            assert!(found == value_of(key, version, found.len()), "key {key}, version {version}");
                        } else {
                            cache.insert(&name, &value_of(key, version, some_len(&mut random)));
                        }
                        if version % 17 == 0 {
                            cache.remove(&random.below(6000).to_le_bytes());
                        }
                    }
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let stats = cache.stats();
                assert!(stats.memory_bytes <= 1 << 20, "{stats:?}");
                std::thread::yield_now();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    cache.check();
}

#[test]
fn what_is_there_is_found_also_while_the_index_grows() {
    let cache = cache_of(if cfg!(miri) { 1 << 20 } else { 16 << 20 });
    let keys = if cfg!(miri) { 600 } else { 80_000 };
    let entered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (cache, entered) = (&cache, &entered);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                loop {
                    // Acquire: pairs with the writer's Release.
                    let below = entered.load(Ordering::Acquire);
                    let key = random.below(below.max(1));
                    assert!(below == 0 || cache.get(&key.to_le_bytes()).is_some(), "key {key} of {below}");
                    if below == keys {
                        return;
                    }
                }
            });
        }
        for key in 0..keys {
            assert!(cache.insert(&key.to_le_bytes(), &[1; 40]));
            entered.store(key + 1, Ordering::Release);
        }
    });
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.evictions), (keys, 0));
    assert!(cfg!(miri) || stats.index_bytes > 10 * CHUNK_BYTES as u64, "it grew: {stats:?}");
    cache.check();
}

#[test]
fn a_reader_that_stalls_holds_back_its_own_segments_only() {
    let cache = cache_of(128 << 10);
    cache.insert(b"held", &value_of(1, 1, 10_000));
    let seen = cache.read(b"held", |held| {
        let (keys, len) = if cfg!(miri) { (100, 2000) } else { (2_000u64, 200) };
        for key in 0..keys {
            assert!(cache.insert(&key.to_le_bytes(), &vec![1; len]));
        }
        assert_eq!(cache.get(b"held"), None, "it was evicted");
        held.to_vec()
    });
    assert_eq!(seen, Some(value_of(1, 1, 10_000)));
    cache.check();
}

#[test]
fn a_reader_that_stalls_while_it_searches_holds_back_next_to_nothing() {
    let sizes: &[u64] = if cfg!(miri) { &[128 << 10] } else { &[128 << 10, 4 << 20] };
    let (passing, len) = if cfg!(miri) { (90, 2000) } else { (60_000, 200) };
    for &bytes in sizes {
        let cache = cache_of(bytes);
        let shared = &cache.inner.shared;
        cache.insert(b"searched", &value_of(1, 1, 10_000));
        let searching = shared.readers.begin(3, slot::tag(shared.hash(b"searched"))).unwrap();
        let churn = |keys: std::ops::Range<u64>| {
            keys.for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &vec![1; len])));
            cache.stats().entries
        };
        let kept = churn(0..passing);
        assert_eq!(cache.get(b"searched"), None, "it was evicted");
        // What it looked for lies where it lay, as long as it might look there.
        cache.check();
        drop(searching);
        let then = churn(passing..2 * passing);
        assert!(kept * 100 >= then * if cfg!(miri) { 75 } else { 85 }, "{kept} of {then} entries in {bytes} bytes");
        cache.clear();
        cache.check();
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn what_a_stalled_searcher_looks_for_is_not_written_over_when_all_is_dropped() {
    let cache = cache_of(4 << 20);
    let shared = &cache.inner.shared;
    (0..10_000u64).for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &[1; 200])));
    let searching = shared.readers.begin(3, slot::tag(shared.hash(&7u64.to_le_bytes()))).unwrap();
    let before = cache.stats().memory_bytes;
    cache.clear();
    cache.check();
    let held = cache.stats();
    drop(searching);
    cache.check();
    let after = cache.stats();
    assert!(held.memory_bytes > after.memory_bytes, "nothing was held: {held:?}");
    assert!((held.memory_bytes - after.memory_bytes) * 4 < before, "{held:?}, {before} before, {after:?}");
}

#[test]
fn one_loads_and_the_others_wait_for_it() {
    let cache = cache_of(1 << 20);
    let loads = AtomicU64::new(0);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let loaded = cache.get_or_load(b"key", || {
                    loads.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    Ok::<_, io::Error>(b"value".to_vec())
                });
                assert_eq!(loaded.unwrap(), b"value");
            });
        }
    });
    assert_eq!(loads.into_inner(), 1);
}

#[test]
fn an_error_reaches_all_who_wait_and_the_next_loads_again() {
    let cache = cache_of(1 << 20);
    let (inside, asked) = (Barrier::new(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let failed = cache.get_or_load(b"key", || {
                inside.wait();
                while asked.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                Err(io::Error::other("no such thing"))
            });
            assert!(failed.unwrap_err().to_string().contains("no such thing"));
        });
        inside.wait();
        let waiter = scope.spawn(|| {
            asked.store(1, Ordering::Relaxed);
            cache.get_or_load(b"key", || Err(io::Error::other("no such thing")))
        });
        assert!(waiter.join().unwrap().unwrap_err().cause().to_string().contains("no such thing"));
    });
    assert_eq!(cache.get_or_load(b"key", || Ok::<_, io::Error>(b"1".to_vec())).unwrap(), b"1");
}

#[test]
fn a_key_that_changes_while_it_is_loaded_is_not_cached_as_it_was() {
    let cache = cache_of(1 << 20);
    let loaded = cache.get_or_load(b"key", || {
        cache.remove(b"key");
        Ok::<_, io::Error>(b"old".to_vec())
    });
    assert_eq!(loaded.unwrap(), b"old");
    assert_eq!(cache.get(b"key"), None);
    let loaded = cache.get_or_load(b"key", || {
        cache.insert(b"key", b"new");
        Ok::<_, io::Error>(b"old".to_vec())
    });
    assert_eq!(loaded.unwrap(), b"old");
    assert_eq!(cache.get(b"key").as_deref(), Some(&b"new"[..]));
}

#[test]
fn who_asks_after_a_change_does_not_get_what_was_loaded_before_it() {
    let cache = cache_of(1 << 20);
    let loaded = cache.get_or_load(b"key", || {
        cache.remove(b"key");
        let later = cache.get_or_load(b"key", || Ok::<_, io::Error>(b"new".to_vec()));
        assert_eq!(later.unwrap(), b"new");
        Ok::<_, io::Error>(b"old".to_vec())
    });
    assert_eq!(loaded.unwrap(), b"old");
    assert_eq!(cache.get(b"key").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_load_that_panics_lets_the_next_one_load() {
    let cache = cache_of(1 << 20);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = cache.get_or_load(b"key", || -> Result<Vec<u8>, io::Error> { panic!("on purpose") });
    }));
    assert!(panicked.is_err());
    assert_eq!(cache.get_or_load(b"key", || Ok::<_, io::Error>(b"1".to_vec())).unwrap(), b"1");
}
