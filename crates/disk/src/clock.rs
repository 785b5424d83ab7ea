//! Time, real or simulated.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + Debug {
    /// Microseconds since 1970-01-01 UTC; may jump forwards or back.
    fn wall_micros(&self) -> u64;

    /// Nanoseconds since a fixed moment; never goes back.
    fn monotonic_nanos(&self) -> u64;

    /// Sleeps.
    fn sleep(&self, duration: Duration);
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[allow(clippy::disallowed_methods, reason = "the only module that reads the clock")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(clippy::disallowed_methods, reason = "the only module that reads the clock")]
impl Clock for SystemClock {
    fn wall_micros(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that moves only on request: through [`ManualClock::set_wall_micros`],
/// [`ManualClock::advance`], and sleeps.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// A clock whose wall time is `wall_micros`.
    pub fn new(wall_micros: u64) -> Self {
        Self { wall: AtomicU64::new(wall_micros), monotonic: AtomicU64::new(0) }
    }

    /// Sets the wall clock, forwards or back; monotonic time does not change.
    pub fn set_wall_micros(&self, wall_micros: u64) {
        self.wall.store(wall_micros, Ordering::Relaxed);
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        self.wall.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
        self.monotonic.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_micros(&self) -> u64 {
        self.wall.load(Ordering::Relaxed)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.monotonic.load(Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}
