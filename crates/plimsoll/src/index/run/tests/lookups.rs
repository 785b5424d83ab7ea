//! Tests of point lookups.

use super::*;
use crate::types::index_key::MAX_INDEX_KEY_BYTES;

#[test]
fn lookups_return_each_version_at_its_snapshots() {
    for (seed, shape) in (0..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 3000);
        let table = table_of(&budget, &pool, &model);
        println!("{shape:?}: seed {seed}, {} pages", table.info.pages);
        for (key, glsn) in model.keys() {
            for at in [glsn.0, glsn.0 - 1, glsn.0.saturating_add(1), 0, u64::MAX] {
                assert_lookup(&table, &model, key, at);
            }
        }
        for _ in 0..3000 {
            let mut key = random_key(&mut random, shape);
            key.truncate(key.len() - random.below(2) as usize);
            assert_lookup(&table, &model, &key, random.below(1 << 42));
        }
    }
}

#[test]
fn a_table_of_one_version_is_complete() {
    let (budget, mut random) = (budget(), Random::new(5));
    let pool = pool(&budget);
    for key in [&[0; 4][..], &[0, 0, 0, 1], &[9; MAX_INDEX_KEY_BYTES]] {
        let model = Model::from([((key.to_vec(), Reverse(7)), random_stored(&mut random))]);
        let table = table_of(&budget, &pool, &model);
        assert_lookup(&table, &model, key, 7);
        assert_lookup(&table, &model, key, 6);
        assert_lookup(&table, &model, &[1], 7);
        assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
    }
}

#[test]
fn a_deep_tree_of_the_largest_versions_finds_all() {
    const COUNT: u64 = 27_000;
    let budget = budget();
    let pool = pool(&budget);
    let version = |n: u64, key: &mut Vec<u8>| {
        key.resize(MAX_INDEX_KEY_BYTES - 8, 7);
        key.extend((n / 3).to_be_bytes());
        Glsn(COUNT - n)
    };
    let (value, mut key) = ([3; INLINE_BYTES], Vec::new());
    let mut builder = TableBuilder::new(Pages::default(), &budget, false).unwrap();
    for n in 0..COUNT {
        key.clear();
        let glsn = version(n, &mut key);
        builder.add(&Version { key: &key, glsn, stored: Stored::Inline(&value) }).unwrap();
    }
    let (pages, info) = builder.finish().unwrap();
    let table = open(&pool, pages.0, info);
    assert!(height(&table) >= 5, "the tree is only {} high", height(&table));
    for n in (0..COUNT).step_by(7) {
        key.clear();
        let glsn = version(n, &mut key);
        let found = table.lookup(&key, glsn, Touch::Point).unwrap().found.unwrap();
        assert_eq!((found.glsn, found.stored()), (glsn, Stored::Inline(&value)));
        key.push(0);
        assert!(table.lookup(&key, glsn, Touch::Point).unwrap().newest.is_none());
    }
    assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
}

#[test]
fn the_versions_of_one_key_may_fill_several_guides() {
    let (budget, mut model) = (budget(), Model::new());
    let pool = pool(&budget);
    let mut stored = Vec::new();
    Stored::Inline(&[3; INLINE_BYTES]).encode(&mut stored);
    for (byte, count) in [(4, 10), (5, 900), (6, 10)] {
        (0..count).for_each(|n| {
            drop(
                model
                    .insert((vec![byte; MAX_INDEX_KEY_BYTES], Reverse(10 + n * 2)), stored.clone()),
            )
        });
    }
    let table = table_of(&budget, &pool, &model);
    assert!(height(&table) >= 1, "one guide holds all leaves");
    for at in 0..10 + 2 * 900 {
        [4, 5, 6]
            .iter()
            .for_each(|&byte| assert_lookup(&table, &model, &[byte; MAX_INDEX_KEY_BYTES], at));
    }
    let mut cursor = RunCursor::new([table.clone()].into(), Feed::Pool(Touch::Point));
    for version in versions(&model) {
        for glsn in [version.glsn, version.glsn.next()] {
            cursor.seek(version.key, glsn).unwrap();
            assert_eq!(cursor.current(), Some(version));
        }
    }
    assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
}

fn height(table: &Table) -> usize {
    let page = table.file.get(table.info.root, Touch::Point).unwrap();
    Inner::new(page_payload(&page)).map_or(0, |inner| inner.height())
}

#[test]
fn absent_keys_rarely_read_a_leaf_and_present_keys_read_one() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, (0..200_000).map(|n| n * 2));
    let table = open(&pool, pages, info);
    let height = height(&table) as u64;
    let leaves_touched = |offset: u64| {
        let pages_touched = || pool.stats().hits + pool.stats().loads;
        let (before, mut key) = (pages_touched(), [0; 12]);
        for n in 0..100_000 {
            integer_pair(&mut key, n * 4 + offset);
            assert_eq!(
                table.lookup(&key, Glsn::MAX, Touch::Point).unwrap().found.is_some(),
                offset == 0
            );
        }
        pages_touched() - before - 100_000 * (height + 1)
    };
    assert_eq!(leaves_touched(0), 100_000);
    let wrong = leaves_touched(1);
    println!("{wrong} of 100000 absent keys pass");
    assert!(wrong <= 1500, "{wrong} of 100000");
}

#[test]
fn a_too_young_version_costs_no_second_descent() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, 0..100_000);
    let table = open(&pool, pages, info);
    let pages_touched = || pool.stats().hits + pool.stats().loads;
    let (before, mut key) = (pages_touched(), [0; 12]);
    for n in 0..100_000 {
        integer_pair(&mut key, n);
        let lookup = table.lookup(&key, Glsn::NONE, Touch::Point).unwrap();
        assert!(lookup.newest.is_some() && lookup.found.is_none());
    }
    // The path and the leaf. More is read only after the last key of a leaf.
    let needed = 100_000 * (height(&table) as u64 + 2);
    let touched = pages_touched() - before;
    assert!((needed..needed + 2_000).contains(&touched), "{touched} pages, {needed} needed");
}
