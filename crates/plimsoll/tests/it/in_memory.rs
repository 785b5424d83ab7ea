//! A store in memory is an ordinary store whose files are in memory outside the budget.

use std::path::Path;

use plimsoll::{Db, Error, Options};

const BUDGET: u64 = 16 << 20;

fn options() -> Options {
    Options::new().memory_bytes(BUDGET)
}

#[test]
fn it_can_hold_more_than_its_budget_and_stays_within_it() {
    let db = Db::in_memory(options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let value = |number: u64| vec![number as u8; 50_000];
    for number in 0..800u64 {
        let mut tx = db.begin();
        tx.put(&keyspace, &number.to_be_bytes(), &value(number)).unwrap();
        tx.commit().unwrap();
    }
    db.flush().unwrap();
    for number in 0..800u64 {
        let found = db.snapshot().get(&keyspace, &number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap(), value(number)[..], "{number}");
    }
    assert!(db.stats().memory.peak_bytes <= BUDGET, "{:?}", db.stats().memory);
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn each_is_a_separate_store_and_leaves_nothing_behind() {
    let (one, other) = (Db::in_memory(options()).unwrap(), Db::in_memory(options()).unwrap());
    let keyspace = one.keyspace("default").unwrap();
    let mut tx = one.begin();
    tx.put(&keyspace, b"key", b"value").unwrap();
    tx.commit().unwrap();
    let keyspace = other.keyspace("default").unwrap();
    assert!(other.snapshot().get(&keyspace, b"key").unwrap().is_none());
    one.close().unwrap();
    other.close().unwrap();
    assert!(matches!(Db::in_memory(options().read_only(true)), Err(Error::InvalidInput { .. })));
    assert!(matches!(
        Db::open("/store", options().create(false)),
        Err(Error::NotAStore { path, .. }) if path == Path::new("/store")
    ));
}
