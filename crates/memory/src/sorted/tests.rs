//! The sorted map against a tree with the same entries, and with concurrent writers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use plimsoll_disk::clock::{Clock, SystemClock};

use super::*;
use crate::budget::Backing;

fn budget(chunks: u64) -> Budget {
    Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap()
}

/// The smallest map that exercises all of its modes.
const SMALL: Thresholds = Thresholds { defer_from: 16, fetched_from: 16, deferred: [8, 64] };

fn small_map(budget: &Budget, kind: Kind) -> SortedMap {
    SortedMap { thresholds: SMALL, ..SortedMap::new(budget, kind) }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Short, similar keys, so that prefixes, equal keys and neighbours occur; some have one of two
    /// long prefixes.
    fn key(&mut self) -> Vec<u8> {
        let front: &[u8] =
            [&b""[..], b"", b"data/con", b"data/contracts/index/0000"][self.below(4)];
        let length = self.below(12);
        front.iter().copied().chain((0..length).map(|_| [0, 1, 255][self.below(3)])).collect()
    }
}

fn all(map: &SortedMap) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    std::iter::successors(map.first(), |at| map.next(*at))
        .map(|at| map.at(at))
        .map(|entry| (entry.key.to_vec(), entry.order, entry.value.to_vec()))
        .collect()
}

#[test]
fn ascending_inserts_skip_the_search() {
    let map = SortedMap::new(&budget(4), Kind::Memtable);
    let in_gap = |first: &[u8], last: &[u8]| map.entries.is_in_gap(&map.lock().gap, first, last);
    assert!(in_gap(b"", b"z"), "an empty map is one gap");
    for key in [b"b", b"m", b"d"] {
        map.insert(key, 1, b"").unwrap();
    }
    // The last insert went between "b" and "m".
    assert!(in_gap(b"e", b"e") && in_gap(b"dd", b"lz"));
    assert!(!in_gap(b"a", b"e") && !in_gap(b"b", b"e") && !in_gap(b"d", b"e"));
    assert!(!in_gap(b"e", b"m") && !in_gap(b"e", b"n"));
}

#[test]
fn map_agrees_with_a_btree() {
    for seed in 1..=if cfg!(miri) { 2 } else { 30 } {
        let mut random = Random(seed);
        let budget = budget(16);
        let map = SortedMap::new(&budget, Kind::Memtable);
        let mut model = BTreeMap::new();
        for round in 0..if cfg!(miri) { 60 } else { 3000u32 } {
            let (key, order) = (random.key(), random.below(4) as u64);
            map.insert(&key, order, &round.to_le_bytes()).unwrap();
            model.entry((key, Reverse(order))).or_insert(round.to_le_bytes());
        }
        let expected: Vec<_> = model
            .iter()
            .map(|((key, order), value)| (key.clone(), order.0, value.to_vec()))
            .collect();
        assert_eq!(all(&map), expected, "seed {seed}");
        assert_eq!(map.len(), model.len());
        for _ in 0..if cfg!(miri) { 30 } else { 1000 } {
            let (key, order) = (random.key(), random.below(5) as u64);
            let probe = (key.clone(), Reverse(order));
            let pair = |at: Position| (map.at(at).key.to_vec(), Reverse(map.at(at).order));
            let at_or_behind = model.range(probe.clone()..).next().map(|(key, _)| key.clone());
            let before = model.range(..probe).next_back().map(|(key, _)| key.clone());
            assert_eq!(map.seek(&key, order).map(pair), at_or_behind, "seed {seed}");
            assert_eq!(map.seek_before(&key, order).map(pair), before, "seed {seed}");
        }
        let mut backward: Vec<_> = std::iter::successors(map.last(), |at| map.prev(*at))
            .map(|at| map.at(at).key)
            .collect();
        backward.reverse();
        assert!(backward.into_iter().eq(model.keys().map(|(key, _)| &key[..])), "seed {seed}");
    }
}

#[test]
fn settled_entries_are_found_like_inserted_ones() {
    for seed in 1..=if cfg!(miri) { 2 } else { 100 } {
        let mut random = Random(seed);
        let budget = budget(16);
        let map = small_map(&budget, Kind::WriteSet);
        let (mut model, mut settled) = (BTreeMap::new(), BTreeMap::new());
        let mut ascending = 0u64;
        for order in 0..if cfg!(miri) { 150 } else { 1500u64 } {
            // Ascending and random series, sparse and dense.
            let spread = 1 << random.below(20);
            ascending += random.below(spread) as u64;
            let key =
                if random.below(2) == 0 { ascending.to_be_bytes().to_vec() } else { random.key() };
            let value = order.to_le_bytes();
            model.insert((key.clone(), Reverse(order)), value);
            if random.below(8) == 0 {
                map.insert(&key, order, &value).unwrap();
                settled.insert((key, Reverse(order)), value);
            } else {
                map.defer(&key, order, &value).unwrap();
            }
            if random.below(40) == 0 {
                map.settle();
                settled.clone_from(&model);
                assert_eq!(all(&map).len(), model.len());
            }
            assert_eq!(map.len(), model.len());
            map.inserter().fetch(&[&random.key(), &random.key()]);
            let probe = (random.key(), Reverse(random.below(1500) as u64));
            if let Some((expected, _)) = settled.range(probe.clone()..).next() {
                let found = map.at(map.seek(&probe.0, probe.1.0).unwrap());
                let found = (found.key.to_vec(), Reverse(found.order));
                // A deferred entry may be linked early.
                assert!(
                    found >= probe && found <= *expected && model.contains_key(&found),
                    "seed {seed}"
                );
            }
        }
        map.settle();
        let expected: Vec<_> = model
            .iter()
            .map(|((key, order), value)| (key.clone(), order.0, value.to_vec()))
            .collect();
        assert_eq!(all(&map), expected, "seed {seed}");
    }
}

#[test]
fn duplicate_deferred_entries_are_dropped() {
    let map = small_map(&budget(4), Kind::Memtable);
    for at in 0..200u64 {
        map.insert(&at.to_be_bytes(), 1, b"first").unwrap();
    }
    // Few and many deferred entries for a map of this size.
    for again in [1..2u64, 150..200] {
        let new = again.start + 1000;
        for at in again.chain([new, new]) {
            map.defer(&at.to_be_bytes(), 1, b"again").unwrap();
        }
        map.settle();
        assert_eq!(map.len(), all(&map).len());
    }
    let values = all(&map)
        .into_iter()
        .map(|(key, _, value)| (u64::from_be_bytes(key.try_into().unwrap()), value));
    assert!(
        values.eq((0..200)
            .map(|at| (at, b"first".to_vec()))
            .chain([1001, 1150].map(|at| (at, b"again".to_vec()))))
    );
}

#[test]
fn full_budget_loses_no_deferred_entry() {
    let (refusals, entries) = if cfg!(miri) { (3, 60) } else { (12, 300u64) };
    for refused in 0..refusals {
        let budget = budget(24);
        let map = small_map(&budget, Kind::WriteSet);
        budget.fail_after(refused);
        let mut inserted = 0;
        for at in 0..entries {
            let key = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            inserted += usize::from(map.defer(&key, at, &[1; 2000]).is_ok());
        }
        assert!(inserted as u64 >= entries - 1, "the next operation works");
        map.settle();
        assert_eq!((map.len(), all(&map).len()), (inserted, inserted));
        assert!(map.held_bytes() > budget.usage().of(Kind::WriteSet) - 2 * CHUNK_BYTES as u64);
        drop(map);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}

/// With the production thresholds and more entries than can be deferred, the deferred list grows to
/// its maximum and is linked when it is full.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn store_thresholds_keep_deferred_entries_ordered_and_complete() {
    let budget = budget(400);
    let map = SortedMap::new(&budget, Kind::Memtable);
    let Thresholds { defer_from, fetched_from, deferred: [first, most] } = map.thresholds;
    assert!(
        defer_from < fetched_from && first < most && most > fetched_from,
        "{:?}",
        map.thresholds
    );
    let scramble = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let linked = || all(&map).len();
    for at in 0..(defer_from + most + 2) as u64 {
        map.defer(&scramble(at), at, b"value").unwrap();
        if [defer_from - 1, defer_from, defer_from + most - 1].contains(&(at as usize)) {
            assert_eq!(linked(), defer_from, "entry {at}");
        }
        if at.is_multiple_of(1000) {
            map.inserter().fetch(&[&scramble(at + 1), &scramble(at + 2)]);
        }
    }
    assert_eq!(
        linked(),
        defer_from + most + 1,
        "a full list is linked, and the next entry is linked at once"
    );
    map.settle();
    let mut model: Vec<_> =
        (0..map.len() as u64).map(|at| (scramble(at).to_vec(), at, b"value".to_vec())).collect();
    model.sort();
    assert_eq!(all(&map), model);
}

#[test]
fn estimate_is_exact_for_few_entries_and_close_for_many() {
    let budget = budget(200);
    for (entries, tolerance) in [(0u64, 0), (63, 0), (100, 40), (3_000, 900), (100_000, 30_000)] {
        let map = SortedMap::new(&budget, Kind::Memtable);
        // In random order, so that the towers are in random order too.
        for n in 0..entries {
            map.insert(&(n * 7_919 % entries).to_be_bytes(), 1, b"value").unwrap();
        }
        let all = map.estimate((b"", u64::MAX), None, |_| 1.0) as i64;
        assert_eq!(all, entries as i64, "an estimate over the whole map is exact");
        let half = map.estimate(
            (&(entries / 2).to_be_bytes(), u64::MAX),
            Some((&entries.to_be_bytes(), u64::MAX)),
            |_| 1.0,
        ) as i64;
        assert!(
            half.abs_diff((entries - entries / 2) as i64) <= tolerance,
            "{half} for half of {entries}"
        );
        let one =
            map.estimate((&7u64.to_be_bytes(), u64::MAX), Some((&7u64.to_be_bytes(), 0)), |_| 1.0)
                as i64;
        assert_eq!(one, i64::from(entries > 7));
        let none =
            map.estimate((&9u64.to_be_bytes(), 0), Some((&10u64.to_be_bytes(), u64::MAX)), |_| 1.0)
                as i64;
        assert_eq!(none, 0, "no entry lies between adjacent keys");
    }
}

#[test]
fn first_value_of_a_key_and_order_wins() {
    let budget = budget(2);
    let map = SortedMap::new(&budget, Kind::WriteSet);
    for value in [b"old", b"new"] {
        map.insert(b"key", 7, value).unwrap();
    }
    assert_eq!(all(&map), [(b"key".to_vec(), 7, b"old".to_vec())]);
}

#[test]
fn full_budget_refuses_an_entry_without_change() {
    let budget = budget(4);
    let map = SortedMap::new(&budget, Kind::Memtable);
    let value = [7; 5000];
    let mut inserted = 0u32;
    while map.insert(&inserted.to_be_bytes(), 1, &value).is_ok() {
        inserted += 1;
    }
    // One chunk is retired for the table.
    assert_eq!(inserted as usize, 3 * (CHUNK_BYTES / 5024));
    assert_eq!(map.len(), inserted as usize);
    assert!(
        all(&map)
            .iter()
            .map(|(key, ..)| key.clone())
            .eq((0..inserted).map(|key| key.to_be_bytes()))
    );
    drop(map);
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
}

#[test]
fn map_and_budget_survive_every_refusal() {
    for refused in 0..if cfg!(miri) { 5 } else { 20 } {
        let budget = budget(24);
        let map = SortedMap::new(&budget, Kind::Memtable);
        budget.fail_after(refused);
        let (mut inserted, mut refusals) = (0, 0);
        for key in 0..if cfg!(miri) { 40 } else { 400u32 } {
            // Reserve room for every other entry.
            let reserved = key % 2 == 0 || map.reserve(SortedMap::entry_bytes(4, 2000)).is_ok();
            let done = reserved && map.insert(&key.to_be_bytes(), 0, &[1; 2000]).is_ok();
            inserted += usize::from(done);
            refusals += usize::from(!done);
            assert_eq!(
                map.held_bytes(),
                budget.usage().of(Kind::Memtable) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64
            );
        }
        assert!(refusals <= 1, "the next operation works");
        assert_eq!((map.len(), all(&map).len()), (inserted, inserted));
        drop(map);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
        assert_eq!(budget.usage().of(Kind::Memtable), 0);
    }
}

#[test]
fn reserved_entries_fit_in_an_exhausted_budget() {
    for seed in 1..=if cfg!(miri) { 2 } else { 200 } {
        let mut random = Random(seed);
        let budget = budget(64);
        let map = SortedMap::new(&budget, Kind::Memtable);
        for _ in 0..random.below(50) {
            map.insert(&random.key(), random.below(9) as u64, &[1; 100]).unwrap();
        }
        let largest = [30, 300, 3000, SortedMap::MAX_ENTRY_BYTES][random.below(4)];
        let sizes: Vec<_> = (0..random.below(if cfg!(miri) { 20 } else { 2000 }))
            .map(|_| random.below(largest))
            .scan(0, |sum, size| {
                *sum += SortedMap::entry_bytes(16, size.min(SortedMap::MAX_ENTRY_BYTES - 16));
                (*sum < 40 * CHUNK_BYTES).then_some(size.min(SortedMap::MAX_ENTRY_BYTES - 16))
            })
            .collect();
        for size in &sizes {
            map.reserve(SortedMap::entry_bytes(16, *size)).unwrap();
        }
        let held = map.held_bytes();
        let _rest: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
        for (at, size) in sizes.iter().enumerate() {
            let key = [
                (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
                (at as u64).to_be_bytes(),
            ]
            .concat();
            map.insert(&key, 3, &vec![2; *size])
                .unwrap_or_else(|refusal| panic!("seed {seed}, entry {at}: {refusal}"));
        }
        assert_eq!(map.held_bytes(), held);
    }
}

#[test]
fn refused_reservation_takes_nothing() {
    let budget = budget(8);
    let map = SortedMap::new(&budget, Kind::Memtable);
    map.insert(b"a", 0, b"").unwrap();
    let held = map.held_bytes();
    assert!(map.reserve(20 * CHUNK_BYTES).is_err());
    assert_eq!(map.held_bytes(), held);
    assert_eq!(budget.free_bytes() + held + CHUNK_BYTES as u64, budget.limit_bytes());
    map.reserve(2 * CHUNK_BYTES).unwrap();
    map.unreserve(2 * CHUNK_BYTES);
    map.reserve(2 * CHUNK_BYTES).unwrap();
    assert_eq!(map.held_bytes(), held + 3 * CHUNK_BYTES as u64);
}

#[test]
fn small_entry_costs_less_than_56_bytes() {
    let budget = budget(64);
    let map = SortedMap::new(&budget, Kind::Memtable);
    let count = if cfg!(miri) { 300 } else { 40_000u64 };
    for at in 0..count {
        let key = [&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..], &[0; 4]].concat();
        map.insert(&key, at, &[0; 8]).unwrap();
    }
    assert!(map.used_bytes() < 44 * count, "{} bytes each", map.used_bytes() as f64 / count as f64);
    assert!(map.used_bytes() <= count * SortedMap::entry_bytes(12, 8) as u64);
    assert!(SortedMap::entry_bytes(12, 8) < 56);
}

#[test]
fn largest_and_empty_entries_fit() {
    let budget = budget(4);
    let map = SortedMap::new(&budget, Kind::Memtable);
    map.insert(&[9; SortedMap::MAX_ENTRY_BYTES], 1, b"").unwrap();
    map.insert(b"", 1, b"").unwrap();
    map.insert(b"", 2, &[8; SortedMap::MAX_ENTRY_BYTES]).unwrap();
    let sizes: Vec<_> =
        all(&map).into_iter().map(|(key, order, value)| (key.len(), order, value.len())).collect();
    let max = SortedMap::MAX_ENTRY_BYTES;
    assert_eq!(sizes, [(0, 2, max), (0, 1, 0), (max, 1, 0)]);
}

#[test]
#[should_panic(expected = "a position is valid for the map that gave it")]
fn position_of_another_map_is_rejected() {
    let budget = budget(4);
    let [one, other] = [(); 2].map(|()| SortedMap::new(&budget, Kind::Memtable));
    one.insert(b"a", 0, b"").unwrap();
    other.insert(b"a", 0, b"").unwrap();
    other.at(one.first().unwrap());
}

#[test]
fn readers_see_whole_ordered_entries_during_inserts() {
    let budget = budget(128);
    let map = SortedMap::new(&budget, Kind::Memtable);
    let count = if cfg!(miri) { 40 } else { 20_000u64 };
    let scramble = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let map = &map;
            scope.spawn(move || {
                for at in (writer..count).step_by(2) {
                    map.insert(&scramble(at), at, &at.to_le_bytes()).unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while seen < count {
                    let least = map.len() as u64;
                    let entries = all(&map);
                    assert!(entries.is_sorted());
                    assert!(entries.iter().all(|(key, order, value)| *key == scramble(*order)
                        && *value == order.to_le_bytes()));
                    assert!(entries.len() as u64 >= least);
                    seen = entries.len() as u64;
                    if let Some(at) = seen.checked_sub(1) {
                        let known = &entries[at as usize / 2];
                        assert_eq!(map.at(map.seek(&known.0, known.1).unwrap()).key, known.0);
                    }
                }
            });
        }
    });
}

/// Prints the speed of inserts and searches: `cargo test --release -p plimsoll-memory --lib
/// sorted::tests::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    const SEEKS: u64 = 1_000_000;
    let clock = SystemClock::new();
    let timed = |what: &str, count: u64, work: &mut dyn FnMut()| {
        let start = clock.monotonic_nanos();
        work();
        println!("{what}: {:.0} ns each", (clock.monotonic_nanos() - start) as f64 / count as f64);
    };
    let scramble = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let integer = |at: u64| [&[0, 0, 0, 1][..], &scramble(at).to_be_bytes()].concat();
    let path = |at: u64| {
        format!("0001data/contracts/index/0000{:016x}{:024x}/balance", scramble(at), at)
            .into_bytes()
    };
    for (name, key) in [("integers", &integer as &dyn Fn(u64) -> Vec<u8>), ("paths", &path)] {
        for count in [64, 40_000u64] {
            let map =
                SortedMap::new(&Budget::new(64 << 20, Backing::Mapped).unwrap(), Kind::Memtable);
            let keys: Vec<_> = (0..2 * count).map(key).collect();
            timed(&format!("{name}, {count}: insert"), count, &mut || {
                keys[..count as usize]
                    .iter()
                    .for_each(|key| map.insert(key, 1, b"a value").unwrap());
            });
            for (what, from) in [("present", 0), ("absent", count)] {
                let (mut random, mut found) = (Random(1), 0);
                timed(&format!("{name}, {count}: seek, {what}"), SEEKS, &mut || {
                    for _ in 0..SEEKS {
                        let key = &keys[from as usize + random.below(count as usize)];
                        found += u64::from(
                            map.seek(key, u64::MAX).is_some_and(|at| map.at(at).key == key),
                        );
                    }
                });
                assert_eq!(found, if from == 0 { SEEKS } else { 0 });
            }
        }
    }
}

#[test]
fn small_map_grows_from_pieces_to_chunks_and_frees_all() {
    let budget = budget(16);
    let small: Arc<[Pieces]> =
        [512, 4096].map(|bytes| Pieces::new(&budget, Kind::WriteSet, bytes)).into();
    for lens in [
        vec![40; 1],
        vec![40; 3000],
        vec![2000; 40],
        vec![30_000, 10, 10],
        vec![10, 30_000, 10, 3000],
    ] {
        let map = SortedMap::beginning_small(&budget, Kind::WriteSet, &small);
        for (number, &len) in lens.iter().enumerate() {
            map.insert(&(number as u32).to_be_bytes(), 1, &vec![number as u8; len]).unwrap();
        }
        let mut at = map.first();
        for (number, &len) in lens.iter().enumerate() {
            let entry = map.at(at.unwrap());
            assert_eq!(entry.key, (number as u32).to_be_bytes());
            assert_eq!(entry.value, vec![number as u8; len]);
            at = map.next(at.unwrap());
        }
        assert_eq!(at, None);
        let small = map.held_bytes() < CHUNK_BYTES as u64;
        assert_eq!(small, lens.iter().sum::<usize>() < 100, "{lens:?}: {map:?}");
        drop(map);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }
}
