//! Tests of leaves: round trips, searches, and damage.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use plimsoll_disk::random::Random;

use super::check::check_leaf;
use super::*;

/// Keys from a small alphabet, so that they share long prefixes and all relations of two keys
/// occur.
fn random_key(random: &mut Random, front: &[u8]) -> Vec<u8> {
    let mut key = front.to_vec();
    (0..random.below(6)).for_each(|_| key.push([0, 1, 255][random.below(3) as usize]));
    key
}

fn write(versions: &BTreeSet<(Vec<u8>, Reverse<u64>)>) -> Vec<u8> {
    let (mut draft, mut payload) = (vec![0; PAGE_PAYLOAD_BYTES], vec![0; PAGE_PAYLOAD_BYTES]);
    let mut leaf = LeafDraft::new();
    let mut last: &[u8] = &[];
    for (key, glsn) in versions {
        let stored = [&[1][..], key, &glsn.0.to_le_bytes()].concat();
        assert!(leaf.add(&mut draft, key, common_prefix(last, key), Glsn(glsn.0), &stored));
        last = key;
    }
    let bytes = leaf.finish(&draft, &mut payload, last);
    payload.truncate(bytes);
    payload
}

#[test]
fn a_search_finds_the_position_of_present_and_absent_keys() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let front = vec![1; [4, 5, 7, 20][random.below(4) as usize]];
        let count = 1 + random.below(120);
        let versions: BTreeSet<_> = (0..count)
            .map(|_| (random_key(&mut random, &front), Reverse(random.below(5))))
            .collect();
        let payload = write(&versions);
        let mut walked = Vec::new();
        let value_of = |key: &[u8], glsn: Glsn| [key, &glsn.0.to_le_bytes()].concat();
        check_leaf(&payload, None, |key, glsn, stored| {
            assert_eq!(stored, Stored::Inline(&value_of(key, glsn)));
            walked.push((key.to_vec(), Reverse(glsn.0)));
        })
        .unwrap();
        assert!(walked.iter().eq(&versions), "seed {seed}");
        let leaf = Leaf::new(&payload, None).unwrap();
        for _ in 0..300 {
            let front = if random.below(4) == 0 { &front[..front.len() / 2] } else { &front };
            let sought = (random_key(&mut random, front), Reverse(random.below(6)));
            let number = versions.range(..&sought).count();
            let found = leaf.seek(&sought.0, Glsn(sought.1.0)).unwrap();
            match versions.range(&sought..).next() {
                None => assert_eq!(found, SeekResult::After, "seed {seed}, {sought:?}"),
                Some((key, glsn)) => {
                    let mut spelled = Vec::new();
                    let spot = leaf.spot(number, &mut spelled).unwrap();
                    assert_eq!(
                        found,
                        SeekResult::At(spot, *key == sought.0),
                        "seed {seed}, {sought:?}"
                    );
                    assert_eq!((&spelled, spot.entry.glsn), (key, Glsn(glsn.0)));
                    let mut of_search = b"another".to_vec();
                    leaf.found_key(&spot, &sought.0, &mut of_search).unwrap();
                    assert_eq!(of_search, spelled, "seed {seed}, {sought:?}");
                    assert_eq!(
                        leaf.stored(&spot.entry),
                        Some(Stored::Inline(&value_of(key, Glsn(glsn.0))))
                    );
                }
            }
        }
    }
}

#[test]
fn a_step_reports_key_changes_at_restarts_too() {
    let of_three = |key: u8| [9, 5, 2].map(|glsn| (vec![1, 1, 1, 1, key], Reverse(glsn)));
    let versions: BTreeSet<_> = (0..40).flat_map(of_three).collect();
    let payload = write(&versions);
    let leaf = Leaf::new(&payload, None).unwrap();
    let mut key = Vec::new();
    let mut spot = leaf.spot(0, &mut key).unwrap();
    for number in 1..120 {
        let expected = if number % 3 == 0 { Stepped::ToNextKey } else { Stepped::ToSameKey };
        assert_eq!(leaf.step(&mut spot, &mut key), Some(expected), "to entry {number}");
    }
    assert_eq!(leaf.step(&mut spot, &mut key), Some(Stepped::AtEnd));
}

#[test]
fn no_leaf_holds_more_than_the_maximum_number_of_keys() {
    let (mut draft, mut payload) = (vec![0; PAGE_PAYLOAD_BYTES], vec![0; PAGE_PAYLOAD_BYTES]);
    let mut leaf = LeafDraft::new();
    let mut last = 0u32.to_be_bytes();
    let mut keys = 0;
    for n in 1u32.. {
        let key = n.to_be_bytes();
        if !leaf.add(&mut draft, &key, common_prefix(&last, &key), Glsn(1), &[0]) {
            break;
        }
        (last, keys) = (key, keys + 1);
    }
    let bytes = leaf.finish(&draft, &mut payload, &last);
    assert!(bytes <= PAGE_PAYLOAD_BYTES && bytes > PAGE_PAYLOAD_BYTES - 8);
    assert!(keys <= MAX_LEAF_KEYS && keys > MAX_LEAF_KEYS - 100, "{keys} keys");
}

#[test]
fn a_leaf_with_branch_versions_is_reported_as_newer() {
    let mut payload = write(&BTreeSet::from([(vec![1; 4], Reverse(0)), (vec![2; 4], Reverse(0))]));
    assert!(!has_branches(&payload));
    payload[1] |= 0x80;
    assert!(has_branches(&payload) && Leaf::new(&payload, None).is_none());
    assert_eq!(check_leaf(&payload, None, |_, _, _| {}), Err(BRANCHES));
}

#[test]
fn with_a_fixed_glsn_every_entry_has_it() {
    let payload = write(&BTreeSet::from([(vec![1; 4], Reverse(0)), (vec![2; 4], Reverse(0))]));
    let mut glsns = Vec::new();
    check_leaf(&payload, Some(Glsn(9)), |_, glsn, _| glsns.push(glsn)).unwrap();
    assert_eq!(glsns, [Glsn(9), Glsn(9)]);
}
