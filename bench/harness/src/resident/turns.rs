//! Threads that repeat an operation for a while.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cpu_time::thread_nanos;

/// The work done by the threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    count: u64,
    cpu_nanos: u64,
    seconds: f64,
}

impl Done {
    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// Processor time per operation.
    pub(super) fn cpu_nanos(&self) -> f64 {
        self.cpu_nanos as f64 / self.count as f64
    }
}

/// Calls between two checks of the flag.
const AT_ONCE: u64 = 16;

/// Each thread calls `work` for the given time, with its own random numbers; it returns what counts
/// as done.
pub(super) fn repeat(
    threads: u64,
    time: Duration,
    work: impl Fn(&mut fastrand::Rng) -> Result<u64> + Sync,
) -> Result<Done> {
    let (start, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, stop, work) = (&start, &stop, &work);
                scope.spawn(move || {
                    let (mut random, mut done) =
                        (fastrand::Rng::with_seed(thread), Done::default());
                    start.wait();
                    let began = thread_nanos();
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..AT_ONCE {
                            done.count += work(&mut random)?;
                        }
                    }
                    done.cpu_nanos = thread_nanos() - began;
                    anyhow::Ok(done)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut all = Done::default();
        for worker in workers {
            let done = worker.join().ok().context("a thread panicked")??;
            all.count += done.count;
            all.cpu_nanos += done.cpu_nanos;
        }
        all.seconds = began.elapsed().as_secs_f64();
        Ok(all)
    })
}
