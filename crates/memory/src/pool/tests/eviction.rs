//! Eviction order of pages.

use super::*;

#[test]
fn second_point_touch_heats_a_page_and_scan_does_not() {
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
fn long_scan_evicts_neither_hot_nor_cold_pages() {
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
fn scanned_page_stays_after_a_point_touch() {
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
fn cold_pages_are_evicted_before_hot_ones() {
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
fn pages_of_a_dropped_file_are_freed_at_once_or_when_unpinned() {
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
fn pages_of_a_dropped_file_do_not_disturb_the_scan_ring() {
    let (_budget, pool) = pool_of(16);
    let (_, gone) = numbered(&pool, 1);
    let (_, kept) = numbered(&pool, 2);
    let pinned: Vec<_> = (0..8).map(|number| gone.get(number, Touch::Point).unwrap()).collect();
    drop(gone);
    drop(pinned);
    pool.clear();
    // Eight frames are the ring of scans. The clock's hand reaches the pages read first last.
    (0..8).for_each(|number| drop(kept.get(number, Touch::Scan).unwrap()));
    (8..72).for_each(|number| drop(kept.get(number, Touch::Point).unwrap()));
    assert_eq!(resident(&kept, 0..8), (0..8).collect::<Vec<_>>());
}

#[test]
fn repeated_reads_by_one_operation_count_once() {
    let (_budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    let mut first = RecentPages::default();
    for _ in 0..5 {
        for number in [0, 1, 0] {
            assert_is(&file.get_in(&mut first, number, Touch::Point).unwrap(), 1, number);
        }
    }
    assert!(!file.is_hot(0) && !file.is_hot(1));
    file.get_in(&mut RecentPages::default(), 0, Touch::Point).unwrap();
    assert!(file.is_hot(0) && !file.is_hot(1));
    for number in 2..10 {
        file.get_in(&mut first, number, Touch::Scan).unwrap();
    }
    assert!(
        (2..10).all(|number| !file.is_hot(number)),
        "repeated scans within an operation do not heat a page"
    );
    file.get_in(&mut first, 1, Touch::Point).unwrap();
    assert!(file.is_hot(1), "an access counts again once the operation has forgotten the page");
}
