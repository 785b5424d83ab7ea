//! Retention of the last GLSNs.

use std::sync::Arc;

use plimsoll::{Db, Durability, Glsn, Moment, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;

const WINDOW: u64 = 4;

/// The number of the step that compacts.
const COMPACT: usize = 3;

#[test]
fn a_power_cut_does_not_shorten_the_retained_window() {
    for seed in 0..4 {
        let disk = Arc::new(LyingDisk::new(seed));
        let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
        let open = || {
            let options = Options::new().memory_bytes(16 << 20).background(false);
            let options = options.durability(Durability::Buffered);
            Db::open("/store", options.world(disk.clone(), clock.clone())).unwrap()
        };
        let db = open();
        let other = db.create_keyspace("other", Retention::Latest).unwrap();
        let space = db.create_keyspace("window", Retention::Glsns(WINDOW)).unwrap();
        for value in 0..20_u8 {
            db.put(&space, "k", [value]).unwrap();
            db.flush().unwrap();
        }
        db.sync().unwrap();
        let durable = db.newest();
        // Commits that the power cut undoes.
        for value in 0..20_u8 {
            db.put(&other, "k", [value]).unwrap();
        }
        (0..2).for_each(|_| _ = db.step_from(COMPACT).unwrap());
        assert_eq!(db.log().bounds().durable, durable);
        disk.cut_power();
        drop(db);
        disk.restore_power();
        let db = open();
        let space = db.keyspace("window").unwrap();
        let newest = db.newest();
        // Some of the commits may be on the disk.
        for back in 0..=WINDOW {
            let at = Glsn(newest.0 - back);
            let value = db.snapshot_at(Moment::Glsn(at)).unwrap().get(&space, "k").unwrap();
            let wanted = 19 - durable.0.saturating_sub(at.0) as u8;
            assert_eq!(value.unwrap()[0], wanted, "{seed}, {back}");
        }
        db.close().unwrap();
    }
}
