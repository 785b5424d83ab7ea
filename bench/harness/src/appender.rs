//! The interface of contestants for durable appends. Each contestant is an adapter in its own file.

pub(crate) mod bare;
pub(crate) mod commits;
pub(crate) mod file_log;
pub(crate) mod group;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

/// Makes entries durable. Called from many threads concurrently.
pub(crate) trait Appender: Sync {
    /// Makes some entries durable, all or none; `number` differs for each call. Returns once they
    /// are durable.
    fn append(&self, number: u64) -> Result<()>;
}

/// The result of one turn.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// Calls of `append`.
    pub(crate) appends: u64,
    pub(crate) seconds: f64,
    /// Latency of each call in nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Turn {
    pub(crate) fn per_second(&self) -> f64 {
        self.appends as f64 / self.seconds
    }
}

/// Nanoseconds up to 100 s, to three digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("the bounds are valid")
}

/// Lets `threads` threads append for a while, each making one call after the other.
pub(crate) fn turn(
    appender: &dyn Appender,
    threads: u64,
    length: Duration,
    first: u64,
) -> Result<Turn> {
    let stop = AtomicBool::new(false);
    let all: Mutex<Vec<Result<Histogram<u64>>>> = Mutex::new(Vec::new());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, all) = (&stop, &all);
            scope.spawn(move || {
                let mine = append_until(appender, stop, first + (thread << 32));
                all.lock().expect("nobody panics under it").push(mine);
            });
        }
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut latency = new_histogram();
    for mine in all.into_inner().expect("nobody panics under it") {
        latency.add(mine?)?;
    }
    Ok(Turn { appends: latency.len(), seconds, latency })
}

fn append_until(appender: &dyn Appender, stop: &AtomicBool, first: u64) -> Result<Histogram<u64>> {
    let mut latency = new_histogram();
    let mut number = first;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        appender.append(number)?;
        latency.saturating_record(start.elapsed().as_nanos() as u64);
        number += 1;
    }
    Ok(latency)
}
