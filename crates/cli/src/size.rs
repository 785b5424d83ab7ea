//! Sizes and counts for people: `64MiB` to bytes, bytes to `64.0 MiB`, and counts with thousands
//! separators.

use bytesize::Unit;
use indicatif::HumanCount;

/// Parses a size in bytes: a whole number and a unit (`B`, `K`/`KiB`, `M`/`MiB`, `G`/`GiB`,
/// `T`/`TiB`; `KB`, `MB`, `GB`, `TB` are powers of 1000). Case does not matter.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write e.g. 64MiB or 1GiB"))?;
    let factor = factor_of(unit.trim())
        .ok_or_else(|| format!("`{unit}` is not a unit; use KiB, MiB, GiB or TiB"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("`{text}` is more bytes than a 64-bit number holds"))
}

fn factor_of(unit: &str) -> Option<u64> {
    let unit = match unit {
        "" => "B".to_owned(),
        // A single letter is a power of 1024 here, but a power of 1000 in `bytesize`.
        _ if unit.len() == 1 && !unit.eq_ignore_ascii_case("B") => format!("{unit}iB"),
        _ => unit.to_owned(),
    };
    unit.parse::<Unit>().ok().map(|unit| unit * 1_u64)
}

/// A size in bytes for people: `512 B`, `1.5 KiB`, `64.0 MiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1023.95 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// A count for people: `1,234,567`.
pub(crate) fn show_count(count: u64) -> String {
    HumanCount(count).to_string()
}

/// `1 row`, `2 rows`.
pub(crate) fn count_of(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", show_count(count), if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        let cases = [
            ("0", 0),
            ("500", 500),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("64M", 64 << 20),
            ("64MB", 64_000_000),
            ("2g", 2 << 30),
            ("512 B", 512),
            ("1kb", 1000),
            ("1K", 1024),
            ("1TiB", 1 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_size_is_refused_with_a_reason() {
        for (text, part) in [
            ("", "not a size"),
            ("MiB", "not a size"),
            ("-1", "not a size"),
            ("1.5G", "not a unit"),
            ("1é", "not a unit"),
        ] {
            assert!(parse_size(text).unwrap_err().contains(part), "{text}");
        }
        assert!(parse_size("99999999999TiB").unwrap_err().contains("64-bit"));
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (64 << 20, "64.0 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(show_size(bytes), shown);
        }
    }

    #[test]
    fn counts_have_thousands_separators() {
        for (count, shown) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(show_count(count), shown);
        }
    }
}
