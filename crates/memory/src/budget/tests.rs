//! Tests of a budget's accounts.

use plimsoll_disk::random::Random;

use super::lease::RECLAIMED_AT_ONCE;
use super::*;

fn budget(chunks: u64) -> Budget {
    Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap()
}

#[test]
fn dropped_chunks_are_free_again() {
    let budget = budget(4);
    let chunks: Vec<_> = (0..4).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    let refusal = budget.take(Kind::Pages).unwrap_err();
    assert_eq!(refusal.usage.of(Kind::Sort), 4 * CHUNK_BYTES as u64);
    drop(chunks);
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
    assert_eq!(budget.usage().of(Kind::Sort), 0);
    assert_eq!(budget.usage().peak_bytes, budget.limit_bytes());
}

#[test]
fn leases_retire_their_sum_rounded_up() {
    let budget = budget(4);
    let mut first = budget.lease(Kind::Metadata, 10).unwrap();
    let second = budget.lease(Kind::Metadata, 10).unwrap();
    assert_eq!(budget.free_bytes(), 3 * CHUNK_BYTES as u64);
    first.grow(CHUNK_BYTES as u64).unwrap();
    assert_eq!(budget.free_bytes(), 2 * CHUNK_BYTES as u64);
    assert!(first.grow(3 * CHUNK_BYTES as u64).is_err());
    assert_eq!(first.bytes(), CHUNK_BYTES as u64 + 10);
    drop((first, second));
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
}

#[test]
fn fail_after_refuses_one_reservation() {
    let budget = budget(4);
    budget.fail_after(1);
    let kept = budget.take(Kind::Sort).unwrap();
    assert!(budget.lease(Kind::Sort, 1).is_err());
    assert!(budget.lease(Kind::Sort, 1).is_ok());
    drop(kept);
}

#[test]
fn try_take_ignores_injected_refusals() {
    let budget = budget(2);
    budget.fail_after(0);
    let held = budget.try_take(Kind::Staging).unwrap();
    assert!(budget.take(Kind::Sort).is_err(), "the injected refusal waits for `take`");
    let other = budget.take(Kind::Sort).unwrap();
    let before = budget.pressure();
    assert!(budget.try_take(Kind::Pages).is_none());
    assert_eq!(budget.pressure(), before);
    drop((held, other));
}

/// Regression: chunks that were never taken were counted as decommitted twice, by the first part of
/// a long lease and again when they were retired. A block with such chunks was remapped while other
/// chunks of it were held.
#[test]
#[cfg_attr(miri, ignore = "mappings")]
fn held_chunks_survive_the_release_of_their_block() {
    let budget = Budget::new(1024 * CHUNK_BYTES as u64, Backing::Mapped).unwrap();
    let mut held: Vec<Chunk> = (0..1000).map(|_| budget.take(Kind::Memtable).unwrap()).collect();
    held.drain(..60);
    // 24 chunks were never taken; 60 were returned.
    drop(budget.lease(Kind::Sort, 80 * CHUNK_BYTES as u64).unwrap());
    held.extend((0..84).map(|_| budget.take(Kind::Memtable).unwrap()));
    assert_eq!(budget.free_bytes(), 0);
    let number = |chunk: &Chunk| chunk.as_ptr() as usize / CHUNK_BYTES;
    let last = held.iter().map(number).max().unwrap();
    for chunk in &mut held {
        chunk.fill(7);
    }
    // The first eight of the last block.
    held.retain(|chunk| !(last - 31..last - 23).contains(&number(chunk)));
    let lease = budget.lease(Kind::Sort, 8 * CHUNK_BYTES as u64).unwrap();
    assert_eq!(held.len(), 1016);
    assert!(held.iter().all(|chunk| chunk.iter().all(|byte| *byte == 7)));
    drop(lease);
}

/// Writes a stamp into each page of the system.
fn stamp(chunk: &mut Chunk, stamp: u64) {
    chunk.chunks_exact_mut(4096).for_each(|page| page[..8].copy_from_slice(&stamp.to_le_bytes()));
}

fn has_stamp(chunk: &Chunk, stamp: u64) -> bool {
    chunk.chunks_exact(4096).all(|page| page[..8] == stamp.to_le_bytes())
}

#[test]
#[cfg_attr(miri, ignore = "mappings")]
fn held_chunks_keep_their_bytes() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let budget = Budget::new(200 * CHUNK_BYTES as u64, Backing::Mapped).unwrap();
        let (mut held, mut leases, mut stamps) = (Vec::<(Chunk, u64)>::new(), Vec::new(), 0);
        for _ in 0..600 {
            match random.below(12) {
                0..4 => {
                    for mut chunk in
                        (0..random.below(30)).map_while(|_| budget.take(Kind::Sort).ok())
                    {
                        stamps += 1;
                        stamp(&mut chunk, stamps);
                        held.push((chunk, stamps));
                    }
                }
                4..7 => {
                    for _ in 0..random.below(30).min(held.len() as u64) {
                        let (chunk, stamp) =
                            held.swap_remove(random.below(held.len() as u64) as usize);
                        assert!(has_stamp(&chunk, stamp), "seed {seed}");
                    }
                }
                7..9 => {
                    leases.extend(budget.lease(Kind::Sort, random.below(110 * CHUNK_BYTES as u64)))
                }
                9 if !leases.is_empty() => {
                    drop(leases.swap_remove(random.below(leases.len() as u64) as usize))
                }
                10 => drop(budget.resize((90 + random.below(111)) * CHUNK_BYTES as u64)),
                _ => drop(budget.clear_block()),
            }
        }
        assert!(held.iter().all(|(chunk, stamp)| has_stamp(chunk, *stamp)), "seed {seed}");
    }
}

/// Checks invariant 1, as far as the public interface shows it.
fn assert_books_balance(budget: &Budget) {
    let usage = budget.usage();
    let held: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(
        held.next_multiple_of(CHUNK_BYTES as u64) + usage.free_bytes,
        usage.limit_bytes,
        "{usage:?}"
    );
}

fn chunks_of(budget: &Budget, kind: Kind) -> Vec<Chunk> {
    std::iter::from_fn(|| budget.take(kind).ok()).collect()
}

#[test]
fn resize_with_chunks_and_leases_held() {
    const CHUNK: u64 = CHUNK_BYTES as u64;
    let budget = Budget::with_ceiling(8 * CHUNK, 32 * CHUNK, Backing::Heap).unwrap();
    assert_eq!((budget.limit_bytes(), budget.ceiling_bytes()), (8 * CHUNK, 32 * CHUNK));
    let mut held = vec![budget.take(Kind::Sort).unwrap()];
    held[0][..1000].fill(7);
    let lease = budget.lease(Kind::Metadata, CHUNK + 1).unwrap();
    for chunks in [32, 8, 20, 3, 3, 32, 4, 5] {
        budget.resize(chunks * CHUNK + 100).unwrap();
        assert_eq!(budget.limit_bytes(), chunks * CHUNK);
        assert_books_balance(&budget);
        let rest = chunks_of(&budget, Kind::Memtable);
        assert_eq!(rest.len() as u64, chunks - 3);
    }
    assert!(held[0][..1000].iter().all(|&byte| byte == 7));
    drop((held, lease));
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
}

#[test]
fn failed_shrink_changes_nothing_and_reports_holders() {
    const CHUNK: u64 = CHUNK_BYTES as u64;
    let budget = budget(16);
    let held: Vec<_> = (0..6).map(|_| budget.take(Kind::WriteSet).unwrap()).collect();
    let error = budget.resize(4 * CHUNK).unwrap_err();
    assert!(
        matches!(&error, ResizeError::Held { missing_bytes, .. } if *missing_bytes == 2 * CHUNK),
        "{error}"
    );
    assert!(error.to_string().contains("WriteSet 393216"), "{error}");
    assert_eq!(budget.limit_bytes(), 16 * CHUNK);
    assert_eq!(chunks_of(&budget, Kind::Sort).len(), 10);
    assert_books_balance(&budget);
    for beyond in [0, 17 * CHUNK, u64::MAX] {
        assert!(matches!(budget.resize(beyond), Err(ResizeError::BeyondCeiling { .. })));
    }
    drop(held);
    budget.resize(4 * CHUNK).unwrap();
}

#[test]
fn accounts_balance_after_random_takes_leases_and_resizes() {
    for seed in 1..=if cfg!(miri) { 2 } else { 60u64 } {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % bound
        };
        let ceiling = 4 + below(40);
        let budget =
            Budget::with_ceiling((1 + below(ceiling)) << 16, ceiling << 16, Backing::Heap).unwrap();
        let (mut chunks, mut leases) = (Vec::new(), Vec::new());
        for _ in 0..if cfg!(miri) { 60 } else { 500 } {
            match below(10) {
                0 => _ = budget.resize(below(ceiling + 2) << 16),
                1 => _ = budget.fail_after(below(4)),
                2..5 => chunks.extend(budget.take(Kind::ALL[below(10) as usize])),
                5 => leases.extend(budget.lease(Kind::ALL[below(10) as usize], below(200_000))),
                6 if !leases.is_empty() => {
                    let at = below(leases.len() as u64) as usize;
                    let lease: &mut Lease = &mut leases[at];
                    let bytes = lease.bytes();
                    match lease.grow(below(100_000)) {
                        Ok(()) => lease.shrink(below(300_000)),
                        Err(_) => assert_eq!(lease.bytes(), bytes, "a refused lease is unchanged"),
                    }
                }
                7 if !leases.is_empty() => {
                    drop(leases.swap_remove(below(leases.len() as u64) as usize))
                }
                _ if !chunks.is_empty() => {
                    drop(chunks.swap_remove(below(chunks.len() as u64) as usize))
                }
                _ => {}
            }
            let usage = budget.usage();
            let leased: u64 = leases.iter().map(Lease::bytes).sum();
            let held =
                ((chunks.len() * CHUNK_BYTES) as u64) + leased.next_multiple_of(CHUNK_BYTES as u64);
            assert_eq!(held + usage.free_bytes, usage.limit_bytes, "seed {seed}: {usage:?}");
            let kinds: u64 = usage.by_kind.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(
                kinds,
                (chunks.len() * CHUNK_BYTES) as u64 + leased,
                "seed {seed}: {usage:?}"
            );
        }
        drop((chunks, leases));
        assert_eq!(budget.free_bytes(), budget.limit_bytes(), "seed {seed}");
    }
}

/// A reclaimer that is dropped on request, with its chunk.
struct Leaving {
    itself: Mutex<Option<Arc<Self>>>,
    _chunk: Chunk,
}

impl Reclaim for Leaving {
    fn reclaim(&self, _: usize) -> usize {
        drop(self.itself.lock().unwrap().take());
        0
    }
}

#[test]
fn reclaimer_dropped_during_its_call_frees_its_memory() {
    let budget = budget(1);
    let leaving =
        Arc::new(Leaving { itself: Mutex::new(None), _chunk: budget.take(Kind::Pages).unwrap() });
    *leaving.itself.lock().unwrap() = Some(Arc::clone(&leaving));
    let reclaimer = Arc::downgrade(&leaving);
    drop(leaving);
    budget.add_reclaimer(reclaimer);
    assert!(budget.take(Kind::Sort).is_ok());
}

/// Holds chunks, gives as many as requested, and remembers the largest request.
struct Giving(Mutex<(Vec<Chunk>, usize)>);

impl Reclaim for Giving {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut state = self.0.lock().unwrap();
        state.1 = state.1.max(chunks);
        let keep = state.0.len().saturating_sub(chunks);
        state.0.drain(keep..).len()
    }
}

#[test]
fn lenders_are_exhausted_before_reclaimers() {
    let budget = budget(20);
    let giving = |chunks| Arc::new(Giving(Mutex::new((chunks, 0))));
    let reclaimer = giving((0..10).map(|_| budget.take(Kind::Pages).unwrap()).collect());
    let lender = giving(chunks_of(&budget, Kind::Objects));
    let (weak_reclaimer, weak_lender) = (Arc::downgrade(&reclaimer), Arc::downgrade(&lender));
    budget.add_reclaimer(weak_reclaimer);
    budget.add_lender(weak_lender);
    let held: Vec<_> = (0..10).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    assert_eq!([&lender, &reclaimer].map(|giving| giving.0.lock().unwrap().0.len()), [0, 10]);
    let more = budget.lease(Kind::Sort, 3 * CHUNK_BYTES as u64).unwrap();
    assert_eq!(reclaimer.0.lock().unwrap().0.len(), 7);
    drop((held, more));
}

#[test]
fn large_lease_reclaims_in_small_batches() {
    let budget = budget(100);
    let giving = Arc::new(Giving(Mutex::new((chunks_of(&budget, Kind::Pages), 0))));
    let reclaimer = Arc::downgrade(&giving);
    budget.add_reclaimer(reclaimer);
    let lease = budget.lease(Kind::Sort, 100 * CHUNK_BYTES as u64).unwrap();
    assert_eq!((lease.bytes(), budget.free_bytes()), (budget.limit_bytes(), 0));
    assert_eq!(giving.0.lock().unwrap().1, RECLAIMED_AT_ONCE);
}

#[test]
fn accounts_balance_when_takes_race_a_large_lease() {
    let rounds = if cfg!(miri) { 3 } else { 200 };
    let chunks = if cfg!(miri) { 150 } else { 1000 };
    let budget = budget(chunks);
    std::thread::scope(|scope| {
        for part in [2, 3] {
            let budget = &budget;
            scope.spawn(move || {
                for _ in 0..rounds {
                    // Both at once exceed the budget: either may be refused.
                    let lease = budget.lease(Kind::Sort, chunks * CHUNK_BYTES as u64 / part * 2);
                    let held: Vec<_> = (0..20).map(|_| budget.take(Kind::Memtable)).collect();
                    held.into_iter().flatten().for_each(|mut chunk| chunk[CHUNK_BYTES / 2] = 7);
                    drop(lease);
                }
            });
        }
    });
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
    let whole = budget.lease(Kind::Sort, budget.limit_bytes()).unwrap();
    assert_eq!((budget.free_bytes(), whole.bytes()), (0, budget.limit_bytes()));
}

#[test]
fn accounts_balance_after_concurrent_resizes() {
    const CHUNK: u64 = CHUNK_BYTES as u64;
    // Few under Miri, but more than one batch of withdrawals.
    let (rounds, most) = if cfg!(miri) { (2, 160) } else { (300, 400) };
    let budget = Budget::with_ceiling(8 * CHUNK, most * CHUNK, Backing::Heap).unwrap();
    let held: Vec<_> = (0..6).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    std::thread::scope(|scope| {
        for chunks in [most / 2, most] {
            let budget = &budget;
            scope.spawn(move || {
                for _ in 0..rounds {
                    budget.resize(chunks * CHUNK).unwrap();
                    assert!(budget.resize(4 * CHUNK).is_err());
                }
            });
        }
    });
    drop(held);
    assert_books_balance(&budget);
    assert_eq!(chunks_of(&budget, Kind::Sort).len() as u64, budget.limit_bytes() / CHUNK);
}

#[test]
fn take_waiting_gets_a_returned_chunk() {
    let budget = budget(1);
    let held = budget.take(Kind::Sort).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| budget.take_waiting(Kind::Sort, Duration::from_secs(60)).unwrap());
        drop(held);
    });
}
