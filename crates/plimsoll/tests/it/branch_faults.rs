//! Reads on a branch that fail.

use std::sync::Arc;

use plimsoll::{Db, Error, Options};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::lying::LyingDisk;

/// Keys that an iterator returned before an error count as read, on main as on a branch.
#[test]
fn a_commit_validates_what_a_failed_iterator_has_returned() {
    let disk = LyingDisk::new(1);
    let world = (Arc::new(disk.clone()), Arc::new(SystemClock::new()));
    let options = Options::new().memory_bytes(16 << 20).world(world.0, world.1).background(false);
    let db = Db::open("/store", options).unwrap();
    let ks = db.keyspace("default").unwrap();
    let rows = (0..60_000u32).map(|key| (key.to_be_bytes(), [7; 600]));
    db.bulk_load(&ks, rows).unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    for branch in [db.main(), draft] {
        for is_reversed in [false, true] {
            let mut tx = branch.begin();
            let mut range = tx.range(&ks, ..).unwrap();
            if is_reversed {
                range = range.reverse();
            }
            let fifth =
                (0..20).map(|_| range.advance().unwrap().unwrap().0.to_vec()).nth(5).unwrap();
            disk.fail_reads(1.0);
            let failed = std::iter::repeat_with(|| range.advance().map(|row| row.is_some()))
                .find(|row| !matches!(row, Ok(true)));
            assert!(matches!(failed, Some(Err(_))), "{failed:?}");
            disk.fail_reads(0.0);
            drop(range);
            tx.put(&ks, "other", "mine").unwrap();
            branch.put(&ks, &fifth, "changed").unwrap();
            let conflict = tx.commit();
            assert!(
                matches!(conflict, Err(Error::Conflict { .. })),
                "{branch:?}, reversed: {is_reversed}: {conflict:?}"
            );
        }
    }
}
