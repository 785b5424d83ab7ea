//! Commit times: the log stores microseconds since 1970 UTC, the API uses the system clock's type.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Converts to the API's type.
pub(crate) fn of_micros(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// Converts to the log's format; 0 for times before 1970.
pub(crate) fn to_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}
