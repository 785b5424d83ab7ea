//! The evictor's guarantees, step by step and with its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::{ManualClock, SystemClock};

use super::*;
use crate::budget::{Backing, Kind};
use crate::pool::{LoadError, PageSource, PoolFile, Touch};

/// Under Miri only some words are written and compared.
const WORD_STEP: usize = if cfg!(miri) { 1009 } else { 1 };

/// Every word of a page is its number.
struct Numbered;

impl PageSource for Numbered {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.chunks_exact_mut(4)
            .step_by(WORD_STEP)
            .for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        Ok(())
    }
}

fn assert_is(page: &[u8], number: u32) {
    assert!(
        page.chunks_exact(4).step_by(WORD_STEP).all(|word| word == number.to_le_bytes()),
        "page {number}"
    );
}

/// The chunks of the budget: so few that the tables of the pool fit into one chunk.
const CHUNKS: u64 = if cfg!(miri) { 40 } else { 152 };

struct World {
    budget: Budget,
    pool: Arc<Pool>,
    file: PoolFile,
    clock: Arc<ManualClock>,
    evictor: Evictor,
}

impl World {
    fn new() -> Self {
        let budget = Budget::new(CHUNKS * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, CHUNKS / 8 * CHUNK_BYTES as u64).unwrap();
        let file = pool.attach(Arc::new(Numbered));
        let clock = Arc::new(ManualClock::new(0));
        let evictor = Evictor::new(&pool, Arc::clone(&clock) as _);
        Self { budget, pool, file, clock, evictor }
    }

    fn read(&self, numbers: std::ops::Range<u32>) {
        numbers.for_each(|number| assert_is(&self.file.get(number, Touch::Point).unwrap(), number));
    }

    fn fill(&self) {
        self.read(0..CHUNKS as u32 * 4 + 100);
    }

    /// Steps until there is nothing to do.
    fn settle(&mut self) -> u32 {
        let mut steps = 0;
        while self.evictor.step() == Progress::Worked {
            self.clock.advance(Duration::from_micros(10));
            steps += 1;
            assert!(steps < 10_000, "the evictor becomes idle");
        }
        steps
    }
}

/// Regression: pages were evicted from a half-empty cache.
#[test]
fn no_eviction_while_the_pool_can_grow() {
    let mut world = World::new();
    world.read(0..CHUNKS as u32 * 2);
    assert_eq!(world.settle(), 0);
    assert_eq!(world.pool.stats().evictions, 0);
}

#[test]
fn full_pool_is_freed_up_to_the_high_watermark() {
    let mut world = World::new();
    world.fill();
    assert!(world.settle() > 0);
    let (stats, evictor) = (world.pool.stats(), world.pool.evictor_stats());
    let free = stats.frames - stats.resident;
    assert!(
        free >= evictor.high_frames && free < evictor.high_frames + BATCH_PAGES_MAX as u64,
        "{stats:?} {evictor:?}"
    );
    assert!(world.budget.free_bytes() >= evictor.high_chunks * CHUNK_BYTES as u64);
    let (_, before) = (world.settle(), world.pool.stats().evictions);
    assert_eq!(world.settle(), 0);
    assert_eq!(world.pool.stats().evictions, before, "an idle evictor evicts nothing");
}

#[test]
fn misses_after_a_round_find_free_frames() {
    let mut world = World::new();
    world.fill();
    world.settle();
    let before = world.pool.stats();
    let room = world.pool.evictor_stats().high_frames as u32;
    world.read(10_000..10_000 + room);
    let after = world.pool.stats();
    assert_eq!(
        (after.inline_evictions, after.evictions),
        (before.inline_evictions, before.evictions)
    );
    world.read(20_000..20_000 + 200);
    assert!(
        world.pool.stats().inline_evictions > before.inline_evictions,
        "without a step, readers evict inline"
    );
}

#[test]
fn chunks_are_freed_ahead_of_demand() {
    let mut world = World::new();
    world.fill();
    let mut held: Vec<_> = (0..8).map(|_| world.budget.take(Kind::Memtable).unwrap()).collect();
    world.settle();
    let before = world.budget.pressure().inline_evictions;
    for _ in 0..6 {
        held.extend((0..4).map(|_| world.budget.take(Kind::WriteSet).unwrap()));
        world.settle();
    }
    assert_eq!(world.budget.pressure().inline_evictions, before);
    let stats = world.pool.evictor_stats();
    assert!(
        stats.chunk_bytes >= 24 * CHUNK_BYTES as u64 && stats.bytes > stats.chunk_bytes,
        "{stats:?}"
    );
}

/// A lender: holds chunks that would otherwise be free.
struct Lender(std::sync::Mutex<Vec<crate::budget::chunk::Chunk>>);

impl crate::budget::Reclaim for Lender {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut held = self.0.lock().unwrap();
        let keep = held.len().saturating_sub(chunks);
        held.drain(keep..).len()
    }
}

#[test]
fn lent_memory_is_reclaimed_before_pages() {
    let mut world = World::new();
    world.read(0..100);
    let lent = std::iter::from_fn(|| world.budget.try_take(Kind::Objects)).collect();
    let lender = Arc::new(Lender(std::sync::Mutex::new(lent)));
    let weak = Arc::downgrade(&lender);
    world.budget.add_lender(weak);
    let before = lender.0.lock().unwrap().len();
    world.settle();
    assert!(lender.0.lock().unwrap().len() < before, "the lender gave chunks back");
    let evictions = world.pool.stats().evictions;
    assert_eq!(evictions, 0);
    world.read(0..100);
    assert_eq!(world.pool.stats().loads, 100, "no page was evicted");
}

/// Regression: items were evicted, but their memory was never freed.
#[test]
fn evicted_memory_becomes_free() {
    let mut world = World::new();
    world.fill();
    let frame_bytes = |world: &World| world.pool.stats().frames * PAGE_BYTES as u64;
    let tables = world.budget.usage().of(Kind::Pages) - frame_bytes(&world);
    for round in 1..if cfg!(miri) { 10 } else { 200 } {
        world.settle();
        let stats = world.pool.stats();
        let room = world.pool.room();
        assert_eq!(room.free as u64 + stats.resident, stats.frames, "round {round}");
        assert_eq!(
            frame_bytes(&world) + tables,
            world.budget.usage().of(Kind::Pages),
            "round {round}"
        );
        world.read(round * 7_000..round * 7_000 + 40);
    }
    let stats = world.pool.stats();
    // The pool stays full except for the watermarks: two batches of chunks and two of frames.
    let kept = (CHUNKS - 1 - 8) * 4 - 32 - BATCH_PAGES_MAX as u64;
    assert!(stats.resident >= kept.min(stats.frames * 7 / 8 - 16), "{stats:?}");
    drop((world.file, world.evictor, world.pool));
    assert_eq!(world.budget.free_bytes(), world.budget.limit_bytes());
}

/// Regression: the batch size was an unsigned difference, and wrapped when more was free than
/// wanted.
#[test]
fn batch_size_does_not_underflow() {
    let mut world = World::new();
    world.fill();
    world.settle();
    world.pool.clear();
    assert_eq!(world.settle(), 0);
    let half = CHUNKS as u32;
    world.read(0..half);
    assert_eq!(world.settle(), 0, "a surplus is not a shortfall");
    assert_eq!(world.pool.stats().resident, u64::from(half));
}

/// Regression: each kind of room was given the other kind's batch size.
#[test]
fn batches_need_no_alignment() {
    let mut world = World::new();
    world.fill();
    world.settle();
    let chunks = world.pool.evictor_stats().chunk_bytes;
    world.read(30_000..30_030);
    world.settle();
    assert_eq!(world.pool.evictor_stats().chunk_bytes, chunks, "only frames were short");
    let held: Vec<_> = (0..6).map(|_| world.budget.take(Kind::Sort).unwrap()).collect();
    world.settle();
    assert!(world.pool.evictor_stats().chunk_bytes > chunks);
    drop(held);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "pins hundreds of pages one by one, each after the clock has looked everywhere"
)]
fn an_evictor_that_can_free_nothing_comes_to_rest_and_says_so() {
    let mut world = World::new();
    world.fill();
    let mut pins = Vec::new();
    for number in 0.. {
        match world.file.get(number, Touch::Point) {
            Ok(page) => pins.push(page),
            Err(_) => break,
        }
    }
    assert_eq!(world.settle(), 0);
    assert!(!world.evictor.is_short(), "callers do not ring when nothing can be evicted");
    drop(pins);
    assert!(world.settle() > 0);
}

#[test]
fn room_grows_with_the_rate_and_shrinks_when_nothing_is_taken() {
    let budget = Budget::new(if cfg!(miri) { 64 << 20 } else { 256 << 20 }, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 1 << 20).unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let mut evictor = Evictor::new(&pool, Arc::clone(&clock) as _);
    evictor.step();
    let least = pool.evictor_stats().high_chunks;
    for _ in 0..50 {
        // 100,000 chunks per second, with a reaction time of a millisecond.
        (0..100).for_each(|_| drop(budget.take(Kind::Sort).unwrap()));
        evictor.called_at_nanos = Some(clock.monotonic_nanos());
        clock.advance(Duration::from_millis(1));
        evictor.note_reaction();
        evictor.step();
    }
    let busy = pool.evictor_stats().high_chunks;
    assert_eq!((least, busy), (8, (budget.limit_bytes() / CHUNK_BYTES as u64 / 100).max(8)));
    clock.advance(Duration::from_secs(100));
    evictor.step();
    assert_eq!(pool.evictor_stats().high_chunks, 8);
}

#[test]
fn room_and_accounts_survive_every_budget_refusal() {
    for refused in 0..if cfg!(miri) { 3 } else { 40 } {
        let mut world = World::new();
        world.fill();
        world.budget.fail_after(refused);
        let before = world.budget.usage();
        let mut held = Vec::new();
        let mut refusals = 0;
        for number in 0..30 {
            match world.budget.take(Kind::Memtable) {
                Ok(chunk) => held.push(chunk),
                Err(_) => refusals += 1,
            }
            if world.file.get(50_000 + number, Touch::Point).is_err() {
                refusals += 1;
            }
            world.evictor.step();
        }
        assert!(refusals <= 1, "{refusals} refusals after {refused}");
        drop(held);
        assert_eq!(world.budget.usage().of(Kind::Memtable), before.of(Kind::Memtable));
        world.read(0..10);
    }
}

#[test]
fn thread_wakes_for_frames_and_chunks_and_ends_on_drop() {
    let budget = Budget::new(CHUNKS * CHUNK_BYTES as u64, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 4 * CHUNK_BYTES as u64).unwrap();
    let file = pool.attach(Arc::new(Numbered));
    let thread = EvictorThread::start(Evictor::new(&pool, Arc::new(SystemClock::new()))).unwrap();
    let woken = |of: fn(&EvictorStats) -> u64| of(&pool.evictor_stats()) > 0;
    let mut number = 0;
    while !woken(|stats| stats.woken_for_frames + stats.woken_inline)
        || !woken(|stats| stats.victims)
    {
        number += 1;
        assert_is(&file.get(number, Touch::Point).unwrap(), number);
    }
    let mut held = Vec::new();
    while !woken(|stats| stats.woken_for_chunks + stats.woken_inline)
        || !woken(|stats| stats.chunk_bytes)
    {
        held.truncate(CHUNKS as usize / 2);
        held.push(budget.take(Kind::Memtable).unwrap());
        std::thread::yield_now();
    }
    drop(thread);
    let rounds = pool.evictor_stats().rounds;
    (0..200).for_each(|number| drop(file.get(90_000 + number, Touch::Point).unwrap()));
    assert_eq!(pool.evictor_stats().rounds, rounds);
}

#[test]
fn thread_clears_memory_as_chunks_are_taken() {
    let budget = Budget::new(64 << 20, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 4 * CHUNK_BYTES as u64).unwrap();
    let clock = Arc::new(SystemClock::new());
    let _thread = EvictorThread::start(Evictor::new(&pool, Arc::clone(&clock) as _)).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.extend((0..40).map(|_| budget.take(Kind::Memtable).unwrap()));
        let begun = clock.monotonic_nanos();
        while budget.wants_clearing() {
            assert!(clock.monotonic_nanos() - begun < 60_000_000_000, "{:?}", budget.usage());
            std::thread::yield_now();
        }
    }
}

#[test]
fn readers_and_takers_succeed_beside_the_thread() {
    for chunks in [24, 40] {
        let budget = Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 4 * CHUNK_BYTES as u64).unwrap();
        let files = [(); 2].map(|()| pool.attach(Arc::new(Numbered)));
        let thread =
            EvictorThread::start(Evictor::new(&pool, Arc::new(SystemClock::new()))).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers = [1u32, 77].map(|seed| {
                let files = &files;
                scope.spawn(move || {
                    let mut random = seed;
                    for _ in 0..if cfg!(miri) { 40 } else { 20_000 } {
                        random = random.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                        let (number, file) =
                            (random >> 16 & 0x1ff, &files[(random >> 30 & 1) as usize]);
                        let touch = if random & 0x2000 > 0 { Touch::Scan } else { Touch::Point };
                        assert_is(&file.get(number, touch).unwrap(), number);
                    }
                })
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let held: Vec<_> = (0..6).map(|_| budget.take(Kind::Sort).unwrap()).collect();
                    let lease = budget.lease(Kind::Metadata, 3 * CHUNK_BYTES as u64).unwrap();
                    drop((held, lease));
                    std::thread::yield_now();
                }
            });
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        drop(thread);
        assert_eq!(pool.stats().pinned, 0);
        drop((files, pool));
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}
