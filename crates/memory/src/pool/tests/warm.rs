//! Warm restart: resident pages are read back into another pool.

use super::*;

#[test]
fn resident_pages_are_restored_with_their_heat() {
    let (_budget, pool) = pool_of(4);
    let (_, file) = numbered(&pool, 1);
    (0..6).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    (2..4).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    drop(file.get(9, Touch::Scan).unwrap());
    let mut residents = Vec::new();
    pool.residents(&mut |resident| residents.push(resident));
    residents.sort_unstable();
    let wanted: Vec<_> = (0..6)
        .map(|number| Resident { file: file.id(), number, hot: (2..4).contains(&number) })
        .collect();
    assert_eq!(residents, wanted, "pages touched only by scans are omitted");

    let (_budget, pool) = pool_beside_a_free_chunk(4);
    let (source, file) = numbered(&pool, 1);
    drop(file.get(4, Touch::Point).unwrap());
    assert_eq!(file.warm(0, 2, false), Warmed::Read(2));
    assert_eq!(file.warm(2, 4, true), Warmed::Read(3), "one page was resident");
    assert_eq!(source.loads.load(Ordering::Relaxed), 6);
    for number in 0..6 {
        assert_eq!(file.is_hot(number), [2, 3, 5].contains(&number), "page {number}");
        assert_is(&file.get(number, Touch::Point).unwrap(), 1, number);
    }
    assert_eq!((source.loads.load(Ordering::Relaxed), pool.stats().pinned), (6, 0));
}

#[test]
fn unreadable_page_is_not_restored() {
    let (_budget, pool) = pool_beside_a_free_chunk(4);
    let source = Arc::new(Numbered { fails_one_in: 3, ..Numbered::default() });
    let file = pool.attach(Arc::clone(&source) as _);
    let Warmed::Read(read) = file.warm(0, 4, true) else { panic!("there is room") };
    assert_eq!(read as usize, resident(&file, 0..4).len());
    assert!(read < 4, "one page is unreadable");
}

#[test]
fn restoring_a_page_evicts_nothing() {
    let (_budget, pool) = pool_beside_a_free_chunk(2);
    let (_, file) = numbered(&pool, 1);
    (0..3).for_each(|number| drop(file.get(number, Touch::Point).unwrap()));
    assert_eq!(file.warm(10, 20, true), Warmed::NoRoom(5));
    assert_eq!(resident(&file, 0..30), [0, 1, 2, 10, 11, 12, 13, 14]);
    assert_eq!(file.warm(0, 3, true), Warmed::Read(0), "resident pages need no room");
    assert_eq!(pool.stats().evictions, 0);
}
