//! Tests of the choice for different amounts of free memory, and of the times at which it is made.

use std::sync::{Mutex, PoisonError};

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_memory::budget::Backing;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn room(limit_bytes: u64, used_bytes: u64) -> Room {
    Room { limit_bytes, used_bytes }
}

/// A machine of 24 GiB with 20 GiB free.
fn large_machine() -> Option<Room> {
    Some(room(24 * GIB, 4 * GIB))
}

/// The choice under a budget of 64 MiB, all of it in use.
fn cached(before: bool, machine: Option<Room>, cgroups: &[Room]) -> bool {
    decide(before, &Rooms { machine, cgroups: cgroups.to_vec() }, 64 * MIB, 0).cached
}

#[test]
fn a_free_machine_is_used_and_a_full_one_is_not() {
    assert!(cached(false, large_machine(), &[]));
    assert!(
        !cached(true, Some(room(24 * GIB, 23 * GIB)), &[]),
        "a 16th of the machine is left free"
    );
    assert!(!cached(true, None, &[]), "unreported memory does not count as free");
}

#[test]
fn in_a_hard_cgroup_of_the_budget_and_32_mib_reads_bypass_the_page_cache() {
    for budget in [16 * MIB, 64 * MIB, 256 * MIB, 4 * GIB] {
        let limit = budget + 32 * MIB;
        // From an empty to a full budget, and whatever the earlier choice was.
        for (used, unused) in [
            (0, budget),
            (2 * MIB, budget),
            (budget / 2, budget / 2),
            (budget, 0),
            (budget + 8 * MIB, 0),
        ] {
            for before in [false, true] {
                let rooms = Rooms { machine: large_machine(), cgroups: vec![room(limit, used)] };
                assert!(!decide(before, &rooms, budget, unused).cached, "{budget} {used} {before}");
            }
        }
    }
}

#[test]
fn the_tightest_cgroup_up_to_the_root_decides() {
    let (wide, tight) = (room(4 * GIB, GIB), room(128 * MIB, 100 * MIB));
    assert!(cached(false, large_machine(), &[wide, wide]));
    assert!(!cached(true, large_machine(), &[wide, tight]));
    assert!(!cached(true, large_machine(), &[tight, wide]));
    assert!(
        !cached(true, large_machine(), &[room(128 * MIB, 200 * MIB)]),
        "a limit that was lowered below what is in use"
    );
}

#[test]
fn memory_that_the_budget_may_still_take_is_not_free() {
    let rooms = Rooms { machine: large_machine(), cgroups: vec![room(GIB, 0)] };
    assert_eq!(
        decide(false, &rooms, 512 * MIB, 512 * MIB),
        Decision { cached: false, room_bytes: 512 * MIB }
    );
    assert_eq!(
        decide(false, &rooms, 256 * MIB, 256 * MIB),
        Decision { cached: true, room_bytes: 768 * MIB }
    );
}

#[test]
fn between_the_two_thresholds_the_choice_is_unchanged() {
    // Chosen from 96 MiB on, and given up below 64 MiB.
    for (free, from_direct, from_cached) in
        [(63, false, false), (64, false, true), (95, false, true), (96, true, true)]
    {
        let cgroup = room(GIB, GIB - free * MIB);
        assert_eq!(cached(false, large_machine(), &[cgroup]), from_direct, "{free}");
        assert_eq!(cached(true, large_machine(), &[cgroup]), from_cached, "{free}");
    }
}

#[derive(Debug)]
struct Told {
    cgroup: Mutex<Room>,
    asked: AtomicU32,
}

impl Told {
    fn new(free_bytes: u64) -> Arc<Self> {
        Arc::new(Self { cgroup: Mutex::new(room(free_bytes, 0)), asked: AtomicU32::new(0) })
    }

    fn set(&self, free_bytes: u64) {
        *self.cgroup.lock().unwrap_or_else(PoisonError::into_inner) = room(free_bytes, 0);
    }
}

impl RoomGauge for Told {
    fn read(&self) -> Rooms {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Rooms {
            machine: large_machine(),
            cgroups: vec![*self.cgroup.lock().unwrap_or_else(PoisonError::into_inner)],
        }
    }
}

/// The choice of a store on `disk`.
fn choice(
    io: Io,
    gauge: &Arc<Told>,
    clock: &Arc<ManualClock>,
    disk: Arc<dyn Disk>,
) -> Arc<IoChoice> {
    let budget = Budget::new(16 * MIB, Backing::Heap).unwrap();
    let options = Options::new()
        .io(io)
        .world(disk, Arc::clone(clock) as _)
        .room_gauge(Arc::clone(gauge) as _);
    choose(options, &budget).1
}

#[test]
fn free_memory_is_checked_once_a_second_of_the_stores_clock() {
    let (gauge, clock) = (Told::new(GIB), Arc::new(ManualClock::new(1)));
    let choice = choice(Io::Auto, &gauge, &clock, Arc::new(OsDisk::new()));
    for (free, asked, cached) in [(GIB, 1, true), (0, 2, false), (GIB, 3, true)] {
        gauge.set(free);
        for _ in 0..100 {
            assert_eq!(choice.caching() == Caching::Buffered, cached);
        }
        assert_eq!(gauge.asked.load(Ordering::Relaxed), asked);
        gauge.set(GIB - free);
        clock.advance(POLL_INTERVAL - Duration::from_nanos(1));
        assert_eq!(choice.caching() == Caching::Buffered, cached);
        clock.advance(Duration::from_nanos(1));
    }
    // Reading the statistics also checks the free memory.
    gauge.set(0);
    assert_eq!(
        choice.stats(),
        IoStats { asked: Io::Auto, cached: false, switches: 4, room_bytes: Some(0) }
    );
}

#[test]
fn device_reads_bypass_the_page_cache() {
    for io in [Io::Auto, Io::Cached] {
        let (gauge, clock) = (Told::new(GIB), Arc::new(ManualClock::new(1)));
        let choice = choice(io, &gauge, &clock, Arc::new(OsDisk::new()));
        assert_eq!(choice.caching(), Caching::Buffered);
        let (first, second) = (choice.read_device(), choice.read_device());
        assert_eq!(choice.caching(), Caching::Direct);
        drop(first);
        assert_eq!(choice.caching(), Caching::Direct);
        drop(second);
        assert_eq!(choice.caching(), Caching::Buffered);
    }
}

#[test]
fn an_explicit_choice_ignores_free_memory() {
    for free in [0, GIB] {
        let (gauge, clock) = (Told::new(free), Arc::new(ManualClock::new(1)));
        let direct = choice(Io::Direct, &gauge, &clock, Arc::new(OsDisk::new()));
        let cached = choice(Io::Cached, &gauge, &clock, Arc::new(OsDisk::new()));
        assert_eq!((direct.caching(), cached.caching()), (Caching::Direct, Caching::Buffered));
        assert_eq!(gauge.asked.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_disk_without_a_page_cache_is_left_unchanged() {
    let (gauge, clock) = (Told::new(GIB), Arc::new(ManualClock::new(1)));
    for io in [Io::Auto, Io::Cached] {
        let budget = Budget::new(16 * MIB, Backing::Heap).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let options = Options::new()
            .io(io)
            .world(Arc::clone(&disk), Arc::clone(&clock) as _)
            .room_gauge(Arc::clone(&gauge) as _);
        let (options, choice) = choose(options, &budget);
        assert!(Arc::ptr_eq(&options.disk, &disk));
        assert_eq!(
            choice.stats(),
            IoStats { asked: Io::Direct, cached: false, switches: 0, room_bytes: None }
        );
    }
    assert_eq!(gauge.asked.load(Ordering::Relaxed), 0);
}
