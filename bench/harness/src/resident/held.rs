//! Reads of a snapshot that is held while every row is overwritten twice.

use anyhow::{Result, ensure};

use super::rows::{check, load, random_key};
use super::scene::{Note, Scale};
use crate::cpu_time::thread_nanos;
use crate::payload;
use crate::peer::{Held, Peer};

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let rows = scale.rows * 3 / 10;
    load(store, rows, 1000, 1000, random_key)?;
    store.settle()?;
    // Not every contestant has snapshots.
    let Some(held) = store.hold()? else { return Ok(()) };
    let mut value = vec![0; 1000];
    for from in (0..2 * rows).step_by(100) {
        store.commit(&mut |commit| {
            (from..from + 100).try_for_each(|write| {
                payload::fill(rows + write, &mut value);
                commit.put(&random_key(write % rows), &value)
            })
        })?;
    }
    store.settle()?;
    scale.rest();
    let reads = rows.min(100_000);
    read_thrice("held", reads, note, |number| held_get(&*held, number))?;
    // For comparison: the current values of the same keys.
    read_thrice("present", reads, note, |number| present_get(store, number, 2 * rows + number))
}

/// Reads every key three times, because the second reads may fill a cache.
fn read_thrice(
    which: &str,
    reads: u64,
    note: &mut Note<'_>,
    get: impl Fn(u64) -> Result<()>,
) -> Result<()> {
    for turn in ["first", "second", "later"] {
        let began = thread_nanos();
        (0..reads).try_for_each(&get)?;
        note(&format!("{which}_{turn}_get_cpu_ns"), (thread_nanos() - began) as f64 / reads as f64);
    }
    Ok(())
}

fn held_get(held: &dyn Held, number: u64) -> Result<()> {
    let mut checked = Ok(());
    let is_there = held.get(&random_key(number), &mut |value| checked = check(number, value))?;
    ensure!(is_there, "row {number} is missing");
    checked
}

fn present_get(store: &dyn Peer, number: u64, payload: u64) -> Result<()> {
    let mut checked = Ok(());
    let is_there = store.get(&random_key(number), &mut |value| checked = check(payload, value))?;
    ensure!(is_there, "row {number} is missing");
    checked
}
