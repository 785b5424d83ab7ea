//! Waits until this process has no background work, so that one contestant's remaining work does
//! not fall into another's turn.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Length of a sample, and the processor time that it may use.
const SAMPLE_TIME: Duration = Duration::from_millis(40);
const BUSY_MAX: Duration = Duration::from_millis(4);

/// Waits for at most `timeout`; returns whether the process became quiet.
pub(crate) fn wait(timeout: Duration) -> bool {
    let began = Instant::now();
    loop {
        let before = used();
        std::thread::sleep(SAMPLE_TIME);
        if used().saturating_sub(before) <= BUSY_MAX {
            return true;
        }
        if began.elapsed() >= timeout {
            return false;
        }
    }
}

/// Processor time of the process.
fn used() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_working_process_becomes_quiet_when_it_stops() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A single sample may get no processor time on a busy machine.
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let idle = used();
            while used() - idle < SAMPLE_TIME {
                std::thread::yield_now();
            }
            assert!(!wait(Duration::from_millis(100)));
            stop.store(true, Ordering::Relaxed);
        });
        // Other tests may be running in this process, so only check that it returns.
        wait(Duration::from_millis(100));
    }
}
