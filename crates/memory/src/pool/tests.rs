//! Tests of the pool's public interface, also with threads.

mod ahead;
mod budget;
mod eviction;
mod pages;
mod resize;
mod warm;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use super::*;
use crate::budget::{Backing, ResizeError};

/// A file in which every word encodes its page and file.
#[derive(Default)]
struct Numbered {
    name: u64,
    loads: AtomicU64,
    /// One load in this many fails; none if 0.
    fails_one_in: u64,
    /// The next load panics.
    panics: AtomicU32,
    /// Held by a load until the test has seen this many waiters.
    gate: Option<(Arc<Pool>, u64)>,
}

/// Under Miri only some words are written and compared.
const WORD_STEP: usize = if cfg!(miri) { 97 } else { 1 };

fn word(name: u64, number: u32, at: usize) -> [u8; 8] {
    (name << 48 | u64::from(number) << 16 | at as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes()
}

fn fill(name: u64, number: u32, page: &mut [u8]) {
    for (at, bytes) in page.chunks_exact_mut(8).enumerate().step_by(WORD_STEP) {
        bytes.copy_from_slice(&word(name, number, at));
    }
}

fn assert_is(page: &[u8], name: u64, number: u32) {
    assert_eq!(page.len(), PAGE_BYTES);
    for (at, bytes) in page.chunks_exact(8).enumerate().step_by(WORD_STEP) {
        assert_eq!(bytes, word(name, number, at), "page {number} of file {name}, word {at}");
    }
}

impl PageSource for Numbered {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let loads = self.loads.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((pool, waiters)) = &self.gate {
            while pool.stats().waits < *waiters {
                thread::yield_now();
            }
        }
        if self.panics.swap(0, Ordering::Relaxed) > 0 {
            panic!("injected");
        }
        if self.fails_one_in > 0 && loads.is_multiple_of(self.fails_one_in) {
            // Leave a half-written page.
            page[..100].fill(0xee);
            return Err(LoadError::Corrupt { message: format!("page {number}, load {loads}") });
        }
        fill(self.name, number, page);
        Ok(())
    }
}

const CHUNK: u64 = CHUNK_BYTES as u64;

fn budget(chunks: u64) -> Budget {
    Budget::new(chunks * CHUNK, Backing::Heap).unwrap()
}

/// A pool of exactly `chunks` chunks. All chunks besides its tables are its minimum, and the
/// headroom stops it from growing.
fn pool_of(chunks: u64) -> (Budget, Arc<Pool>) {
    let budget = budget(chunks + 1);
    let pool = Pool::new(&budget, chunks * CHUNK).unwrap();
    assert_eq!((budget.free_bytes(), pool.stats().frames), (0, chunks * 4));
    (budget, pool)
}

/// A pool of exactly `chunks` chunks, and one more chunk for staging reads.
fn pool_beside_a_free_chunk(chunks: u64) -> (Budget, Arc<Pool>) {
    let budget = budget(chunks + 2);
    let pool = Pool::new(&budget, chunks * CHUNK).unwrap();
    assert_eq!((budget.free_bytes(), pool.stats().frames), (CHUNK, chunks * 4));
    (budget, pool)
}

fn numbered(pool: &Arc<Pool>, name: u64) -> (Arc<Numbered>, PoolFile) {
    let source = Arc::new(Numbered { name, ..Numbered::default() });
    (Arc::clone(&source), pool.attach(source))
}

fn resident(file: &PoolFile, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let is_resident = |number: &u32| file.file.pool.frames.find_any(file.key(*number)).is_some();
    numbers.into_iter().filter(is_resident).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The bytes held equal the sum over the kinds: whole chunks, and leases rounded up together.
fn assert_books_balance(budget: &Budget) {
    let usage = budget.usage();
    let kinds: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(kinds.div_ceil(CHUNK) * CHUNK, usage.limit_bytes - usage.free_bytes, "{usage:?}");
}
