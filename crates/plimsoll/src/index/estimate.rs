//! Estimates the number of keys in a range without a walk over it.
//!
//! Each source tells about how many keys it has there: a memtable by a sample of its list, a table by its metadata where the range covers it,
//! and else by a sample of its leaves. A deletion is taken to hide one value of an older source. A key with values in several sources counts
//! once for each until these are merged, so keys that were overwritten lately make the estimate too high, and deletions of absent keys too
//! low.

use std::cmp::Reverse;
use std::ops::Bound;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::sorted::Entry;

use crate::index::run::leaf::comes_before;
use crate::index::run::table::Table;
use crate::index::source::{Memtable, Source};
use crate::index::view::{KeyRange, View, tables_in};
use crate::types::error::Result;
use crate::types::version::Stored;

/// Keys of a range that have a value now, about. Reads at most a few pages for each run.
pub(crate) fn keys_in(view: &View, range: KeyRange<'_>) -> Result<u64> {
    let mut keys = 0.0;
    for source in view.sources() {
        keys += match source {
            Source::Memtable(memtable) => in_memtable(memtable, range),
            Source::Run(run) => {
                tables_in(run, range).iter().map(|table| in_table(table, range)).sum::<Result<f64>>()?
            }
        };
    }
    Ok(keys.max(0.0).round() as u64)
}

/// Keys of a memtable that are counted one by one before they are sampled.
const KEYS_COUNTED: usize = 128;

/// Keys with a value, less keys with a deletion.
fn in_memtable(memtable: &Memtable, range: KeyRange<'_>) -> f64 {
    let map = memtable.map();
    let from = place_of_lower(range.0).unwrap_or((b"", Glsn::MAX));
    let to = place_of_upper(range.1);
    let is_within = |entry: &Entry<'_>| to.is_none_or(|to| comes_before(entry.key.cmp(to.0), Glsn(entry.order), to.1));
    // Key by key, while there are few.
    let (mut keys, mut sum) = (0, 0.0);
    let mut next = map.seek(from.0, from.1.0);
    while let Some(newest) = next.map(|at| map.at(at)).filter(is_within) {
        if keys == KEYS_COUNTED {
            // Each version counts for its part of a key. Samples of one key follow each other.
            let (mut key, mut each) = (Vec::new(), 0.0);
            let behind = map.estimate((newest.key, u64::MAX), to.map(|(key, glsn)| (key, glsn.0)), |entry| {
                if key != entry.key {
                    entry.key.clone_into(&mut key);
                    let newest = map.seek(entry.key, u64::MAX).map_or(entry, |at| map.at(at));
                    let versions = map.estimate((entry.key, u64::MAX), Some((entry.key, Glsn::NONE.0)), |_| 1.0);
                    each = weight(newest.value) / versions.max(1.0);
                }
                each
            });
            return sum + behind;
        }
        keys += 1;
        sum += weight(newest.value);
        next = next.and_then(|at| map.next(at)).filter(|at| map.at(*at).key != newest.key);
        if next.is_none() {
            next = map.seek(newest.key, Glsn::NONE.0);
        }
    }
    sum
}

fn in_table(table: &Table, range: KeyRange<'_>) -> Result<f64> {
    let info = &table.info;
    let from =
        place_of_lower(range.0).filter(|(key, glsn)| (*key, Reverse(*glsn)) > (&info.first_key, Reverse(Glsn::MAX)));
    let to =
        place_of_upper(range.1).filter(|(key, glsn)| (*key, Reverse(*glsn)) < (&info.last_key, Reverse(Glsn::NONE)));
    if from.is_none() && to.is_none() {
        return Ok(info.versions as f64 - 2.0 * info.deletions as f64);
    }
    table.estimate(from, to, |stored| if stored == Stored::Deleted { -1.0 } else { 1.0 })
}

/// What a key adds whose newest version has this stored form.
fn weight(stored: &[u8]) -> f64 {
    if Stored::decode(stored) == Some(Stored::Deleted) { -1.0 } else { 1.0 }
}

/// The first place of the range in the order of versions.
fn place_of_lower(bound: Bound<&[u8]>) -> Option<(&[u8], Glsn)> {
    match bound {
        Bound::Included(key) => Some((key, Glsn::MAX)),
        Bound::Excluded(key) => Some((key, Glsn::NONE)),
        Bound::Unbounded => None,
    }
}

/// The first place behind the range.
fn place_of_upper(bound: Bound<&[u8]>) -> Option<(&[u8], Glsn)> {
    match bound {
        Bound::Included(key) => Some((key, Glsn::NONE)),
        Bound::Excluded(key) => Some((key, Glsn::MAX)),
        Bound::Unbounded => None,
    }
}
