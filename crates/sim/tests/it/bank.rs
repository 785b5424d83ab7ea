//! Serializability with eight concurrent threads.

use std::sync::Arc;

use plimsoll::{Db, Options};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_sim::bank::{transfers, write_skew};

const THREADS: u64 = 8;

/// A store in memory, with background threads, and memtables so small that it flushes and compacts
/// continuously.
fn store() -> Db {
    let options =
        Options::new().memory_bytes(16 << 20).memtable_bytes(64 << 10).segment_bytes(256 << 10);
    Db::open("/store", options.world(Arc::new(MemDisk::new()), Arc::new(SystemClock::new())))
        .unwrap()
}

#[test]
fn bank_total_is_constant_and_history_is_serializable() {
    let db = store();
    let report = transfers(&db, THREADS).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.commits >= 2000 && report.conflicts > 0 && report.audits > 0, "{report:?}");
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    db.close().unwrap();
}

#[test]
fn on_call_pairs_show_no_write_skew() {
    // If the system ran the threads one after the other, there was no conflict. Run again.
    let has_conflicts = (0..50).any(|_| {
        let db = store();
        let report = write_skew(&db, THREADS).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.commits >= 2000, "{report:?}");
        db.close().unwrap();
        report.conflicts > 0
    });
    assert!(has_conflicts);
}
