//! Eight threads at once.

use std::sync::Arc;

use plimsoll::{Db, Options};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_sim::bank::{transfers, write_skew};

const THREADS: u64 = 8;

/// A store in memory, with its background threads, and memtables so small that flushes and
/// compactions go on all the time.
fn store() -> Db {
    let options =
        Options::new().memory_bytes(16 << 20).memtable_bytes(64 << 10).segment_bytes(256 << 10);
    Db::open("/store", options.world(Arc::new(MemDisk::new()), Arc::new(SystemClock::new())))
        .unwrap()
}

#[test]
fn money_is_neither_made_nor_lost_and_the_history_is_serializable() {
    let db = store();
    let report = transfers(&db, THREADS).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.commits >= 2000 && report.conflicts > 0 && report.audits > 0, "{report:?}");
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    db.close().unwrap();
}

#[test]
fn of_two_on_call_one_stays() {
    // Threads that the system runs one after the other meet no conflict: then once more.
    let has_conflicts = (0..50).any(|_| {
        let db = store();
        let report = write_skew(&db, THREADS).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.commits >= 2000, "{report:?}");
        db.close().unwrap();
        report.conflicts > 0
    });
    assert!(has_conflicts);
}
