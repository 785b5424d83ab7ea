//! Tests with background threads: the pace of writers, and the smallest budget.

use std::time::Duration;

use plimsoll_memory::budget::MIN_BUDGET_BYTES;

use super::jobs::{FLUSHED, key, world};
use super::*;

#[test]
fn writers_of_adopted_runs_are_paced_like_all_others() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    let index = Arc::clone(world.index());
    // Block merges.
    let compactor = index.compaction.pause();
    for _ in 0..20 {
        let run = (0..200).map(|number| (key(FOREVER, number), Some(vec![1; 9]))).collect();
        world.commit_spilled(vec![run]).unwrap();
    }
    index.memtables.flush_up_to(world.applied).unwrap();
    let (stats, view) = (index.stats(), index.sources.view());
    assert_eq!((stats.depth, stats.stalls.total().times), (20, 0));
    index.throttle.delay(view.runs[0].bytes());
    let stalls = index.stats().stalls;
    assert_eq!((stalls.merge_pace.times, stalls.total().times), (1, 1), "{stalls:?}");
    drop(compactor);
}

#[test]
fn writers_of_adopted_runs_stop_if_there_are_too_many_runs_for_a_scan() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    let index = Arc::clone(world.index());
    // Block merges.
    let compactor = index.compaction.pause();
    for _ in 0..70 {
        let run = (0..50).map(|number| (key(FOREVER, number), Some(vec![1; 9]))).collect();
        world.commit_spilled(vec![run]).unwrap();
    }
    index.memtables.flush_up_to(world.applied).unwrap();
    assert_eq!(index.stats().depth, 70);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| index.throttle.wait_for_merges().unwrap());
        // The writer waits until something is merged, regardless of other progress.
        for _ in 0..20 {
            index.env.signals.flush_ended(None);
            index.env.signals.wait_for_progress(Duration::from_millis(20));
        }
        assert!(!writer.is_finished());
        drop(compactor);
        writer.join().unwrap();
    });
    assert!(index.stats().depth < 64, "{:?}", index.stats());
    // Closing the index ends all waits.
    world.index().close();
}

#[test]
fn the_compaction_job_leaves_its_thread_while_another_thread_merges() {
    let mut world = world(FLUSHED);
    (world.background, world.threads) = (true, 1);
    world.open().unwrap();
    let index = Arc::clone(world.index());
    let compactor = index.compaction.pause();
    index.env.signals.call_compaction();
    let writes = (0..100).map(|number| (key(FOREVER, number), Some(vec![1; 9])));
    let glsn = world.commit(writes.collect()).unwrap();
    index.memtables.close_up_to(glsn);
    let mut waits = 0;
    while index.runs.checkpoint().glsn < glsn {
        waits += 1;
        assert!(waits < 600, "the only thread flushes");
        index.env.signals.wait_for_progress(Duration::from_millis(100));
    }
    drop(compactor);
    world.index().close();
}

#[test]
fn an_idle_index_is_settled_by_its_thread() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    for numbers in [0..3000, 1..1200] {
        world.flush_keys(FOREVER, numbers, Some(&[7; 60]));
    }
    let index = Arc::clone(world.index());
    let bytes: Vec<_> = index.sources.view().runs.iter().map(|run| run.bytes()).collect();
    assert!(bytes.len() < 2 || bytes[0] < bytes[1], "no merge is due: {bytes:?}");
    let mut waits = 0;
    while index.stats().runs.len() > 1 {
        waits += 1;
        assert!(waits < 600, "{:?}", index.stats());
        index.env.signals.wait_for_progress(Duration::from_millis(100));
    }
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn threads_keep_up_with_writers_and_answers_match_the_model() {
    let sizes = Sizes { memtable_bytes: 60 << 10, table_bytes: 200 << 10, keys: 2000 };
    let mut world = world(sizes);
    world.background = true;
    world.open().unwrap();
    for round in 0..1500 {
        let writes = world.random_writes(12, false);
        world.commit(writes).unwrap();
        if round % 50 == 0 {
            let writes = (0..2).map(|_| world.random_writes(40, true)).collect();
            world.commit_spilled(writes).unwrap();
        }
        world.check_get();
        world.check_changed();
        if round % 100 == 0 {
            world.check_visible();
        }
    }
    world.index().memtables.flush_up_to(world.applied).unwrap();
    assert_eq!(world.index().runs.checkpoint().glsn, world.applied);
    world.check_all();
    let stats = world.index().stats();
    assert!(stats.flushes > 10 && stats.compactions > 2, "{stats:?}");
    assert_eq!(stats.last_error, None);
    world.index().close();
    assert_eq!(world.problems(), [""; 0]);
    // Without threads, because a running merge has files that no manifest names yet.
    world.background = false;
    world.open().unwrap();
    assert_eq!(world.run_files(), world.named_files());
    world.check_all();
}

#[test]
fn the_smallest_budget_suffices_for_memtables_a_flush_and_a_merge_of_eight() {
    assert_eq!(MIN_BUDGET_BYTES, 16 << 20);
    let mut world = world(Sizes { memtable_bytes: 2 << 20, table_bytes: 1 << 20, keys: 100 });
    // The minimum of the pool, and the maximum of write sets, read sets and the log.
    let _pool = Pool::new(&world.budget, 1 << 20).unwrap();
    let _others = world.budget.lease(plimsoll_memory::budget::Kind::WriteSet, 5 << 20).unwrap();
    for _ in 0..40 {
        // Each key twice per memtable, so that history is written as well.
        for _ in 0..2 {
            let writes = (0..3000).map(|number| (key(FOREVER, number * 7), Some(vec![1; 40])));
            world.commit(writes.collect()).unwrap();
        }
    }
    world.index().memtables.flush_up_to(world.applied).unwrap();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    let stats = world.index().stats();
    assert_eq!(
        (stats.runs.len(), stats.history_runs.len(), stats.versions),
        (1, 1, 80 * 3000),
        "{stats:?}"
    );
}
