//! Rows of 24 + 1,000 bytes, loaded with ascending keys, and scans over them.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::rows::{check, load, rising_key};
use super::scene::{Note, Scale};
use super::turns::repeat;
use crate::peer::Peer;

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let rows = scale.rows * 3 / 10;
    note("load_rising_per_second", load(store, rows, 1000, 1000, rising_key)?);
    store.settle()?;
    scale.rest();
    walk(store, 0, rows)?;
    let done = repeat(1, scale.time(), |random| {
        let from = random.u64(0..rows);
        walk(store, from, random.u64(1..=100).min(rows - from))?;
        Ok(1)
    })?;
    // As in YCSB E: a scan of 1 to 100 rows.
    note("walks_of_1_to_100_per_second", done.per_second());
    let start = Instant::now();
    walk(store, 0, rows)?;
    note("walk_over_all_rows_per_second", rows as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Scans `count` rows, and checks each.
fn walk(store: &dyn Peer, from: u64, count: u64) -> Result<()> {
    let (mut number, mut checked) = (from, Ok(()));
    store.scan(&rising_key(from), &mut |key, value| {
        checked = check(number, value);
        number += u64::from(key == rising_key(number));
        number < from + count && checked.is_ok()
    })?;
    checked?;
    ensure!(number == from + count, "the walk from row {from} ends at {number}");
    Ok(())
}
