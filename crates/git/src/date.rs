//! The date of an author or committer: seconds since 1970 and a zone.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::Offset;

/// A date with its offset from UTC, written as RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) time: Timestamp,
    offset: Offset,
}

impl Date {
    /// Parses `1706702403 +0100`. Returns `None` if the seconds are missing or their year cannot be
    /// represented. Histories contain invalid zones (`+051800`, `--700`, `UTC`); git orders and
    /// shows such commits by their seconds, so an invalid zone is read as UTC.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_ascii();
        let digits = text.strip_prefix('-').unwrap_or(text);
        let end = text.len()
            - digits.trim_start_matches(|character: char| character.is_ascii_digit()).len();
        let time = Timestamp::from_second(text[..end].parse().ok()?).ok()?;
        let offset = offset(text[end..].trim_ascii())
            .filter(|&offset| has_year(time, offset))
            .unwrap_or(Offset::UTC);
        has_year(time, offset).then_some(Self { time, offset })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Offset::UTC => self.time.fmt(f),
            offset => self.time.display_with_offset(offset).fmt(f),
        }
    }
}

/// RFC 3339 years have four digits.
fn has_year(time: Timestamp, offset: Offset) -> bool {
    (0..=9999).contains(&offset.to_datetime(time).year())
}

/// Parses `+0530`: hours and minutes.
fn offset(zone: &str) -> Option<Offset> {
    let number = zone.parse().ok().filter(|number: &i32| (-2359..=2359).contains(number))?;
    let minutes = number / 100 * 60 + number % 100;
    Offset::from_seconds(minutes * 60).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_keeps_its_offset() {
        let written = |text: &str| Date::parse(text).map(|date| date.to_string());
        assert_eq!(written("1706702403 +0100").unwrap(), "2024-01-31T13:00:03+01:00");
        assert_eq!(written(" 1706702403 -0530").unwrap(), "2024-01-31T06:30:03-05:30");
        assert_eq!(written("-1").unwrap(), "1969-12-31T23:59:59Z");
        assert_eq!(written("1706702403+0100").unwrap(), "2024-01-31T13:00:03+01:00");
        for zone in ["+6000", "-2400", "+2147483647", "zone", "+01:00", ".5 +0100"] {
            assert_eq!(
                written(&format!("1706702403 {zone}")).unwrap(),
                "2024-01-31T12:00:03Z",
                "{zone}"
            );
        }
        // A second before the year 10000 in UTC; it is 10000 already in this zone.
        assert_eq!(written("253370764800 +0100").unwrap(), "9999-01-01T01:00:00+01:00");
        for broken in [
            "",
            "-",
            "x 1",
            "+0100",
            "253402300800 +0000",
            "9223372036854775807",
            "92233720368547758070",
        ] {
            assert_eq!(written(broken), None, "{broken}");
        }
    }
}
