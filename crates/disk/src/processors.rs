//! Detects a shortage of processors: the number of runnable threads on this machine, and the time
//! that a thread waits for a processor.
#![allow(clippy::disallowed_methods, reason = "reads files of the kernel, not of a store")]

use std::fs::{self, File};
use std::num::NonZero;
use std::os::unix::fs::FileExt;

use crate::descriptor::above_standard_streams;

/// Processors available to this process; one if the system does not report it.
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// A thread's time so far, excluding sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Nanoseconds on a processor.
    pub ran_nanos: u64,
    /// Nanoseconds runnable without a processor.
    pub queued_nanos: u64,
}

/// Reads the [`ThreadTime`] of the thread that made it.
#[derive(Debug)]
pub struct ThreadClock {
    /// `None` if the system does not report it.
    schedstat: Option<File>,
}

impl ThreadClock {
    /// A clock for the calling thread.
    pub fn of_this_thread() -> Self {
        Self { schedstat: open("/proc/thread-self/schedstat") }
    }

    /// The time so far; `None` if the system does not report it.
    pub fn now(&self) -> Option<ThreadTime> {
        thread_time(&read(self.schedstat.as_ref()?)?)
    }
}

/// Parses `ran queued slices`.
fn thread_time(text: &str) -> Option<ThreadTime> {
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(ran_nanos)), Some(Ok(queued_nanos))) => {
            Some(ThreadTime { ran_nanos, queued_nanos })
        }
        _ => None,
    }
}

/// Compares the machine's runnable threads with its processors.
#[derive(Debug)]
pub struct Processors {
    /// `None` if the system does not report it.
    loadavg: Option<File>,
    online: u64,
}

impl Processors {
    /// The gauge of this machine.
    pub fn of_this_machine() -> Self {
        let online =
            fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| count(&text));
        Self { loadavg: online.and_then(|_| open("/proc/loadavg")), online: online.unwrap_or(0) }
    }

    /// The number of running or runnable threads beyond the number of processors, including the
    /// caller; `None` if the system does not report it.
    pub fn threads_beyond(&self) -> Option<u64> {
        Some(running(&read(self.loadavg.as_ref()?)?)?.saturating_sub(self.online))
    }
}

/// Parses three averages, then `running/all` threads.
fn running(text: &str) -> Option<u64> {
    text.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The number of elements in a list of ranges such as `0-3,8`.
fn count(ranges: &str) -> Option<u64> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    ranges.trim().split(',').map(of_range).sum()
}

/// Opens a file that stays open.
fn open(path: &str) -> Option<File> {
    let file = File::open(path).ok()?;
    above_standard_streams(file.into()).ok().map(File::from)
}

/// Rereads a short file of the kernel.
fn read(file: &File) -> Option<String> {
    let mut text = [0; 128];
    let len = file.read_at(&mut text, 0).ok()?;
    Some(std::str::from_utf8(&text[..len]).ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(thread_time("83 17 4\n"), Some(ThreadTime { ran_nanos: 83, queued_nanos: 17 }));
        assert_eq!(thread_time(""), None);
        assert_eq!(running("8.49 7.99 5.68 6/132 22944\n"), Some(6));
        assert_eq!(running("8.49"), None);
        assert_eq!(
            (count("0\n"), count("0-1\n"), count("0-3,8,10-11\n"), count("none")),
            (Some(1), Some(2), Some(7), None)
        );
    }

    #[test]
    fn processor_time_grows_with_work() {
        let clock = ThreadClock::of_this_thread();
        let Some(before) = clock.now() else { return };
        let mut sum = 0_u64;
        while clock.now().unwrap().ran_nanos < before.ran_nanos + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }

    #[test]
    fn many_running_threads_exceed_the_processors() {
        let processors = Processors::of_this_machine();
        if processors.threads_beyond().is_none() {
            return;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..processors.online + 2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while processors.threads_beyond().unwrap() < 2 {}
            stop.store(true, Ordering::Relaxed);
        });
    }
}
