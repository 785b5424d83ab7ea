//! The cost of a command: time, and memory of this process.

use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use serde_json::Value;

use crate::memory_use::MemoryWatch;
use crate::output::Fact;
use crate::size::show_size;
use crate::time::show_duration;

/// Measures from its creation on.
pub(crate) struct Effort {
    clock: SystemClock,
    start_nanos: u64,
    memory: MemoryWatch,
}

impl Effort {
    pub(crate) fn start() -> Self {
        let clock = SystemClock::new();
        Self { start_nanos: clock.monotonic_nanos(), clock, memory: MemoryWatch::start() }
    }

    /// The elapsed time, the peak memory and the memory budget. `beside` is appended to the peak,
    /// and names the memory that the peak excludes.
    pub(crate) fn facts(&self, limit_bytes: u64, beside: &str) -> [Fact; 3] {
        let elapsed =
            Duration::from_nanos(self.clock.monotonic_nanos().saturating_sub(self.start_nanos));
        let peak = self.memory.peak_bytes();
        let shown = peak.map_or_else(|| "unknown".to_owned(), show_size);
        [
            Fact::new("time", show_duration(elapsed), elapsed.as_secs_f64()),
            Fact::new(
                "peak memory",
                format!("{shown}{beside}"),
                peak.map_or(Value::Null, Value::from),
            ),
            Fact::bytes("memory budget", limit_bytes),
        ]
    }
}
