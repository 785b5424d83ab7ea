//! Reads through the page cache and with direct I/O, on the real disk: the results are the same,
//! and the handles have the expected mode.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plimsoll::{Db, Io, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::free_memory::{Room, RoomGauge, Rooms};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, DIRECT_ALIGN, Disk, Open};

const KEYS: u32 = 3000;

/// A machine with this many bytes of free memory.
#[derive(Debug, Default)]
struct Free(Mutex<u64>);

impl Free {
    fn set(&self, bytes: u64) {
        *self.0.lock().unwrap() = bytes;
    }
}

impl RoomGauge for Free {
    fn read(&self) -> Rooms {
        Rooms {
            machine: Some(Room { limit_bytes: *self.0.lock().unwrap(), used_bytes: 0 }),
            cgroups: Vec::new(),
        }
    }
}

struct World {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    free: Arc<Free>,
}

impl World {
    /// A store with values in runs, in sealed segments of the log and in blob files.
    fn new() -> Self {
        let world = Self {
            dir: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::new(1 << 50)),
            free: Arc::new(Free::default()),
        };
        let db = world.open(Io::Direct);
        let keyspace = db.keyspace("default").unwrap();
        for first in (0..KEYS).step_by(500) {
            let mut tx = db.begin();
            for number in first..first + 500 {
                tx.put(&keyspace, &number.to_be_bytes(), &value(number)).unwrap();
            }
            tx.commit().unwrap();
        }
        db.compact().unwrap();
        db.close().unwrap();
        world
    }

    fn open(&self, io: Io) -> Db {
        let options =
            Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20).background(false).io(io);
        let options = options.world(Arc::new(OsDisk::new()), Arc::clone(&self.clock) as _);
        Db::open(self.dir.path().join("store"), options.room_gauge(Arc::clone(&self.free) as _))
            .unwrap()
    }

    /// Whether the file system supports direct I/O at all.
    fn has_direct(&self) -> bool {
        let path = self.dir.path().join("probe");
        let file = OsDisk::new().open(&path, Open::CreateNew, Caching::Direct).unwrap();
        // Only a direct handle rejects this.
        file.write_at(&vec![0; DIRECT_ALIGN - 1], 0).is_err()
    }
}

/// Most values are in leaves, some in the log, and a few in blob files.
fn value(number: u32) -> Vec<u8> {
    let bytes = match number % 100 {
        0 if number.is_multiple_of(1000) => 300 << 10,
        0..10 => 5000,
        _ => 400,
    };
    number.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

fn check(db: &Db, step: usize) {
    let keyspace = db.keyspace("default").unwrap();
    let snapshot = db.snapshot();
    for number in (0..KEYS).step_by(step) {
        let found = snapshot.get(&keyspace, &number.to_be_bytes()).unwrap().unwrap();
        assert!(found == value(number)[..], "{number}");
    }
    assert_eq!(snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap).count(), KEYS as usize);
}

/// The run files that this process has open for reading: how many in total, and how many with
/// O_DIRECT.
fn run_handles(store: &Path) -> (usize, usize) {
    let (mut all, mut direct) = (0, 0);
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if !target.starts_with(store)
            || target.extension().is_none_or(|extension| extension != "run")
        {
            continue;
        }
        let info =
            fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        all += 1;
        direct += usize::from(flags & rustix::fs::OFlags::DIRECT.bits() != 0);
    }
    (all, direct)
}

#[test]
fn handles_follow_free_memory_and_results_stay_the_same() {
    let world = World::new();
    let (store, has_direct) = (world.dir.path().join("store"), world.has_direct());
    let db = world.open(Io::Auto);
    for (free, cached) in [(0, false), (8 << 30, true), (20 << 20, false), (8 << 30, true)] {
        world.free.set(free);
        world.clock.advance(Duration::from_secs(1));
        db.drop_caches();
        check(&db, 1);
        assert_eq!(db.stats().io.cached, cached, "{free}");
        let (all, direct) = run_handles(&store);
        assert!(all > 0);
        assert_eq!(direct, if cached || !has_direct { 0 } else { all }, "{free}");
    }
    assert_eq!(db.stats().io.switches, 3);
    db.close().unwrap();
}

#[test]
fn files_written_directly_are_read_through_the_page_cache() {
    for io in [Io::Cached, Io::Direct] {
        let world = World::new();
        let db = world.open(io);
        check(&db, 7);
        let keyspace = db.keyspace("default").unwrap();
        for round in 0..4 {
            let mut tx = db.begin();
            for number in (round..KEYS).step_by(4) {
                tx.delete(&keyspace, &number.to_be_bytes()).unwrap();
                tx.put(&keyspace, &number.to_be_bytes(), &value(number)).unwrap();
            }
            tx.commit().unwrap();
            // New runs, written with direct I/O, beside old ones that are in the page cache.
            db.compact().unwrap();
            db.drop_caches();
            check(&db, 3);
        }
        assert_eq!(db.stats().io.cached, io == Io::Cached);
        assert_eq!(db.verify(&mut |_| ()).unwrap().problems, [] as [String; 0]);
        db.close().unwrap();
    }
}

#[test]
fn readers_get_their_values_while_handles_are_switched() {
    let world = World::new();
    world.free.set(8 << 30);
    let db = world.open(Io::Auto);
    // Even if this thread gets little processor time beside the readers, they see a switch.
    world.free.set(0);
    world.clock.advance(Duration::from_secs(1));
    let left = Mutex::new(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    db.drop_caches();
                    check(&db, 11);
                }
                *left.lock().unwrap() -= 1;
            });
        }
        let mut free = 8 << 30;
        while *left.lock().unwrap() > 0 {
            world.free.set(free);
            world.clock.advance(Duration::from_secs(1));
            free = (8 << 30) - free;
            thread::yield_now();
        }
    });
    assert!(db.stats().io.switches > 0);
}

#[test]
fn verify_reads_the_device_even_while_others_read_the_page_cache() {
    let world = World::new();
    let db = world.open(Io::Cached);
    check(&db, 1);
    db.drop_caches();
    let (all, _) = run_handles(&world.dir.path().join("store"));
    assert!(all > 0);
    assert_eq!(db.verify(&mut |_| ()).unwrap().problems, [] as [String; 0]);
    let (all, direct) = run_handles(&world.dir.path().join("store"));
    assert!(direct == all || !world.has_direct(), "verify switched {direct} of {all} handles");
    check(&db, 1);
    assert!(db.stats().io.cached);
}
