//! Tests of the cache by theme, and their shared helpers: answers against a plain map, counters
//! against a recount, readers against the writer.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod answers;
mod loads;
mod memory;
mod stays;
mod threads;

use plimsoll_disk::random::Random;

use super::{Cache, CacheOptions};
use crate::budget::{Backing, Budget};

fn budget(bytes: u64) -> Budget {
    Budget::new(bytes, Backing::Heap).unwrap()
}

fn cache_of(bytes: u64) -> Cache {
    Cache::new(&budget(4 * bytes), CacheOptions::of_bytes(bytes)).unwrap()
}

/// A value that encodes its key and version.
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
