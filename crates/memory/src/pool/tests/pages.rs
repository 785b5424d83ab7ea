//! Finding, loading, holding and releasing pages.

use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

use super::*;

#[test]
fn find_returns_only_resident_pages() {
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
fn fetch_neither_loads_nor_touches() {
    let (_budget, pool) = pool_of(1);
    let (source, file) = numbered(&pool, 7);
    file.fetch(3, 256);
    assert_eq!(source.loads.load(Ordering::Relaxed), 0);
    drop(file.get(3, Touch::Point).unwrap());
    let before = pool.stats();
    (0..5).for_each(|_| file.fetch(3, 256));
    assert!(!file.is_hot(3));
    assert_eq!(pool.stats(), before);
}

#[test]
fn page_is_loaded_once_and_then_found() {
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
fn pinned_pages_stay_and_a_fully_pinned_pool_refuses() {
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
fn page_held_twice_stays_until_both_are_released() {
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
fn more_held_pages_than_hazard_slots_all_stay() {
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
fn page_outlives_its_thread_and_is_released_by_another() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    (0..4).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    let by_thread = |number| {
        thread::scope(|scope| {
            scope.spawn(|| file.get(number, Touch::Point).unwrap()).join().unwrap()
        })
    };
    // The second thread may reuse the first thread's line while one of its slots is in use.
    let pages = [by_thread(1), by_thread(2)];
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (2, 2));
    // Fill all other frames with other pages.
    (4..12).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    pages.iter().zip(1..).for_each(|(page, number)| assert_is(page, 1, number));
    drop(pages);
    pool.clear();
    assert_eq!((pool.stats().pinned, pool.stats().resident), (0, 0));
}

#[test]
fn pool_dropped_before_its_pages_frees_all_after_them() {
    let (budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    (0..9).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    let pages = [2, 7].map(|number| file.get(number, Touch::Point).unwrap());
    drop((file, pool));
    // The chunks of two frames, and the tables.
    let others = budget.usage().of(Kind::Pages) / CHUNK;
    assert!((2..4).contains(&others), "{others}");
    let [first, second] = pages;
    drop(first);
    assert_is(&second, 1, 7);
    assert!(budget.usage().of(Kind::Pages) > 0);
    thread::scope(|scope| scope.spawn(|| drop(second)).join().unwrap());
    // A thread of another test may release the memory.
    while budget.usage().of(Kind::Pages) > 0 {
        thread::yield_now();
    }
}

#[test]
fn one_load_serves_concurrent_requests() {
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
fn request_after_a_load_error_retries() {
    let (_budget, pool) = pool_of(1);
    let source = Arc::new(Numbered { name: 1, fails_one_in: 2, ..Numbered::default() });
    let file = pool.attach(source);
    for number in 0..20 {
        let outcomes = [
            file.get(number, Touch::Point).map(drop),
            file.get(number + 50, Touch::Scan).map(drop),
        ];
        assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "page {number}: {outcomes:?}");
        // Load another page before the second attempt.
        file.get(number + 100, Touch::Point).unwrap();
        assert!(file.get(number + 150, Touch::Point).is_err());
        assert_is(&file.get(number + 50, Touch::Scan).unwrap(), 1, number + 50);
        assert!(file.get(number + 150, Touch::Point).is_err());
    }
    assert_eq!(pool.stats().pinned, 0);
}

#[test]
fn panicking_load_fails_only_its_waiters() {
    let (_budget, pool) = pool_of(1);
    let gate = Some((Arc::clone(&pool), 2));
    let source =
        Arc::new(Numbered { name: 1, panics: AtomicU32::new(1), gate, ..Numbered::default() });
    let file = pool.attach(source);
    let (panics, errors) = thread::scope(|scope| {
        let threads = [(); 3]
            .map(|()| scope.spawn(|| catch_unwind(AssertUnwindSafe(|| file.get(0, Touch::Point)))));
        let outcomes = threads.map(|thread| thread.join().unwrap());
        (
            outcomes.iter().filter(|outcome| outcome.is_err()).count(),
            outcomes
                .iter()
                .filter(|outcome| matches!(outcome, Ok(Err(LoadError::Io { .. }))))
                .count(),
        )
    });
    assert_eq!((panics, errors), (1, 2));
    assert_eq!(pool.stats().pinned, 0);
    for number in 0..8 {
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
}

#[test]
fn put_is_found_and_does_not_replace() {
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
fn page_outlives_its_file_and_pool() {
    let budget = budget(32);
    let pool = Pool::new(&budget, 4 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let page = file.get(0, Touch::Point).unwrap();
    (0..50).for_each(|number| drop(file.get(number, Touch::Scan)));
    drop((pool, file));
    assert_is(&page, 1, 0);
    assert!(budget.free_bytes() < budget.limit_bytes());
    drop(page);
    // A thread of another test may be returning the memory.
    let (clock, mut looks) = (SystemClock::new(), 0);
    while budget.free_bytes() < budget.limit_bytes() {
        looks += 1;
        assert!(
            looks < 60_000,
            "{} of {} bytes are free",
            budget.free_bytes(),
            budget.limit_bytes()
        );
        clock.sleep(Duration::from_millis(1));
    }
    assert_eq!(budget.usage().of(Kind::Pages), 0);
}

#[test]
fn page_reports_whether_it_was_resident() {
    let (_budget, pool) = pool_of(1);
    let (_, file) = numbered(&pool, 1);
    let is_miss = |number| file.get(number, Touch::Point).unwrap().is_miss();
    assert_eq!(
        (file.is_resident(0), is_miss(0), is_miss(0), file.is_resident(0)),
        (false, true, false, true)
    );
    std::thread::scope(|scope| _ = scope.spawn(|| drop(file.get(1, Touch::Point).unwrap())));
    assert!(!is_miss(1), "another thread loaded it");
    file.put(2, &[2; PAGE_BYTES], false);
    assert!(!is_miss(2), "the page was put");
}

#[test]
fn readers_competing_for_few_frames_get_their_bytes() {
    const THREADS: u64 = 4;
    for (chunks, min_chunks) in [(3, 2), (12, 1), (40, 4)] {
        let budget = budget(chunks);
        let pool = Pool::new(&budget, min_chunks * CHUNK).unwrap();
        let files: Vec<_> = (0..3)
            .map(|name| {
                pool.attach(Arc::new(Numbered {
                    name,
                    fails_one_in: 50 + name,
                    ..Numbered::default()
                }))
            })
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
                            Err(LoadError::Corrupt { .. }) => {
                                _ = errors.fetch_add(1, Ordering::Relaxed)
                            }
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
        // Each get was a hit, a load or a wait, but a wait may have ended in an error.
        let counted = stats.hits + stats.loads + stats.waits + errors.load(Ordering::Relaxed);
        assert!(
            (gets.load(Ordering::Relaxed)..=gets.load(Ordering::Relaxed) + stats.waits)
                .contains(&counted),
            "{stats:?}"
        );
        assert_books_balance(&budget);
        drop((files, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}

#[test]
fn resident_only_thread_loads_nothing() {
    let (_budget, pool) = pool_of(1);
    let (source, file) = numbered(&pool, 7);
    drop(file.get(3, Touch::Point).unwrap());
    {
        let _only = ResidentOnly::enter();
        assert_is(&file.get(3, Touch::Point).unwrap(), 7, 3);
        assert!(matches!(
            file.get(4, Touch::Point),
            Err(LoadError::Io { kind: io::ErrorKind::WouldBlock, .. })
        ));
        ResidentOnly::pause(|| drop(file.get(5, Touch::Point).unwrap()));
    }
    assert_is(&file.get(4, Touch::Point).unwrap(), 7, 4);
    assert_eq!(source.loads.load(Ordering::Relaxed), 3);
}
