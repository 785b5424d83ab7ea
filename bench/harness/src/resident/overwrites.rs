//! Rows of 24 + 1,000 bytes, overwritten 3.3 times in random order: disk space meanwhile and after
//! a rest.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::rows::{KEY_BYTES, load, random_key};
use super::scene::{Note, Scale};
use crate::payload;
use crate::peer::Peer;
use crate::work_folder::bytes_on_disk;

const VALUE_BYTES: usize = 1000;

const BATCH: u64 = 100;

/// How often the folder's size is sampled.
const SAMPLE_TIME: Duration = Duration::from_millis(50);

pub(super) fn play(
    store: &dyn Peer,
    folder: &Path,
    scale: &Scale,
    note: &mut Note<'_>,
) -> Result<()> {
    let rows = scale.rows * 3 / 10;
    let live_bytes = (rows * (KEY_BYTES + VALUE_BYTES) as u64) as f64;
    load(store, rows, 1000, VALUE_BYTES, random_key)?;
    store.settle()?;
    scale.rest();
    let (mut random, mut value) = (fastrand::Rng::with_seed(1), vec![0; VALUE_BYTES]);
    let (mut peak, mut looked) = (0, Instant::now());
    let writes = rows * 33 / 10;
    let start = Instant::now();
    for from in (0..writes).step_by(BATCH as usize) {
        store.commit(&mut |commit| {
            (from..writes.min(from + BATCH)).try_for_each(|write| {
                payload::fill(write, &mut value);
                commit.put(&random_key(random.u64(0..rows)), &value)
            })
        })?;
        if looked.elapsed() > SAMPLE_TIME {
            peak = peak.max(bytes_on_disk(folder));
            looked = Instant::now();
        }
    }
    note("overwrites_per_second", writes as f64 / start.elapsed().as_secs_f64());
    let at_end = bytes_on_disk(folder);
    note("disk_peak_to_live", peak.max(at_end) as f64 / live_bytes);
    store.settle()?;
    std::thread::sleep(Duration::from_secs_f64(scale.rest_seconds.min(3.0)));
    note("disk_after_rest_to_live", bytes_on_disk(folder) as f64 / live_bytes);
    Ok(())
}
