//! Tests of range deletions against a list of ranges.

use plimsoll_disk::random::Random;

use super::*;

fn key(number: u64) -> [u8; 5] {
    [0, 0, 0, 1, number as u8]
}

/// Compares a set with a list of ranges, at every key and GLSN.
fn check(set: &RangeSet, list: &[(u64, u64, u64)]) {
    assert!(RangeSet::of(set.fragments().cloned().collect()).is_some(), "{set:?}");
    for number in 0..20 {
        let over = list.iter().filter(|(first, end, _)| (*first..*end).contains(&number));
        let mut glsns: Vec<u64> = over.map(|range| range.2).collect();
        glsns.sort_unstable_by(|a, b| b.cmp(a));
        glsns.dedup();
        for at in 0..20 {
            let newest = glsns.iter().copied().find(|glsn| *glsn <= at).unwrap_or(0);
            assert_eq!(set.newest_over(&key(number), Glsn(at)), Glsn(newest));
            let oldest = glsns.iter().rev().copied().find(|glsn| *glsn > at).map(Glsn);
            assert_eq!(set.deletion_of(&key(number), Glsn(at), Glsn::MAX), oldest);
        }
    }
}

#[test]
fn a_set_answers_like_the_list_of_its_ranges() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (mut set, mut list) = (RangeSet::default(), Vec::new());
        for _ in 0..8 {
            let (first, end, glsn) = (random.below(20), random.below(20), 1 + random.below(18));
            set = set.with(&key(first), &key(end), Glsn(glsn));
            list.push((first, end, glsn));
            check(&set, &list);
            assert_eq!(set.with(&key(first), &key(end), Glsn(glsn)), set, "seed {seed}");
        }
        let bound = random.below(18);
        let kept = set.retained(|_, glsn| glsn.0 > bound);
        let parted =
            |kept: bool| list.iter().filter(move |range| (range.2 > bound) == kept).copied();
        check(&kept, &parted(true).collect::<Vec<_>>());
        assert_eq!(RangeSet::default().union(&set), set);
        let others = parted(false).fold(RangeSet::default(), |set, (first, end, glsn)| {
            set.with(&key(first), &key(end), Glsn(glsn))
        });
        check(&kept.union(&others), &list);
        check(&others.union(&kept), &list);
    }
}

#[test]
fn a_set_of_many_intervals_answers_as_the_list_of_its_ranges() {
    for seed in 0..10u64 {
        let mut random = Random::new(seed);
        let (mut set, mut list) = (RangeSet::default(), Vec::new());
        let key = |number: u64| [&b"\0\0\0\x01key"[..], &(number as u16).to_be_bytes()].concat();
        for glsn in 1..400 {
            let first = random.below(5000);
            let wide = if random.below(20) == 0 { 2000 } else { 20 };
            let end = first + 1 + random.below(wide);
            let before = set.clone();
            let room = set.bytes_of_one_more(&key(first), &key(end));
            set = set.with(&key(first), &key(end), Glsn(glsn));
            list.push((first, end, glsn));
            assert!(set.bytes() <= before.bytes() + room, "seed {seed}: {glsn}");
            assert_eq!((set.newest(), set.len()), (Glsn(glsn), set.fragments().count()));
        }
        assert!(RangeSet::of(set.fragments().cloned().collect()) == Some(set.clone()));
        for _ in 0..1000 {
            let (number, at) = (random.below(5500), random.below(400));
            let over = list
                .iter()
                .filter(|(first, end, glsn)| (*first..*end).contains(&number) && *glsn <= at);
            let newest = over.map(|range| range.2).max().unwrap_or(0);
            assert_eq!(set.newest_over(&key(number), Glsn(at)), Glsn(newest), "seed {seed}");
            let (from, to) = (key(number), key(number + random.below(300)));
            let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
            let is_within = |fragment: &&Fragment| *fragment.end > *from && *fragment.first < *to;
            let wanted = set.fragments().filter(is_within);
            assert!(from >= to || set.within(bounds).eq(wanted), "seed {seed}");
        }
    }
}

#[test]
fn sets_share_the_chunks_in_which_they_do_not_differ() {
    let key = |number: u16| [&[0, 0, 0, 1][..], &number.to_be_bytes()].concat();
    let set = (1..2000).fold(RangeSet::default(), |set, number| {
        set.with(&key(10 * number), &key(10 * number + 5), Glsn(u64::from(number)))
    });
    let new_in = |other: &RangeSet| {
        let is_new = |chunk: &&Arc<Chunk>| !set.chunks.iter().any(|old| Arc::ptr_eq(old, chunk));
        (other.chunks.len(), other.chunks.iter().filter(is_new).count())
    };
    let count = set.chunks.len();
    assert!(count > 30, "{count}");
    assert_eq!(new_in(&set.retained(|_, _| true)), (count, 0));
    assert_eq!(new_in(&set.retained(|_, glsn| glsn.0 != 1000)), (count, 1));
    assert_eq!(new_in(&set.parted(|_, glsn| glsn.0 != 1000).0), (count, 1));
    let one = RangeSet::default().with(&key(10_001), &key(10_002), Glsn(3000));
    let (chunks, new) = new_in(&set.union(&one));
    assert!(chunks <= count + 1 && new <= 2, "{chunks} chunks, {new} of them new");
}

#[test]
fn nested_ranges_are_one_interval_once_no_reader_can_tell_them_apart() {
    let nested = (1..200u64).fold(RangeSet::default(), |set, glsn| {
        set.with(&key(200 - glsn), &key(200 + glsn.min(50)), Glsn(glsn))
    });
    let (same, from) = nested.settled(|_| MomentSet::all());
    assert!(same == nested && from.is_empty());
    let (settled, from) = nested.settled(|_| MomentSet::since(Glsn(150)));
    assert!(settled.bytes() < nested.bytes() / 4, "{}", settled.bytes());
    assert_eq!(from, BTreeMap::from([(1, Glsn(150))]));
    for (number, at) in (0..250).flat_map(|number| (150..201).map(move |at| (number, at))) {
        let newest = nested.newest_over(&key(number), Glsn(at));
        assert_eq!(settled.newest_over(&key(number), Glsn(at)), newest, "{number} at {at}");
    }
    let (settled, _) = nested.settled(|_| MomentSet::since(Glsn(1000)));
    assert_eq!(
        settled.fragments().map(|fragment| &fragment.glsns[..]).collect::<Vec<_>>(),
        [[Glsn(199)]]
    );
    let (kept, others) = nested.parted(|_, glsn| glsn.0 % 3 > 0);
    assert!(kept.union(&others) == nested);
}

#[test]
fn a_settled_set_answers_the_same_at_every_retained_moment() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let set = (1..20u64).fold(RangeSet::default(), |set, glsn| {
            let first = random.below(20);
            set.with(&key(first), &key(first + 1 + random.below(10)), Glsn(glsn))
        });
        let mut pins: Vec<Glsn> = (0..random.below(4)).map(|_| Glsn(random.below(20))).collect();
        pins.sort_unstable();
        pins.dedup();
        let retained = MomentSet { floor: Glsn(random.below(25)), pins: pins.into() };
        let (settled, from) = set.settled(|_| retained.clone());
        let from = from.get(&1).copied().unwrap_or(Glsn::NONE);
        assert!(from <= retained.floor, "seed {seed}: a moment from the floor on is lost");
        for (number, at) in (0..30).flat_map(|number| (0..25).map(move |at| (number, Glsn(at)))) {
            if at >= from || retained.contains(at) {
                assert_eq!(
                    settled.newest_over(&key(number), at),
                    set.newest_over(&key(number), at),
                    "seed {seed}: {number} at {at}"
                );
            }
        }
    }
}

#[test]
fn each_version_that_a_range_deleted_gets_its_first_deletion() {
    let set = RangeSet::default();
    let set = [5, 10, 12, 30].iter().fold(set, |set, glsn| set.with(b"a", b"m", Glsn(*glsn)));
    let mut absorber = Absorber::new(&set, Glsn(20));
    let mut ask = |key: &str, glsn, is_deletion| {
        absorber.deletion_of(key.as_bytes(), Glsn(glsn), is_deletion).map(|glsn| glsn.0)
    };
    assert_eq!(ask("b", 20, false), None, "the range at 30 is not durable yet");
    assert_eq!(ask("b", 10, false), Some(12), "the put of the same commit survives");
    assert_eq!(ask("b", 7, true), None);
    assert_eq!(ask("b", 3, false), Some(5));
    assert_eq!(ask("c", 11, false), Some(12));
    assert_eq!(ask("c", 10, false), None, "overwritten before the range deletion");
    assert_eq!(ask("m", 3, false), None);
}
