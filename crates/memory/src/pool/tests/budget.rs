//! Chunks that the pool takes and returns, and the accounts of pool and budget.

use super::*;

#[test]
fn headroom_is_taken_only_when_all_frames_are_pinned() {
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
fn budget_reclaims_all_but_the_minimum() {
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
fn coldest_chunk_is_released_first_and_pinned_chunk_stays() {
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
fn pages_evicted_with_their_chunk_leave_ghosts() {
    let budget = budget(12 + MIN_HEADROOM_CHUNKS as u64);
    let pool = Pool::new(&budget, 0).unwrap();
    let (_, file) = numbered(&pool, 1);
    for number in 0..11 * 4 {
        // A chunk of pages touched once, one of pages touched only by a scan, and hot chunks.
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
            "page {number}: only a ghost from probation makes a page hot"
        );
    }
    assert_eq!(pool.turnover().returns - before, 4, "the pages were evicted recently");
}

#[test]
fn oversized_pool_is_refused_and_takes_nothing() {
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
fn pool_recovers_from_every_budget_refusal() {
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
fn accounts_balance_after_random_operations() {
    for seed in 1..=if cfg!(miri) { 1 } else { 40 } {
        let mut random = Random(seed);
        let budget =
            Budget::with_ceiling((10 + random.below(20)) * CHUNK, 60 * CHUNK, Backing::Heap)
                .unwrap();
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
            assert!(
                stats.pinned <= stats.resident && stats.resident <= stats.frames,
                "seed {seed}: {stats:?}"
            );
            assert_eq!(
                stats.frames / 4 * CHUNK,
                budget.usage().of(Kind::Pages) / CHUNK * CHUNK,
                "seed {seed}"
            );
        }
        pages.iter().for_each(|(name, number, page)| assert_is(page, *name, *number));
        drop((pages, others));
        pool.resize(20 * CHUNK, CHUNK).unwrap();
        assert!(pool.lock().slots.len() <= 20, "seed {seed}");
        drop((files, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}");
    }
}
