//! Tests of flushes and merges: their cost, the files that they leave alone, and their behaviour on errors.

use std::path::Path;
use std::time::Duration;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Open};
use plimsoll_memory::budget::{Lease, MIN_BUDGET_BYTES};

use super::*;
use crate::index::Progress;
use crate::index::files::Reserve;
use crate::index::manifest::names::{manifest_name, new_manifest_name};
use crate::index::output::Output;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::run_file_name;
use crate::index::run::warmth::Warmth;
use crate::index::source::Run;
use crate::types::error::Error;

fn world(sizes: Sizes) -> World {
    World::new(Arc::new(MemDisk::new()), 1, sizes)
}

const FLUSHED: Sizes = Sizes { memtable_bytes: 1 << 30, table_bytes: 2 << 20, keys: 100 };

fn key(keyspace: u32, number: u64) -> Vec<u8> {
    let mut key = Vec::new();
    index_key(keyspace, &number.to_be_bytes(), &mut key);
    key
}

impl World {
    /// A flush of these keys in one commit.
    fn flush_keys(&mut self, keyspace: u32, numbers: impl Iterator<Item = u64>, value: Option<&[u8]>) -> Glsn {
        let writes = numbers.map(|number| (key(keyspace, number), value.map(<[u8]>::to_vec))).collect();
        let glsn = self.commit(writes).unwrap();
        self.index().flush(glsn).unwrap();
        self.horizon.visible.store(glsn.0, Ordering::Relaxed);
        glsn
    }

    /// Does the work that is due, and no more.
    fn compact_due(&self) {
        while self.index().compaction.step_for(crate::index::policy::Priority::Due).unwrap() == Progress::Worked {}
    }

    fn latest_only(&self) {
        self.horizon.snapshot.store(self.applied.0, Ordering::Relaxed);
    }
}

#[test]
fn a_sorted_load_is_written_once_and_linked() {
    // Flushes of about a third of a table: none is small.
    let mut world = world(FLUSHED);
    for flush in 0..60 {
        world.flush_keys(FOREVER, flush * 10_000..flush * 10_000 + 9000, Some(&[7; 60]));
        world.compact_due();
    }
    let stats = world.index().stats();
    assert!(stats.compactions > 5 && stats.runs.len() <= 10, "{stats:?}");
    assert_eq!(stats.bytes_compaction_written, 0, "{stats:?}");
    assert_eq!(stats.versions, 60 * 9000);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn few_small_flushes_of_a_sorted_load_are_linked_as_they_are() {
    let mut world = world(FLUSHED);
    for flush in 0..50 {
        world.flush_keys(FOREVER, flush * 10_000..flush * 10_000 + 2000, Some(&[7; 60]));
        world.compact_due();
    }
    let stats = world.index().stats();
    assert!(stats.compactions > 5 && stats.tables == 50, "{stats:?}");
    assert_eq!(stats.bytes_compaction_written, 0, "{stats:?}");
    world.index().compact_all().unwrap();
    assert!(world.index().stats().tables <= 15, "a whole compaction joins them: {:?}", world.index().stats());
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn small_flushes_of_a_sorted_load_are_rewritten_once_into_larger_tables() {
    let mut world = world(FLUSHED);
    for flush in 0..120 {
        world.flush_keys(FOREVER, flush * 10_000..flush * 10_000 + 2000, Some(&[7; 60]));
        world.compact_due();
    }
    world.index().compact_all().unwrap();
    let stats = world.index().stats();
    let rewritten = stats.bytes_compaction_written as f64 / stats.bytes_flushed as f64;
    assert!(rewritten <= 1.1, "rewritten {rewritten} times: {stats:?}");
    assert!(stats.tables <= 40, "{stats:?}");
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_random_load_is_rewritten_a_few_times_and_leaves_few_runs() {
    let mut world = world(FLUSHED);
    for _ in 0..200 {
        let numbers: Vec<u64> = (0..1500).map(|_| world.random.next_u64()).collect();
        world.flush_keys(FOREVER, numbers.into_iter(), Some(&[7; 60]));
        world.compact_due();
        assert!(world.index().stats().runs.len() <= 12);
    }
    let stats = world.index().stats();
    let rewritten = stats.bytes_compaction_written as f64 / stats.bytes_flushed as f64;
    println!("rewritten {rewritten} times, {} runs, {} merges", stats.runs.len(), stats.compactions);
    assert!((1.0..=4.0).contains(&rewritten), "rewritten {rewritten} times: {stats:?}");
    assert!(stats.bytes_compaction_read >= stats.bytes_compaction_written, "{stats:?}");
}

/// Takes so much memory that pages enter the pool only where they were read.
fn leave_no_free_memory(world: &World) -> Lease {
    let kept = world.budget.limit_bytes() / 8;
    let lease = world.budget.lease(Kind::Staging, world.budget.free_bytes() - kept).unwrap();
    assert!(!world.pool.has_free_memory());
    lease
}

#[test]
fn what_was_written_is_in_memory_where_memory_is_free() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..3000, Some(&[7; 60]));
    assert_eq!(loads_of(&world, 0..3000), 0);
    world.index().compact_all().unwrap();
    assert_eq!(loads_of(&world, 0..3000), 0);
}

/// Pages loaded while these keys are read, all of which are there.
fn loads_of(world: &World, numbers: std::ops::Range<u64>) -> u64 {
    let before = world.pool.stats().loads;
    for number in numbers {
        assert!(world.view().get(&key(FOREVER, number), world.applied).unwrap().is_some(), "key {number}");
    }
    world.pool.stats().loads - before
}

#[test]
fn what_was_hot_before_a_merge_is_in_memory_after_it() {
    let mut world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    for first in [0, 1] {
        world.flush_keys(FOREVER, (0..3000).map(|number| 2 * number + first), Some(&[7; 60]));
    }
    let leaves = loads_of(&world, 0..1000);
    assert!(leaves >= 6, "{leaves} pages");
    world.index().compact_all().unwrap();
    assert_eq!(world.index().stats().runs.len(), 1);
    assert!(loads_of(&world, 0..1000) <= 1, "all but the leaf at the border");
    assert!(loads_of(&world, 2000..6000) >= 10, "what nobody had read");
}

#[test]
fn what_was_read_in_a_memtable_is_in_memory_once_it_is_flushed() {
    let mut world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    for (reads, loads) in [(2, 0..1), (0, 6..1000)] {
        let first = 10_000 * reads;
        let writes = (first..first + 1000).map(|number| (key(FOREVER, number), Some(vec![7; 60]))).collect();
        let glsn = world.commit(writes).unwrap();
        (0..reads).for_each(|_| assert_eq!(loads_of(&world, first..first + 1000), 0));
        world.index().flush(glsn).unwrap();
        let loaded = loads_of(&world, first..first + 1000);
        assert!(loads.contains(&loaded), "{reads} reads: {loaded} pages loaded");
    }
}

fn run_keys(run: &Run) -> Vec<(Vec<u8>, Glsn, bool)> {
    let mut cursor = RunCursor::new(Arc::clone(run.tables()), Feed::Pool(Touch::Scan));
    cursor.seek_first().unwrap();
    let mut keys = Vec::new();
    while let Some(version) = cursor.current() {
        keys.push((version.key.to_vec(), version.glsn, version.stored == Stored::Deleted));
        cursor.next().unwrap();
    }
    keys
}

#[test]
fn the_laws_of_runs_hold_after_random_operations() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let sizes = Sizes { memtable_bytes: 10 << 10, table_bytes: 100 << 10, keys: 60 };
        let mut world = World::new(Arc::new(MemDisk::new()), 900 + seed, sizes);
        for _ in 0..300 {
            world.step().unwrap();
            let view = world.view();
            let mut oldest: BTreeMap<Vec<u8>, Glsn> = BTreeMap::new();
            let mut newest: BTreeMap<Vec<u8>, Glsn> = BTreeMap::new();
            let memtables = world
                .versions
                .iter()
                .filter_map(|(key, versions)| versions.keys().next_back().map(|&glsn| (key.clone(), glsn)));
            newest.extend(memtables);
            for run in &view.runs {
                let keys = run_keys(run);
                assert!(keys.is_sorted_by(|a, b| a.0 < b.0), "law 4: one version of a key");
                for (key, glsn, _) in keys {
                    let younger = oldest.insert(key, glsn);
                    // Copies of one transaction's writes are told apart by the order of their runs.
                    assert!(younger.is_none_or(|younger| younger >= glsn), "law 2: newer runs hold younger versions");
                }
            }
            for (key, glsn, deleted) in view.history.iter().flat_map(|run| run_keys(run)) {
                assert!(deleted || newest[&key] > glsn, "law 3: what is in history was superseded");
            }
        }
    }
}

#[test]
fn a_deleted_key_leaves_nothing_behind_once_nobody_can_read_below() {
    let mut world = world(FLUSHED);
    for round in 0..3 {
        world.flush_keys(LATEST, 0..500, Some(&[round; 30]));
    }
    world.latest_only();
    let deleted = world.flush_keys(LATEST, 0..500, None);
    world.index().compact_all().unwrap();
    let stats = world.index().stats();
    assert_eq!(stats.versions, 1000, "the snapshot before sees the last values, later ones the deletions: {stats:?}");
    assert_eq!(stats.history_runs.len(), 1);
    assert_eq!(world.view().limits.deletions_moved, deleted);
    world.check_all();
    world.latest_only();
    world.index().compact_all().unwrap();
    let stats = world.index().stats();
    assert_eq!((stats.versions, stats.tables), (0, 0), "{stats:?}");
    assert_eq!(world.view().oldest_readable_in(LATEST), deleted);
    assert_eq!(world.view().oldest_readable_in(FOREVER), Glsn::NONE);
    world.check_all();
    assert_eq!(world.run_files(), [""; 0]);
}

#[test]
fn a_deletion_is_kept_in_history_where_everything_is_kept() {
    let mut world = world(FLUSHED);
    let put = world.flush_keys(FOREVER, 0..500, Some(b"value"));
    let deleted = world.flush_keys(FOREVER, 100..300, None);
    world.index().compact_all().unwrap();
    let view = world.view();
    assert_eq!(view.runs[0].deletions(), 0, "a scan of the present does not meet them");
    assert_eq!(view.history[0].versions(), 400);
    assert_eq!(view.changed(&key(FOREVER, 200), put).unwrap(), Some(deleted), "a conflict is still seen");
    assert_eq!(view.changed(&key(FOREVER, 50), put).unwrap(), None);
    world.check_all();
    // Reborn, and moved on.
    world.flush_keys(FOREVER, 200..250, Some(b"again"));
    world.index().compact_all().unwrap();
    world.check_all();
}

#[test]
fn values_leave_log_entries_that_are_wanted_back() {
    let mut world = world(FLUSHED);
    for round in 0..9 {
        let writes =
            (0..6).map(|number| (key(FOREVER, number), Some(vec![round as u8 + 1; 150_000 + number as usize])));
        world.commit(writes.collect()).unwrap();
        world.index().flush(world.applied).unwrap();
    }
    let until = Glsn(8);
    world.horizon.relocate_below.store(until.0, Ordering::Relaxed);
    assert_eq!(world.index().min_pointer(), Some(Glsn::FIRST));
    let mut steps = 0;
    while world.index().min_pointer().is_some_and(|oldest| oldest < until) {
        assert_eq!(world.index().compact_step().unwrap(), Progress::Worked);
        steps += 1;
    }
    assert!(steps > 1, "values are moved a piece at a time");
    world.log.trim(until, &|blob| world.index().uses_blob(blob)).unwrap();
    assert_eq!(world.log.bounds().first, until);
    assert_eq!(world.log.sweep_blobs(&|blob| world.index().uses_blob(blob)).unwrap(), 0);
    world.check_all();
    world.log.sync().unwrap();
    world.open().unwrap();
    world.check_all();
}

#[test]
fn only_tables_with_values_that_are_to_move_are_rewritten() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..20_000, Some(&[5; 60]));
    let writes = (0..3).map(|number| (key(FOREVER, 1 << 40 | number), Some(vec![9; 50_000])));
    world.commit(writes.collect()).unwrap();
    world.index().flush(world.applied).unwrap();
    world.index().compact_all().unwrap();
    let before = world.index().stats();
    world.horizon.relocate_below.store(world.applied.0 + 1, Ordering::Relaxed);
    world.index().relocate().unwrap();
    assert_eq!(world.index().min_pointer(), None);
    let written = world.index().stats().bytes_compaction_written - before.bytes_compaction_written;
    assert!(written > 0 && written < before.runs[0] / 4, "{written} of {before:?}");
    world.check_all();
}

#[test]
fn moves_that_nobody_asked_for_and_that_fail_for_now_hinder_nobody() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    let writes = (0..3).map(|number| (key(FOREVER, number), Some(vec![9; 50_000])));
    world.commit(writes.collect()).unwrap();
    world.index().flush(world.applied).unwrap();
    let want = |world: &World| world.horizon.relocate_below.store(world.applied.0 + 1, Ordering::Relaxed);
    world.horizon.unasked.store(true, Ordering::Relaxed);
    want(&world);
    disk.fill_up(Some(0));
    while world.index().compact_step().unwrap() == Progress::Worked {}
    assert_eq!(world.index().stats().last_error, None);
    assert!(world.index().min_pointer().is_some());
    want(&world);
    assert!(world.index().relocate().is_err(), "who asks is told");
    disk.fill_up(None);
    want(&world);
    while world.index().compact_step().unwrap() == Progress::Worked {}
    assert_eq!(world.index().min_pointer(), None);
    world.check_all();
}

#[test]
fn a_moment_whose_versions_may_be_gone_is_refused() {
    let mut world = world(FLUSHED);
    for round in 0..3 {
        world.flush_keys(LATEST, 0..10, Some(&[round]));
        world.flush_keys(FOREVER, 0..10, Some(&[round]));
    }
    world.latest_only();
    world.index().compact_all().unwrap();
    let (view, asked) = (world.view(), Glsn(3));
    let trimmed = Error::Trimmed { asked: Glsn(3), first: Glsn(5) };
    assert_eq!(view.get(&key(LATEST, 1), asked).unwrap_err(), trimmed);
    let lower = key(LATEST, 0);
    assert_eq!(
        view.visible(Bound::Included(&lower), Bound::Unbounded, asked, Direction::Forward).unwrap_err(),
        trimmed
    );
    assert_eq!(view.get(&key(LATEST, 1), Glsn(5)).unwrap().unwrap().glsn(), Glsn(5));
    assert_eq!(view.get(&key(FOREVER, 1), asked).unwrap().unwrap().glsn(), Glsn(2));
}

#[test]
fn of_a_transaction_that_was_spilled_many_times_the_last_writes_count() {
    for last_is_deletion in [false, true] {
        let mut world = world(FLUSHED);
        world.flush_keys(FOREVER, 0..50, Some(b"before"));
        // Newest first; each run writes all keys, now and then as a deletion.
        let value = |run: u64| (run % 2 != u64::from(last_is_deletion)).then(|| vec![run as u8; 9]);
        let runs = (0..11).map(|run| (0..50).map(|number| (key(FOREVER, number), value(run + 1))).collect());
        let runs: Vec<_> = runs.collect();
        world.commit_spilled(runs).unwrap();
        world.check_all();
        world.index().flush(world.applied).unwrap();
        assert_eq!(world.view().runs.len(), 12);
        while world.view().runs.len() > 1 && world.index().compact_step().unwrap() == Progress::Worked {
            world.check_all();
        }
        world.flush_keys(FOREVER, 0..25, Some(b"after"));
        world.index().compact_all().unwrap();
        world.check_all();
        assert_eq!(world.index().stats().versions, 50 + 50 + 25, "no copy is left");
    }
}

#[test]
fn what_runs_hold_already_is_not_taken_in_again() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..50, Some(b"value"));
    let runs = vec![(0..20).map(|number| (key(FOREVER, number), None)).collect()];
    world.commit_spilled(runs).unwrap();
    world.index().flush(world.applied).unwrap();
    world.index().compact_all().unwrap();
    world.open().unwrap();
    for commit in &world.commits {
        world.apply(commit, Glsn::NONE).unwrap();
    }
    let view = world.view();
    assert!(view.active.is_empty() && view.closed.is_empty());
    world.check_all();
}

#[test]
fn a_failed_job_leaves_no_blob_file_behind() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    let writes = (0..5).map(|number| (key(FOREVER, number), Some(vec![3; 100_000])));
    world.commit(writes.collect()).unwrap();
    world.index().flush(world.applied).unwrap();
    world.horizon.relocate_below.store(9, Ordering::Relaxed);
    disk.fill_up(Some(0));
    assert!(world.index().compact_all().is_err());
    assert!(world.index().stats().last_error.is_some());
    assert_eq!(world.log.sweep_blobs(&|blob| world.index().uses_blob(blob)).unwrap(), 0, "it was removed at once");
    disk.fill_up(None);
    world.index().compact_all().unwrap();
    assert_eq!(world.index().stats().last_error, None);
    assert_eq!(world.index().min_pointer(), None);
    world.check_all();
}

#[test]
fn while_a_large_merge_is_under_way_newer_runs_are_merged_by_a_small_one() {
    let mut world = world(FLUSHED);
    world.index = None;
    world.pool = Pool::new(&Budget::new(64 << 20, Backing::Mapped).unwrap(), 1 << 20).unwrap();
    world.budget = Budget::new(64 << 20, Backing::Mapped).unwrap();
    world.open().unwrap();
    let scattered = |world: &mut World, keys: u64| {
        let numbers: Vec<u64> = (0..keys).map(|_| world.random.next_u64()).collect();
        world.flush_keys(FOREVER, numbers.into_iter(), Some(&[7; 60]));
    };
    for _ in 0..4 {
        scattered(&mut world, 60_000);
    }
    let due = |world: &World| world.index().compaction.step_for(crate::index::policy::Priority::Due).unwrap();
    assert_eq!(due(&world), Progress::Worked);
    for keys in [1000, 1000, 1000, 1500] {
        scattered(&mut world, keys);
    }
    assert_eq!(world.index().stats().compactions, 0);
    while world.index().stats().compactions == 0 {
        assert_eq!(due(&world), Progress::Worked);
    }
    assert_eq!(world.index().stats().runs.len(), 5, "the small one came first");
    while due(&world) == Progress::Worked {}
    assert_eq!(world.index().stats().runs.len(), 2);
    world.check_visible();
    assert_eq!(world.problems(), [""; 0]);
}

/// A world with two runs of the same 40,000 keys: the older one alone, then both.
fn written_over() -> (World, u64, u64) {
    let mut world = world(FLUSHED);
    world.flush_keys(LATEST, 0..40_000, Some(&[1; 200]));
    let before = bytes_of_runs(&world);
    world.flush_keys(LATEST, 0..40_000, Some(&[2; 200]));
    world.latest_only();
    let both = bytes_of_runs(&world);
    (world, before, both)
}

fn bytes_of_runs(world: &World) -> u64 {
    let names = world.run_files();
    names.iter().map(|name| world.disk.entry(&dir().join(name)).unwrap().unwrap().len).sum()
}

fn step(world: &World) -> Progress {
    world.index().compaction.step_for(crate::index::policy::Priority::Due).unwrap()
}

#[test]
fn a_merge_of_what_was_written_over_frees_its_inputs_part_by_part() {
    let (mut world, before, both) = written_over();
    assert_eq!(world.index().stats().runs.len(), 2);
    let mut peak = both;
    while world.index().stats().compactions == 0 {
        assert_eq!(step(&world), Progress::Worked, "two runs of the same keys are due");
        peak = peak.max(bytes_of_runs(&world));
    }
    assert!(peak - both < before / 3, "{before} and {both} bytes, {peak} at the most");
    assert_eq!(world.index().stats().runs.len(), 1);
    let after = bytes_of_runs(&world);
    assert!(after < before + before / 8, "{before} bytes, {after} afterwards");
    world.check_all();
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_merge_that_ends_early_leaves_every_key_in_order_and_is_done_first_after_it() {
    let (mut world, _, _) = written_over();
    let before = world.index().manifest_number();
    while world.index().manifest_number() == before {
        assert_eq!(step(&world), Progress::Worked);
        assert_eq!(world.index().stats().compactions, 0, "it has installed a part");
    }
    world.open().unwrap();
    assert_eq!(world.index().stats().runs.len(), 2);
    world.check_all();
    assert_eq!(world.problems(), [""; 0]);
    let first = world.view().runs[0].min_glsn();
    assert!(first <= world.view().runs[1].max_glsn());
    world.flush_keys(LATEST, 50_000..50_010, Some(&[3; 200]));
    while world.index().stats().compactions == 0 {
        assert_eq!(step(&world), Progress::Worked);
    }
    assert_eq!(world.index().stats().runs.len(), 2, "the two that were left, without the new one");
    world.check_all();
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_view_keeps_its_files_until_it_is_dropped() {
    let mut world = world(FLUSHED);
    for _ in 0..3 {
        world.flush_keys(FOREVER, 0..1000, Some(b"value"));
    }
    let (manifest, paths, view) = world.index().files();
    assert_eq!(manifest.runs.len(), 3);
    world.index().compact_all().unwrap();
    for path in &paths {
        assert!(world.disk.entry(path).unwrap().is_some(), "{}", path.display());
    }
    assert_eq!(view.get(&key(FOREVER, 5), Glsn::MAX).unwrap().unwrap().glsn(), Glsn(3));
    drop(view);
    assert_eq!(world.run_files(), world.named_files());
    assert!(paths.iter().all(|path| world.disk.entry(path).unwrap().is_none()));
}

#[test]
fn run_files_that_no_manifest_names_are_swept_and_their_ids_not_used_again() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    let stray = dir().join(run_file_name(70));
    world.disk.open(&stray, Open::CreateNew, Caching::Buffered).unwrap();
    let unfinished = dir().join(new_manifest_name(5, 0));
    world.disk.open(&unfinished, Open::CreateNew, Caching::Buffered).unwrap();
    world.disk.open(&dir().join("notes.txt"), Open::CreateNew, Caching::Buffered).unwrap();
    world.open().unwrap();
    assert_eq!(world.disk.entry(&stray).unwrap(), None);
    let names: Vec<_> = world.disk.list(&dir()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [run_file_name(1), manifest_name(1), "notes.txt".to_owned()]);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    let files = world.run_files();
    assert!(files.len() == 2 && files[0] == run_file_name(1) && files[1] > run_file_name(70), "{files:?}");
}

#[test]
fn damage_stops_compaction_and_nothing_else() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    for _ in 0..3 {
        world.flush_keys(FOREVER, 0..3000, Some(&[1; 40]));
    }
    disk.corrupt(&dir().join(run_file_name(2)), 40_000, 4).unwrap();
    world.pool.clear();
    let error = world.index().compact_all().unwrap_err();
    assert!(matches!(&error, Error::Corrupt { message, .. } if message.contains("verify")), "{error}");
    assert!(world.index().stats().last_error.is_some());
    assert_eq!(world.index().compact_step().unwrap(), Progress::Idle);
    assert!(world.index().compact_all().is_err(), "it is not forgotten");
    world.flush_keys(FOREVER, 0..3000, Some(&[2; 40]));
    assert_eq!(world.view().get(&key(FOREVER, 7), Glsn::MAX).unwrap().unwrap().glsn(), Glsn(4));
    assert!(!world.problems().is_empty());
}

#[test]
fn a_missing_run_file_is_reported_at_open() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    world.index = None;
    world.disk.remove(&dir().join(run_file_name(1))).unwrap();
    let error = world.open().unwrap_err();
    assert!(matches!(&error, Error::Corrupt { message, .. } if message.contains("plimsoll verify")), "{error}");
}

#[test]
fn an_index_of_another_log_is_refused() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    world.index = None;
    let other = World::new(Arc::new(MemDisk::new()), 2, FLUSHED);
    let manifest = Manifest::read(&*world.disk, Path::new("/index")).unwrap().unwrap();
    let context = Context { log: Arc::clone(&other.log) as _, ..world.context() };
    let refused = Index::open(context, manifest, Arc::clone(&world.horizon) as _);
    assert!(matches!(refused, Err(Error::Forked { .. })));
}

/// Pages in the pool after a run was written whose versions are as long as `lens` says, of which those that `is_hot` says were read; and the
/// pages of the run.
fn warm_pages(lens: &[usize], is_hot: impl Fn(usize) -> bool) -> (u64, u32) {
    let world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    let mut output = Output::new(&world.index().core.files, &world.budget, 1 << 20, Reserve::Rest);
    for (number, len) in lens.iter().enumerate() {
        let (key, value) = (key(FOREVER, number as u64), vec![1; *len]);
        let warmth = if is_hot(number) { Warmth::Hot } else { Warmth::Unread };
        output.add(&Version { key: &key, glsn: Glsn(1), stored: Stored::Inline(&value) }, true, warmth).unwrap();
    }
    let (members, _) = output.finish().unwrap();
    (world.pool.stats().resident, members[0].table.info.pages)
}

#[test]
fn a_version_that_begins_a_leaf_says_nothing_of_how_the_leaf_before_it_was_read() {
    let pages_of = |count| warm_pages(&vec![400; count], |_| false).1;
    let in_leaf = (1..100).find(|&count| pages_of(count + 1) > pages_of(1)).unwrap();
    // A leaf that was read by less than half; behind it one whose first version was read, and is long.
    let lens: Vec<usize> = (0..in_leaf + 6).map(|number| if number == in_leaf { 1000 } else { 400 }).collect();
    let read = in_leaf.div_ceil(2) - 1;
    assert_eq!(warm_pages(&lens, |number| number < read || number == in_leaf).0, 0);
    assert!(warm_pages(&lens, |number| number <= read || number == in_leaf).0 > 0);
}

#[test]
fn writers_of_whole_runs_are_paced_like_all_others() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    let index = Arc::clone(world.index());
    // No merge runs in between.
    let compactor = index.compaction.pause();
    for _ in 0..20 {
        let run = (0..200).map(|number| (key(FOREVER, number), Some(vec![1; 9]))).collect();
        world.commit_spilled(vec![run]).unwrap();
    }
    index.flush(world.applied).unwrap();
    let (stats, view) = (index.stats(), index.view());
    assert_eq!((stats.depth, stats.stalls.total().times), (20, 0));
    index.pay(view.runs[0].bytes());
    let stalls = index.stats().stalls;
    assert_eq!((stalls.merge_pace.times, stalls.total().times), (1, 1), "{stalls:?}");
    drop(compactor);
}

#[test]
fn writers_of_whole_runs_stop_where_runs_are_too_many_to_walk_over() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    let index = Arc::clone(world.index());
    // No merge runs in between.
    let compactor = index.compaction.pause();
    for _ in 0..70 {
        let run = (0..50).map(|number| (key(FOREVER, number), Some(vec![1; 9]))).collect();
        world.commit_spilled(vec![run]).unwrap();
    }
    index.flush(world.applied).unwrap();
    assert_eq!(index.stats().depth, 70);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| index.hold_back().unwrap());
        // As long as nothing is merged it waits, however often something else makes progress.
        for _ in 0..20 {
            index.core.signals.flush_ended(None);
            index.core.signals.wait_for_progress(Duration::from_millis(20));
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
fn an_index_that_nobody_writes_to_is_settled_by_its_thread() {
    let mut world = world(FLUSHED);
    world.background = true;
    world.open().unwrap();
    for numbers in [0..3000, 1..1200] {
        world.flush_keys(FOREVER, numbers, Some(&[7; 60]));
    }
    let index = Arc::clone(world.index());
    let bytes: Vec<_> = index.view().runs.iter().map(|run| run.bytes()).collect();
    assert!(bytes.len() < 2 || bytes[0] < bytes[1], "nothing is due: {bytes:?}");
    let mut waits = 0;
    while index.stats().runs.len() > 1 {
        waits += 1;
        assert!(waits < 600, "{:?}", index.stats());
        index.core.signals.wait_for_progress(Duration::from_millis(100));
    }
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn threads_keep_up_with_writers_and_answers_stay_the_same() {
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
    world.index().flush(world.applied).unwrap();
    assert_eq!(world.index().checkpoint().glsn, world.applied);
    world.check_all();
    let stats = world.index().stats();
    assert!(stats.flushes > 10 && stats.compactions > 2, "{stats:?}");
    assert_eq!(stats.last_error, None);
    world.index().close();
    assert_eq!(world.problems(), [""; 0]);
    // Without threads: a merge that is on its way has files that no manifest names yet.
    world.background = false;
    world.open().unwrap();
    assert_eq!(world.run_files(), world.named_files());
    world.check_all();
}

#[test]
fn the_smallest_budget_has_room_for_memtables_flush_and_a_merge_of_eight() {
    assert_eq!(MIN_BUDGET_BYTES, 16 << 20);
    let mut world = world(Sizes { memtable_bytes: 2 << 20, table_bytes: 1 << 20, keys: 100 });
    // The pool's floor, and what write sets, read sets and the log may hold.
    let _pool = Pool::new(&world.budget, 1 << 20).unwrap();
    let _others = world.budget.lease(plimsoll_memory::budget::Kind::WriteSet, 5 << 20).unwrap();
    for _ in 0..40 {
        // Each key twice in a memtable: history is written too.
        for _ in 0..2 {
            let writes = (0..3000).map(|number| (key(FOREVER, number * 7), Some(vec![1; 40])));
            world.commit(writes.collect()).unwrap();
        }
    }
    world.index().flush(world.applied).unwrap();
    world.index().compact_all().unwrap();
    let stats = world.index().stats();
    assert_eq!((stats.runs.len(), stats.history_runs.len(), stats.versions), (1, 1, 80 * 3000), "{stats:?}");
}

#[test]
fn a_manifest_whose_name_is_in_doubt_keeps_its_number() {
    let mut took_effect = [false; 2];
    for seed in 0..12 {
        let disk = LyingDisk::new(seed);
        let mut world = World::new(Arc::new(disk.clone()), 2, FLUSHED);
        world.flush_keys(FOREVER, 0..10, Some(b"value"));
        world.commit(BTreeMap::from([(key(FOREVER, 3), Some(b"newer".to_vec()))])).unwrap();
        disk.fail_rename(1);
        assert!(world.index().flush(world.applied).is_err());
        let number = Manifest::read(&disk, &dir()).unwrap().unwrap().number;
        took_effect[usize::from(number == 2)] = true;
        world.index().flush(world.applied).unwrap();
        let manifest = Manifest::read(&disk, &dir()).unwrap().unwrap();
        assert_eq!((number.max(2) + 1, manifest.checkpoint.glsn), (manifest.number, world.applied), "seed {seed}");
        world.check_all();
        world.open().unwrap();
        world.check_all();
    }
    assert_eq!(took_effect, [true; 2]);
}

#[test]
fn however_often_a_flush_is_asked_for_one_memtable_waits() {
    let mut world = world(FLUSHED);
    for number in 0..20 {
        let glsn = world.commit([(key(FOREVER, number), Some(vec![7]))].into()).unwrap();
        world.index().close_if_none_waits(glsn);
    }
    assert_eq!(world.index().view().closed.len(), 1);
}
