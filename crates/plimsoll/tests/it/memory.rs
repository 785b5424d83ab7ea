//! The budget and its users, as seen through the API.

use plimsoll::{Db, Error, MIN_MEMORY_BYTES, Options};

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

#[test]
fn a_store_without_an_evictor_gives_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(MIN_MEMORY_BYTES).evictor(false);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    for number in 0..40_000u32 {
        tx.put(&keyspace, &key(number), &[7; 800]).unwrap();
    }
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    for number in 0..40_000 {
        assert_eq!(snapshot.get(&keyspace, &key(number)).unwrap().unwrap(), &[7; 800][..]);
    }
    let stats = db.stats();
    assert_eq!((stats.evictor.rounds, stats.evictor.victims), (0, 0));
    assert!(stats.pressure.inline_page_evictions > 0, "{stats:?}");
}

#[test]
fn a_store_without_threads_frees_memory_in_its_steps() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(MIN_MEMORY_BYTES).background(false);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    for number in 0..30_000u32 {
        tx.put(&keyspace, &key(number), &[7; 800]).unwrap();
    }
    tx.commit().unwrap();
    for number in 0..30_000 {
        assert!(db.snapshot().get(&keyspace, &key(number)).unwrap().is_some());
    }
    assert_eq!(db.stats().evictor.victims, 0);
    while db.step().unwrap() {}
    let stats = db.stats();
    assert!(stats.evictor.victims > 0 && stats.evictor.room_bytes.1 >= 512 << 10, "{stats:?}");
    assert!(stats.memory.free_bytes >= stats.evictor.room_bytes.1, "{stats:?}");
}

#[test]
fn a_reduced_budget_gives_compaction_no_more_memory_than_a_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = |name: &str, bytes| {
        Db::open(dir.path().join(name), Options::new().memory_bytes(bytes).background(false))
            .unwrap()
    };
    let (small, large) = (db("small", MIN_MEMORY_BYTES), db("large", 256 << 20));
    let of = |db: &Db, kind: &str| {
        db.stats().memory.by_kind.iter().find(|(name, _)| *name == kind).unwrap().1
    };
    let set_aside = |db: &Db| of(db, "flush and compaction");
    assert!(set_aside(&large) > set_aside(&small));
    large.set_memory(MIN_MEMORY_BYTES).unwrap();
    assert_eq!(set_aside(&large), set_aside(&small));
    large.set_memory(256 << 20).unwrap();
    assert!(set_aside(&large) > set_aside(&small));
}

#[test]
fn a_budget_filled_by_open_transactions_is_not_reduced_and_the_error_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(64 << 20)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let open: Vec<_> = (0..6)
        .map(|writer| {
            let mut tx = db.begin();
            (0..6000u32).for_each(|number| {
                tx.put(&keyspace, &key(writer << 20 | number), &[1; 900]).unwrap()
            });
            tx
        })
        .collect();
    let error = db.set_memory(MIN_MEMORY_BYTES).unwrap_err();
    assert!(
        matches!(&error, Error::OutOfBudget(_)) && error.to_string().contains("WriteSet"),
        "{error}"
    );
    assert_eq!(db.stats().memory.limit_bytes, 64 << 20);
    for tx in open {
        tx.commit().unwrap();
    }
    db.set_memory(MIN_MEMORY_BYTES).unwrap();
    assert!(db.snapshot().get(&keyspace, &key(5 << 20 | 5999)).unwrap().is_some());
}

#[test]
fn memtables_follow_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let db =
        Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20).background(false))
            .unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let flushes_of = |mebibytes: u32| {
        db.flush().unwrap();
        let before = db.stats().index.flushes;
        for commit in 0..16 * mebibytes {
            let mut tx = db.begin();
            (0..64).for_each(|number| {
                tx.put(&keyspace, &key(commit << 8 | number), &[1; 960]).unwrap()
            });
            tx.commit().unwrap();
        }
        db.stats().index.flushes - before
    };
    assert!(flushes_of(10) >= 3, "an eighth of 16 MiB, and one memtable waits");
    db.set_memory(128 << 20).unwrap();
    assert_eq!(flushes_of(10), 0, "an eighth of 128 MiB");
    db.set_memory(16 << 20).unwrap();
    assert!(flushes_of(10) >= 3);
}
