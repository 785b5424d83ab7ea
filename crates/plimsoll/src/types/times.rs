//! Times of commits: the log keeps microseconds since 1970 UTC, users see the clock of the system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As users see it.
pub(crate) fn of_micros(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// As the log keeps it; 0 for times before 1970.
pub(crate) fn to_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}
