//! Deletes at the head of the keys, as a queue makes them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::rows::{KEY_BYTES, load, rising_key};
use super::scene::{Note, Scale};
use crate::peer::Peer;

/// The number of rows in the queue during the turns.
const LENGTH: u64 = 10_000;

const VALUE: [u8; 150] = [7; 150];

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let rows = scale.rows;
    load(store, rows, 1000, VALUE.len(), rising_key)?;
    store.settle()?;
    scale.rest();
    let mut head = pops(store, rows / 10, note)?;
    let deleted = rows * 9 / 10;
    for from in (head..deleted).step_by(1000) {
        let keys = from..deleted.min(from + 1000);
        store.commit(&mut |commit| {
            keys.clone().try_for_each(|number| commit.delete(&rising_key(number)))
        })?;
    }
    head = deleted;
    note("first_key_after_deletes_us", micros(|| expect_first(store, head))?);
    note("first_key_again_us", micros(|| expect_first(store, head))?);
    store.settle()?;
    // By then a store should have cleaned up.
    std::thread::sleep(Duration::from_secs_f64(scale.rest_seconds.min(2.0)));
    note("first_key_after_rest_us", micros(|| expect_first(store, head))?);
    turns(store, head, rows, scale, note)
}

/// Repeatedly removes the first key in one transaction; returns the first remaining key.
fn pops(store: &dyn Peer, count: u64, note: &mut Note<'_>) -> Result<u64> {
    let (start, mut popped) = (Instant::now(), 0);
    let done = store.commit(&mut |commit| {
        popped = 0;
        while popped < count && commit.pop_first()? {
            popped += 1;
        }
        Ok(())
    });
    // Not every contestant supports this.
    if done.is_err() {
        return Ok(0);
    }
    note("pops_per_second", popped as f64 / start.elapsed().as_secs_f64());
    expect_first(store, popped)?;
    Ok(popped)
}

/// A put at the tail, a read of the head, and its deletion, in one commit.
fn turns(store: &dyn Peer, head: u64, tail: u64, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    let (mut head, mut tail) = (head, tail);
    while tail - head > LENGTH {
        store.commit(&mut |commit| commit.delete(&rising_key(head)))?;
        head += 1;
    }
    let (start, mut turns) = (Instant::now(), 0);
    while start.elapsed() < scale.time() {
        let first = first(store)?;
        ensure!(first == Some(rising_key(head)), "the head of the queue is not row {head}");
        store.commit(&mut |commit| {
            commit.put(&rising_key(tail), &VALUE)?;
            commit.delete(&rising_key(head))
        })?;
        (head, tail, turns) = (head + 1, tail + 1, turns + 1);
    }
    note("queue_turns_per_second", f64::from(turns) / start.elapsed().as_secs_f64());
    Ok(())
}

fn first(store: &dyn Peer) -> Result<Option<[u8; KEY_BYTES]>> {
    let mut first = None;
    store.scan(&[], &mut |key, _| {
        first = key.try_into().ok();
        false
    })?;
    Ok(first)
}

fn expect_first(store: &dyn Peer, number: u64) -> Result<()> {
    ensure!(first(store)? == Some(rising_key(number)), "the first key is not row {number}");
    Ok(())
}

fn micros(look: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    look()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}
