//! Members that wait for each other, in a simulated world of processes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, InvalidInput, Moment, Options, Retention};
use plimsoll_disk::clock::{Clock, ManualClock, SystemClock};
use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::lying::{LyingDisk, Process};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, DirLock, Disk, File, LockError, Open};
use plimsoll_log::error::LogError;
use plimsoll_log::members::Members;

/// Many times the number of operations needed to wait for others and to write some hundred large
/// values.
const OPERATIONS_MAX: u64 = 20_000;
const OPERATIONS_MAX_WRITING: u64 = 1_000_000;

struct World {
    operations_max: u64,
    disk: LyingDisk,
    clock: Arc<ManualClock>,
    others: Arc<Mutex<Vec<Db>>>,
    /// Closed while a process waits.
    leaving: Arc<Mutex<Option<Db>>>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
        Self {
            operations_max: OPERATIONS_MAX,
            disk: LyingDisk::new(1),
            clock,
            others: Arc::default(),
            leaving: Arc::default(),
        }
    }

    /// A process that has the store open. While it waits, time passes and the others take steps.
    fn join(
        &self,
        pid: u32,
        change: impl FnOnce(Options) -> Options,
    ) -> (Process, plimsoll::Result<Db>) {
        let (process, disk): (_, Arc<dyn Disk>) = self.disk.process(pid);
        let (clock, others) = (Arc::clone(&self.clock), Arc::clone(&self.others));
        let leaving = Arc::clone(&self.leaving);
        process.when_idle(move |timeout| {
            clock.advance(timeout);
            let leaves = leaving.lock().unwrap().take();
            if let Some(db) = leaves {
                db.close().unwrap();
            }
            let others = others.lock().unwrap().clone();
            for db in &others {
                db.step().unwrap();
            }
        });
        let options =
            Options::new().memtable_bytes(64 << 10).background(false).warm(false).shared(true);
        let options = change(options).world(disk, Arc::clone(&self.clock) as _);
        process.kill_at(self.operations_max);
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
    let budgets: Vec<u64> =
        two.members().unwrap().iter().map(|member| member.memory_bytes).collect();
    assert_eq!(budgets, [24 << 20, 24 << 20]);
    assert_eq!(one.stats().memory.limit_bytes, 24 << 20);
}

#[test]
fn a_member_leaves_while_another_one_waits_to_join_for_memory() {
    let world = World::new();
    let total = |options: Options| options.memory_total(48 << 20);
    let one = world.join(1, total).1.unwrap();
    world.others.lock().unwrap().push(one.clone());
    let two = world.join(2, total).1.unwrap();
    // From now on the first one releases no memory.
    world.others.lock().unwrap().clear();
    let begun = world.clock.monotonic_nanos();
    *world.leaving.lock().unwrap() = Some(two);
    let three = world.join(3, total).1.unwrap();
    let waited = Duration::from_nanos(world.clock.monotonic_nanos() - begun);
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    assert_eq!(three.stats().memory.limit_bytes, 24 << 20);
    let pids: Vec<u32> = three.members().unwrap().iter().map(|member| member.pid).collect();
    assert_eq!(pids, [1, 3]);
    one.close().unwrap();
    let space = three.create_keyspace("rows", Retention::Latest).unwrap();
    three.put(&space, "key", "value").unwrap();
    assert_eq!(three.get(&space, "key").unwrap().unwrap(), b"value");
}

/// Three members; the first is the keeper. Their values are only in the log, so that nearly empty
/// memtables pin much of it.
struct Writers {
    world: World,
    members: Vec<Db>,
}

impl Writers {
    fn new() -> Self {
        let world = World { operations_max: OPERATIONS_MAX_WRITING, ..World::new() };
        // Each waits until the earlier members have released memory for it.
        let join = |pid| {
            let db = world.join(pid, Self::options).1.unwrap();
            world.others.lock().unwrap().push(db.clone());
            db
        };
        let members: Vec<Db> = (1..=3).map(join).collect();
        world.others.lock().unwrap().truncate(1);
        members[0].create_keyspace("rows", Retention::Latest).unwrap();
        Self { world, members }
    }

    fn options(options: Options) -> Options {
        options.memory_total(64 << 20).memtable_bytes(1 << 20).segment_bytes(64 << 10)
    }

    fn keeper(&self) -> &Db {
        &self.members[0]
    }

    /// The first two members write alternately.
    fn put(&self, rows: usize) {
        for row in 0..rows {
            let db = &self.members[row % 2];
            db.put(&db.keyspace("rows").unwrap(), (row % 2).to_be_bytes(), [7; 8 << 10]).unwrap();
        }
    }

    /// Each member checks `times` times, with two values written `between` two checks.
    fn steps(&self, between: Duration, times: u32) {
        for _ in 0..times {
            self.put(2);
            self.world.clock.advance(between);
            self.look();
        }
    }

    fn look(&self) {
        for db in &self.members {
            while db.step().unwrap() {}
        }
    }

    fn flushes(&self) -> u64 {
        self.keeper().stats().index.flushes
    }
}

/// Each member releases its own memtable as a whole.
#[test]
fn the_log_pinned_by_a_dropped_snapshot_is_freed_while_all_commit() {
    let writers = Writers::new();
    writers.put(10);
    let held = writers.members[2].snapshot();
    writers.put(100);
    writers.steps(Duration::from_millis(500), 10);
    let bounds = || writers.keeper().log().bounds();
    assert_eq!(bounds().first, Glsn(1));
    let (before, at) = (writers.flushes(), writers.keeper().newest());
    drop(held);
    writers.steps(Duration::from_millis(10), 10);
    assert!(
        bounds().first + 50 > at,
        "the log begins at {}, and {at} was the last commit",
        bounds().first
    );
    // A request is not repeated.
    writers.steps(Duration::from_millis(500), 10);
    assert!(writers.flushes() - before <= 3, "{} flushes", writers.flushes() - before);
}

/// While a process joins, it has not published its needs yet, so nothing may be freed.
#[test]
fn a_member_that_joins_and_leaves_causes_no_flush() {
    let writers = Writers::new();
    writers.put(100);
    writers.steps(Duration::from_millis(500), 10);
    let before = writers.flushes();
    // It waits until the others have released memory for it, which they do in their checks.
    writers.world.others.lock().unwrap().extend(writers.members[1..].iter().cloned());
    writers.world.join(4, Writers::options).1.unwrap().close().unwrap();
    writers.steps(Duration::from_millis(500), 10);
    assert_eq!(writers.flushes() - before, 0);
}

#[test]
fn snapshots_of_some_seconds_cause_a_flush_each_at_most() {
    let writers = Writers::new();
    let before = writers.flushes();
    for _ in 0..10 {
        let held = writers.members[2].snapshot();
        for _ in 0..7 {
            writers.put(60);
            writers.steps(Duration::from_millis(500), 1);
        }
        drop(held);
    }
    let flushes = writers.flushes() - before;
    assert!((1..=11).contains(&flushes), "{flushes} flushes for ten snapshots");
}

/// A disk that blocks, while it is held, the creation of files and reads of a locked store's log.
#[derive(Debug, Default)]
struct HeldDisk {
    disk: OsDisk,
    is_locked: AtomicBool,
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl HeldDisk {
    fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.changed.notify_all();
    }
}

impl DiskLayer for HeldDisk {
    fn below(&self) -> &dyn Disk {
        &self.disk
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let is_log = path.extension().is_some_and(|extension| extension == "seg");
        if open == Open::CreateNew || is_log && self.is_locked.load(Ordering::SeqCst) {
            drop(self.changed.wait_while(self.is_held.lock().unwrap(), |held| *held).unwrap());
        }
        self.disk.open(path, open, caching)
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let lock = self.disk.lock(dir)?;
        self.is_locked.store(true, Ordering::SeqCst);
        Ok(lock)
    }
}

#[test]
fn a_process_that_opens_or_closes_for_long_reports_that_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let disk = Arc::new(HeldDisk::default());
    let (its_disk, clock) = (Arc::<HeldDisk>::clone(&disk), Arc::new(SystemClock::new()));
    let options = Options::new().memory_bytes(16 << 20).warm(false).shared(true);
    let options = options.world(its_disk, Arc::<SystemClock>::clone(&clock) as _);
    let put = |db: &Db| db.put(&db.keyspace("default").unwrap(), "key", "value").unwrap();
    let db = Db::open(&path, options.clone()).unwrap();
    put(&db);
    db.close().unwrap();
    disk.is_locked.store(false, Ordering::SeqCst);
    // Each try names the process; a report changes the time that it names.
    let wait_for_reports = || {
        let (begun, mut reports) = (Instant::now(), BTreeSet::new());
        let (its_disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>) = (disk.clone(), clock.clone());
        while reports.len() < 3 && begun.elapsed() < Duration::from_secs(60) {
            match Members::join(&its_disk, &clock, &path, Duration::ZERO) {
                Err(LogError::Stalled { pid, since_micros }) => {
                    reports.extend(pid.map(|pid| (pid, since_micros)));
                }
                // It does not hold the lock yet, or any more.
                joined => drop(joined),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        disk.hold(false);
        assert!(reports.len() >= 3, "{reports:?}");
        assert!(reports.iter().all(|(pid, _)| *pid == std::process::id()), "{reports:?}");
    };
    disk.hold(true);
    let db = std::thread::scope(|scope| {
        let opening = scope.spawn(|| Db::open(&path, options.clone()).unwrap());
        wait_for_reports();
        opening.join().unwrap()
    });
    put(&db);
    disk.hold(true);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| db.close().unwrap());
        wait_for_reports();
        closing.join().unwrap();
    });
    assert_eq!(Db::open(&path, options).unwrap().members().unwrap().len(), 1);
}

#[test]
fn a_tag_is_known_to_its_process_although_its_commit_was_not_waited_for() {
    let mut world = World::new();
    world.operations_max = OPERATIONS_MAX_WRITING;
    let memory = |options: Options| options.memory_bytes(16 << 20);
    let (one, two) = (world.join(1, memory).1.unwrap(), world.join(2, memory).1.unwrap());
    let space = one.keyspace("default").unwrap();
    one.put(&space, "key", "value").unwrap();
    let tagged = one.newest();
    // Another process is stopped while it syncs.
    let (_stopped, disk) = world.disk.process(3);
    let sync = disk.lock_file(Path::new("/store/members/sync")).unwrap();
    assert!(sync.try_lock().unwrap());
    let created = one.tag("v1", Moment::Newest);
    assert!(matches!(created, Err(Error::Stalled { .. })), "{created:?}");
    assert_eq!(one.tags().unwrap().len(), 1, "the commit stays");
    assert_eq!(one.tag_at("v1").unwrap().glsn, tagged);
    sync.unlock();
    one.put(&space, "key", "later").unwrap();
    assert_eq!(two.tag_at("v1").unwrap().glsn, tagged);
    let held = one.tag("v1", Moment::Newest);
    assert!(matches!(held, Err(Error::InvalidInput(InvalidInput::TagExists { .. }))), "{held:?}");
}
