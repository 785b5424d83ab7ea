//! The object cache takes no heap memory as it fills, and its lease matches its allocations.
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::cache::{Cache, CacheOptions};

struct Counting;

thread_local! {
    static HEAP_BYTES: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.set(HEAP_BYTES.get() + layout.size() as u64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that this thread allocates during the call.
fn heap_bytes(work: impl FnOnce()) -> u64 {
    let before = HEAP_BYTES.get();
    work();
    HEAP_BYTES.get() - before
}

#[test]
fn fill_evict_and_find_do_not_allocate() {
    let budget = Budget::new(32 << 20, Backing::Heap).unwrap();
    let cache = Cache::new(&budget, CacheOptions::of_bytes(8 << 20)).unwrap();
    let mut found = Vec::with_capacity(64 << 10);
    cache.insert(b"first", b"touches the thread's own variables");
    let taken = heap_bytes(|| {
        for key in 0..100_000_u64 {
            cache.insert(&key.to_le_bytes(), &[1; 300]);
            cache.get_into(&(key / 2).to_le_bytes(), &mut found);
            found.clear();
            cache.remove(&(key / 3).to_le_bytes());
        }
    });
    assert!(cache.stats().evictions > 10_000);
    assert_eq!(taken, 0, "bytes of heap for 100,000 insertions");
}

#[test]
fn lease_matches_the_size_of_the_tables() {
    let budget = Budget::new(256 << 20, Backing::Heap).unwrap();
    let mut cache = None;
    let taken = heap_bytes(|| cache = Cache::new(&budget, CacheOptions::of_bytes(128 << 20)).ok());
    let cache = cache.unwrap();
    let leased = cache.stats().table_bytes;
    // The readers' lines are not in proportion to the cache.
    assert!(taken <= leased + (16 << 10), "{taken} bytes of heap, {leased} leased");
    assert!(leased <= (128 << 20) / 500, "{leased} bytes of tables");
    assert!(budget.usage().of(Kind::Objects) >= leased);
}
