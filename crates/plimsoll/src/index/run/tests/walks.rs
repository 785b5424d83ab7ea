//! Tests of cursors with every feed.

use super::*;

/// A run of several tables that are cut between keys.
fn run_of(budget: &Budget, pool: &Arc<Pool>, model: &Model, cuts: usize) -> Arc<[Table]> {
    let mut parts = vec![Model::new()];
    for ((key, glsn), stored) in model {
        let part = parts.last_mut().unwrap();
        let is_new_key = part.keys().next_back().is_none_or(|(last, _)| last != key);
        if part.len() > model.len() / (cuts + 1) && is_new_key {
            parts.push(Model::new());
        }
        parts.last_mut().unwrap().insert((key.clone(), *glsn), stored.clone());
    }
    parts.iter().map(|part| table_of(budget, pool, part)).collect()
}

fn feeds(budget: &Budget) -> [Feed; 3] {
    [Feed::Pool(Touch::Point), Feed::Pool(Touch::Scan), Feed::Private(budget.clone())]
}

#[test]
fn cursors_scan_all_versions_in_both_directions_with_every_feed() {
    for (seed, shape) in (10..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 2000);
        let run = run_of(&budget, &pool, &model, seed as usize % 3);
        for feed in feeds(&budget) {
            println!("{shape:?}: seed {seed}, {} tables, {feed:?}", run.len());
            let mut cursor = RunCursor::new(Arc::clone(&run), feed);
            assert_eq!(cursor.current(), None);
            cursor.seek_first().unwrap();
            for version in versions(&model) {
                assert_eq!(cursor.current(), Some(version));
                let same_key = cursor.skip_version().unwrap();
                assert_eq!(same_key, cursor.key() == Some(version.key));
            }
            assert_eq!(cursor.current(), None);
            assert!(!cursor.skip_version().unwrap());
            assert_eq!(cursor.current(), None, "it stays after the last");
            for version in versions(&model).rev() {
                cursor.prev().unwrap();
                assert_eq!(cursor.current(), Some(version));
            }
            cursor.prev().unwrap();
            assert_eq!(cursor.current(), None);
            cursor.next().unwrap();
            assert_eq!(
                cursor.current(),
                versions(&model).next(),
                "it returns from before the first"
            );
            cursor.seek_last().unwrap();
            assert_eq!(cursor.current(), versions(&model).next_back());
        }
    }
}

#[test]
fn a_seek_works_from_any_position_and_the_scan_continues_from_there() {
    for (seed, shape) in (20..).zip(SHAPES) {
        let mut random = Random::new(seed);
        println!("{shape:?}: seed {seed}");
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 2000);
        let run = run_of(&budget, &pool, &model, 2);
        let keys: Vec<_> = model.keys().cloned().collect();
        for feed in feeds(&budget) {
            let mut cursor = RunCursor::new(Arc::clone(&run), feed);
            for round in 0..400 {
                let (mut key, Reverse(mut glsn)) =
                    keys[random.below(keys.len() as u64) as usize].clone();
                match round % 4 {
                    0 => glsn = random.next_u64() >> random.below(64),
                    1 => key = random_key(&mut random, shape),
                    2 => key.push(0),
                    _ => {}
                }
                let sought = (key.clone(), Reverse(glsn));
                let mut behind = versions_from(&model, &sought);
                let mut before = versions_before(&model, &sought);
                cursor.seek_before(&key, Glsn(glsn)).unwrap();
                assert_eq!(cursor.current(), before.next(), "before {key:02x?} at {glsn}");
                cursor.seek(&key, Glsn(glsn)).unwrap();
                assert_eq!(cursor.current(), behind.next(), "{key:02x?} at {glsn}");
                for _ in 0..random.below(40) {
                    cursor.next().unwrap();
                    assert_eq!(cursor.current(), behind.next());
                }
            }
        }
    }
}

fn versions_from<'a>(
    model: &'a Model,
    sought: &(Vec<u8>, Reverse<u64>),
) -> impl Iterator<Item = Version<'a>> {
    model.range(sought.clone()..).map(to_version)
}

fn versions_before<'a>(
    model: &'a Model,
    sought: &(Vec<u8>, Reverse<u64>),
) -> impl Iterator<Item = Version<'a>> {
    model.range(..sought.clone()).rev().map(to_version)
}

fn to_version<'a>(
    ((key, glsn), stored): (&'a (Vec<u8>, Reverse<u64>), &'a Vec<u8>),
) -> Version<'a> {
    Version { key, glsn: Glsn(glsn.0), stored: Stored::decode(stored).unwrap() }
}

#[test]
fn a_short_scan_heats_its_pages_and_a_long_one_does_not() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, 0..100_000);
    let last_leaf = info.root - 1;
    let table = open(&pool, pages, info);
    let walk = |feed| {
        let mut cursor = RunCursor::new([table.clone()].into(), feed);
        cursor.seek_first().unwrap();
        while cursor.current().is_some() {
            cursor.next().unwrap();
        }
    };
    let loads = pool.stats().loads;
    walk(Feed::Private(budget.clone()));
    assert_eq!(pool.stats().loads, loads, "a private feed does not change the pool");
    for _ in 0..3 {
        walk(Feed::Pool(Touch::Point));
    }
    assert!(table.file.is_hot(1), "the first leaf was touched by three short scans");
    assert!((last_leaf - 20..=last_leaf).all(|page| !table.file.is_hot(page)));
    for _ in 0..3 {
        walk(Feed::Pool(Touch::Scan));
    }
    assert!((20..last_leaf).all(|page| !table.file.is_hot(page)));
}

#[test]
fn a_scan_that_changes_direction_heats_its_pages_only_once() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, 0..10_000);
    let table = open(&pool, pages, info);
    let mut cursor = RunCursor::new([table.clone()].into(), Feed::Pool(Touch::Point));
    cursor.seek_first().unwrap();
    // Back and forth across the end of the first leaf.
    while pool.stats().loads < 2 {
        cursor.next().unwrap();
    }
    for _ in 0..5 {
        cursor.prev().unwrap();
        cursor.next().unwrap();
    }
    assert!((1..3).all(|page| !table.file.is_hot(page)));
    // A further scan of them is another operation.
    cursor.seek_first().unwrap();
    assert!(table.file.is_hot(1) && !table.file.is_hot(2));
}

#[test]
fn a_private_feed_reads_tables_of_any_number_of_pages() {
    let budget = budget();
    let pool = pool(&budget);
    for count in (1..40_000).step_by(1300) {
        let (pages, info) = build_integers(&budget, 0..count);
        let mut cursor =
            RunCursor::new([open(&pool, pages, info)].into(), Feed::Private(budget.clone()));
        let standing =
            |cursor: &RunCursor| cursor.current().map(|version| version.key[4..].to_vec());
        for n in 0..count {
            cursor.next().unwrap();
            assert_eq!(standing(&cursor).unwrap(), n.to_be_bytes());
        }
        cursor.next().unwrap();
        for n in (0..count).rev() {
            cursor.prev().unwrap();
            assert_eq!(standing(&cursor).unwrap(), n.to_be_bytes());
        }
    }
}
