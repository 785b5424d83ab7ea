//! Times as people write and read them: RFC 3339, and the same without a time of day or an offset. All shown times are UTC.
//!
//! A time without an offset is UTC as well: an answer must not depend on the machine's time zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: i64 = 86_400;

/// Reads `2024-01-31`, `2024-01-31 12:00`, `2024-01-31T12:00:03.5Z`, `2024-01-31 12:00 +01:00`.
pub(crate) fn parse_time(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let (date, rest) = text.split_at_checked(10)?;
    let days = days_of_date(date)?;
    let (seconds, nanos, offset) = match rest.strip_prefix(['T', 't', ' ']) {
        None if rest.is_empty() => (0, 0, 0),
        None => return None,
        Some(rest) => time_of_day(rest)?,
    };
    let total = days * SECONDS_PER_DAY + seconds - offset;
    let whole = Duration::from_secs(total.unsigned_abs());
    let moment = if total < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    moment?.checked_add(Duration::from_nanos(nanos))
}

fn days_of_date(date: &str) -> Option<i64> {
    let bytes = date.as_bytes();
    if bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) = (number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?);
    let days = days_from_civil(year, month, day);
    // A date that does not come back the same does not exist, e.g. 30 February.
    (civil_from_days(days) == (year, month, day)).then_some(days)
}

/// Seconds and nanoseconds since midnight, and the offset from UTC in seconds.
fn time_of_day(text: &str) -> Option<(i64, u64, i64)> {
    let end = text.find(['Z', 'z', '+', '-', ' ']).unwrap_or(text.len());
    let (clock, offset) = text.split_at(end);
    let mut parts = clock.split(':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let (second, nanos) = match parts.next() {
        None => (0, 0),
        Some(second) => seconds_with_fraction(second)?,
    };
    let valid = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    valid.then_some((hour * 3600 + minute * 60 + second, nanos, offset_seconds(offset.trim())?))
}

fn seconds_with_fraction(text: &str) -> Option<(i64, u64)> {
    let Some((whole, fraction)) = text.split_once('.') else {
        return Some((number(text)?, 0));
    };
    let valid = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let nanos: u64 = valid.then(|| format!("{fraction:0<9}"))?.parse().ok()?;
    Some((number(whole)?, nanos))
}

fn offset_seconds(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes() {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', ..] => (1, &text[1..]),
        [b'-', ..] => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(parts) => parts,
        None => digits.split_at_checked(2)?,
    };
    let minutes = if minutes.is_empty() { 0 } else { number(minutes)? };
    let hours = number(hours)?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn number(text: &str) -> Option<i64> {
    let valid = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| text.parse().ok())?
}

/// A time of the log in RFC 3339, UTC, to the millisecond: `2024-01-31T12:00:03.250Z`.
pub(crate) fn show_micros(micros: u64) -> String {
    let (seconds, millis) = (micros / 1_000_000, micros % 1_000_000 / 1000);
    let shown = show_seconds(seconds as i64, 0);
    format!("{}.{millis:03}Z", shown.trim_end_matches('Z'))
}

/// Seconds since 1970 in RFC 3339 with the given offset from UTC in minutes.
pub(crate) fn show_seconds(seconds: i64, offset_minutes: i64) -> String {
    let local = seconds.saturating_add(offset_minutes * 60);
    let (year, month, day) = civil_from_days(local.div_euclid(SECONDS_PER_DAY));
    let of_day = local.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let zone = match offset_minutes {
        0 => "Z".to_owned(),
        minutes => {
            let sign = if minutes < 0 { '-' } else { '+' };
            format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
        }
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}")
}

/// How long something took: `850 ms`, `12.3 s`, `3 min 20 s`, `2 h 05 min`.
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

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar. Years are counted from March, so that the leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse of [`days_from_civil`]: year, month, day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<f64> {
        Some(parse_time(text)?.duration_since(UNIX_EPOCH).unwrap().as_secs_f64())
    }

    #[test]
    fn times_are_read_with_and_without_a_time_of_day_and_an_offset() {
        let cases = [
            ("1970-01-01", 0.0),
            ("2024-01-31", 1_706_659_200.0),
            ("2024-01-31 12:00", 1_706_702_400.0),
            ("2024-01-31T12:00:03Z", 1_706_702_403.0),
            ("2024-01-31T12:00:03.250z", 1_706_702_403.25),
            ("2024-01-31 12:00 +01:00", 1_706_698_800.0),
            ("2024-01-31T12:00:00-0530", 1_706_722_200.0),
            ("2000-02-29T00:00Z", 951_782_400.0),
        ];
        for (text, expected) in cases {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let cases = [
            "",
            "yesterday",
            "2024-1-31",
            "2024-02-30",
            "2023-02-29",
            "2024-13-01",
            "2024-01-31x",
            "2024-01-31 25:00",
            "2024-01-31 12",
            "2024-01-31 12:00:00:00",
            "2024-01-31 12:00:00.",
            "2024-01-31T12:00+25:00",
            "2024-01-3é 12:00",
        ];
        for text in cases {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn a_shown_time_is_read_back_as_the_same() {
        for micros in [0, 951_782_399_999_000, 1_706_702_403_250_000, 4_102_444_800_000_000] {
            let shown = show_micros(micros);
            let read = parse_time(&shown).unwrap().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(read.as_micros() as u64, micros, "{shown}");
        }
    }

    #[test]
    fn seconds_are_shown_with_the_offset_they_were_written_with() {
        assert_eq!(show_seconds(1_706_702_403, 60), "2024-01-31T13:00:03+01:00");
        assert_eq!(show_seconds(1_706_702_403, -330), "2024-01-31T06:30:03-05:30");
        assert_eq!(show_seconds(-1, 0), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn durations_are_shown_in_the_unit_that_fits() {
        for (millis, shown) in [(850, "850 ms"), (12_345, "12.3 s"), (200_000, "3 min 20 s"), (7_500_000, "2 h 05 min")]
        {
            assert_eq!(show_duration(Duration::from_millis(millis)), shown);
        }
    }
}
