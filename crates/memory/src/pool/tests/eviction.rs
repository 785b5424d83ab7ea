//! Which pages leave, and which stay.

use super::*;

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
    // Eight stay for scans; the clock's hand reaches those last that were read first.
    (0..8).for_each(|number| drop(kept.get(number, Touch::Scan).unwrap()));
    (8..72).for_each(|number| drop(kept.get(number, Touch::Point).unwrap()));
    assert_eq!(resident(&kept, 0..8), (0..8).collect::<Vec<_>>());
}

#[test]
fn several_reads_of_a_page_by_one_operation_count_once() {
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
    assert!((2..10).all(|number| !file.is_hot(number)), "a scan is a scan, in an operation too");
    file.get_in(&mut first, 1, Touch::Point).unwrap();
    assert!(file.is_hot(1), "what was forgotten counts again");
}
