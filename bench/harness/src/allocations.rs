//! Counts heap allocations of each thread, so that "no allocation per entry" is measured.
#![allow(unsafe_code, reason = "an allocator that counts has to be an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter.
pub(crate) struct Counting;

/// Allocations of this thread so far.
pub(crate) fn count() -> u64 {
    COUNT.with(Cell::get)
}

fn note() {
    // An exiting thread no longer has a counter, and nobody reads it then.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is forwarded to the system's allocator with its arguments; counting touches no
// memory of the caller, and the counter is a plain cell without a destructor, so it does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `realloc`'s contract; the block came from the system's
        // allocator.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract; the block came from the system's
        // allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_allocation_of_this_thread_is_counted_and_no_other() {
        let before = count();
        let boxed = std::hint::black_box(Box::new(7));
        assert_eq!(count(), before + 1);
        let middle = count();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(std::hint::black_box(vec![1; 100])));
        });
        // Starting the thread may allocate; its vector does not count here. Counting itself never
        // allocates.
        let after = count();
        assert!(after - middle < 20);
        assert_eq!(count(), after);
        drop(boxed);
    }
}
