//! Shared loads of a key.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;

use super::{budget, cache_of};
use crate::cache::{Cache, CacheOptions};

#[test]
fn expired_load_is_loaded_again() {
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
fn concurrent_callers_share_one_load() {
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
fn load_error_reaches_all_waiters_and_next_call_retries() {
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
fn key_changed_during_load_is_not_cached_with_its_old_value() {
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
fn request_after_a_change_does_not_join_an_older_load() {
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
fn panicking_load_lets_the_next_waiter_load() {
    let cache = cache_of(1 << 20);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ =
            cache.get_or_load(b"key", || -> Result<Vec<u8>, io::Error> { panic!("on purpose") });
    }));
    assert!(panicked.is_err());
    assert_eq!(cache.get_or_load(b"key", || Ok::<_, io::Error>(b"1".to_vec())).unwrap(), b"1");
}
