//! Regression tests for bugs of other page caches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::{Clock as _, SystemClock};

use super::*;
use crate::budget::Backing;
use crate::pool::frame::Frame;
use crate::reserved::Reserved;

const CHUNK: u64 = CHUNK_BYTES as u64;

/// Loads a page whose content is its number, except for pages set to fail.
#[derive(Default)]
struct Source {
    loads: AtomicU64,
    fails: AtomicBool,
    /// While set, loads block.
    held_up: AtomicBool,
}

impl PageSource for Source {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        while self.held_up.load(Ordering::Relaxed) {
            SystemClock::new().sleep(Duration::from_millis(1));
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(LoadError::Io {
                kind: io::ErrorKind::Other,
                message: "injected".to_owned(),
                source: None,
            });
        }
        page[..4].copy_from_slice(&number.to_le_bytes());
        Ok(())
    }
}

fn world(chunks: u64) -> (Budget, Arc<Pool>, Arc<Source>, PoolFile) {
    let budget = Budget::new((chunks + 1) * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, chunks * CHUNK).unwrap();
    let source = Arc::new(Source::default());
    let file = pool.attach(Arc::clone(&source) as _);
    (budget, pool, source, file)
}

/// An evicted page's version restarted at 0. A reader that read the word before the eviction and
/// again after the page was reloaded found it unchanged, and accepted bytes of two pages.
#[test]
#[allow(unsafe_code, reason = "a descriptor begins as zeros")]
fn stale_reader_rejects_a_reused_frame() {
    // SAFETY: all zeros is a free frame.
    let frames: Reserved<Frame> = unsafe { Reserved::zeroed(1, Backing::Heap) }.unwrap();
    let (frame, key) = (&frames[0], PageKey { file: 1, number: 7 });
    let come = || {
        frame.begin(key, Heat::Cold);
        frame.finish();
        frame.unpin();
        frame.state()
    };
    let mut seen = vec![come()];
    for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
        assert!(frame.try_evict(frame.state()));
        let again = come();
        assert!(!seen.contains(&again), "a frame's word never repeats, even for the same page");
        assert!(
            !frame.try_evict(seen[seen.len() / 2]),
            "an old state does not evict the reloaded page"
        );
        seen.push(again);
    }
}

/// The same, when a descriptor's memory goes back to the system and returns as zeros.
#[test]
fn version_survives_release_of_the_frame() {
    let backing = if cfg!(miri) { Backing::Heap } else { Backing::Mapped };
    let frames = super::frames::Frames::new(200, 200, backing).unwrap();
    let key = PageKey { file: 1, number: 7 };
    let (slot, at) = (199, 799);
    let come_and_go = || {
        let frame = frames.get(at);
        frame.begin(key, Heat::Cold);
        frame.finish();
        frame.unpin();
        let seen = frame.state();
        assert!(frame.try_evict(seen));
        seen
    };
    let mut seen: Vec<_> = (0..20).map(|_| come_and_go()).collect();
    for _ in 0..3 {
        frames.shrink(10, 200);
        assert!(cfg!(miri) || frames.get(at).state().version() == 0, "zeros");
        frames.grow(200);
        frames.renew(slot);
        let again = come_and_go();
        assert!(!seen.contains(&again), "a frame's word never repeats, even for the same page");
        seen.push(again);
    }
}

/// A read error left the page locked and its bytes reserved: the next reader waited for ever, and
/// the pool shrank.
#[test]
fn read_error_unlocks_the_page() {
    let (budget, pool, source, file) = world(1);
    let usage = budget.usage();
    source.fails.store(true, Ordering::Relaxed);
    for number in 0..20 {
        assert!(file.get(number % 5, Touch::Point).is_err());
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.pinned, stats.resident, pool.room().free),
        (0, 0, 4),
        "every frame came back: {stats:?}"
    );
    assert_eq!(budget.usage(), usage);
    source.fails.store(false, Ordering::Relaxed);
    let pages: Vec<_> = (0..4).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert!((0u32..).zip(&pages).all(|(number, page)| page[..4] == number.to_le_bytes()));
}

/// A thread polled while it waited until another thread had read the same page.
#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "reads the system's account of a thread")]
fn waiting_reader_does_not_spin() {
    let cpu_nanos = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (_budget, pool, source, file) = world(1);
    source.held_up.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| file.get(3, Touch::Point).map(drop));
        while source.loads.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let waiter = scope.spawn(|| {
            let before = cpu_nanos();
            file.get(3, Touch::Point).unwrap();
            cpu_nanos() - before
        });
        while pool.stats().waits == 0 {
            std::thread::yield_now();
        }
        SystemClock::new().sleep(Duration::from_millis(300));
        source.held_up.store(false, Ordering::Relaxed);
        loader.join().unwrap().unwrap();
        // Going to sleep and waking up takes a thousandth of this.
        assert!(
            waiter.join().unwrap() < 150_000_000,
            "the waiter used the processor while it waited 300,000,000 ns"
        );
    });
    assert_eq!(source.loads.load(Ordering::Relaxed), 1);
}

/// The pool reported 212 MB while the process held 1,465 MB.
#[test]
fn counters_match_the_frames() {
    let (budget, pool, source, file) = world(6);
    let (mut reads, mut errors, mut pins, mut state) = (0, 0, Vec::new(), 1_u64);
    for _ in 0..if cfg!(miri) { 12 } else { 20_000 } {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let number = (state >> 40) as u32 % 60;
        source.fails.store(state >> 20 & 15 == 0, Ordering::Relaxed);
        let touch = if state >> 30 & 1 == 0 { Touch::Point } else { Touch::Scan };
        match file.get(number, touch) {
            Ok(page) if state >> 35 & 7 == 0 && pins.len() < 10 => pins.push((number, page)),
            Ok(_) => {}
            Err(_) => errors += 1,
        }
        reads += 1;
        match state >> 45 & 63 {
            0 => pool.clear(),
            1 => pins.clear(),
            2 => file.put(number, &[0; PAGE_BYTES], state >> 51 & 1 == 0),
            3 => _ = pool.reclaim(1),
            4 => _ = pool.free_frames(3),
            _ => {}
        }
        let stats = pool.stats();
        let there = (0..60)
            .filter(|&number| pool.frames.find_any(file.key(number)).is_some())
            .count() as u64;
        assert_eq!(stats.resident, there);
        assert_eq!(stats.resident + pool.room().free as u64, stats.frames);
        assert_eq!(stats.hits + stats.loads + errors, reads);
        let mut pinned: Vec<_> = pins.iter().map(|(number, _)| *number).collect();
        pinned.sort_unstable();
        pinned.dedup();
        assert_eq!(stats.pinned, pinned.len() as u64);
        assert_eq!(
            stats.frames * PAGE_BYTES as u64 / CHUNK * CHUNK,
            budget.usage().of(Kind::Pages) / CHUNK * CHUNK
        );
    }
    assert!(errors > 0 && pool.stats().evictions > 0);
}
