//! What members do while they wait for each other, in a simulated world of processes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::{Db, Glsn, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::{LyingDisk, Process};
use plimsoll_disk::vfs::Disk;

/// Many times what it takes.
const OPERATIONS_MAX: u64 = 100_000;

struct World {
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    others: Arc<Mutex<Vec<Db>>>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
        Self { disk: LyingDisk::new(1), clock, others: Arc::default() }
    }

    /// A process that has the store open. While it waits, time passes and the others take steps.
    fn join(&self, pid: u32, change: impl FnOnce(Options) -> Options) -> (Process, plimsoll::Result<Db>) {
        let (process, disk): (_, Arc<dyn Disk>) = self.disk.process(pid);
        let (clock, others) = (Arc::clone(&self.clock), Arc::clone(&self.others));
        process.when_idle(move |patience| {
            clock.advance(patience);
            let others = others.lock().unwrap().clone();
            for db in &others {
                db.step().unwrap();
            }
        });
        let options = Options::new().memtable_bytes(64 << 10).background(false).warm(false).shared(true);
        let options = change(options).world(disk, Arc::clone(&self.clock) as _);
        process.kill_at(OPERATIONS_MAX);
        (process, Db::open(Path::new("/store"), options))
    }
}

#[test]
fn a_member_that_waits_for_the_keeper_sleeps() {
    let world = World::new();
    let memory = |options: Options| options.memory_bytes(16 << 20);
    let (_, keeper) = world.join(1, memory);
    let keeper = keeper.unwrap();
    let (process, follower) = world.join(2, memory);
    let follower = follower.unwrap();
    let space = follower.create_keyspace("rows", Retention::Latest).unwrap();
    follower.put(&space, "key", "value").unwrap();
    world.others.lock().unwrap().push(keeper.clone());
    let before = process.operations();
    follower.flush().unwrap();
    assert!(process.operations() - before < 1000, "{}", process.operations() - before);
    assert!(keeper.members().unwrap().iter().any(|member| member.pid == 1 && member.is_keeper));
}

#[test]
fn members_without_threads_give_memory_to_one_that_joins() {
    let world = World::new();
    let total = |options: Options| options.memory_total(48 << 20);
    let (_, one) = world.join(1, total);
    let one = one.unwrap();
    world.others.lock().unwrap().push(one.clone());
    let two = world.join(2, total).1.unwrap();
    let budgets: Vec<u64> = two.members().unwrap().iter().map(|member| member.memory_bytes).collect();
    assert_eq!(budgets, [24 << 20, 24 << 20]);
    assert_eq!(one.stats().memory.limit_bytes, 24 << 20);
}

/// Its values are in the log only: memtables that are nearly empty hold much of it. Each member releases its own as a whole.
#[test]
fn the_log_that_a_dropped_snapshot_held_is_freed_while_all_commit() {
    let world = World::new();
    let options = |options: Options| options.memory_bytes(16 << 20).memtable_bytes(1 << 20).segment_bytes(64 << 10);
    let members: Vec<Db> = (1..=3).map(|pid| world.join(pid, options).1.unwrap()).collect();
    let [keeper, follower, reader] = &members[..] else { unreachable!() };
    world.others.lock().unwrap().push(keeper.clone());
    keeper.create_keyspace("rows", Retention::Latest).unwrap();
    let put = |rows: u64| {
        for row in 0..rows {
            let db = if row % 2 == 0 { keeper } else { follower };
            db.put(&db.keyspace("rows").unwrap(), (row % 2).to_be_bytes(), [7; 8 << 10]).unwrap();
        }
    };
    let steps = |between: Duration, times: u32| {
        for _ in 0..times {
            put(2);
            world.clock.advance(between);
            for db in &members {
                while db.step().unwrap() {}
            }
        }
    };
    put(10);
    let held = reader.snapshot();
    put(100);
    steps(Duration::from_millis(500), 10);
    assert_eq!(keeper.log().bounds().first, Glsn(1));
    let flushes = || keeper.stats().index.flushes;
    let (before, at) = (flushes(), keeper.newest());
    drop(held);
    steps(Duration::from_millis(10), 10);
    let first = keeper.log().bounds().first;
    assert!(first + 50 > at, "the log begins at {first}, and {at} was the last commit");
    // What was asked for once is not asked for again.
    steps(Duration::from_millis(500), 10);
    assert!(flushes() - before <= 3, "{} flushes", flushes() - before);
}
