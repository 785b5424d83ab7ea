//! Tests of refusals by the budget: the operation fails or succeeds, nothing is lost, nothing
//! leaks.

use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use super::*;
use crate::types::error::Error;

fn world(seed: u64, sizes: Sizes) -> World {
    World::new(Arc::new(MemDisk::new()), seed, sizes)
}

const SMALL: Sizes = Sizes { memtable_bytes: 8 << 10, table_bytes: 64 << 10, keys: 100 };

#[test]
fn a_refusal_at_any_reservation_loses_nothing_and_leaks_nothing() {
    let mut refused = 0;
    for n in 0..160 {
        let seed = n % 4;
        let mut world = world(seed, SMALL);
        world.budget.fail_after(n / 4 * 7);
        for _ in 0..80 {
            match world.step() {
                Ok(()) => {}
                Err(Error::OutOfBudget(_)) => refused += 1,
                Err(error) => panic!("refused after {n}: {error}"),
            }
            if world.index.is_none() {
                world.open().unwrap();
            }
        }
        world.budget.fail_after(u64::MAX);
        world.check_all();
        assert_eq!(world.problems(), [""; 0], "refused after {n}");
        world.index().memtables.flush_up_to(world.applied).unwrap();
        world.index().compaction.run_all(Glsn::MAX).unwrap();
        world.check_all();
        assert_eq!(world.run_files(), world.named_files(), "refused after {n}");
        world.index = None;
        for kind in [Kind::Memtable, Kind::Sort, Kind::Metadata, Kind::Staging] {
            assert_eq!(world.budget.usage().of(kind), 0, "refused after {n}: {kind:?} leaks");
        }
    }
    // An early flush avoids most refusals.
    assert!(refused > 3, "{refused}");
}

fn hog(world: &World, leave: u64) -> Vec<Chunk> {
    let mut chunks: Vec<_> =
        std::iter::from_fn(|| world.budget.take(Kind::WriteSet).ok()).collect();
    chunks.truncate(chunks.len().saturating_sub(leave as usize));
    chunks
}

#[test]
fn memtables_are_flushed_early_without_memory_to_grow() {
    let sizes = Sizes { memtable_bytes: 4 << 20, table_bytes: 1 << 20, keys: 5000 };
    let mut world = world(3, sizes);
    let hogged = hog(&world, 8);
    for _ in 0..2000 {
        let writes = world.random_writes(20, false);
        world.commit(writes).unwrap();
    }
    let stats = world.index().stats();
    assert!(stats.flushes > 4 && stats.stalls.room.times > 0, "{stats:?}");
    assert!(stats.memtable_bytes <= 8 * CHUNK_BYTES as u64);
    drop(hogged);
    world.check_all();
}

#[test]
fn a_writer_without_memory_is_refused_and_continues_later() {
    let mut world = world(4, SMALL);
    let hogged = hog(&world, 0);
    for _ in 0..20 {
        let writes = world.random_writes(20, false);
        match world.commit(writes) {
            Err(Error::OutOfBudget(refusal)) => {
                assert!(
                    refusal.usage.of(Kind::WriteSet) > 8 << 20,
                    "the error lists the users of memory"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    drop(hogged);
    let writes = world.random_writes(20, false);
    world.commit(writes).unwrap();
    // The memory of one memtable is enough to continue; that of flushes and merges is reserved.
    let hogged = hog(&world, 0);
    for _ in 0..200 {
        let writes = world.random_writes(20, false);
        world.commit(writes).unwrap();
    }
    assert!(world.index().stats().flushes > 10);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    drop(hogged);
    world.check_all();
}

#[test]
fn a_flush_is_never_refused_whatever_the_size_of_table_metadata() {
    let mut world = world(4, Sizes { memtable_bytes: 64 << 10, ..SMALL });
    // Each chunk that becomes free is taken, as if by thousands of new iterators.
    let mut hogged = hog(&world, 2);
    let (mut written, mut refused) = (0_u32, 0_u32);
    for number in 0..600_u32 {
        let key = |part: u32| {
            [&LATEST.to_be_bytes()[..], &(2 * number + part).to_be_bytes(), &[7; 4000]].concat()
        };
        match world.commit((0..2).map(|part| (key(part), Some(vec![1]))).collect()) {
            Ok(_) => written += 1,
            Err(Error::OutOfBudget(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        world
            .index()
            .memtables
            .flush_up_to(world.applied)
            .unwrap_or_else(|error| panic!("after {written} commits: {error}"));
        hogged.extend(hog(&world, 2));
    }
    assert!(written > 10 && refused > 10, "{written} written, {refused} refused");
    drop(hogged);
    world.commit(BTreeMap::from([(b"\0\0\0\x02more".to_vec(), None)])).unwrap();
    world.check_all();
}

#[test]
fn the_reservation_of_an_aborted_commit_is_returned() {
    let world = world(5, SMALL);
    let before = world.index().stats().memtable_bytes;
    for _ in 0..1000 {
        world.index().memtables.reserve(6 << 10, Glsn::NONE).unwrap();
    }
    let stats = world.index().stats();
    assert!(stats.memtable_bytes <= before + 2 * CHUNK_BYTES as u64, "{stats:?}");
    assert_eq!(stats.flushes, 0);
}

#[test]
fn a_read_only_index_replays_as_far_as_its_budget_allows_and_reports_it() {
    let mut world = world(6, SMALL);
    for _ in 0..50 {
        let writes = world.random_writes(20, false);
        world.commit(writes).unwrap();
    }
    world.log.sync().unwrap();
    world.index = None;
    let files = world.run_files();
    let context = Context { role: crate::index::env::role::Role::ReadOnly, ..world.context() };
    let manifest = Manifest::read(&*world.disk, &dir()).unwrap().expect("the index was flushed");
    let checkpoint = manifest.head.checkpoint.glsn;
    world.index =
        Some(OpenIndex::open(context, manifest, Arc::clone(&world.horizon) as _).unwrap());
    for commit in world.commits.iter().filter(|commit| commit.glsn > checkpoint) {
        world.apply(commit, Glsn::NONE).unwrap();
    }
    world.check_all();
    assert_eq!(world.index().memtables.flush_step().unwrap(), crate::index::env::Progress::Idle);
    assert_eq!(world.index().compaction.step().unwrap(), crate::index::env::Progress::Idle);
    let _hogged = hog(&world, 0);
    let refusal = (0..100).find_map(|_| {
        let writes = world.random_writes(20, false);
        world.commit(writes).err()
    });
    assert!(matches!(refusal, Some(Error::OutOfBudget(_))), "{refusal:?}");
    world.index = None;
    assert_eq!(world.run_files(), files, "nothing on disk was changed");
}
