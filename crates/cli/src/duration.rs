//! Durations as people write them: `5s`, `500ms`, `10m`, `12h`, `7d`.

use std::time::Duration;

/// Parses a whole number and a unit: `us`, `ms`, `s`, `m`, `h`, `d` or `w`. Without a unit, the
/// number is in seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let refusal = || format!("`{text}` is not a duration; write e.g. 500ms, 5s, 10m, 12h or 7d");
    let number: u64 = digits.parse().map_err(|_| refusal())?;
    let micros = match unit.trim() {
        "us" => 1,
        "ms" => 1000,
        "" | "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        "w" => 7 * 86_400_000_000,
        _ => return Err(refusal()),
    };
    number.checked_mul(micros).map(Duration::from_micros).ok_or_else(refusal)
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
    fn malformed_duration_is_refused_with_examples() {
        for text in
            ["", "s", "5 parsecs", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615w"]
        {
            assert!(parse_duration(text).unwrap_err().contains("e.g."), "{text}");
        }
    }
}
