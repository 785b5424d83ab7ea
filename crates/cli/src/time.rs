//! Times for people: RFC 3339, the same without a time of day or an offset, `now`, `yesterday` and
//! `2 hours ago`.
//!
//! All times are shown in UTC, and a time without an offset is UTC too, so that output does not
//! depend on the machine's time zone.

use std::time::Duration;

use std::time::SystemTime;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};
use plimsoll_disk::clock::{Clock, SystemClock};

/// The time of the machine's clock.
pub(crate) fn now() -> Timestamp {
    of_micros(SystemClock::new().wall_micros())
}

/// Parses `2024-01-31`, `2024-01-31 12:00`, `2024-01-31T12:00:03.5Z`, `2024-01-31 12:00 +01:00`,
/// and times relative to `now`: `now`, `yesterday` (24 hours ago), `2 hours ago`, `1 week 3 days
/// ago`.
pub(crate) fn parse_time(text: &str, now: Timestamp) -> Option<Timestamp> {
    let text = text.trim();
    let before = |span: Span| Some(now.to_zoned(TimeZone::UTC).checked_sub(span).ok()?.timestamp());
    match text {
        "now" => return Some(now),
        "yesterday" => return before(1.day()),
        _ => {}
    }
    if let Some(past) = text.strip_suffix("ago") {
        return before(past.trim_end().parse().ok()?);
    }
    // A space may precede the offset.
    let joined = text.replace(" +", "+").replace(" -", "-").replace(" Z", "Z");
    let local = || Some(joined.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    joined.parse().ok().or_else(local)
}

/// Microseconds since 1970 as a time.
pub(crate) fn of_micros(micros: u64) -> Timestamp {
    i64::try_from(micros)
        .ok()
        .and_then(|micros| Timestamp::from_microsecond(micros).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Converts a system time; clamps it to the range of timestamps.
pub(crate) fn of_system(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}

/// A time in RFC 3339, UTC, to the microsecond, as commits have it; it parses back to the same
/// time: `2024-01-31T12:00:03.250000Z`.
pub(crate) fn show_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// A duration for people: `850 ms`, `12.3 s`, `3 min 20 s`, `2 h 05 min`.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis() as u64;
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis} ms"),
        1..=59 => format!("{}.{} s", seconds, millis % 1000 / 100),
        60..=3599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Option<Timestamp> {
        parse_time(text, "2024-03-01T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn times_parse_with_and_without_time_of_day_and_offset() {
        let cases = [
            ("1970-01-01", 0.0),
            ("2024-01-31", 1_706_659_200.0),
            ("2024-01-31 12:00", 1_706_702_400.0),
            ("2024-01-31T12:00:03Z", 1_706_702_403.0),
            ("2024-01-31T12:00:03.250z", 1_706_702_403.25),
            ("2024-01-31 12:00 +01:00", 1_706_698_800.0),
            ("2024-01-31T12:00:00-0530", 1_706_722_200.0),
            ("2024-01-31 12:00:00 Z", 1_706_702_400.0),
            ("2000-02-29T00:00Z", 951_782_400.0),
        ];
        for (text, expected) in cases {
            assert_eq!(time(text).unwrap().as_duration().as_secs_f64(), expected, "{text}");
        }
    }

    #[test]
    fn relative_times_parse() {
        let cases = [
            ("now", "2024-03-01T12:00:00Z"),
            ("yesterday", "2024-02-29T12:00:00Z"),
            ("2 hours ago", "2024-03-01T10:00:00Z"),
            ("90 min ago", "2024-03-01T10:30:00Z"),
            ("1 month ago", "2024-02-01T12:00:00Z"),
            ("1 week 3 days ago", "2024-02-20T12:00:00Z"),
        ];
        for (text, expected) in cases {
            assert_eq!(time(text), Some(expected.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn malformed_time_is_refused() {
        let cases = [
            "",
            "soon",
            "ago",
            "2 hours",
            "two hours ago",
            "99999999 years ago",
            "2024-1-31",
            "2024-02-30",
            "2023-02-29",
            "2024-13-01",
            "2024-01-31x",
            "2024-01-31 25:00",
            "2024-01-31 12:00:00:00",
            "2024-01-31 12:00:00.",
            "2024-01-3é 12:00",
        ];
        for text in cases {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn shown_time_parses_back() {
        for micros in [0, 951_782_399_999_999, 1_706_702_403_250_001, 4_102_444_800_000_000] {
            let shown = show_time(of_micros(micros));
            assert_eq!(time(&shown), Some(of_micros(micros)), "{shown}");
        }
        assert_eq!(show_time(of_micros(0)), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn durations_are_shown_in_the_unit_that_fits() {
        for (millis, shown) in [
            (850, "850 ms"),
            (12_345, "12.3 s"),
            (200_000, "3 min 20 s"),
            (7_500_000, "2 h 05 min"),
        ] {
            assert_eq!(show_duration(Duration::from_millis(millis)), shown);
        }
    }
}
