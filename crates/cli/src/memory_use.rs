//! Memory of this process: anonymous pages and page tables, as the system counts them.
//!
//! The kernel keeps no peak of this sum, so a thread samples it every few milliseconds while a
//! command runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::thread;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Samples until the peak is requested.
pub(crate) struct MemoryWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    peak_bytes: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn look(&self) {
        if let Some(bytes) = resident_bytes() {
            // Relaxed: a single number, read after the thread has ended.
            self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}

impl MemoryWatch {
    /// Starts sampling. If no thread can be started, only the beginning and the end are sampled.
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        shared.look();
        let watched = Arc::clone(&shared);
        let body = move || {
            let clock = SystemClock::new();
            // Relaxed: the threads exchange nothing but the flag itself.
            while !watched.stop.load(Ordering::Relaxed) {
                clock.sleep(POLL_INTERVAL);
                watched.look();
            }
        };
        Self { shared, thread: thread::spawn("memory-watch", body).ok() }
    }

    /// The peak so far in bytes; `None` if the system does not report it.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        self.shared.look();
        // Relaxed: a single number.
        Some(self.shared.peak_bytes.load(Ordering::Relaxed)).filter(|&bytes| bytes > 0)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        // Relaxed: as in `start`.
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Anonymous resident memory and page tables of this process in bytes.
fn resident_bytes() -> Option<u64> {
    sum_of_status(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn sum_of_status(status: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().ok()
    };
    Some((kibibytes("RssAnon")? + kibibytes("VmPTE")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_and_page_tables_are_added_up() {
        let status = "Name:\tx\nVmPTE:\t      56 kB\nRssAnon:\t    1024 kB\nRssFile:\t 9999 kB\n";
        assert_eq!(sum_of_status(status), Some((1024 + 56) * 1024));
        assert_eq!(sum_of_status("Name:\tx\n"), None);
    }

    #[test]
    fn peak_survives_freeing_the_memory() {
        let watch = MemoryWatch::start();
        let block = vec![1_u8; 32 << 20];
        let during = watch.peak_bytes().unwrap();
        drop(block);
        // Concurrent tests allocate and free memory too; the kernel's counters lag by less than the
        // margin.
        assert!(during >= 30 << 20, "{during}");
        assert!(watch.peak_bytes().unwrap() >= during);
    }
}
