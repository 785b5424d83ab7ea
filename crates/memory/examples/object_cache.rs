//! A cache of values that are expensive to compute, under one byte limit: values of any size, one
//! load per key for any number of concurrent requests, and a time to live.
//!
//! Run it: `cargo run -p plimsoll-memory --example object_cache`

use std::error::Error;
use std::io;
use std::time::Duration;

use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache, CacheOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let budget = Budget::new(32 << 20, Backing::Mapped)?;
    let cache = Cache::new(&budget, CacheOptions::of_bytes(8 << 20))?;

    // Read-through: the first thread to request the page renders it, and the others wait for it.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| cache.get_or_load(b"page/1", render).map(|page| page.len()));
        }
    });

    // A value may be far larger than a chunk of memory; it is seen in pieces, without a copy.
    cache.insert(b"film", &vec![7; 1 << 20]);
    let bytes = cache.read(b"film", |film| film.pieces().map(<[u8]>::len).sum::<usize>());
    println!("the film has {} bytes", bytes.unwrap_or_default());

    // A value that becomes stale after some time is inserted with a time to live.
    cache.insert_for(b"weather", b"fair", Duration::from_secs(600));

    // An outdated value is removed, even while another thread loads it.
    cache.remove(b"page/1");

    // However much enters, the number holds.
    for number in 0..200_000_u32 {
        cache.insert(format!("user/{number}").as_bytes(), &[1; 100]);
    }
    let stats = cache.stats();
    println!(
        "{} entries in {} bytes; never more than {}",
        stats.entries, stats.memory_bytes, stats.limit_bytes
    );
    assert!(stats.memory_bytes <= stats.limit_bytes);
    Ok(())
}

fn render() -> Result<Vec<u8>, io::Error> {
    println!("rendering once");
    Ok(b"<html></html>".to_vec())
}
