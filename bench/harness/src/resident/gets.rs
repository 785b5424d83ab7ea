//! Point reads of rows of 24 + 150 bytes that were loaded without order.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::rows::{check, load, random_key};
use super::scene::{Note, Scale};
use super::turns::repeat;
use crate::cpu_time::thread_nanos;
use crate::peer::Peer;

const THREADS: [u64; 4] = [1, 4, 8, 32];

/// Rows of a short range.
const SHORT: u64 = 10;

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let rows = scale.rows;
    note("load_random_per_second", load(store, rows, 1000, 150, random_key)?);
    store.settle()?;
    scale.rest();
    let (start, began) = (Instant::now(), thread_nanos());
    (0..rows).try_for_each(|number| get(store, number))?;
    note("first_gets_per_second", rows as f64 / start.elapsed().as_secs_f64());
    note("first_get_cpu_ns", (thread_nanos() - began) as f64 / rows as f64);
    // Lets caches fill and hit rates settle.
    (0..rows).try_for_each(|number| get(store, number))?;
    for threads in THREADS {
        let done =
            repeat(threads, scale.time(), |random| get(store, random.u64(0..rows)).map(|()| 1))?;
        note(&format!("gets_{threads}_threads_per_second"), done.per_second());
        note(&format!("get_{threads}_threads_cpu_ns"), done.cpu_nanos());
    }
    let done = repeat(1, scale.time(), |random| {
        get_missing(store, random.u64(rows..))?;
        Ok(1)
    })?;
    note("gets_missing_per_second", done.per_second());
    let done = repeat(1, scale.time(), |random| range(store, random.u64(0..rows)).map(|()| 1))?;
    note("ranges_of_10_per_second", done.per_second());
    Ok(())
}

fn get(store: &dyn Peer, number: u64) -> Result<()> {
    let mut checked = Ok(());
    let is_there = store.get(&random_key(number), &mut |value| checked = check(number, value))?;
    ensure!(is_there, "row {number} is missing");
    checked
}

fn get_missing(store: &dyn Peer, number: u64) -> Result<()> {
    ensure!(!store.get(&random_key(number), &mut |_| ())?, "row {number} was never put");
    Ok(())
}

fn range(store: &dyn Peer, number: u64) -> Result<()> {
    let (first, mut seen, mut last) = (random_key(number), 0, [0; 24]);
    store.scan(&first, &mut |key, value| {
        assert!(
            value.len() == 150 && (seen == 0 && key == first || key > &last[..]),
            "a range is out of order"
        );
        last.copy_from_slice(key);
        seen += 1;
        seen < SHORT
    })?;
    ensure!(seen > 0, "row {number} is missing");
    Ok(())
}
