//! Estimates of what the sources hold, without walking them: the number of keys in a range, and bytes of values in the log.
//!
//! For keys, each source tells how many versions it holds in the range: a memtable by a sample of its list, a table by the places of the range's ends
//! among its leaves. A deletion is taken to hide one value of an older source. A key with values in several sources counts once for each
//! until these are merged, so keys that were overwritten lately make the estimate too high, and deletions of absent keys too low.

use std::ops::Bound;

use plimsoll_log::glsn::Glsn;

use crate::index::run::table::Table;
use crate::index::source::{Memtable, Source};
use crate::index::view::{KeyRange, View, tables_in};
use crate::types::error::Result;
use crate::types::version::Stored;

/// Keys of a range that have a value now, about. Reads at most a few pages for each run.
pub(crate) fn keys_in(view: &View, range: KeyRange<'_>) -> Result<u64> {
    let mut keys = 0;
    for source in view.sources() {
        keys += match source {
            Source::Memtable(memtable) => in_memtable(memtable, range),
            Source::Run(run) => {
                tables_in(run, range).iter().map(|table| in_table(table, range)).sum::<Result<i64>>()?
            }
        };
    }
    Ok(keys.max(0) as u64)
}

/// Tables that an estimate of all values asks.
const TABLES_SAMPLED: usize = 16;

/// About the bytes of values in log entries that runs point to. Reads at most a few dozen pages.
pub(crate) fn bytes_in_log(view: &View) -> Result<u64> {
    let tables: Vec<&Table> = view.all_runs().flat_map(|run| run.tables().iter()).collect();
    let (mut asked, mut bytes, mut all) = (0, 0, 0);
    for (number, table) in tables.iter().enumerate() {
        all += table.info.versions;
        if number.is_multiple_of(tables.len().div_ceil(TABLES_SAMPLED)) {
            bytes += table.bytes_in_log()?;
            asked += table.info.versions;
        }
    }
    Ok((bytes as f64 * all as f64 / asked.max(1) as f64) as u64)
}

/// Keys with a value, less keys with a deletion.
fn in_memtable(memtable: &Memtable, range: KeyRange<'_>) -> i64 {
    let map = memtable.map();
    let from = place_of_lower(range.0).unwrap_or((b"", Glsn::MAX));
    let to = place_of_upper(range.1).map(|(key, glsn)| (key, glsn.0));
    map.estimate((from.0, from.1.0), to, |entry| {
        let is_newest = map.seek_before(entry.key, entry.order).is_none_or(|before| map.at(before).key != entry.key);
        match Stored::decode(entry.value) {
            _ if !is_newest => 0,
            Some(Stored::Deleted) => -1,
            _ => 1,
        }
    })
}

/// The same, as far as the table's metadata tell: its deletions are taken to be spread evenly.
fn in_table(table: &Table, range: KeyRange<'_>) -> Result<i64> {
    let info = &table.info;
    let from = place_of_lower(range.0).map_or(Ok(0), |(key, glsn)| table.rank(key, glsn))?;
    let to = place_of_upper(range.1).map_or(Ok(info.versions), |(key, glsn)| table.rank(key, glsn))?;
    let keys = info.versions as f64 - 2.0 * info.deletions as f64;
    Ok((keys * to.saturating_sub(from) as f64 / info.versions.max(1) as f64).round() as i64)
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
