//! The cost of a store that is not used. A separate program, because it observes all threads of its
//! process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that waits for the real clock"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll::{Db, Options, Retention};
use plimsoll_disk::worker::sleeps;

fn open(path: &Path, is_shared: bool) -> Db {
    Db::open(path, Options::new().memory_bytes(32 << 20).shared(is_shared)).unwrap()
}

fn fill(db: &Db) {
    let space = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    for key in 0..3000u32 {
        tx.put(&space, key.to_be_bytes(), [7; 500]).unwrap();
    }
    tx.commit().unwrap();
}

/// Wake-ups of all threads in ten seconds, if nothing happens.
fn wakes() -> f64 {
    sleeps::all().iter().map(|(_, sleep)| 10.0 / sleep.as_secs_f64()).sum()
}

/// Waits until the threads have finished their remaining work; returns how long that took.
fn wait_until_idle(stores: usize) -> Duration {
    let begun = Instant::now();
    while wakes() > stores as f64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:#?}", sleeps::all());
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

#[test]
fn an_idle_process_wakes_at_most_once_in_ten_seconds_and_still_flushes_later_writes() {
    let dir = tempfile::tempdir().unwrap();
    for is_shared in [false, true] {
        let path = dir.path().join(if is_shared { "shared" } else { "alone" });
        let one = open(&path, is_shared);
        fill(&one);
        wait_until_idle(1);
        let two = is_shared.then(|| open(&path, true));
        wait_until_idle(1 + usize::from(is_shared));
        // A write after a rest is noticed: the memtable is flushed a few seconds later.
        let before = one.stats().index.flushes;
        fill(two.as_ref().unwrap_or(&one));
        let begun = Instant::now();
        while one.stats().index.flushes == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "shared: {is_shared}");
            std::thread::sleep(Duration::from_millis(20));
        }
        wait_until_idle(1 + usize::from(is_shared));
        drop((one, two));
        assert_eq!(sleeps::all(), [], "threads have ended");
    }
    // Values that expire in a keyspace that keeps them need no check, until it does not.
    let db = open(&dir.path().join("expiring"), false);
    let space = db.create_keyspace("kept", Retention::Forever).unwrap();
    for key in 0..3000u32 {
        db.put_with_ttl(&space, key.to_be_bytes(), [7; 500], Duration::from_secs(3600)).unwrap();
    }
    db.flush().unwrap();
    wait_until_idle(1);
    db.set_retention(&space, Retention::Latest).unwrap();
    let begun = Instant::now();
    while wakes() < 2.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:#?}", sleeps::all());
        std::thread::sleep(Duration::from_millis(20));
    }
}
