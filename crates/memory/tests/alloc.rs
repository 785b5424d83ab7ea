//! Counts allocations: page hits and look-ups in a sorted map make none.
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, Touch};
use plimsoll_memory::sorted::SortedMap;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

/// Number of allocations that this thread makes during the call.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

struct Ones;

impl PageSource for Ones {
    fn load(&self, _: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.fill(1);
        Ok(())
    }
}

const BUDGET_BYTES: u64 = if cfg!(miri) { 2 << 20 } else { 16 << 20 };

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn page_hits_and_loads_do_not_allocate() {
    let budget = Budget::new(BUDGET_BYTES, Backing::Heap).expect("memory");
    let pool = Pool::new(&budget, 0).expect("room");
    let file = pool.attach(Arc::new(Ones));
    let counted = allocations(|| {
        for touch in [Touch::Point, Touch::Scan, Touch::Point] {
            for number in 0..40 {
                let page = file.get(number, touch).expect("the page loads");
                assert_eq!(page[7], 1);
            }
        }
    });
    assert_eq!((counted, pool.stats().hits), (0, 80));
}

#[test]
fn sorted_map_operations_do_not_allocate_beyond_the_table() {
    let budget = Budget::new(BUDGET_BYTES, Backing::Heap).expect("memory");
    let map = SortedMap::new(&budget, Kind::Memtable);
    // The first chunk needs its table, and the budget's list of retired chunks.
    let table = allocations(|| map.insert(b"first", 0, b"").expect("room"));
    assert!(table <= 4, "{table}");
    let counted = allocations(|| {
        for at in 0..200u32 {
            map.insert(&at.to_be_bytes(), 1, b"value").expect("room");
            let found = map.seek(&at.to_be_bytes(), 1).expect("just inserted");
            assert_eq!(map.at(found).value, b"value");
            assert_eq!(map.prev(found).is_some(), at > 0);
        }
    });
    assert_eq!(counted, 0);
}
