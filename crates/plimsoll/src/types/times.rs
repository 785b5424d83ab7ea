//! Commit times: the log stores microseconds since 1970 UTC, the API uses the system clock's type.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Converts to the API's type.
pub(crate) fn of_micros(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// Converts to the log's format; 0 for times before 1970.
pub(crate) fn to_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

/// A time as text, in UTC with microseconds, e.g. `2026-01-31T12:00:00.000000Z`.
pub(crate) fn show_time(time: SystemTime) -> String {
    let micros = to_micros(time);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a number of days since 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    // Years begin with March here, so that a leap day is the last day of its year. 400 years have
    // 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000007Z"),
            (951_868_799, "2000-02-29T23:59:59.000007Z"),
            (1_078_099_200, "2004-03-01T00:00:00.000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000007Z"),
            (1_796_083_199, "2026-11-30T23:59:59.000007Z"),
        ] {
            assert_eq!(show_time(of_micros(seconds * 1_000_000 + 7)), shown);
        }
    }
}
