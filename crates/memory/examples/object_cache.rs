//! A cache of everything a program finds expensive to make, under one number: values of any size,
//! one load for a key however many ask, and a time to live.
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

    // Read through: whoever asks first renders, the others wait for it.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| cache.get_or_load(b"page/1", render).map(|page| page.len()));
        }
    });

    // A value may be far larger than a chunk of memory; it is seen in pieces, without a copy.
    cache.insert(b"film", &vec![7; 1 << 20]);
    let bytes = cache.read(b"film", |film| film.pieces().map(<[u8]>::len).sum::<usize>());
    println!("the film has {} bytes", bytes.unwrap_or_default());

    // What may be old after a while says so.
    cache.insert_for(b"weather", b"fair", Duration::from_secs(600));

    // What is no longer true is removed, also while somebody loads it.
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
