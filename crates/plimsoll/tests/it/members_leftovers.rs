//! Leftovers of a process that is killed while others have the store open, in a simulated world of
//! processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::{LyingDisk, Process};
use plimsoll_disk::vfs::Disk;

struct World {
    disk: LyingDisk,
    clock: Arc<ManualClock>,
}

impl World {
    fn new() -> Self {
        Self { disk: LyingDisk::new(1), clock: Arc::new(ManualClock::new(1_700_000_000_000_000)) }
    }

    fn join(&self, pid: u32) -> (Process, Db) {
        let (process, disk): (_, Arc<dyn Disk>) = self.disk.process(pid);
        let options =
            Options::new().memory_bytes(16 << 20).background(false).warm(false).shared(true);
        let options = options.world(disk, Arc::clone(&self.clock) as _);
        (process, Db::open(Path::new("/store"), options).unwrap())
    }

    /// Lets a second pass in which a process does its background work.
    fn rest(&self, db: &Db) {
        for _ in 0..20 {
            self.clock.advance(Duration::from_millis(50));
            db.step().unwrap();
        }
    }

    fn blob_files(&self) -> usize {
        let names = self.disk.list(Path::new("/store/log")).unwrap();
        names.iter().filter(|entry| entry.name.ends_with(".blob")).count()
    }
}

/// Begins a bulk load, and is killed midway.
fn load_and_die(process: &Process, db: Db) {
    let space = db.create_keyspace("rows", Retention::Latest).unwrap();
    let mut load = db.begin_bulk_load(&space).unwrap();
    (0..3_000u32).for_each(|row| load.put(row.to_be_bytes(), [7; 2000]).unwrap());
    process.kill();
    drop(load);
}

#[test]
fn blob_files_of_a_killed_process_are_removed_while_others_stay() {
    let world = World::new();
    let (_, stays) = world.join(1);
    world.rest(&stays);
    for pid in 2..4 {
        let (process, db) = world.join(pid);
        load_and_die(&process, db);
        assert!(world.blob_files() > 0, "it has left blob files");
        world.rest(&stays);
        assert_eq!(world.blob_files(), 0);
    }
}

#[test]
fn a_process_that_reuses_the_slot_of_a_killed_one_does_not_hide_its_leftovers() {
    let world = World::new();
    let (_, stays) = world.join(1);
    world.rest(&stays);
    let (process, db) = world.join(2);
    load_and_die(&process, db);
    // No member has checked the others in between.
    let (_, next) = world.join(3);
    assert!(world.blob_files() > 0, "it has left blob files");
    world.rest(&stays);
    assert_eq!(world.blob_files(), 0);
    next.close().unwrap();
}

#[test]
fn the_next_keeper_removes_the_blob_files_of_a_killed_one() {
    let world = World::new();
    let (process, keeper) = world.join(1);
    let (_, stays) = world.join(2);
    world.rest(&stays);
    load_and_die(&process, keeper);
    assert!(world.blob_files() > 0, "it has left blob files");
    world.rest(&stays);
    assert_eq!(world.blob_files(), 0);
}
