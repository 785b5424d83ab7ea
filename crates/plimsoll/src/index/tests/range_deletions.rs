//! Tests that range deletions, their absorption and the removal of whole tables respect the
//! retained moments.

use std::iter::once;

use super::jobs::{FLUSHED, key, world};
use super::*;
use crate::index::env::Progress;

/// Number of keys in the random test.
const KEYS: u64 = 40;

impl World {
    /// Commits the deletion of a range of keys, and a put elsewhere.
    fn delete_range(&mut self, keyspace: u32, numbers: std::ops::Range<u64>) -> Glsn {
        let (first, end) = (key(keyspace, numbers.start), key(keyspace, numbers.end));
        let index = Arc::clone(self.index());
        let _room = index.runs.reserve_for_ranges(once((&first[..], &end[..]))).unwrap();
        let beside = key(FOREVER, u64::MAX);
        let glsn = self.commit(BTreeMap::from([(beside, Some(vec![1]))])).unwrap();
        index.runs.delete_ranges(glsn, once((&first[..], &end[..])));
        for (_, versions) in self.versions.range_mut(first..end) {
            if versions.values().next_back().is_some_and(Option::is_some) {
                versions.insert(glsn, None);
            }
        }
        self.horizon.visible.store(glsn.0, Ordering::Relaxed);
        glsn
    }

    fn pin_at(&self, at: Glsn) {
        lock(&self.horizon.pins).insert(at);
    }

    fn flush(&self) {
        self.index().memtables.flush_up_to(self.applied).unwrap();
    }

    /// Runs all jobs, including those that only absorb range deletions.
    fn compact_all(&self) {
        while self.index().compaction.step().unwrap() == Progress::Worked {}
        self.index().compaction.run_all(Glsn::MAX).unwrap();
        while self.index().compaction.step().unwrap() == Progress::Worked {}
    }

    /// Reads all keys of a keyspace at every retained moment.
    fn check_retained(&self, keyspace: u32) {
        let (view, retained) = (self.view(), self.horizon.retained(keyspace));
        let moments = (1..=self.applied.0).map(Glsn).filter(|at| retained.contains(*at));
        let (lower, upper) = (key(keyspace, 0), key(keyspace, u64::MAX));
        for at in moments.chain(once(Glsn::MAX)) {
            for key in self.versions.keys().filter(|key| Self::keyspace_of(key) == keyspace) {
                self.check_get_at(&view, key, at);
            }
            let (lower, upper) = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
            let mut walk =
                view.visible(lower, upper, AsOf::unexpiring(at), Direction::Forward).unwrap();
            let (mut found, mut key) = (Vec::new(), Vec::new());
            while let Some(version) = walk.next(&mut key).unwrap() {
                found.push((version.key.to_vec(), version.glsn));
            }
            let is_here = |key: &&Vec<u8>| Self::keyspace_of(key) == keyspace;
            let expected = |key: &Vec<u8>| Some((key.clone(), self.expected(key, at)?.0));
            let expected: Vec<_> =
                self.versions.keys().filter(is_here).filter_map(expected).collect();
            assert_eq!(found, expected, "at {at}");
        }
    }

    fn random_step(&mut self) {
        self.horizon.visible.store(self.log.bounds().durable.0, Ordering::Relaxed);
        match self.random.below(20) {
            0..=5 => {
                let numbers: BTreeSet<u64> =
                    (0..=self.random.below(12)).map(|_| self.random.below(KEYS)).collect();
                let value = (self.random.below(5) > 0).then(|| vec![self.applied.0 as u8; 30]);
                let writes = numbers.into_iter().map(|number| (key(LATEST, number), value.clone()));
                self.commit(writes.collect()).unwrap();
            }
            6..=8 => {
                let first = self.random.below(KEYS);
                let end = first + 1 + self.random.below(KEYS);
                self.delete_range(LATEST, first..end);
            }
            9..=12 => self.flush(),
            13..=14 => drop(self.index().compaction.step().unwrap()),
            15 => self.index().compaction.run_all(Glsn::MAX).unwrap(),
            16 if !self.view().history.is_empty() => {
                // Let a job that is under way end first.
                while self.index().compaction.step().unwrap() == Progress::Worked {}
                if !self.view().history.is_empty() {
                    self.index().compaction.merge_history().unwrap();
                }
            }
            17 => {
                let (oldest, newest) = (
                    self.horizon.snapshot.load(Ordering::Relaxed),
                    self.horizon.visible.load(Ordering::Relaxed),
                );
                let pinned = oldest + self.random.below(newest.saturating_sub(oldest) + 1);
                self.pin_at(Glsn(pinned));
                let moved = pinned + self.random.below(newest.saturating_sub(pinned) + 1);
                self.horizon.snapshot.fetch_max(moved, Ordering::Relaxed);
            }
            18 => drop(lock(&self.horizon.pins).pop_first()),
            _ => {
                self.log.sync().unwrap();
                self.flush();
                self.open().unwrap();
            }
        }
    }
}

#[test]
fn retained_moments_read_the_same_beside_range_deletions() {
    for seed in seeds(24) {
        println!("seed {seed}");
        let sizes = Sizes { memtable_bytes: 1 << 30, table_bytes: 64 << 10, keys: KEYS };
        let mut world = World::new(Arc::new(MemDisk::new()), seed, sizes);
        for _ in 0..120 {
            world.random_step();
            world.check_retained(LATEST);
        }
        world.flush();
        world.compact_all();
        world.check_retained(LATEST);
        assert_eq!(world.problems(), [""; 0], "seed {seed}");
    }
}

#[test]
fn pins_in_a_range_that_was_deleted_several_times_read_the_same() {
    let mut world = world(FLUSHED);
    let put = world.flush_keys(LATEST, 0..100, Some(b"one"));
    world.pin_at(put);
    let deleted = world.delete_range(LATEST, 0..100);
    world.pin_at(deleted);
    for _ in 0..3 {
        world.delete_range(LATEST, 0..100);
    }
    world.latest_only();
    world.flush();
    world.check_retained(LATEST);
    world.compact_all();
    world.check_retained(LATEST);
    assert!(world.view().ranges.is_empty(), "{:?}", world.view().ranges);
}

#[test]
fn a_table_in_a_deleted_range_stays_while_a_pin_sees_it() {
    for is_pinned in [true, false] {
        let mut world = world(FLUSHED);
        let put = world.flush_keys(LATEST, 0..1000, Some(b"value"));
        if is_pinned {
            world.pin_at(put);
        }
        world.delete_range(LATEST, 0..1000);
        world.latest_only();
        world.flush();
        world.compact_all();
        world.check_retained(LATEST);
        let kept = world.view().limits.is_readable(LATEST, put);
        assert_eq!(kept, is_pinned);
        assert_eq!(world.index().stats().versions > 1000, is_pinned);
    }
}

#[test]
fn a_version_in_history_stays_deleted_after_its_successor_is_dropped_unread() {
    let mut world = world(FLUSHED);
    let held = world.flush_keys(LATEST, 0..100, Some(b"one"));
    world.latest_only();
    world.horizon.snapshot.store(held.0, Ordering::Relaxed);
    world.flush_keys(LATEST, 0..100, Some(b"two"));
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert_eq!(world.view().history.len(), 1, "a snapshot sees the first versions");
    world.delete_range(LATEST, 0..100);
    world.flush();
    // History is merged before the current runs.
    world.index().compaction.merge_history().unwrap();
    world.latest_only();
    world.compact_all();
    assert!(world.view().ranges.is_empty(), "{:?}", world.view().ranges);
    world.check_retained(LATEST);
    world.flush_keys(LATEST, 0..100, Some(b"three"));
    world.check_retained(LATEST);
    world.compact_all();
    world.check_retained(LATEST);
}

#[test]
fn a_pinned_version_in_history_stays_deleted_after_its_successor_is_dropped_unread() {
    let mut world = world(FLUSHED);
    let pinned = world.flush_keys(LATEST, 0..100, Some(b"one"));
    world.pin_at(pinned);
    world.flush_keys(LATEST, 0..100, Some(b"two"));
    world.latest_only();
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert_eq!(world.view().history.len(), 1, "the pin sees the first versions");
    world.delete_range(LATEST, 0..100);
    world.latest_only();
    world.flush();
    // History is merged before the current runs.
    world.index().compaction.merge_history().unwrap();
    world.compact_all();
    assert!(world.view().ranges.is_empty(), "{:?}", world.view().ranges);
    world.check_retained(LATEST);
    // Reads below these versions search history.
    world.flush_keys(LATEST, 0..100, Some(b"three"));
    world.check_retained(LATEST);
    world.compact_all();
    world.check_retained(LATEST);
}
