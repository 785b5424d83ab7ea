//! Concurrent readers, with and without a writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_disk::random::Random;

use super::{cache_of, some_len, value_of};
use crate::budget::chunk::CHUNK_BYTES;
use crate::cache::{Cache, slot};

/// Each nested read claims its own reader line, and there are 64.
#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn nested_reads_and_inserts_do_not_deadlock() {
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
        seen.expect("the entry exists") + 1
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
fn eight_threads_respect_the_limit_and_read_correct_values() {
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
                            assert!(
                                found == value_of(key, version, found.len()),
                                "key {key}, version {version}"
                            );
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
fn concurrent_overwrite_is_never_seen_half_done() {
    let cache = cache_of(1 << 20);
    // Insertions of a key may be refused while a stalled reader searches for that key.
    let write = |round: u32| cache.insert(&(round % 4).to_le_bytes(), &[(round / 4) as u8; 300]);
    (0..4).for_each(|key| assert!(write(key)));
    let rounds = if cfg!(miri) { 40 } else { 100_000 };
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for key in 0..4u32 {
                        let seen = cache.get(&key.to_le_bytes()).unwrap_or_default();
                        assert!(seen.windows(2).all(|two| two[0] == two[1]), "{seen:?}");
                    }
                }
            });
        }
        let written = (4..rounds).filter(|round| write(*round)).count();
        done.store(true, Ordering::Relaxed);
        written
    });
    assert!(written > 0);
    for key in 0..4u32 {
        assert!(write(key) && cache.get(&key.to_le_bytes()) == Some(vec![0; 300]));
    }
    cache.check();
}

#[test]
fn lookups_succeed_while_the_index_grows() {
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
                    assert!(
                        below == 0 || cache.get(&key.to_le_bytes()).is_some(),
                        "key {key} of {below}"
                    );
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
fn lookups_succeed_while_the_index_shrinks() {
    let bytes = if cfg!(miri) { 1 << 20 } else { 16 << 20 };
    let cache = cache_of(bytes);
    let (kept, passing) = if cfg!(miri) { (20, 500) } else { (1000, 300_000) };
    let name =
        |key: u64| [key.wrapping_mul(0x9e37_79b9_7f4a_7c15), key].map(u64::to_le_bytes).concat();
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
                    assert!(
                        cache
                            .peek(&name(key), |value| assert_eq!(value.to_vec(), [1; 40]))
                            .is_some(),
                        "key {key}"
                    );
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
            assert!(
                cfg!(miri) || cache.stats().index_bytes * 4 < most,
                "{most}, {:?}",
                cache.stats()
            );
        }
        done.store(true, Ordering::Relaxed);
    });
    cache.check();
}

#[test]
fn stalled_reader_retains_only_its_own_segments() {
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
fn reader_stalled_in_its_search_retains_next_to_nothing() {
    let sizes: &[u64] = if cfg!(miri) { &[128 << 10] } else { &[128 << 10, 4 << 20] };
    let (passing, len) = if cfg!(miri) { (90, 2000) } else { (60_000, 200) };
    for &bytes in sizes {
        let cache = cache_of(bytes);
        let shared = &cache.inner.shared;
        cache.insert(b"searched", &value_of(1, 1, 10_000));
        let searching =
            shared.readers.begin(3, slot::fingerprint(shared.hash(b"searched"))).unwrap();
        let churn = |keys: std::ops::Range<u64>| {
            keys.for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &vec![1; len])));
            cache.stats().entries
        };
        let kept = churn(0..passing);
        assert_eq!(cache.get(b"searched"), None, "it was evicted");
        // The target stays in place as long as the search might reach it.
        cache.check();
        drop(searching);
        let then = churn(passing..2 * passing);
        assert!(
            kept * 100 >= then * if cfg!(miri) { 75 } else { 85 },
            "{kept} of {then} entries in {bytes} bytes"
        );
        cache.clear();
        cache.check();
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
fn clear_does_not_overwrite_the_target_of_a_stalled_search() {
    let cache = cache_of(4 << 20);
    let shared = &cache.inner.shared;
    (0..10_000u64).for_each(|key| assert!(cache.insert(&key.to_le_bytes(), &[1; 200])));
    let searching =
        shared.readers.begin(3, slot::fingerprint(shared.hash(&7u64.to_le_bytes()))).unwrap();
    let before = cache.stats().memory_bytes;
    cache.clear();
    cache.check();
    let held = cache.stats();
    drop(searching);
    cache.check();
    let after = cache.stats();
    assert!(held.memory_bytes > after.memory_bytes, "the reader retained nothing: {held:?}");
    assert!(
        (held.memory_bytes - after.memory_bytes) * 4 < before,
        "{held:?}, {before} before, {after:?}"
    );
}
