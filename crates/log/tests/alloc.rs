//! Reads and scans of resident entries allocate nothing, and neither do appends.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(unsafe_code, reason = "counts allocations")]

#[path = "it/common.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::{Memory, options, payload, submit};
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(body: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    body();
    ALLOCATIONS.with(Cell::get) - before
}

/// A log of sealed segments and an active one, all resident, and entries of one block each.
fn resident(memory: &Memory) -> FileLog {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let options = FileLogOptions { segment_bytes: 1 << 20, ..options(&disk, memory) };
    let (log, _) = FileLog::open(options).unwrap();
    for number in 0..12_000 {
        submit(&log, (number % 5) as u32, &payload(number, 200)).unwrap();
    }
    log.sync().unwrap();
    common::scan_all(&log, 1, u64::MAX, None);
    common::scan_all(&log, 1, u64::MAX, Some(3));
    log
}

#[test]
fn scans_and_reads_of_resident_entries_allocate_nothing() {
    let memory = Memory::new(64 << 20);
    let log = resident(&memory);
    for stream in [None, Some(StreamId(3))] {
        let mut seen = 0;
        let count = allocations(|| {
            let mut scan = log.scan(Glsn(1)..Glsn::MAX, stream).unwrap();
            while let Some(entry) = scan.next_entry() {
                seen += entry.unwrap().payload.len();
            }
        });
        assert!(seen >= 200 * 12_000 / 5);
        assert_eq!(count, 0, "a scan of {stream:?}");
    }
    let last_complete = 11_900;
    let count = allocations(|| {
        for glsn in (1..last_complete).step_by(3) {
            assert_eq!(log.read(Glsn(glsn)).unwrap().len(), 200);
            assert_eq!(log.meta(Glsn(glsn)).unwrap().glsn, Glsn(glsn));
            log.read_range(Glsn(glsn), 20, &mut [0; 50]).unwrap();
        }
    });
    assert_eq!(count, 0, "reads");
}

#[test]
fn appends_of_small_entries_allocate_next_to_nothing() {
    let memory = Memory::new(64 << 20);
    let log = resident(&memory);
    let bytes = payload(1, 200);
    let count = allocations(|| {
        for _ in 0..1000 {
            let ticket = submit(&log, 0, &bytes).unwrap();
            log.wait_durable(ticket.last).unwrap();
        }
    });
    // Allocated are chunks of the buffer and memory of the in-memory disk.
    assert!(count < 1000, "{count} allocations for 1000 appends");
}
