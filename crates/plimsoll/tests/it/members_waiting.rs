//! What a member does while it waits for others, in a simulated world of processes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use plimsoll::{Db, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::{LyingDisk, Process};
use plimsoll_disk::vfs::Disk;

/// Many times what it takes.
const OPERATIONS_MAX: u64 = 20_000;

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
