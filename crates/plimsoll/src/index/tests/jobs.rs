//! Tests of flushes and merges: their cost, the files that they do not rewrite, and their behaviour
//! after errors.

use super::*;
use crate::index::env::Progress;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::sources::source::Run;

pub(super) fn world(sizes: Sizes) -> World {
    World::new(Arc::new(MemDisk::new()), 1, sizes)
}

pub(super) const FLUSHED: Sizes =
    Sizes { memtable_bytes: 1 << 30, table_bytes: 2 << 20, keys: 100 };

pub(super) fn key(keyspace: u32, number: u64) -> Vec<u8> {
    let mut key = Vec::new();
    index_key(keyspace, &number.to_be_bytes(), &mut key);
    key
}

impl World {
    /// Commits these keys at once and flushes them.
    pub(super) fn flush_keys(
        &mut self,
        keyspace: u32,
        numbers: impl Iterator<Item = u64>,
        value: Option<&[u8]>,
    ) -> Glsn {
        let writes =
            numbers.map(|number| (key(keyspace, number), value.map(<[u8]>::to_vec))).collect();
        let glsn = self.commit(writes).unwrap();
        self.index().memtables.flush_up_to(glsn).unwrap();
        self.horizon.visible.store(glsn.0, Ordering::Relaxed);
        glsn
    }

    /// Runs due jobs only.
    pub(super) fn compact_due(&self) {
        while self.index().compaction.step_for(crate::index::plan::policy::Priority::Due).unwrap()
            == Progress::Worked
        {}
    }

    pub(super) fn latest_only(&self) {
        self.horizon.snapshot.store(self.applied.0, Ordering::Relaxed);
    }
}

#[test]
fn a_sorted_load_is_written_once_and_linked() {
    // Each flush is about a third of a table, so none is small.
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
fn few_small_flushes_of_a_sorted_load_are_linked_unchanged() {
    let mut world = world(FLUSHED);
    for flush in 0..50 {
        world.flush_keys(FOREVER, flush * 10_000..flush * 10_000 + 2000, Some(&[7; 60]));
        world.compact_due();
    }
    let stats = world.index().stats();
    assert!(stats.compactions > 5 && stats.tables == 50, "{stats:?}");
    assert_eq!(stats.bytes_compaction_written, 0, "{stats:?}");
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert!(
        world.index().stats().tables <= 15,
        "a full compaction joins them: {:?}",
        world.index().stats()
    );
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn small_flushes_of_a_sorted_load_are_rewritten_once_into_larger_tables() {
    let mut world = world(FLUSHED);
    for flush in 0..120 {
        world.flush_keys(FOREVER, flush * 10_000..flush * 10_000 + 2000, Some(&[7; 60]));
        world.compact_due();
    }
    world.index().compaction.run_all(Glsn::MAX).unwrap();
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
    println!(
        "rewritten {rewritten} times, {} runs, {} merges",
        stats.runs.len(),
        stats.compactions
    );
    assert!((1.0..=4.0).contains(&rewritten), "rewritten {rewritten} times: {stats:?}");
    assert!(stats.bytes_compaction_read >= stats.bytes_compaction_written, "{stats:?}");
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
            let memtables = world.versions.iter().filter_map(|(key, versions)| {
                versions.keys().next_back().map(|&glsn| (key.clone(), glsn))
            });
            newest.extend(memtables);
            for run in &view.runs {
                let keys = run_keys(run);
                assert!(keys.is_sorted_by(|a, b| a.0 < b.0), "invariant 4: one version of a key");
                for (key, glsn, _) in keys {
                    let younger = oldest.insert(key, glsn);
                    // Copies of one transaction's writes are distinguished by the order of their
                    // runs.
                    assert!(
                        younger.is_none_or(|younger| younger >= glsn),
                        "invariant 2: newer runs hold younger versions"
                    );
                }
            }
            for (key, glsn, deleted) in view.history.iter().flat_map(|run| run_keys(run)) {
                assert!(
                    deleted || newest[&key] > glsn,
                    "invariant 3: versions in history are superseded"
                );
            }
        }
    }
}

#[test]
fn a_small_merge_of_newer_runs_overtakes_a_large_merge() {
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
    let due = |world: &World| {
        world.index().compaction.step_for(crate::index::plan::policy::Priority::Due).unwrap()
    };
    assert_eq!(due(&world), Progress::Worked);
    for keys in [1000, 1000, 1000, 1500] {
        scattered(&mut world, keys);
    }
    assert_eq!(world.index().stats().compactions, 0);
    while world.index().stats().compactions == 0 {
        assert_eq!(due(&world), Progress::Worked);
    }
    assert_eq!(world.index().stats().runs.len(), 5, "the small merge ended first");
    while due(&world) == Progress::Worked {}
    assert_eq!(world.index().stats().runs.len(), 2);
    world.check_visible();
    assert_eq!(world.problems(), [""; 0]);
}

/// A world with two runs of the same 40,000 keys; the bytes of the older run alone, and of both.
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
    world.index().compaction.step_for(crate::index::plan::policy::Priority::Due).unwrap()
}

#[test]
fn a_merge_of_overwritten_rows_frees_its_inputs_part_by_part() {
    let (mut world, before, both) = written_over();
    assert_eq!(world.index().stats().runs.len(), 2);
    let mut peak = both;
    while world.index().stats().compactions == 0 {
        assert_eq!(step(&world), Progress::Worked, "two runs of the same keys are due");
        peak = peak.max(bytes_of_runs(&world));
    }
    assert!(peak - both < before / 3, "{before} and {both} bytes, peak {peak}");
    assert_eq!(world.index().stats().runs.len(), 1);
    let after = bytes_of_runs(&world);
    assert!(after < before + before / 8, "{before} bytes, {after} afterwards");
    world.check_all();
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_merge_that_ends_early_leaves_every_key_in_order_and_is_done_first_after_it() {
    let (mut world, _, _) = written_over();
    let before = world.index().runs.manifest_number();
    while world.index().runs.manifest_number() == before {
        assert_eq!(step(&world), Progress::Worked);
        assert_eq!(world.index().stats().compactions, 0, "the merge has only installed a part");
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
    assert_eq!(
        world.index().stats().runs.len(),
        2,
        "the two that the merge left, but not the new one"
    );
    world.check_all();
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn repeated_flush_requests_leave_only_one_memtable_waiting() {
    let mut world = world(FLUSHED);
    for number in 0..20 {
        let glsn = world.commit([(key(FOREVER, number), Some(vec![7]))].into()).unwrap();
        world.index().memtables.close_if_none_waits(glsn);
    }
    assert_eq!(world.index().sources.view().closed.len(), 1);
}

/// Runs all jobs, while the horizon alternates between `low` and `high` from step to step.
fn compact_with_a_horizon_that_falls(world: &World, low: Glsn, high: Glsn) {
    for turn in 0.. {
        let horizon = if turn % 2 == 0 { high } else { low };
        world.horizon.snapshot.store(horizon.0, Ordering::Relaxed);
        if world.index().compaction.step_for(crate::index::plan::policy::Priority::All).unwrap()
            == Progress::Idle
        {
            break;
        }
    }
}

/// The number of keys of `LATEST` that a scan finds as of `at`.
fn keys_at(world: &World, at: Glsn) -> usize {
    let (lower, upper) = (key(LATEST, 0), key(LATEST, u64::MAX));
    let (view, mut buffer, mut found) = (world.view(), Vec::new(), 0);
    let (lower, upper) = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
    let mut walk = view.visible(lower, upper, AsOf::unexpiring(at), Direction::Forward).unwrap();
    while walk.next(&mut buffer).unwrap().is_some() {
        found += 1;
    }
    found
}

#[test]
fn a_deleted_row_stays_deleted_if_the_horizon_falls_within_a_merge() {
    const KEYS: u64 = 3000;
    for history in [false, true] {
        let mut world = world(FLUSHED);
        let written = world.flush_keys(LATEST, 0..KEYS, Some(&[1; 8]));
        let deleted = world.flush_keys(LATEST, 0..KEYS, None);
        if history {
            // Nothing may be dropped yet, so everything is moved into history.
            world.horizon.snapshot.store(written.0, Ordering::Relaxed);
            world.index().compaction.run_all(Glsn::MAX).unwrap();
            assert!(world.view().runs.is_empty() && !world.view().history.is_empty());
        }
        compact_with_a_horizon_that_falls(&world, written, deleted);
        assert!(world.index().stats().compactions > 0);
        // A version younger than the snapshot makes a scan search history as well.
        world.commit([(key(LATEST, KEYS), Some(vec![2]))].into()).unwrap();
        assert_eq!(keys_at(&world, deleted), 0, "history {history}");
        (0..KEYS)
            .for_each(|number| world.check_get_at(&world.view(), &key(LATEST, number), deleted));
        assert_eq!(world.view().oldest_readable_in(LATEST), deleted, "some were dropped");
        assert!(!world.view().history.is_empty(), "and some were kept");
        assert_eq!(world.problems(), [""; 0]);
    }
}

#[test]
fn a_past_snapshot_opened_during_a_merge_is_refused_after_it() {
    const KEYS: u64 = 3000;
    let mut world = world(FLUSHED);
    let first = world.flush_keys(LATEST, 0..KEYS, Some(&[1; 8]));
    let second = world.flush_keys(LATEST, 0..KEYS, Some(&[2; 8]));
    let all = crate::index::plan::policy::Priority::All;
    world.latest_only();
    for _ in 0..3 {
        assert_eq!(world.index().compaction.step_for(all).unwrap(), Progress::Worked);
    }
    assert_eq!(world.index().stats().compactions, 0);
    world.horizon.snapshot.store(first.0, Ordering::Relaxed);
    (0..KEYS).for_each(|number| world.check_get_at(&world.view(), &key(LATEST, number), first));
    while world.index().compaction.step_for(all).unwrap() == Progress::Worked {}
    for number in 0..KEYS {
        let refused = world.view().get(&key(LATEST, number), first).unwrap_err();
        assert_eq!(refused, crate::types::error::Error::trimmed(first, second));
        world.check_get_at(&world.view(), &key(LATEST, number), second);
    }
    assert_eq!(world.problems(), [""; 0]);
}
