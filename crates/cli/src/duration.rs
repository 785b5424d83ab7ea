//! Durations as people write them: `5s`, `500ms`, `10m`, `12h`, `7d`.

use std::time::Duration;

/// Reads a whole number and a unit: `ms`, `s`, `m`, `h`, `d` or `w`. A number without a unit is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let refusal = || format!("`{text}` is not a duration; write e.g. 500ms, 5s, 10m, 12h or 7d");
    let number: u64 = digits.parse().map_err(|_| refusal())?;
    let millis = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        _ => return Err(refusal()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(refusal)
}

/// As [`parse_duration`] reads it: exact to the millisecond, in the largest unit that leaves no rest.
pub(crate) fn write_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    match units.into_iter().find(|(_, unit)| millis > 0 && millis.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".to_owned(),
        None => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit_are_a_duration() {
        let cases = [
            ("500ms", 500),
            ("5s", 5000),
            ("5", 5000),
            ("2 m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("1w", 604_800_000),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_examples() {
        for text in ["", "s", "5 parsecs", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615w"] {
            assert!(parse_duration(text).unwrap_err().contains("e.g."), "{text}");
        }
    }
}
