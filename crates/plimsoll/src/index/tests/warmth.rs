//! Tests of which pages are in memory after a flush or a merge.

use plimsoll_memory::budget::Lease;

use super::jobs::{FLUSHED, key, world};
use super::*;
use crate::index::manifest::files::Reserve;
use crate::index::run::warmth::Warmth;
use crate::index::write::output::Output;

/// Takes so much memory that only warm pages enter the pool.
fn leave_no_free_memory(world: &World) -> Lease {
    let kept = world.budget.limit_bytes() / 8;
    let lease = world.budget.lease(Kind::Staging, world.budget.free_bytes() - kept).unwrap();
    assert!(!world.pool.has_free_memory());
    lease
}

#[test]
fn written_pages_are_in_memory_if_memory_is_free() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..3000, Some(&[7; 60]));
    assert_eq!(loads_of(&world, 0..3000), 0);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert_eq!(loads_of(&world, 0..3000), 0);
}

/// The number of pages loaded by reads of these keys, all of which exist.
fn loads_of(world: &World, numbers: std::ops::Range<u64>) -> u64 {
    let before = world.pool.stats().loads;
    for number in numbers {
        assert!(
            world.view().get(&key(FOREVER, number), world.applied).unwrap().is_some(),
            "key {number}"
        );
    }
    world.pool.stats().loads - before
}

#[test]
fn rows_hot_before_a_merge_are_in_memory_after_it() {
    let mut world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    for first in [0, 1] {
        world.flush_keys(FOREVER, (0..3000).map(|number| 2 * number + first), Some(&[7; 60]));
    }
    let leaves = loads_of(&world, 0..1000);
    assert!(leaves >= 6, "{leaves} pages");
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert_eq!(world.index().stats().runs.len(), 1);
    assert!(loads_of(&world, 0..1000) <= 1, "all except the leaf at the border");
    assert!(loads_of(&world, 2000..6000) >= 10, "rows that were not read before");
}

#[test]
fn rows_read_in_a_memtable_are_in_memory_after_its_flush() {
    let mut world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    for (reads, loads) in [(2, 0..1), (0, 6..1000)] {
        let first = 10_000 * reads;
        let writes =
            (first..first + 1000).map(|number| (key(FOREVER, number), Some(vec![7; 60]))).collect();
        let glsn = world.commit(writes).unwrap();
        (0..reads).for_each(|_| assert_eq!(loads_of(&world, first..first + 1000), 0));
        world.index().memtables.flush_up_to(glsn).unwrap();
        let loaded = loads_of(&world, first..first + 1000);
        assert!(loads.contains(&loaded), "{reads} reads: {loaded} pages loaded");
    }
}

/// Writes a run with versions of these lengths, of which those with `is_hot` were read. Returns the
/// number of its pages in the pool, and of all its pages.
fn warm_pages(lens: &[usize], is_hot: impl Fn(usize) -> bool) -> (u64, u32) {
    let world = world(FLUSHED);
    let _taken = leave_no_free_memory(&world);
    let mut output = Output::new(&world.index().runs.files, &world.budget, 1 << 20, Reserve::Rest);
    for (number, len) in lens.iter().enumerate() {
        let (key, value) = (key(FOREVER, number as u64), vec![1; *len]);
        let warmth = if is_hot(number) { Warmth::Hot } else { Warmth::Unread };
        output
            .add(
                &Version { key: &key, glsn: Glsn(1), stored: Stored::Inline(&value) },
                true,
                warmth,
            )
            .unwrap();
    }
    let (members, _) = output.finish().unwrap();
    (world.pool.stats().resident, members[0].table.info.pages)
}

#[test]
fn the_first_version_of_a_leaf_does_not_affect_the_warmth_of_the_previous_leaf() {
    let pages_of = |count| warm_pages(&vec![400; count], |_| false).1;
    let in_leaf = (1..100).find(|&count| pages_of(count + 1) > pages_of(1)).unwrap();
    // A leaf of which less than half was read; then one whose first version was read and is long.
    let lens: Vec<usize> =
        (0..in_leaf + 6).map(|number| if number == in_leaf { 1000 } else { 400 }).collect();
    let read = in_leaf.div_ceil(2) - 1;
    assert_eq!(warm_pages(&lens, |number| number < read || number == in_leaf).0, 0);
    assert!(warm_pages(&lens, |number| number <= read || number == in_leaf).0 > 0);
}
