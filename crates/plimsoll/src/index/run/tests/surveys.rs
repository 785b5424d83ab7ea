//! Tests of surveys: leaves with valid checksums but impossible content are reported and skipped.

use super::*;
use crate::index::run::survey::{Survey, survey};

/// A table of integers with many leaves, and the page numbers of the leaves.
fn leaves(budget: &Budget) -> (Vec<u8>, TableInfo, Vec<usize>) {
    let (pages, info) = build_integers(budget, (0..20_000).map(|n| 3 * n));
    let kinds = pages.chunks_exact(PAGE_BYTES).map(page_kind).enumerate();
    let leaves: Vec<usize> =
        kinds.filter(|(_, kind)| *kind == LEAF_PAGE).map(|(page, _)| page).collect();
    assert!(leaves.len() > 8, "{leaves:?}");
    (pages, info, leaves)
}

/// Overwrites the page `to` with a copy of the page `from`, under a valid checksum.
fn put_copy(pages: &mut [u8], from: usize, to: usize) {
    let mut page = pages[from * PAGE_BYTES..][..PAGE_BYTES].to_vec();
    let (kind, len) = (page_kind(&page), page_payload(&page).len());
    seal_page(&mut page, SEED, to as u32, kind, len);
    pages[to * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&page);
}

fn survey_of(budget: &Budget, pages: Vec<u8>, info: &TableInfo) -> (Survey, Vec<Vec<u8>>) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let found = survey(Some(&Source(Mutex::new(pages))), info, budget, &mut |version| {
        assert!(keys.last().is_none_or(|last| &last[..] < version.key), "out of order");
        keys.push(version.key.to_vec());
        Ok(())
    });
    (found.unwrap(), keys)
}

#[test]
fn leaves_out_of_order_are_damage_and_their_spans_cover_all_missing_keys() {
    let budget = budget();
    let (pages, info, leaves) = leaves(&budget);
    let (found, all) = survey_of(&budget, pages.clone(), &info);
    assert!(found.bad.is_none() && found.lost.is_empty() && all.len() == 20_000);
    for (from, to) in [(6, 3), (3, 6), (3, 4), (4, 3), (0, 7), (leaves.len() - 1, 2)] {
        let mut pages = pages.clone();
        put_copy(&mut pages, leaves[from], leaves[to]);
        let (found, keys) = survey_of(&budget, pages, &info);
        assert!(found.bad.is_some(), "from {from} to {to}: not reported");
        for key in all.iter().filter(|key| keys.binary_search(key).is_err()) {
            assert!(
                found.lost.iter().any(|span| span.holds(key)),
                "from {from} to {to}: {key:02x?} is in no span"
            );
        }
        // The leaves before both pages are read.
        let untouched = all.len() / leaves.len() * from.min(to).saturating_sub(1);
        assert_eq!(keys[..untouched], all[..untouched]);
    }
}

#[test]
fn a_leaf_with_keys_outside_the_table_loses_no_other_leaf() {
    let budget = budget();
    let (pages, info, leaves) = leaves(&budget);
    let (other, _) = build_integers(&budget, 900_000..920_000);
    let mut pages = pages;
    let to = leaves[3];
    let page = &mut pages[to * PAGE_BYTES..][..PAGE_BYTES];
    page.copy_from_slice(&other[to * PAGE_BYTES..][..PAGE_BYTES]);
    let (found, keys) = survey_of(&budget, pages, &info);
    assert_eq!((found.bad, found.lost.len()), (Some((to as u32, 1)), 1));
    assert!(
        keys.len() > 20_000 / leaves.len() * (leaves.len() - 2)
            && keys.iter().all(|key| *key <= info.last_key)
    );
}

#[test]
fn a_leaf_with_a_key_shorter_than_a_keyspace_id_is_damage() {
    let budget = budget();
    for bytes in 0..8 {
        let stored = Stored::Inline(b"value");
        let version = |key| Version { key, glsn: Glsn(3), stored };
        let (pages, info) =
            build(&budget, [version(&[7; 9][..bytes]), version(&[8; 9])].into_iter(), false);
        let (found, keys) = survey_of(&budget, pages.clone(), &info);
        assert_eq!(
            (found.bad.is_none(), keys.len()),
            if bytes < 4 { (false, 0) } else { (true, 2) },
            "{bytes}"
        );
        let table = open(&pool(&budget), pages, info);
        assert_eq!(
            check_table(&table, &budget, &mut |_| ()).unwrap().is_empty(),
            bytes >= 4,
            "{bytes}"
        );
    }
}

/// Pages one of which the disk cannot read.
struct Failing(Source, u32);

impl PageSource for Failing {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        if number == self.1 {
            let (kind, message) = (std::io::ErrorKind::Other, "the disk fails".to_owned());
            return Err(LoadError::Io { kind, message, source: None });
        }
        self.0.load(number, page)
    }
}

#[test]
fn an_unreadable_leaf_loses_no_other_leaf() {
    let budget = budget();
    let (pages, info, leaves) = leaves(&budget);
    let mut spoiled = pages.clone();
    spoiled[leaves[3] * PAGE_BYTES + 100] ^= 1;
    let (damaged, keys) = survey_of(&budget, spoiled, &info);
    let failing = Failing(Source(Mutex::new(pages)), leaves[3] as u32);
    let mut found = 0;
    let survey = survey(Some(&failing), &info, &budget, &mut |_| {
        found += 1;
        Ok(())
    });
    assert_eq!((survey.unwrap(), found), (damaged, keys.len()));
}
