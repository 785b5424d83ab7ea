//! Rows derived from a number: keys in random order or ascending, values that do not compress.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::payload;
use crate::peer::Peer;

pub(super) const KEY_BYTES: usize = 24;

/// The key of row `number`, without order.
pub(super) fn random_key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    payload::fill(payload::mix(number), &mut key);
    key
}

/// The key of row `number`, ascending with the number.
pub(super) fn rising_key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Whether a value belongs to row `number`.
pub(super) fn check(number: u64, value: &[u8]) -> Result<()> {
    let mut head = [0; 8];
    payload::fill(number, &mut head);
    ensure!(value.starts_with(&head), "row {number} has another value");
    Ok(())
}

/// Puts rows in commits of `batch`; rows a second.
pub(super) fn load(
    store: &dyn Peer,
    rows: u64,
    batch: u64,
    value_bytes: usize,
    key: impl Fn(u64) -> [u8; KEY_BYTES],
) -> Result<f64> {
    let mut value = vec![0; value_bytes];
    let start = Instant::now();
    for from in (0..rows).step_by(batch as usize) {
        store.commit(&mut |commit| {
            (from..rows.min(from + batch)).try_for_each(|number| {
                payload::fill(number, &mut value);
                commit.put(&key(number), &value)
            })
        })?;
    }
    Ok(rows as f64 / start.elapsed().as_secs_f64())
}
