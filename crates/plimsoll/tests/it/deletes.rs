//! Deletions: a transaction that deletes many keys, and iterators over deleted keys.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::borders::{Border, count_here};
use plimsoll::{Db, Durability, Error, Keyspace, Options, Read, Result, Transaction};
use plimsoll_disk::random::Random;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open() -> (tempfile::TempDir, Db, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options::new().memory_bytes(16 << 20).background(false).durability(Durability::Buffered);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let queue = db.keyspace("queue").unwrap();
    (dir, db, queue)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn load(db: &Db, keyspace: &Keyspace, keys: std::ops::Range<u64>) -> Model {
    let model: Model = keys.map(|number| (key(number), number.to_le_bytes().to_vec())).collect();
    db.transact(|tx| model.iter().try_for_each(|(key, value)| tx.put(keyspace, key, value)))
        .unwrap();
    model
}

fn bound(random: &mut Random, keys: u64) -> Bound<Vec<u8>> {
    let key = key(random.below(keys));
    match random.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

fn check_walk(
    reads: &impl Read,
    keyspace: &Keyspace,
    model: &Model,
    random: &mut Random,
    keys: u64,
) {
    let (lower, upper) = (bound(random, keys), bound(random, keys));
    let (limit, reverse) = (random.below(30) as usize, random.below(2) == 0);
    let is_in = |key: &[u8]| {
        let above = match &lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        };
        let below = match &upper {
            Bound::Included(upper) => key <= &upper[..],
            Bound::Excluded(upper) => key < &upper[..],
            Bound::Unbounded => true,
        };
        above && below
    };
    let inside =
        model.iter().filter(|(key, _)| is_in(key)).map(|(key, value)| (key.clone(), value.clone()));
    let mut wanted: Vec<_> = inside.collect();
    let range = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
    let mut walk = reads.range(keyspace, range).unwrap();
    if reverse {
        wanted.reverse();
        walk = walk.reverse();
    }
    wanted.truncate(limit);
    let found: Vec<_> = walk
        .take(limit)
        .map(|pair| pair.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect();
    assert_eq!(found, wanted, "{lower:?} to {upper:?}, reverse {reverse}");
}

#[test]
fn a_transaction_that_empties_a_queue_seeks_over_its_deletions() {
    const KEYS: u64 = 3000;
    for reverse in [false, true] {
        let (_dir, db, queue) = open();
        let model = load(&db, &queue, 0..KEYS);
        let before = count_here(Border::OwnGapSkipped);
        let mut tx = db.begin();
        let mut popped = Model::new();
        while let Some((key, value)) =
            if reverse { tx.last(&queue) } else { tx.first(&queue) }.unwrap()
        {
            tx.delete(&queue, &key).unwrap();
            popped.insert(key, value.to_vec());
        }
        assert_eq!(popped, model);
        let skipped = count_here(Border::OwnGapSkipped) - before;
        assert!(skipped >= KEYS - 16, "{skipped} of {KEYS} scans skipped the deleted keys");
        tx.commit().unwrap();
        assert!(db.snapshot().is_empty(&queue).unwrap());
    }
}

#[test]
fn scans_of_a_transaction_match_a_model_under_deletes_and_puts() {
    const KEYS: u64 = 400;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (_dir, db, queue) = open();
        let _ = load(&db, &db.keyspace("before").unwrap(), 0..3);
        let mut model = load(&db, &queue, 0..KEYS);
        if seed % 3 == 0 {
            db.flush().unwrap();
        }
        db.transact(|tx| (100..150).try_for_each(|number| tx.delete(&queue, key(number)))).unwrap();
        (100..150).for_each(|number| drop(model.remove(&key(number))));
        let _ = load(&db, &db.keyspace("behind").unwrap(), 0..3);
        let mut tx = db.begin();
        for step in 0..600u64 {
            match random.below(10) {
                0..4 => {
                    let first =
                        if random.below(2) == 0 { tx.first(&queue) } else { tx.last(&queue) }
                            .unwrap();
                    let Some((key, value)) = first else { continue };
                    assert_eq!(model.remove(&key).as_deref(), Some(&value[..]));
                    tx.delete(&queue, key).unwrap();
                }
                4 => {
                    let start = random.below(KEYS);
                    for number in start..start + random.below(40) {
                        tx.delete(&queue, key(number)).unwrap();
                        model.remove(&key(number));
                    }
                }
                5 => {
                    let number = random.below(KEYS);
                    tx.put(&queue, key(number), step.to_le_bytes()).unwrap();
                    model.insert(key(number), step.to_le_bytes().to_vec());
                }
                _ => check_walk(&tx, &queue, &model, &mut random, KEYS),
            }
        }
        tx.commit().unwrap();
        let now: Model = db
            .snapshot()
            .iter(&queue)
            .unwrap()
            .map(|pair| pair.map(|(k, v)| (k, v.to_vec())))
            .collect::<Result<_>>()
            .unwrap();
        assert_eq!(now, model, "{seed}");
    }
}

#[test]
fn a_put_of_another_commit_into_a_gap_is_a_conflict() {
    for reverse in [false, true] {
        let (_dir, db, queue) = open();
        load(&db, &queue, 0..100);
        let mut tx = db.begin();
        let pop = |tx: &mut Transaction| {
            let (key, _) =
                if reverse { tx.last(&queue) } else { tx.first(&queue) }.unwrap().unwrap();
            tx.delete(&queue, &key).unwrap();
            key
        };
        (0..40).for_each(|_| drop(pop(&mut tx)));
        let put = if reverse { b"000080-".to_vec() } else { b"000020-".to_vec() };
        db.put(&queue, &put, "between").unwrap();
        pop(&mut tx);
        match tx.commit() {
            Err(Error::Conflict { key, .. }) => assert_eq!(key, put),
            done => panic!("{done:?}"),
        }
    }
}

#[test]
fn pops_return_each_key_once_from_both_ends() {
    let (_dir, db, queue) = open();
    let mut model = load(&db, &queue, 0..200);
    let mut tx = db.begin();
    let mut random = Random::new(3);
    for turn in 0..100u64 {
        let (popped, wanted) = match random.below(2) {
            0 => (tx.pop_first(&queue).unwrap(), model.pop_first()),
            _ => (tx.pop_last(&queue).unwrap(), model.pop_last()),
        };
        assert_eq!(popped.map(|(key, value)| (key, value.to_vec())), wanted);
        if turn % 5 == 0 {
            let number = random.below(200);
            tx.put(&queue, key(number), b"again").unwrap();
            model.insert(key(number), b"again".to_vec());
        }
    }
    tx.commit().unwrap();
    while let Some((key, value)) = db.pop_first(&queue).unwrap() {
        assert_eq!(model.pop_first(), Some((key, value.to_vec())));
    }
    assert!(model.is_empty() && db.pop_last(&queue).unwrap().is_none());
}

#[test]
fn consumers_on_several_threads_share_a_queue_without_taking_a_key_twice() {
    let (_dir, db, queue) = open();
    let model = load(&db, &queue, 0..300);
    let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let pop = || {
            let mut taken = Vec::new();
            loop {
                match db.pop_first(&queue) {
                    Ok(Some((key, _))) => taken.push(key),
                    Ok(None) => return taken,
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(pop)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut sorted = taken;
    sorted.sort();
    assert!(sorted.iter().eq(model.keys()));
}

#[test]
fn retain_and_extract_if_remove_exactly_the_selected_keys() {
    for seed in 0..20u64 {
        let mut random = Random::new(seed);
        let (_dir, db, queue) = open();
        let _ = load(&db, &db.keyspace("behind").unwrap(), 0..5);
        let mut model = load(&db, &queue, 0..1000);
        let mut tx = db.begin();
        for _ in 0..100 {
            let number = random.below(1200);
            tx.put(&queue, key(number), vec![9; random.below(3000) as usize]).unwrap();
            let value = tx.get(&queue, key(number)).unwrap().unwrap().to_vec();
            model.insert(key(number), value);
        }
        let (lower, upper, part) =
            (key(random.below(600)), key(500 + random.below(600)), 1 + random.below(4) as usize);
        let selects = |key: &[u8]| usize::from(key[5]) % (part + 1) != 0;
        let in_range: Vec<_> = model
            .range(lower.clone()..upper.clone().max(lower.clone()))
            .map(|(key, _)| key.clone())
            .collect();
        let selected: Vec<_> = in_range.into_iter().filter(|key| selects(key)).collect();
        let removed = if seed % 2 == 0 {
            tx.retain(&queue, &lower[..]..&upper[..], |key, value| {
                assert_eq!(model.get(key).map(Vec::as_slice), Some(value));
                !selects(key)
            })
            .unwrap() as usize
        } else {
            let limit = if seed % 4 == 1 { usize::MAX } else { selected.len() / 2 };
            let taken = tx
                .extract_if(&queue, &lower[..]..&upper[..], |key, _| selects(key))
                .unwrap()
                .take(limit);
            let taken: Vec<_> = taken.map(|pair| pair.unwrap()).collect();
            assert!(taken.iter().all(|(key, value)| {
                model.get(key).is_some_and(|known| known[..] == value[..])
            }));
            assert!(taken.iter().map(|(key, _)| key).eq(&selected[..taken.len()]));
            assert_eq!(taken.len(), selected.len().min(limit));
            taken.len()
        };
        assert!(seed % 4 == 3 || removed == selected.len(), "{seed}");
        selected[..removed].iter().for_each(|key| drop(model.remove(key)));
        tx.commit().unwrap();
        let now: Model = db
            .snapshot()
            .iter(&queue)
            .unwrap()
            .map(|pair| pair.map(|(k, v)| (k, v.to_vec())))
            .collect::<Result<_>>()
            .unwrap();
        assert_eq!(now, model, "{seed}");
    }
}

/// Deletes keys one by one without reading, and scans until the gap is known.
fn delete_blindly(db: &Db, queue: &Keyspace, keys: std::ops::Range<u64>) {
    keys.for_each(|number| assert!(db.delete(queue, key(number)).is_ok()));
    (0..3).for_each(|_| {
        drop((db.snapshot().first(queue).unwrap(), db.snapshot().last(queue).unwrap()))
    });
}

#[test]
fn scans_seek_over_gaps_found_by_others_and_see_later_puts_there() {
    for (reverse, flush) in [(false, false), (true, false), (false, true), (true, true)] {
        let (_dir, db, queue) = open();
        let mut model = load(&db, &queue, 0..300);
        if flush {
            db.flush().unwrap();
        }
        let old = db.snapshot();
        let before = (count_here(Border::GapPublished), count_here(Border::GapSkipped));
        let gone = if reverse { 100..300 } else { 0..200 };
        delete_blindly(&db, &queue, gone.clone());
        gone.clone().for_each(|number| drop(model.remove(&key(number))));
        let end = || if reverse { db.snapshot().last(&queue) } else { db.snapshot().first(&queue) };
        for _ in 0..20 {
            let wanted = if reverse { model.last_key_value() } else { model.first_key_value() };
            assert_eq!(end().unwrap().map(|(key, _)| key).as_ref(), wanted.map(|(key, _)| key));
        }
        assert!(
            count_here(Border::GapPublished) > before.0
                && count_here(Border::GapSkipped) >= before.1 + 20
        );
        for number in [150, 120, 180] {
            db.put(&queue, key(number), "back").unwrap();
            model.insert(key(number), b"back".to_vec());
            let wanted = if reverse { model.last_key_value() } else { model.first_key_value() };
            assert_eq!(end().unwrap().map(|(key, _)| key).as_ref(), wanted.map(|(key, _)| key));
            assert!(
                db.snapshot()
                    .iter(&queue)
                    .unwrap()
                    .map(|pair| pair.unwrap().0)
                    .eq(model.keys().cloned())
            );
            assert!(
                db.snapshot()
                    .iter(&queue)
                    .unwrap()
                    .reverse()
                    .map(|pair| pair.unwrap().0)
                    .eq(model.keys().rev().cloned())
            );
        }
        assert_eq!(
            old.len(&queue).unwrap(),
            300,
            "a reader of an older moment sees the earlier keys"
        );
    }
}

#[test]
fn a_gap_found_at_an_older_moment_is_not_used_at_the_newest_one() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20).background(false))
            .unwrap()
    };
    let db = open();
    let queue = db.keyspace("queue").unwrap();
    load(&db, &queue, 0..100);
    db.transact(|tx| (0..100).try_for_each(|number| tx.delete(&queue, key(number)))).unwrap();
    let past = db.newest();
    db.put(&queue, key(50), "back").unwrap();
    let check = |db: &Db, queue: &Keyspace| {
        for _ in 0..3 {
            let then = db.snapshot_at(plimsoll::Moment::Glsn(past)).unwrap();
            assert!(then.first(queue).unwrap().is_none() && then.last(queue).unwrap().is_none());
        }
        let (first, last) =
            (db.snapshot().first(queue).unwrap(), db.snapshot().last(queue).unwrap());
        assert_eq!((first.unwrap().0, last.unwrap().0), (key(50), key(50)));
    };
    check(&db, &queue);
    db.flush().unwrap();
    db.close().unwrap();
    let db = open();
    check(&db, &db.keyspace("queue").unwrap());
}

#[test]
fn a_transaction_that_popped_a_queue_leaves_its_gaps_to_others() {
    let (_dir, db, queue) = open();
    load(&db, &queue, 0..500);
    let mut tx = db.begin();
    (0..400).for_each(|_| drop(tx.pop_first(&queue).unwrap()));
    tx.put(&queue, key(200), "again").unwrap();
    tx.commit().unwrap();
    let before = count_here(Border::GapSkipped);
    assert_eq!(db.snapshot().first(&queue).unwrap().unwrap().0, key(200));
    assert!(count_here(Border::GapSkipped) > before, "the first scan after the commit");
    let rest: Vec<_> = db.snapshot().iter(&queue).unwrap().map(|pair| pair.unwrap().0).collect();
    assert!(rest.iter().cloned().eq(std::iter::once(200).chain(400..500).map(key)));
}

/// Stops the other threads of a test, even if it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn scans_that_publish_gaps_hide_no_put_of_a_concurrent_writer() {
    let (_dir, db, queue) = open();
    let over = AtomicBool::new(false);
    let mut model = load(&db, &queue, 0..400);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for reverse in [false, true] {
            let (db, queue, over) = (&db, &queue, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    let walk = snapshot.range(queue, key(20)..).unwrap().keys_only();
                    let mut walk = if reverse { walk.reverse() } else { walk };
                    while walk.advance().unwrap().is_some() {}
                }
            });
        }
        let mut random = Random::new(11);
        for turn in 0..1500u64 {
            let start = random.below(400);
            match random.below(4) {
                0 => {
                    db.put(&queue, key(start), turn.to_le_bytes()).unwrap();
                    model.insert(key(start), turn.to_le_bytes().to_vec());
                }
                1 => {
                    let keys = [start, start + 3, start + 100];
                    db.transact(|tx| {
                        keys.iter()
                            .try_for_each(|number| tx.put(&queue, key(*number), turn.to_le_bytes()))
                    })
                    .unwrap();
                    keys.iter().for_each(|number| {
                        drop(model.insert(key(*number), turn.to_le_bytes().to_vec()))
                    });
                }
                _ => {
                    let keys = start..start + 40;
                    db.transact(|tx| {
                        keys.clone().try_for_each(|number| tx.delete(&queue, key(number)))
                    })
                    .unwrap();
                    keys.for_each(|number| drop(model.remove(&key(number))));
                }
            }
            if turn % 300 == 100 {
                db.flush().unwrap();
            }
            let snapshot = db.snapshot();
            let (first, last) = (snapshot.first(&queue).unwrap(), snapshot.last(&queue).unwrap());
            assert_eq!(first.map(|(key, _)| key).as_ref(), model.keys().next());
            assert_eq!(last.map(|(key, _)| key).as_ref(), model.keys().next_back());
            if turn % 20 == 0 {
                assert!(
                    snapshot
                        .iter(&queue)
                        .unwrap()
                        .map(|pair| pair.unwrap().0)
                        .eq(model.keys().cloned())
                );
            }
        }
    });
}

#[test]
fn pops_match_a_model_under_puts_and_deletes() {
    const KEYS: u64 = 600;
    let before = count_here(Border::PoppedAhead);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (_dir, db, queue) = open();
        let _ = load(&db, &db.keyspace("before").unwrap(), 0..3);
        let mut model = load(&db, &queue, 100..KEYS);
        if seed % 3 == 0 {
            db.flush().unwrap();
        }
        let _ = load(&db, &db.keyspace("behind").unwrap(), 0..3);
        let other = db.keyspace("other").unwrap();
        let mut tx = db.begin();
        let mut reverse = false;
        for step in 0..300u64 {
            match random.below(20) {
                0 => {
                    let (key, len) = (key(random.below(KEYS + 100)), random.below(3) * 900);
                    let value = [&step.to_le_bytes()[..], &vec![7; len as usize]].concat();
                    tx.put(&queue, &key, &value).unwrap();
                    model.insert(key, value);
                }
                1 => {
                    let key = key(random.below(KEYS));
                    tx.delete(&queue, &key).unwrap();
                    model.remove(&key);
                }
                2 => check_walk(&tx, &queue, &model, &mut random, KEYS),
                3 => reverse = !reverse,
                4 => tx.put(&other, step.to_be_bytes(), b"elsewhere").unwrap(),
                _ => {
                    for _ in 0..random.below(12) {
                        let popped =
                            if reverse { tx.pop_last(&queue) } else { tx.pop_first(&queue) }
                                .unwrap();
                        let wanted = if reverse { model.pop_last() } else { model.pop_first() };
                        assert_eq!(
                            popped.map(|(key, value)| (key, value.to_vec())),
                            wanted,
                            "seed {seed}, step {step}"
                        );
                    }
                }
            }
        }
        check_walk(&tx, &queue, &model, &mut random, KEYS);
        tx.commit().unwrap();
        let left: Model = db
            .snapshot()
            .iter(&queue)
            .unwrap()
            .map(|pair| pair.map(|(k, v)| (k, v.to_vec())).unwrap())
            .collect();
        assert_eq!(left, model, "seed {seed}");
    }
    assert!(count_here(Border::PoppedAhead) - before > 1000);
}

#[test]
fn pops_conflict_with_puts_among_the_popped_keys_only() {
    for reverse in [false, true] {
        let (_dir, db, queue) = open();
        let _ = load(&db, &queue, 0..200);
        let nth = |number: u64| if reverse { 199 - number } else { number };
        let pop = |tx: &mut Transaction| {
            if reverse { tx.pop_last(&queue) } else { tx.pop_first(&queue) }.unwrap().unwrap()
        };
        for (put, conflicts) in [(3, true), (41, true), (44, false), (150, false)] {
            let ahead = count_here(Border::PoppedAhead);
            let mut tx = db.begin();
            let popped: Vec<_> = (0..43).map(|_| pop(&mut tx).0).collect();
            assert_eq!(popped, (0..43).map(|number| key(nth(number))).collect::<Vec<_>>());
            assert!(count_here(Border::PoppedAhead) - ahead >= 30);
            db.put(&queue, key(nth(put)), "put meanwhile").unwrap();
            if conflicts {
                assert!(
                    matches!(tx.commit(), Err(Error::Conflict { .. })),
                    "a put of {put}, reverse {reverse}"
                );
            } else {
                tx.commit().unwrap();
                let _ = load(&db, &queue, 0..200);
            }
        }
    }
}

#[test]
fn a_key_put_before_the_keys_read_ahead_is_popped_next() {
    let (_dir, db, queue) = open();
    let _ = load(&db, &queue, 100..200);
    let mut tx = db.begin();
    for number in 100..150 {
        assert_eq!(tx.pop_first(&queue).unwrap().unwrap().0, key(number));
    }
    tx.put(&queue, key(5), "in front").unwrap();
    assert_eq!(tx.pop_first(&queue).unwrap().unwrap().0, key(5));
    for number in 150..160 {
        assert_eq!(tx.pop_first(&queue).unwrap().unwrap().0, key(number));
    }
    tx.put(&queue, [&key(161)[..], b"a"].concat(), "among them").unwrap();
    tx.delete(&queue, key(160)).unwrap();
    assert_eq!(tx.first(&queue).unwrap().unwrap().0, key(161));
    assert_eq!(tx.pop_first(&queue).unwrap().unwrap().0, key(161));
    assert_eq!(tx.pop_first(&queue).unwrap().unwrap().0, [&key(161)[..], b"a"].concat());
    assert_eq!(tx.len(&queue).unwrap(), 38);
}

#[test]
fn a_scan_past_own_writes_counts_only_keys_that_it_read() {
    for reverse in [false, true] {
        for own in [0, 50, 99] {
            let (_dir, db, queue) = open();
            let _ = load(&db, &queue, 0..100);
            let other = db.keyspace("other").unwrap();
            let take = |tx: &Transaction, count| {
                let walk = tx.range(&queue, ..).unwrap();
                if reverse { walk.reverse().take(count).count() } else { walk.take(count).count() }
            };
            let nth = |number: u64| if reverse { 99 - number } else { number };
            for (put, conflicts) in [(59, true), (60, false)] {
                let mut tx = db.begin();
                tx.put(&queue, key(own), "own").unwrap();
                assert_eq!(take(&tx, 60), 60);
                db.put(&queue, key(nth(put)), "put meanwhile").unwrap();
                db.put(&other, "elsewhere", "put meanwhile").unwrap();
                assert_eq!(
                    matches!(tx.commit(), Err(Error::Conflict { .. })),
                    conflicts,
                    "{own}, {put}, {reverse}"
                );
            }
        }
    }
}

#[test]
fn the_first_scan_after_many_blind_deletes_seeks_over_them() {
    const KEYS: u64 = 3000;
    let (_dir, db, queue) = open();
    let model = load(&db, &queue, 0..KEYS + 10);
    db.flush().unwrap();
    let searched = count_here(Border::GapSearched);
    for first in (0..KEYS).step_by(100) {
        db.transact(|tx| {
            (first..first + 100).try_for_each(|number| tx.delete(&queue, key(number)))
        })
        .unwrap();
    }
    assert_eq!(count_here(Border::GapSearched) - searched, KEYS / 100);
    let before = count_here(Border::GapSkipped);
    assert_eq!(db.snapshot().first(&queue).unwrap().unwrap().0, key(KEYS));
    assert_eq!(count_here(Border::GapSkipped) - before, 1, "one gap covers them all");
    let left: Vec<_> = db.snapshot().iter(&queue).unwrap().map(|pair| pair.unwrap().0).collect();
    assert_eq!(left, model.into_keys().skip(KEYS as usize).collect::<Vec<_>>());
    // A key that is put among them is found, and so are the keys between scattered deletions.
    db.put(&queue, key(1234), "again").unwrap();
    assert_eq!(db.snapshot().first(&queue).unwrap().unwrap().0, key(1234));
    let _ = load(&db, &queue, 0..KEYS);
    db.transact(|tx| (0..KEYS / 2).try_for_each(|number| tx.delete(&queue, key(2 * number))))
        .unwrap();
    assert_eq!(db.snapshot().len(&queue).unwrap(), KEYS / 2 + 10);
}
