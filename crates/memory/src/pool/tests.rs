//! What the pool promises, from outside and with threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use super::*;
use crate::budget::{Backing, ResizeError};

/// A file whose every word tells which page of which file it belongs to.
#[derive(Default)]
struct Numbered {
    name: u64,
    loads: AtomicU64,
    /// One load in so many fails; 0: none.
    fails_one_in: u64,
    /// The next load panics.
    panics: AtomicU32,
    /// Held by a load until the test has seen so many waiters.
    gate: Option<(Arc<Pool>, u64)>,
}

/// Under Miri only some words are written and compared.
const WORD_STEP: usize = if cfg!(miri) { 97 } else { 1 };

fn word(name: u64, number: u32, at: usize) -> [u8; 8] {
    (name << 48 | u64::from(number) << 16 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
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
            panic!("on purpose");
        }
        if self.fails_one_in > 0 && loads.is_multiple_of(self.fails_one_in) {
            // Leaves half a page behind.
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

/// A pool of exactly `chunks` chunks: those above its tables are its minimum, and the headroom keeps it from growing.
fn pool_of(chunks: u64) -> (Budget, Arc<Pool>) {
    let budget = budget(chunks + 1);
    let pool = Pool::new(&budget, chunks * CHUNK).unwrap();
    assert_eq!((budget.free_bytes(), pool.stats().frames), (0, chunks * 4));
    (budget, pool)
}

/// A pool of exactly `chunks` chunks, and one to stage what it reads.
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

#[test]
fn a_page_is_found_without_a_load_only_while_it_is_resident() {
    let (_budget, pool) = pool_of(1);
    let (source, file) = numbered(&pool, 7);
    assert!(file.find(3, Touch::Point).is_none());
    drop(file.get(3, Touch::Point).unwrap());
    assert_is(&file.find(3, Touch::Point).unwrap(), 7, 3);
    assert!(file.find(4, Touch::Point).is_none());
    pool.clear();
    assert!(file.find(3, Touch::Point).is_none());
    assert_eq!(source.loads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_page_is_loaded_once_and_then_found() {
    let (_budget, pool) = pool_of(1);
    let (source, file) = numbered(&pool, 7);
    for _ in 0..3 {
        assert_is(&file.get(5, Touch::Point).unwrap(), 7, 5);
    }
    assert_eq!(source.loads.load(Ordering::Relaxed), 1);
    let expected = PoolStats { hits: 2, loads: 1, frames: 4, resident: 1, ..PoolStats::default() };
    assert_eq!(pool.stats(), expected);
}

#[test]
fn pages_of_different_files_are_different_pages() {
    let (_budget, pool) = pool_of(1);
    let files = [1, 2].map(|name| numbered(&pool, name).1);
    for _ in 0..2 {
        for (name, file) in [1, 2].into_iter().zip(&files) {
            assert_is(&file.get(0, Touch::Point).unwrap(), name, 0);
        }
    }
}

#[test]
fn a_second_point_touch_makes_a_page_hot_and_a_scan_does_not() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    file.get(0, Touch::Point).unwrap();
    assert!(!file.is_hot(0));
    file.get(0, Touch::Scan).unwrap();
    assert!(!file.is_hot(0));
    file.get(0, Touch::Point).unwrap();
    assert!(file.is_hot(0));
    for _ in 0..3 {
        file.get(1, Touch::Scan).unwrap();
    }
    assert!(!file.is_hot(1) && !file.is_hot(2));
}

#[test]
fn a_long_scan_leaves_hot_pages_and_cold_ones_where_they_are() {
    let (_budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    for number in 0..8 {
        file.get(number, Touch::Point).unwrap();
        file.get(number, Touch::Point).unwrap();
    }
    for number in 8..12 {
        file.get(number, Touch::Point).unwrap();
    }
    for number in 100..200 {
        assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number);
    }
    assert_eq!(resident(&file, 0..100), (0..12).collect::<Vec<_>>());
    assert!((0..8).all(|number| file.is_hot(number)));
}

#[test]
fn a_page_that_a_scan_brought_in_stays_once_it_is_touched_by_itself() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    file.get(0, Touch::Scan).unwrap();
    file.get(0, Touch::Point).unwrap();
    for number in 1..50 {
        file.get(number, Touch::Scan).unwrap();
    }
    assert_eq!(resident(&file, 0..2), [0]);
}

#[test]
fn cold_pages_make_room_before_hot_ones() {
    let (_budget, pool) = pool_of(2);
    let (_, file) = numbered(&pool, 1);
    for number in 0..4 {
        file.get(number, Touch::Point).unwrap();
        file.get(number, Touch::Point).unwrap();
    }
    for number in 10..14 {
        file.get(number, Touch::Point).unwrap();
    }
    for number in 20..24 {
        file.get(number, Touch::Point).unwrap();
    }
    assert_eq!(resident(&file, 0..30), [0, 1, 2, 3, 20, 21, 22, 23]);
}

#[test]
fn pinned_pages_stay_and_when_all_are_pinned_the_next_page_is_refused() {
    let (budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    let mut pages: Vec<_> = (0..4).map(|number| file.get(number, Touch::Scan).unwrap()).collect();
    let refusal = file.get(4, Touch::Point).unwrap_err();
    let LoadError::OutOfBudget(refusal) = refusal else { panic!("{refusal}") };
    assert_eq!(refusal.usage.limit_bytes, budget.limit_bytes());
    assert_eq!(pool.stats().pinned, 4);
    pool.clear();
    pages.iter().zip(0..).for_each(|(page, number)| assert_is(page, 1, number));
    pages.remove(2);
    assert_is(&file.get(4, Touch::Point).unwrap(), 1, 4);
    assert_eq!(resident(&file, 0..5), [0, 1, 3, 4]);
}

#[test]
fn a_page_that_is_held_twice_stays_until_both_are_let_go() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    for _ in 0..2 {
        let page = file.get(0, Touch::Point).unwrap();
        let again = file.get(0, Touch::Point).unwrap();
        drop(page);
        pool.clear();
        assert_is(&again, 1, 0);
        assert_eq!((pool.stats().pinned, pool.stats().resident), (1, 1));
        drop(again);
    }
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (0, 0));
}

#[test]
fn more_pages_than_a_thread_can_publish_stay_all_the_same() {
    let (_budget, pool) = pool_of(16);
    let (_, file) = numbered(&pool, 1);
    (0..64).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    let held: Vec<_> = (0..40).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert_eq!(pool.stats().pinned, 40);
    pool.clear();
    assert_eq!(pool.stats().resident, 40);
    held.iter().zip(0..).for_each(|(page, number)| assert_is(page, 1, number));
    drop(held);
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (0, 0));
}

#[test]
fn a_page_outlives_the_thread_that_found_it_and_is_let_go_by_another() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    (0..4).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    let by_thread =
        |number| thread::scope(|scope| scope.spawn(|| file.get(number, Touch::Point).unwrap()).join().unwrap());
    // The second thread may well take over the line of the first, with a slot of it in use.
    let pages = [by_thread(1), by_thread(2)];
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (2, 2));
    // Whatever frames there are are filled with something else.
    (4..12).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    pages.iter().zip(1..).for_each(|(page, number)| assert_is(page, 1, number));
    drop(pages);
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (0, 0));
}

#[test]
fn a_pool_dropped_before_its_pages_leaves_them_and_gives_everything_back_after_them() {
    let (budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    (0..9).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    let pages = [2, 7].map(|number| file.get(number, Touch::Point).unwrap());
    drop((file, pool));
    // Two frames' chunks, and the tables.
    let others = budget.usage().of(Kind::Pages) / CHUNK;
    assert!((2..4).contains(&others), "{others}");
    let [first, second] = pages;
    drop(first);
    assert_is(&second, 1, 7);
    assert!(budget.usage().of(Kind::Pages) > 0);
    thread::scope(|scope| scope.spawn(|| drop(second)).join().unwrap());
    // Another test's thread may be at it.
    while budget.usage().of(Kind::Pages) > 0 {
        thread::yield_now();
    }
}

#[test]
fn the_last_free_chunks_are_taken_only_when_all_frames_are_pinned() {
    let budget = budget(20);
    let pool = Pool::new(&budget, 0).unwrap();
    let (_, file) = numbered(&pool, 1);
    for number in 0..100 {
        file.get(number, Touch::Point).unwrap();
    }
    assert_eq!(budget.free_bytes(), MIN_HEADROOM_CHUNKS as u64 * CHUNK);
    let pages: Vec<_> = (0..19 * 4).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert_eq!(budget.free_bytes(), 0);
    assert!(file.get(1000, Touch::Point).is_err());
    drop(pages);
    assert!(file.get(1000, Touch::Point).is_ok());
}

#[test]
fn the_budget_gets_back_all_but_the_minimum_when_others_need_it() {
    let budget = budget(32);
    let pool = Pool::new(&budget, 3 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    for number in 0..200 {
        file.get(number, Touch::Point).unwrap();
    }
    let others: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Memtable).ok()).collect();
    // One chunk is retired for the tables.
    assert_eq!(others.len(), 32 - 3 - 1);
    assert_eq!(pool.stats().frames, 12);
    assert!(pool.stats().resident <= 12);
    for number in 0..200 {
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
    drop(others);
    for number in 0..200 {
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
    assert_eq!(pool.stats().frames, (32 - 1 - MIN_HEADROOM_CHUNKS as u64) * 4, "it grows again");
}

#[test]
fn the_coldest_chunk_goes_back_first_and_one_with_a_pin_stays() {
    let budget = budget(12 + MIN_HEADROOM_CHUNKS as u64);
    let pool = Pool::new(&budget, 0).unwrap();
    let (_, file) = numbered(&pool, 1);
    let numbers = 0..11 * 4;
    for number in numbers.clone() {
        file.get(number, Touch::Point).unwrap();
        if !(8..12).contains(&number) {
            file.get(number, Touch::Point).unwrap();
        }
    }
    let pin = file.get(40, Touch::Scan).unwrap();
    assert_eq!(pool.reclaim(1), 1);
    assert_eq!(
        resident(&file, numbers.clone()),
        numbers.clone().filter(|number| !(8..12).contains(number)).collect::<Vec<_>>()
    );
    assert_eq!(pool.reclaim(100), 9);
    assert_eq!(resident(&file, numbers), [40, 41, 42, 43]);
    assert_is(&pin, 1, 40);
    assert_eq!(pool.reclaim(1), 0);
}

#[test]
fn pages_that_left_with_their_chunk_are_missed_as_any_others() {
    let budget = budget(12 + MIN_HEADROOM_CHUNKS as u64);
    let pool = Pool::new(&budget, 0).unwrap();
    let (_, file) = numbered(&pool, 1);
    for number in 0..11 * 4 {
        // A chunk of pages touched once, one of pages that only a scan touched, and hot ones.
        let touches: &[Touch] = match number {
            8..12 => &[Touch::Point],
            12..16 => &[Touch::Scan],
            _ => &[Touch::Point, Touch::Point],
        };
        touches.iter().for_each(|&touch| drop(file.get(number, touch).unwrap()));
    }
    assert_eq!(pool.reclaim(2), 2);
    assert_eq!(resident(&file, 0..16), (0..8).collect::<Vec<_>>());
    let before = pool.turnover().returns;
    (8..16).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    for number in 8..16 {
        assert_eq!(
            file.is_hot(number),
            number < 12,
            "page {number}: only a page on probation leaves a ghost that makes it hot"
        );
    }
    assert_eq!(pool.turnover().returns - before, 4, "they left a moment ago");
}

#[test]
fn one_load_serves_all_who_ask_at_once() {
    for fails_one_in in [0, 1] {
        let (_budget, pool) = pool_of(1);
        let gate = Some((Arc::clone(&pool), 3));
        let source = Arc::new(Numbered { name: 9, fails_one_in, gate, ..Numbered::default() });
        let file = pool.attach(source.clone());
        let outcomes: Vec<_> = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| file.get(3, Touch::Point)));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        assert_eq!(source.loads.load(Ordering::Relaxed), 1);
        for outcome in &outcomes {
            match outcome {
                Ok(page) => assert_is(page, 9, 3),
                Err(error) => assert_eq!(error.to_string(), "page 3, load 1"),
            }
            assert_eq!(outcome.is_ok(), fails_one_in == 0);
        }
        let stats = pool.stats();
        assert_eq!((stats.waits, stats.loads), (3, 1 - fails_one_in));
        assert_eq!((stats.pinned, stats.resident), if fails_one_in == 0 { (1, 1) } else { (0, 0) });
    }
}

#[test]
fn after_an_error_the_next_who_asks_tries_again() {
    let (_budget, pool) = pool_of(1);
    let source = Arc::new(Numbered { name: 1, fails_one_in: 2, ..Numbered::default() });
    let file = pool.attach(source);
    for number in 0..20 {
        let outcomes = [file.get(number, Touch::Point).map(drop), file.get(number + 50, Touch::Scan).map(drop)];
        assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "page {number}: {outcomes:?}");
        // Another load, of another page, between it and its second try.
        file.get(number + 100, Touch::Point).unwrap();
        assert!(file.get(number + 150, Touch::Point).is_err());
        assert_is(&file.get(number + 50, Touch::Scan).unwrap(), 1, number + 50);
        assert!(file.get(number + 150, Touch::Point).is_err());
    }
    assert_eq!(pool.stats().pinned, 0);
}

#[test]
fn a_load_that_panics_fails_those_who_wait_and_nobody_after_them() {
    let (_budget, pool) = pool_of(1);
    let gate = Some((Arc::clone(&pool), 2));
    let source = Arc::new(Numbered { name: 1, panics: AtomicU32::new(1), gate, ..Numbered::default() });
    let file = pool.attach(source);
    let (panics, errors) = thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| catch_unwind(AssertUnwindSafe(|| file.get(0, Touch::Point)))));
        let outcomes = threads.map(|thread| thread.join().unwrap());
        (
            outcomes.iter().filter(|outcome| outcome.is_err()).count(),
            outcomes.iter().filter(|outcome| matches!(outcome, Ok(Err(LoadError::Io { .. })))).count(),
        )
    });
    assert_eq!((panics, errors), (1, 2));
    assert_eq!(pool.stats().pinned, 0);
    for number in 0..8 {
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
}

#[test]
fn what_was_put_is_found_and_what_is_there_is_not_replaced() {
    let (_budget, pool) = pool_of(1);
    let (source, file) = numbered(&pool, 1);
    let mut bytes = vec![0; PAGE_BYTES];
    for (number, hot) in [(0, false), (1, true)] {
        fill(1, number, &mut bytes);
        file.put(number, &bytes, hot);
        assert_eq!(file.is_hot(number), hot);
    }
    file.put(0, &vec![0xff; PAGE_BYTES], true);
    assert!(!file.is_hot(0));
    for number in [0, 1] {
        assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number);
    }
    assert_eq!(source.loads.load(Ordering::Relaxed), 0);
    let _pages: Vec<_> = (0..4).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    file.put(9, &bytes, true);
    assert_eq!(resident(&file, [9]), [], "all frames are pinned");
}

#[test]
fn pages_of_a_file_that_is_gone_make_room_at_once_or_when_unpinned() {
    let (_budget, pool) = pool_of(2);
    let (_, gone) = numbered(&pool, 1);
    let (_, kept) = numbered(&pool, 2);
    for number in 0..4 {
        kept.get(number, Touch::Point).unwrap();
        gone.get(number, Touch::Point).unwrap();
        gone.get(number, Touch::Point).unwrap();
    }
    let pinned = gone.get(3, Touch::Point).unwrap();
    let clone = gone.clone();
    drop(gone);
    assert_eq!(pool.stats().resident, 8);
    drop(clone);
    assert_eq!(pool.stats().resident, 5);
    assert_is(&pinned, 1, 3);
    drop(pinned);
    for number in 4..8 {
        kept.get(number, Touch::Point).unwrap();
    }
    assert_eq!(resident(&kept, 0..8), (0..8).collect::<Vec<_>>());
}

#[test]
fn pages_of_a_file_that_is_gone_leave_the_ring_of_scans_as_it_was() {
    let (_budget, pool) = pool_of(16);
    let (_, gone) = numbered(&pool, 1);
    let (_, kept) = numbered(&pool, 2);
    let pinned: Vec<_> = (0..8).map(|number| gone.get(number, Touch::Point).unwrap()).collect();
    drop(gone);
    drop(pinned);
    pool.clear();
    // Eight stay for scans; the clock's hand comes by those last that were read first.
    (0..8).for_each(|number| drop(kept.get(number, Touch::Scan).unwrap()));
    (8..72).for_each(|number| drop(kept.get(number, Touch::Point).unwrap()));
    assert_eq!(resident(&kept, 0..8), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_page_outlives_its_file_and_its_pool_and_dropping_all_gives_the_whole_budget_back() {
    let budget = budget(32);
    let pool = Pool::new(&budget, 4 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let page = file.get(0, Touch::Point).unwrap();
    (0..50).for_each(|number| drop(file.get(number, Touch::Scan)));
    drop((pool, file));
    assert_is(&page, 1, 0);
    assert!(budget.free_bytes() < budget.limit_bytes());
    drop(page);
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
    assert_eq!(budget.usage().of(Kind::Pages), 0);
}

#[test]
fn a_pool_that_the_budget_cannot_hold_is_refused_and_takes_nothing() {
    let budget = budget(8);
    assert!(Pool::new(&budget, 8 * CHUNK).is_err());
    for refused in 0..8 {
        budget.fail_after(refused);
        assert!(Pool::new(&budget, 7 * CHUNK).is_err());
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
    assert!(Pool::new(&budget, 7 * CHUNK).is_ok());
}

#[test]
fn every_refusal_of_the_budget_is_an_error_or_an_eviction_and_the_next_page_is_had() {
    for refused in 0..16 {
        let budget = budget(20);
        let pool = Pool::new(&budget, 2 * CHUNK).unwrap();
        let (_, file) = numbered(&pool, 1);
        budget.fail_after(refused);
        let mut pages = Vec::new();
        let mut errors = 0;
        for number in 0..56 {
            let before = budget.usage().of(Kind::Pages);
            match file.get(number, Touch::Point) {
                Ok(page) => pages.push((number, page)),
                Err(LoadError::OutOfBudget(_)) => {
                    errors += 1;
                    assert_eq!(budget.usage().of(Kind::Pages), before);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(errors <= 1, "{errors} errors after {refused}");
        pages.iter().for_each(|(number, page)| assert_is(page, 1, *number));
        drop((pages, file, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}

#[test]
fn a_pool_follows_its_budget_up_and_down() {
    let budget = Budget::with_ceiling(32 * CHUNK, 256 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 4 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let pages = if cfg!(miri) { 300 } else { 1200 };
    let read_all = || (0..pages).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    read_all();
    let small = pool.stats().frames;
    pool.resize(256 * CHUNK, 32 * CHUNK).unwrap();
    read_all();
    assert!(pool.stats().frames > if cfg!(miri) { 2 } else { 6 } * small, "{:?}", pool.stats());
    let pin = file.get(pages - 1, Touch::Point).unwrap();
    pool.resize(24 * CHUNK, 3 * CHUNK).unwrap();
    assert_eq!(budget.limit_bytes(), 24 * CHUNK);
    assert!(pool.stats().frames <= 24 * 4, "{:?}", pool.stats());
    read_all();
    assert_is(&pin, 1, pages - 1);
    pool.resize(100 * CHUNK, 10 * CHUNK).unwrap();
    read_all();
    drop((pin, file, pool));
    assert_eq!(budget.free_bytes(), 100 * CHUNK);
}

#[test]
#[cfg_attr(miri, ignore = "reserves 8 GiB of address space")]
fn a_pool_for_eight_gigabytes_becomes_one_for_sixteen_megabytes_and_one_for_eight_gigabytes_again() {
    const MIB: u64 = 1 << 20;
    let budget = Budget::new(8192 * MIB, Backing::Mapped).unwrap();
    let pool = Pool::new(&budget, MIB).unwrap();
    let large = budget.usage().of(Kind::Pages);
    assert!(large > 48 * MIB, "the tables alone are more than the small budget: {large}");
    let (_, file) = numbered(&pool, 1);
    let read_all = || (0..2000).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    read_all();
    let pin = file.get(1999, Touch::Point).unwrap();
    for _ in 0..2 {
        pool.resize(16 * MIB, 2 * MIB).unwrap();
        read_all();
        assert_eq!(budget.limit_bytes(), 16 * MIB);
        // Page tables may be needed for chunks that lie far apart, and descriptors as far as the page that is held.
        let tables = budget.usage().of(Kind::Pages) - pool.stats().frames * PAGE_BYTES as u64;
        assert!(tables < MIB + MIB / 2, "{tables} bytes of tables");
        pool.resize(8192 * MIB, MIB).unwrap();
        read_all();
    }
    assert_is(&pin, 1, 1999);
    drop((pin, file, pool));
    assert_eq!(budget.free_bytes(), 8192 * MIB);
}

#[test]
fn pages_that_are_wanted_stay_when_the_slots_that_they_were_in_are_no_more() {
    let budget = Budget::new(64 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 40 * CHUNK).unwrap();
    let (source, file) = numbered(&pool, 1);
    // Four to a chunk; what is hot stands in the last slots, which are filled first.
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    (0..40).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    let pin = file.get(1, Touch::Point).unwrap();
    let before = budget.usage().of(Kind::Pages);
    pool.resize(24 * CHUNK, 2 * CHUNK).unwrap();
    let loads = source.loads.load(Ordering::Relaxed);
    assert!((0..40).all(|number| file.is_hot(number)));
    (0..40).for_each(|number| assert_is(&file.find(number, Touch::Point).unwrap(), 1, number));
    assert_eq!(source.loads.load(Ordering::Relaxed), loads);
    assert_eq!(pool.lock().slots(), 40, "the page that is held stays where it was");
    assert_is(&pin, 1, 1);
    drop(pin);
    pool.resize(20 * CHUNK, 2 * CHUNK).unwrap();
    assert!(pool.lock().slots() <= 20, "and moves once it is not");
    assert!(budget.usage().of(Kind::Pages) < before);
    assert_books_balance(&budget);
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    pool.resize(64 * CHUNK, 2 * CHUNK).unwrap();
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    assert_eq!(pool.stats().pinned, 0);
}

#[test]
fn readers_get_what_they_asked_for_while_the_pool_grows_and_shrinks() {
    let backing = if cfg!(miri) { Backing::Heap } else { Backing::Mapped };
    let budget = Budget::new(400 * CHUNK, backing).unwrap();
    let pool = Pool::new(&budget, CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let is_over = AtomicU32::new(0);
    thread::scope(|scope| {
        for seed in 1..=3 {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut held = Vec::new();
                while is_over.load(Ordering::Relaxed) == 0 {
                    let number = random.below(if cfg!(miri) { 60 } else { 1200 }) as u32;
                    let page = file.get(number, Touch::Point).unwrap();
                    assert_is(&page, 1, number);
                    held.push((number, page));
                    if held.len() > random.below(12) as usize {
                        held.drain(..).for_each(|(number, page)| assert_is(&page, 1, number));
                    }
                }
            });
        }
        let mut random = Random(9);
        for _ in 0..if cfg!(miri) { 4 } else { 150 } {
            let chunks = [24, 40, 120, 400][random.below(4) as usize];
            // Held pages may be in the way.
            let _ = pool.resize(chunks * CHUNK, CHUNK);
            thread::yield_now();
        }
        is_over.store(1, Ordering::Relaxed);
    });
    pool.resize(24 * CHUNK, CHUNK).unwrap();
    assert!(pool.lock().slots() <= 24);
    assert_books_balance(&budget);
    drop((file, pool));
    assert_eq!(budget.free_bytes(), 24 * CHUNK);
}

#[test]
fn a_pool_that_cannot_shrink_is_as_it_was() {
    let budget = Budget::with_ceiling(64 * CHUNK, 256 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 16 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let pins: Vec<_> = (0..40 * 4).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert!(matches!(pool.resize(20 * CHUNK, 2 * CHUNK), Err(ResizeError::Held { .. })));
    assert_eq!(budget.limit_bytes(), 64 * CHUNK);
    drop(pins);
    assert_eq!(pool.reclaim(1000), pool.stats().evictions as usize / 4, "whole chunks");
    assert_eq!(pool.stats().frames, 16 * 4, "its floor is what it was");
    for refused in 0..3 {
        budget.fail_after(refused);
        let _ = pool.resize((200 + refused) * CHUNK, 16 * CHUNK);
        assert!([64, 200 + refused].contains(&(budget.limit_bytes() / CHUNK)));
        pool.resize(64 * CHUNK, 16 * CHUNK).unwrap();
    }
    (0..500).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
}

#[test]
fn tables_that_have_to_grow_find_room_or_the_pool_is_as_it_was() {
    // The budget grew without its pool, whose tables are then short by several chunks.
    for (from, to) in [(600, 500), (600, 601)] {
        let budget = Budget::with_ceiling(32 * CHUNK, 700 * CHUNK, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, CHUNK).unwrap();
        budget.resize(from * CHUNK).unwrap();
        let mut held: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
        held.truncate(held.len() - from.saturating_sub(to) as usize);
        let before = budget.usage();
        let error = pool.resize(to * CHUNK, CHUNK).unwrap_err();
        assert!(matches!(error, ResizeError::Held { .. }), "{error}");
        assert_eq!(budget.usage(), before);
        held.truncate(held.len() - 8);
        pool.resize(to * CHUNK, CHUNK).unwrap();
        assert_books_balance(&budget);
        assert_eq!(budget.limit_bytes(), to * CHUNK);
    }
}

#[test]
fn a_chunk_for_which_others_took_the_last_slot_goes_back() {
    let budget = Budget::with_ceiling(4 * CHUNK, 16 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, CHUNK).unwrap();
    budget.resize(16 * CHUNK).unwrap();
    (0..8).for_each(|_| pool.adopt(budget.take(Kind::Pages).unwrap()));
    assert_eq!(pool.stats().frames, 4 * FRAMES_PER_CHUNK as u64);
    assert_books_balance(&budget);
    let (_, file) = numbered(&pool, 1);
    let pages: Vec<_> = (0..16).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert!(matches!(file.get(16, Touch::Point), Err(LoadError::OutOfBudget(_))));
    (0..).zip(&pages).for_each(|(number, page)| assert_is(page, 1, number));
}

#[test]
fn several_reads_of_a_page_by_one_operation_count_once() {
    let (_budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    let mut first = Visits::default();
    for _ in 0..5 {
        for number in [0, 1, 0] {
            assert_is(&file.get_in(&mut first, number, Touch::Point).unwrap(), 1, number);
        }
    }
    assert!(!file.is_hot(0) && !file.is_hot(1));
    file.get_in(&mut Visits::default(), 0, Touch::Point).unwrap();
    assert!(file.is_hot(0) && !file.is_hot(1));
    for number in 2..10 {
        file.get_in(&mut first, number, Touch::Scan).unwrap();
    }
    assert!((2..10).all(|number| !file.is_hot(number)), "a scan is a scan, in an operation too");
    file.get_in(&mut first, 1, Touch::Point).unwrap();
    assert!(file.is_hot(1), "what was forgotten counts again");
}

#[test]
fn pages_read_ahead_are_found_and_read_once() {
    for threads in [0, 2] {
        let budget = budget(64);
        let pool = Pool::new(&budget, 8 * CHUNK).unwrap();
        let readers = (threads > 0).then(|| ReaderThreads::start(&pool, threads).unwrap());
        let (source, file) = numbered(&pool, 1);
        file.get(3, Touch::Point).unwrap();
        pool.resize(64 * CHUNK, 8 * CHUNK).unwrap();
        let most = pool.read_ahead_max();
        for first in (0..most * 4).step_by(most as usize) {
            file.prefetch(first, 1000);
            for number in first..first + most {
                assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number);
            }
        }
        drop(readers);
        assert_eq!(source.loads.load(Ordering::Relaxed), u64::from(most) * 4, "{:?}", pool.stats());
        assert!(threads > 0 || pool.stats().read_ahead > 0);
        assert_eq!(pool.stats().pinned, 0);
        drop((file, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}

#[test]
fn what_was_read_ahead_stays_until_it_is_read_and_hot_pages_with_it() {
    let (_budget, pool) = {
        let budget = budget(1 + 32);
        let pool = Pool::new(&budget, 31 * CHUNK).unwrap();
        (budget, pool)
    };
    let (source, file) = numbered(&pool, 1);
    for _ in 0..3 {
        (0..60).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    }
    let ahead = pool.read_ahead_max();
    assert!(ahead >= 4, "{ahead}");
    let scanned = if cfg!(miri) { 200 } else { 2000 };
    for number in (1000..1000 + scanned).step_by(ahead as usize) {
        file.prefetch(number, ahead);
        (number..number + ahead).for_each(|number| assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number));
    }
    let loads = source.loads.load(Ordering::Relaxed);
    assert_eq!(loads, 60 + u64::from(scanned.next_multiple_of(ahead)), "none was read twice");
    assert_eq!(resident(&file, 0..60), (0..60).collect::<Vec<_>>());
}

#[test]
fn what_is_resident_comes_back_into_another_pool_with_its_heat() {
    let (_budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    (0..6).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    (2..4).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    drop(file.get(9, Touch::Scan).unwrap());
    let mut residents = Vec::new();
    pool.residents(&mut |resident| residents.push(resident));
    residents.sort_unstable();
    let wanted: Vec<_> =
        (0..6).map(|number| Resident { file: file.id(), number, hot: (2..4).contains(&number) }).collect();
    assert_eq!(residents, wanted, "what only scans touched is not worth it");

    let (_budget, pool) = pool_beside_a_free_chunk(4);
    let (source, file) = numbered(&pool, 1);
    drop(file.get(4, Touch::Point).unwrap());
    assert_eq!(file.warm(0, 2, false), Warmed::Read(2));
    assert_eq!(file.warm(2, 4, true), Warmed::Read(3), "one of them was there");
    assert_eq!(source.loads.load(Ordering::Relaxed), 6);
    for number in 0..6 {
        assert_eq!(file.is_hot(number), [2, 3, 5].contains(&number), "page {number}");
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
    assert_eq!((source.loads.load(Ordering::Relaxed), pool.stats().pinned), (6, 0));
}

#[test]
fn a_page_that_cannot_be_read_has_not_come_back() {
    let (_budget, pool) = pool_beside_a_free_chunk(4);
    let source = Arc::new(Numbered { fails_one_in: 3, ..Numbered::default() });
    let file = pool.attach(Arc::clone(&source) as _);
    let Warmed::Read(read) = file.warm(0, 4, true) else { panic!("there is room") };
    assert_eq!(read as usize, resident(&file, 0..4).len());
    assert!(read < 4, "one of them cannot be read");
}

#[test]
fn a_thread_knows_whether_what_it_wanted_was_there() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    let before = Pool::absences();
    drop(file.get(0, Touch::Point).unwrap());
    assert_eq!(Pool::absences(), before + 1);
    std::thread::scope(|scope| _ = scope.spawn(|| drop(file.get(1, Touch::Point).unwrap())));
    drop(file.get(0, Touch::Point).unwrap());
    drop(file.get(1, Touch::Point).unwrap());
    assert_eq!(Pool::absences(), before + 1, "what another thread loads, and what is there");
}

#[test]
fn nobody_leaves_for_a_page_that_comes_back() {
    let (_budget, pool) = pool_beside_a_free_chunk(2);
    let (_, file) = numbered(&pool, 1);
    (0..3).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    assert_eq!(file.warm(10, 20, true), Warmed::NoRoom(5));
    assert_eq!(resident(&file, 0..30), [0, 1, 2, 10, 11, 12, 13, 14]);
    assert_eq!(file.warm(0, 3, true), Warmed::Read(0), "what is there needs no room");
    assert_eq!(pool.stats().evictions, 0);
}

#[test]
fn a_bad_page_that_is_read_ahead_fails_only_those_who_ask_for_it() {
    /// Reads runs, and page 6 is bad.
    struct Bad;
    impl PageSource for Bad {
        fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
            fill(5, number, page);
            match number {
                6 => Err(LoadError::Corrupt { message: "page 6".to_owned() }),
                _ => Ok(()),
            }
        }
    }
    for threads in [0, 1] {
        let budget = budget(64);
        let pool = Pool::new(&budget, 16 * CHUNK).unwrap();
        let readers = (threads > 0).then(|| ReaderThreads::start(&pool, threads).unwrap());
        let file = pool.attach(Arc::new(Bad));
        file.prefetch(4, 4);
        for number in [7, 6, 5, 4, 6] {
            match file.get(number, Touch::Scan) {
                Ok(page) => assert_is(&page, 5, number),
                Err(error) => assert_eq!((number, error.to_string()), (6, "page 6".to_owned())),
            }
        }
        drop(readers);
        file.prefetch(8, 4);
        assert_is(&file.get(8, Touch::Scan).unwrap(), 5, 8);
        assert_eq!(pool.stats().pinned, 0);
    }
}

#[test]
fn a_source_that_panics_while_it_is_read_ahead_costs_its_run_and_no_thread() {
    let budget = budget(64);
    let pool = Pool::new(&budget, 16 * CHUNK).unwrap();
    let readers = ReaderThreads::start(&pool, 1).unwrap();
    let source = Arc::new(Numbered { name: 1, panics: AtomicU32::new(1), ..Numbered::default() });
    let file = pool.attach(source);
    (0..8).step_by(4).for_each(|first| file.prefetch(first, 4));
    let is_read = || {
        thread::yield_now();
        pool.stats().read_ahead == 4
    };
    assert!((0..10_000_000).any(|_| is_read()), "the thread reads on");
    assert_eq!(resident(&file, 0..4), []);
    (0..8).for_each(|number| assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number));
    drop(readers);
    drop(file);
    pool.clear();
    assert_eq!(pool.stats().resident, 0, "no run keeps its file");
}

#[test]
fn reading_ahead_presses_on_nobody_and_takes_nothing_that_is_pinned() {
    let (budget, pool) = pool_of(2);
    let (source, file) = numbered(&pool, 1);
    let pins: Vec<_> = (0..8).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    file.prefetch(100, 8);
    assert_eq!((source.loads.load(Ordering::Relaxed), budget.free_bytes()), (8, 0));
    pins.iter().zip(0..).for_each(|(page, number)| assert_is(page, 1, number));
    for refused in 0..6 {
        budget.fail_after(refused);
        file.prefetch(200, 8);
        assert_eq!(budget.usage().of(Kind::Staging), 0);
    }
    drop(pins);
    assert_is(&file.get(100, Touch::Point).unwrap(), 1, 100);
}

/// What is held is what the kinds say: chunks whole, leases to the byte and together rounded up.
fn assert_books_balance(budget: &Budget) {
    let usage = budget.usage();
    let kinds: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(kinds.div_ceil(CHUNK) * CHUNK, usage.limit_bytes - usage.free_bytes, "{usage:?}");
}

#[test]
fn the_books_balance_after_any_sequence_of_operations() {
    for seed in 1..=if cfg!(miri) { 1 } else { 40 } {
        let mut random = Random(seed);
        let budget = Budget::with_ceiling((10 + random.below(20)) * CHUNK, 60 * CHUNK, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, random.below(3) * CHUNK).unwrap();
        let mut files = Vec::new();
        let (mut pages, mut others) = (Vec::new(), Vec::new());
        let mut bytes = vec![0; PAGE_BYTES];
        for _ in 0..if cfg!(miri) { 60 } else { 1000 } {
            let name = random.below(5) as usize;
            let number = random.below(30) as u32;
            if files.len() <= name {
                files.push((files.len() as u64, numbered(&pool, files.len() as u64).1));
                continue;
            }
            let (name, file) = &files[name];
            match random.below(21) {
                20 => _ = pool.resize((6 + random.below(55)) * CHUNK, random.below(3) * CHUNK),
                0 => pool.clear(),
                1 => {
                    pool.reclaim(random.below(4) as usize);
                }
                2 => {
                    fill(*name, number, &mut bytes);
                    file.put(number, &bytes, random.below(2) == 0);
                }
                3 => _ = budget.fail_after(random.below(3)),
                4 => others.extend(budget.take(Kind::Sort)),
                5 => others.clear(),
                6 => pages.clear(),
                7 => {
                    let name = *name as usize;
                    files[name].1 = numbered(&pool, name as u64).1;
                }
                8..11 => {
                    if let Ok(page) = file.get(number, Touch::Point) {
                        pages.push((*name, number, page));
                    }
                }
                _ => {
                    let touch = if random.below(2) == 0 { Touch::Point } else { Touch::Scan };
                    if let Ok(page) = file.get(number, touch) {
                        assert_is(&page, *name, number);
                    }
                }
            }
            assert_books_balance(&budget);
            let stats = pool.stats();
            assert!(stats.pinned <= stats.resident && stats.resident <= stats.frames, "seed {seed}: {stats:?}");
            assert_eq!(stats.frames / 4 * CHUNK, budget.usage().of(Kind::Pages) / CHUNK * CHUNK, "seed {seed}");
        }
        pages.iter().for_each(|(name, number, page)| assert_is(page, *name, *number));
        drop((pages, others));
        pool.resize(20 * CHUNK, CHUNK).unwrap();
        assert!(pool.lock().slots() <= 20, "seed {seed}");
        drop((files, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}");
    }
}

#[test]
fn readers_of_few_frames_always_get_the_bytes_they_asked_for() {
    const THREADS: u64 = 4;
    for (chunks, min_chunks) in [(3, 2), (12, 1), (40, 4)] {
        let budget = budget(chunks);
        let pool = Pool::new(&budget, min_chunks * CHUNK).unwrap();
        let files: Vec<_> = (0..3)
            .map(|name| pool.attach(Arc::new(Numbered { name, fails_one_in: 50 + name, ..Numbered::default() })))
            .collect();
        let start = Barrier::new(THREADS as usize + 1);
        let gets = AtomicU64::new(0);
        let errors = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (files, start, gets, errors) = (&files, &start, &gets, &errors);
                scope.spawn(move || {
                    let mut random = Random(thread * 77 + chunks);
                    let mut held = None;
                    start.wait();
                    for _ in 0..if cfg!(miri) { 20 } else { 5000 } {
                        let name = random.below(files.len() as u64);
                        let number = random.below(24) as u32;
                        let touch = if random.below(3) == 0 { Touch::Scan } else { Touch::Point };
                        gets.fetch_add(1, Ordering::Relaxed);
                        match files[name as usize].get(number, touch) {
                            Ok(page) => {
                                assert_is(&page, name, number);
                                // One page stays pinned for a while.
                                if random.below(8) == 0 {
                                    held = Some((name, number, page));
                                }
                            }
                            Err(LoadError::Corrupt { .. }) => _ = errors.fetch_add(1, Ordering::Relaxed),
                            Err(error) => panic!("{error}"),
                        }
                        if let Some((name, number, page)) = &held
                            && random.below(8) == 0
                        {
                            assert_is(page, *name, *number);
                            held = None;
                        }
                    }
                });
            }
            start.wait();
            let mut random = Random(chunks);
            for _ in 0..if cfg!(miri) { 5 } else { 500 } {
                match random.below(3) {
                    0 => pool.clear(),
                    1 => _ = pool.reclaim(2),
                    _ => _ = budget.take(Kind::Sort),
                }
                thread::yield_now();
            }
        });
        let stats = pool.stats();
        assert_eq!(stats.pinned, 0);
        // Each get was one of these, but a wait may have ended in an error.
        let counted = stats.hits + stats.loads + stats.waits + errors.load(Ordering::Relaxed);
        assert!(
            (gets.load(Ordering::Relaxed)..=gets.load(Ordering::Relaxed) + stats.waits).contains(&counted),
            "{stats:?}"
        );
        assert_books_balance(&budget);
        drop((files, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}
