//! Large values, one per commit.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::rows::{check, rising_key};
use super::scene::{Note, Scale};
use super::turns::repeat;
use crate::payload;
use crate::peer::Peer;

pub(super) const SIZES: [usize; 2] = [100_000, 1_000_000];

/// Bytes of values of each size for each row of the scale: 200 MB for a million rows.
const BYTES_FOR_A_ROW: u64 = 200;

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let mut first = 0;
    for bytes in SIZES {
        let count = (scale.rows * BYTES_FOR_A_ROW / bytes as u64).max(2);
        let rows = first..first + count;
        first = rows.end;
        let mut value = vec![0; bytes];
        payload::fill(0, &mut value);
        let mb = |per_second: f64| per_second * bytes as f64 / 1e6;
        let start = Instant::now();
        for number in rows.clone() {
            payload::fill(number, &mut value[..8]);
            store.commit(&mut |commit| commit.put(&rising_key(number), &value))?;
        }
        note(
            &format!("put_{}_kb_mb_per_second", bytes / 1000),
            mb(count as f64 / start.elapsed().as_secs_f64()),
        );
        store.settle()?;
        scale.rest();
        rows.clone().try_for_each(|number| get(store, number, bytes))?;
        let done = repeat(1, scale.time(), |random| {
            get(store, random.u64(rows.clone()), bytes).map(|()| 1)
        })?;
        note(&format!("get_{}_kb_mb_per_second", bytes / 1000), mb(done.per_second()));
    }
    Ok(())
}

/// Reads a value and a word of each of its pages, as a user of the value would.
fn get(store: &dyn Peer, number: u64, bytes: usize) -> Result<()> {
    let (mut checked, mut sum) = (Ok(()), 0_u64);
    let is_there = store.get(&rising_key(number), &mut |value| {
        checked = check(number, value);
        sum = value.iter().step_by(4096).map(|&byte| u64::from(byte)).sum();
        if value.len() != bytes {
            checked = Err(anyhow::anyhow!("row {number} has {} bytes", value.len()));
        }
    })?;
    std::hint::black_box(sum);
    ensure!(is_there, "row {number} is missing");
    checked
}
