//! Power cuts of a real file system under several processes that share a store.
//!
//! The processes are workers ([`crate::workers`]). After each cut the store is opened alone. Every
//! acknowledged transfer must be present, and at most one more that each worker had begun; the sum
//! and every byte must be right. Then new workers continue with the store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome};
use crate::real::power::{Device, FileSystem, LIVES_OF_A_STORE, make_way};
use crate::workers::environment::Environment;
use crate::workers::{Running, Work, look};

/// The longest time that workers write before the power is cut.
const LIFE_MILLIS: u64 = 400;

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerCutCounts {
    /// Power cuts.
    pub cuts: u64,
    /// Power cuts before which some transfer had been acknowledged.
    pub with_transfers: u64,
    /// Acknowledged transfers.
    pub acknowledged: u64,
}

/// Cuts the power under this many workers at a time; `program` is the binary that can be a worker,
/// `dir` a folder to work in.
///
/// # Errors
/// An acknowledged transfer is lost, a sum is wrong, the store does not open, or such a device is
/// unavailable.
pub fn cut_members(
    program: &Path,
    dir: &Path,
    file_system: FileSystem,
    cuts: u64,
    workers: u64,
    seed: u64,
) -> Outcome<PowerCutCounts> {
    let clock = Arc::new(SystemClock::new());
    let mut random = Random::new(seed);
    let mut report = PowerCutCounts::default();
    let mut device = Device::make(dir, file_system)?;
    let mut counts = vec![0; workers as usize];
    for life in 0..cuts {
        let failed = |failure: Failure| {
            Failure::new(format!(
                "{file_system}, {workers} workers, cut {life}, seed {seed}: {failure}"
            ))
        };
        let store = device.folder.join(format!("store{}", life / LIVES_OF_A_STORE));
        if life % LIVES_OF_A_STORE == 0 {
            make_way(&mut device, life)?;
            counts.fill(0);
        }
        let start = |number| {
            Running::start(program, &store, number, Work::Bank, Environment::Equal, None, &clock)
        };
        let running = (0..workers).map(start).collect::<Outcome<Vec<_>>>().map_err(failed)?;
        clock.sleep(Duration::from_millis(random.below(LIFE_MILLIS)));
        device.cut(random.below(3) == 0).map_err(failed)?;
        let mut acknowledged = counts.clone();
        for (running, acknowledged) in running.into_iter().zip(&mut acknowledged) {
            let output = running.cut_off()?;
            *acknowledged = output.acknowledged.max(output.found.unwrap_or(0)).max(*acknowledged);
        }
        device.unmount().and_then(|()| device.mount()).map_err(failed)?;
        let found = look(&store, &acknowledged).map_err(failed)?;
        let transfers: u64 =
            acknowledged.iter().zip(&counts).map(|(now, before)| now - before).sum();
        report.cuts += 1;
        report.with_transfers += u64::from(transfers > 0);
        report.acknowledged += transfers;
        counts = found;
    }
    Ok(report)
}
