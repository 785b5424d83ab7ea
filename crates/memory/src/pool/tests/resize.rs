//! Resizing a pool with its budget.

use std::collections::VecDeque;

use super::*;

#[test]
fn pool_follows_its_budget_up_and_down() {
    let budget = Budget::with_ceiling(32 * CHUNK, 256 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 4 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let pages = if cfg!(miri) { 300 } else { 1200 };
    let read_all = || {
        (0..pages).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number))
    };
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
fn pool_shrinks_from_8_gib_to_16_mib_and_back() {
    const MIB: u64 = 1 << 20;
    let budget = Budget::new(8192 * MIB, Backing::Mapped).unwrap();
    let pool = Pool::new(&budget, MIB).unwrap();
    let large = budget.usage().of(Kind::Pages);
    assert!(large > 48 * MIB, "the tables alone exceed the small budget: {large}");
    let (_, file) = numbered(&pool, 1);
    let read_all = || {
        (0..2000).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number))
    };
    read_all();
    let pin = file.get(1999, Touch::Point).unwrap();
    for _ in 0..2 {
        pool.resize(16 * MIB, 2 * MIB).unwrap();
        read_all();
        assert_eq!(budget.limit_bytes(), 16 * MIB);
        // The remaining chunks may be far apart and need many page tables; the descriptors extend
        // to the held page.
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
fn hot_pages_survive_the_loss_of_their_slots() {
    let budget = Budget::new(64 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 40 * CHUNK).unwrap();
    let (source, file) = numbered(&pool, 1);
    // Four to a chunk; hot pages are in the last slots, which are filled first.
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    (0..40).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    let pin = file.get(1, Touch::Point).unwrap();
    let before = budget.usage().of(Kind::Pages);
    pool.resize(24 * CHUNK, 2 * CHUNK).unwrap();
    let loads = source.loads.load(Ordering::Relaxed);
    assert!((0..40).all(|number| file.is_hot(number)));
    (0..40).for_each(|number| assert_is(&file.find(number, Touch::Point).unwrap(), 1, number));
    assert_eq!(source.loads.load(Ordering::Relaxed), loads);
    assert_eq!(pool.lock().slots.len(), 40, "the held page stays in its slot");
    assert_is(&pin, 1, 1);
    drop(pin);
    pool.resize(20 * CHUNK, 2 * CHUNK).unwrap();
    assert!(pool.lock().slots.len() <= 20, "and moves once it is released");
    assert!(budget.usage().of(Kind::Pages) < before);
    assert_books_balance(&budget);
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    pool.resize(64 * CHUNK, 2 * CHUNK).unwrap();
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
    assert_eq!(pool.stats().pinned, 0);
}

#[test]
fn briefly_held_page_does_not_block_a_shrink() {
    let budget = Budget::new(64 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 40 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    // Four to a chunk; the pages read first are in the last slots.
    let mut held: Vec<_> = (0..160).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    held.retain(|page| {
        page[..8] == word(1, 0, 0) || page[..8] == word(1, 159, 0) || page[..8] == word(1, 80, 0)
    });
    assert_eq!(held.len(), 3);
    pool.lock().set_min_chunks(1);
    let mut passes = 0;
    pool.shrink(20, |pass| {
        assert_eq!(pass, passes);
        passes += 1;
        if passes % 20 == 0 {
            held.pop();
        }
    });
    assert_eq!(passes, 60, "the first page is in a slot beyond the new end");
    assert!(pool.lock().slots.len() <= 20);
    assert!(pool.lock().slots.held() <= 20);
    let pin = file.get(7, Touch::Point).unwrap();
    let mut passes = 0;
    pool.shrink(1, |_| passes += 1);
    assert!(passes < 1000, "the resize stops waiting for a page that stays held");
    assert_is(&pin, 1, 7);
    drop((pin, held));
    pool.resize(20 * CHUNK, CHUNK).unwrap();
    assert_books_balance(&budget);
    (0..160).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
}

#[test]
fn busy_readers_seldom_block_a_shrink() {
    let backing = if cfg!(miri) { Backing::Heap } else { Backing::Mapped };
    let budget = Budget::new(400 * CHUNK, backing).unwrap();
    let pool = Pool::new(&budget, CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    // Number of pages, and the first of the pages that readers request; they are in the slots
    // filled last.
    let (all, wanted) = if cfg!(miri) { (40, 8) } else { (1200, 60) };
    let (first, is_over) = (AtomicU32::new(0), AtomicU32::new(0));
    // A reader may be descheduled while it holds a page. On a busy machine that blocks the shrink
    // more often.
    let (whole_wanted, rounds_max) = if cfg!(miri) { (2, 40) } else { (11, 400) };
    let (mut whole, mut round) = (0, 0);
    thread::scope(|scope| {
        for seed in 1..=2 {
            let (file, first, is_over) = (&file, &first, &is_over);
            scope.spawn(move || {
                // Each reader always holds some pages, but none for long.
                let (mut random, mut held) = (Random(seed), VecDeque::new());
                while is_over.load(Ordering::Relaxed) == 0 {
                    let number = first.load(Ordering::Relaxed) + random.below(wanted.into()) as u32;
                    held.push_back((number, file.get(number, Touch::Point).unwrap()));
                    if held.len() > 5 {
                        let (number, page) = held.pop_front().unwrap();
                        assert_is(&page, 1, number);
                    }
                }
            });
        }
        while whole < whole_wanted && round < rounds_max {
            pool.resize(400 * CHUNK, CHUNK).unwrap();
            let pages = round * all..(round + 1) * all;
            pages.clone().for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
            first.store(pages.end - wanted, Ordering::Relaxed);
            pages
                .rev()
                .take(wanted as usize)
                .for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
            pool.resize(24 * CHUNK, CHUNK).unwrap();
            whole += u32::from(pool.lock().slots.len() <= 24);
            round += 1;
        }
        is_over.store(1, Ordering::Relaxed);
    });
    assert_eq!(whole, whole_wanted, "of {round}");
    assert_books_balance(&budget);
}

#[test]
fn readers_succeed_while_the_pool_resizes() {
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
            // Held pages may block the shrink.
            let _ = pool.resize(chunks * CHUNK, CHUNK);
            thread::yield_now();
        }
        is_over.store(1, Ordering::Relaxed);
    });
    pool.resize(24 * CHUNK, CHUNK).unwrap();
    assert!(pool.lock().slots.len() <= 24);
    assert_books_balance(&budget);
    drop((file, pool));
    assert_eq!(budget.free_bytes(), 24 * CHUNK);
}

#[test]
fn failed_shrink_leaves_the_pool_unchanged() {
    let budget = Budget::with_ceiling(64 * CHUNK, 256 * CHUNK, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 16 * CHUNK).unwrap();
    let (_, file) = numbered(&pool, 1);
    let pins: Vec<_> = (0..40 * 4).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    assert!(matches!(pool.resize(20 * CHUNK, 2 * CHUNK), Err(ResizeError::Held { .. })));
    assert_eq!(budget.limit_bytes(), 64 * CHUNK);
    drop(pins);
    assert_eq!(pool.reclaim(1000), pool.stats().evictions as usize / 4, "whole chunks");
    assert_eq!(pool.stats().frames, 16 * 4, "the minimum is unchanged");
    for refused in 0..3 {
        budget.fail_after(refused);
        let _ = pool.resize((200 + refused) * CHUNK, 16 * CHUNK);
        assert!([64, 200 + refused].contains(&(budget.limit_bytes() / CHUNK)));
        pool.resize(64 * CHUNK, 16 * CHUNK).unwrap();
    }
    (0..500).for_each(|number| assert_is(&file.get(number, Touch::Point).unwrap(), 1, number));
}

#[test]
fn tables_grow_or_the_pool_is_unchanged() {
    // Only the budget grew, so that the pool's tables are several chunks short.
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
fn chunk_without_a_slot_returns_to_the_budget() {
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
