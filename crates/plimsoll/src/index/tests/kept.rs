//! Tests of what flushes and merges keep: deletions, versions that a snapshot needs, and values
//! that move out of the log.

use plimsoll_disk::lying::LyingDisk;

use super::jobs::{FLUSHED, key, world};
use super::*;
use crate::index::env::Progress;
use crate::types::error::Error;

#[test]
fn a_deleted_key_leaves_nothing_once_no_snapshot_is_below() {
    let mut world = world(FLUSHED);
    for round in 0..3 {
        world.flush_keys(LATEST, 0..500, Some(&[round; 30]));
    }
    world.latest_only();
    let deleted = world.flush_keys(LATEST, 0..500, None);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let stats = world.index().stats();
    assert_eq!(
        stats.versions, 1000,
        "the snapshot before sees the last values, later ones the deletions: {stats:?}"
    );
    assert_eq!(stats.history_runs.len(), 1);
    assert_eq!(world.view().limits.deletions_moved, deleted);
    world.check_all();
    world.latest_only();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let stats = world.index().stats();
    assert_eq!((stats.versions, stats.tables), (0, 0), "{stats:?}");
    assert_eq!(world.view().oldest_readable_in(LATEST), deleted);
    assert_eq!(world.view().oldest_readable_in(FOREVER), Glsn::NONE);
    world.check_all();
    assert_eq!(world.run_files(), [""; 0]);
}

#[test]
fn a_deletion_stays_in_history_if_all_versions_are_kept() {
    let mut world = world(FLUSHED);
    let put = world.flush_keys(FOREVER, 0..500, Some(b"value"));
    let deleted = world.flush_keys(FOREVER, 100..300, None);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let view = world.view();
    assert_eq!(view.runs[0].deletions(), 0, "a scan of the present does not meet them");
    assert_eq!(view.history[0].versions(), 400);
    assert_eq!(
        view.changed(&key(FOREVER, 200), put).unwrap(),
        Some(deleted),
        "a conflict is still detected"
    );
    assert_eq!(view.changed(&key(FOREVER, 50), put).unwrap(), None);
    world.check_all();
    // Put the keys again, and merge.
    world.flush_keys(FOREVER, 200..250, Some(b"again"));
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    world.check_all();
}

#[test]
fn values_are_moved_out_of_log_entries_to_be_freed() {
    let mut world = world(FLUSHED);
    for round in 0..9 {
        let writes = (0..6).map(|number| {
            (key(FOREVER, number), Some(vec![round as u8 + 1; 150_000 + number as usize]))
        });
        world.commit(writes.collect()).unwrap();
        world.index().memtables.flush_up_to(world.applied).unwrap();
    }
    let until = Glsn(8);
    world.horizon.relocate_below.store(until.0, Ordering::Relaxed);
    assert_eq!(world.index().sources.view().min_pointer(), Some(Glsn::FIRST));
    let mut steps = 0;
    while world.index().sources.view().min_pointer().is_some_and(|oldest| oldest < until) {
        assert_eq!(world.index().compaction.step().unwrap(), Progress::Worked);
        steps += 1;
    }
    assert!(steps > 1, "values are moved a piece at a time");
    world.log.trim(until, &|blob| world.index().runs.uses_blob(blob)).unwrap();
    assert_eq!(world.log.bounds().first, until);
    assert_eq!(world.log.sweep_blobs(&|blob| world.index().runs.uses_blob(blob)).unwrap(), 0);
    world.check_all();
    world.log.sync().unwrap();
    world.open().unwrap();
    world.check_all();
}

#[test]
fn only_tables_with_values_to_move_are_rewritten() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..20_000, Some(&[5; 60]));
    let writes = (0..3).map(|number| (key(FOREVER, 1 << 40 | number), Some(vec![9; 50_000])));
    world.commit(writes.collect()).unwrap();
    world.index().memtables.flush_up_to(world.applied).unwrap();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let before = world.index().stats();
    world.horizon.relocate_below.store(world.applied.0 + 1, Ordering::Relaxed);
    world.index().compaction.relocate().unwrap();
    assert_eq!(world.index().sources.view().min_pointer(), None);
    let written = world.index().stats().bytes_compaction_written - before.bytes_compaction_written;
    assert!(written > 0 && written < before.runs[0] / 4, "{written} of {before:?}");
    world.check_all();
}

#[test]
fn failed_unrequested_relocations_block_nothing() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    let writes = (0..3).map(|number| (key(FOREVER, number), Some(vec![9; 50_000])));
    world.commit(writes.collect()).unwrap();
    world.index().memtables.flush_up_to(world.applied).unwrap();
    let want =
        |world: &World| world.horizon.relocate_below.store(world.applied.0 + 1, Ordering::Relaxed);
    world.horizon.unrequested.store(true, Ordering::Relaxed);
    want(&world);
    disk.fill_up(Some(0));
    while world.index().compaction.step().unwrap() == Progress::Worked {}
    assert_eq!(world.index().stats().last_error, None);
    assert!(world.index().sources.view().min_pointer().is_some());
    want(&world);
    assert!(world.index().compaction.relocate().is_err(), "a request reports the error");
    disk.fill_up(None);
    want(&world);
    while world.index().compaction.step().unwrap() == Progress::Worked {}
    assert_eq!(world.index().sources.view().min_pointer(), None);
    world.check_all();
}

#[test]
fn a_glsn_whose_versions_may_be_dropped_is_refused() {
    let mut world = world(FLUSHED);
    for round in 0..3 {
        world.flush_keys(LATEST, 0..10, Some(&[round]));
        world.flush_keys(FOREVER, 0..10, Some(&[round]));
    }
    world.latest_only();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let (view, asked) = (world.view(), Glsn(3));
    let trimmed = Error::trimmed(Glsn(3), Glsn(5));
    assert_eq!(view.get(&key(LATEST, 1), asked).unwrap_err(), trimmed);
    let lower = key(LATEST, 0);
    assert_eq!(
        view.visible(
            Bound::Included(&lower),
            Bound::Unbounded,
            AsOf::unexpiring(asked),
            Direction::Forward
        )
        .unwrap_err(),
        trimmed
    );
    assert_eq!(view.get(&key(LATEST, 1), Glsn(5)).unwrap().unwrap().glsn(), Glsn(5));
    assert_eq!(view.get(&key(FOREVER, 1), asked).unwrap().unwrap().glsn(), Glsn(2));
}

#[test]
fn the_last_writes_of_a_repeatedly_spilled_transaction_win() {
    for last_is_deletion in [false, true] {
        let mut world = world(FLUSHED);
        world.flush_keys(FOREVER, 0..50, Some(b"before"));
        // Newest first. Each run writes all keys, sometimes as deletions.
        let value = |run: u64| (run % 2 != u64::from(last_is_deletion)).then(|| vec![run as u8; 9]);
        let runs = (0..11)
            .map(|run| (0..50).map(|number| (key(FOREVER, number), value(run + 1))).collect());
        let runs: Vec<_> = runs.collect();
        world.commit_spilled(runs).unwrap();
        world.check_all();
        world.index().memtables.flush_up_to(world.applied).unwrap();
        assert_eq!(world.view().runs.len(), 12);
        while world.view().runs.len() > 1
            && world.index().compaction.step().unwrap() == Progress::Worked
        {
            world.check_all();
        }
        world.flush_keys(FOREVER, 0..25, Some(b"after"));
        world.index().compaction.run_all(Glsn::MAX).unwrap();
        world.check_all();
        assert_eq!(world.index().stats().versions, 50 + 50 + 25, "no copy is left");
    }
}

#[test]
fn a_replay_skips_versions_that_runs_hold() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..50, Some(b"value"));
    let runs = vec![(0..20).map(|number| (key(FOREVER, number), None)).collect()];
    world.commit_spilled(runs).unwrap();
    world.index().memtables.flush_up_to(world.applied).unwrap();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    world.open().unwrap();
    for commit in &world.commits {
        world.apply(commit, Glsn::NONE).unwrap();
    }
    let view = world.view();
    assert!(view.active.is_empty() && view.closed.is_empty());
    world.check_all();
}
