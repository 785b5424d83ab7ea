//! Read-ahead.

use super::*;

#[test]
fn read_ahead_loads_each_page_once() {
    for threads in [0, 2] {
        let budget = budget(64);
        let pool = Pool::new(&budget, 8 * CHUNK).unwrap();
        let readers = (threads > 0).then(|| ReaderThreads::start(&pool, threads));
        let (source, file) = numbered(&pool, 1);
        file.get(3, Touch::Point).unwrap();
        pool.resize(64 * CHUNK, 8 * CHUNK).unwrap();
        let most = pool.read_ahead_max();
        for first in (0..most * 4).step_by(most as usize) {
            file.read_ahead(first, 1000);
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
fn read_ahead_pages_and_hot_pages_stay_until_read() {
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
        file.read_ahead(number, ahead);
        (number..number + ahead)
            .for_each(|number| assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number));
    }
    let loads = source.loads.load(Ordering::Relaxed);
    assert_eq!(loads, 60 + u64::from(scanned.next_multiple_of(ahead)), "no page was read twice");
    assert_eq!(resident(&file, 0..60), (0..60).collect::<Vec<_>>());
}

#[test]
fn bad_page_in_a_read_ahead_fails_only_its_readers() {
    /// Page 6 is bad; runs without it can be read.
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
        let readers = (threads > 0).then(|| ReaderThreads::start(&pool, threads));
        let file = pool.attach(Arc::new(Bad));
        file.read_ahead(4, 4);
        for number in [7, 6, 5, 4, 6] {
            match file.get(number, Touch::Scan) {
                Ok(page) => assert_is(&page, 5, number),
                Err(error) => assert_eq!((number, error.to_string()), (6, "page 6".to_owned())),
            }
        }
        drop(readers);
        file.read_ahead(8, 4);
        assert_is(&file.get(8, Touch::Scan).unwrap(), 5, 8);
        assert_eq!(pool.stats().pinned, 0);
    }
}

#[test]
fn panicking_source_costs_its_run_but_no_thread() {
    let budget = budget(64);
    let pool = Pool::new(&budget, 16 * CHUNK).unwrap();
    let readers = ReaderThreads::start(&pool, 1);
    let source = Arc::new(Numbered { name: 1, panics: AtomicU32::new(1), ..Numbered::default() });
    let file = pool.attach(source);
    (0..8).step_by(4).for_each(|first| file.read_ahead(first, 4));
    let is_read = || {
        thread::yield_now();
        pool.stats().read_ahead == 4
    };
    assert!((0..10_000_000).any(|_| is_read()), "the thread continues");
    assert_eq!(resident(&file, 0..4), []);
    (0..8).for_each(|number| assert_is(&file.get(number, Touch::Scan).unwrap(), 1, number));
    drop(readers);
    drop(file);
    pool.clear();
    assert_eq!(pool.stats().resident, 0, "no run keeps its file");
}

#[test]
fn read_ahead_neither_reclaims_nor_takes_pinned_frames() {
    let (budget, pool) = pool_of(2);
    let (source, file) = numbered(&pool, 1);
    let pins: Vec<_> = (0..8).map(|number| file.get(number, Touch::Point).unwrap()).collect();
    file.read_ahead(100, 8);
    assert_eq!((source.loads.load(Ordering::Relaxed), budget.free_bytes()), (8, 0));
    pins.iter().zip(0..).for_each(|(page, number)| assert_is(page, 1, number));
    for refused in 0..6 {
        budget.fail_after(refused);
        file.read_ahead(200, 8);
        assert_eq!(budget.usage().of(Kind::Staging), 0);
    }
    drop(pins);
    assert_is(&file.get(100, Touch::Point).unwrap(), 1, 100);
}
