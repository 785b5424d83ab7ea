//! Shared loads of a key.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;

use super::{budget, cache_of};
use crate::cache::{Cache, CacheOptions};

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
        let _ =
            cache.get_or_load(b"key", || -> Result<Vec<u8>, io::Error> { panic!("on purpose") });
    }));
    assert!(panicked.is_err());
    assert_eq!(cache.get_or_load(b"key", || Ok::<_, io::Error>(b"1".to_vec())).unwrap(), b"1");
}
