//! Sizes in bytes, as people write them.

/// Reads `64MiB`, `4GiB`, `512KiB` or plain bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("no unit {other:?}: write KiB, MiB, GiB or nothing")),
    };
    let count: u64 =
        digits.parse().map_err(|_| format!("{text:?} is no size: write for example 64MiB"))?;
    count.checked_mul(unit).ok_or_else(|| format!("{text} is too much"))
}

/// Writes a size the way [`parse_size`] reads it.
pub(crate) fn show_size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        n if n.is_multiple_of(1 << 30) => format!("{}GiB", n >> 30),
        n if n.is_multiple_of(1 << 20) => format!("{}MiB", n >> 20),
        n if n.is_multiple_of(1 << 10) => format!("{}KiB", n >> 10),
        n => n.to_string(),
    }
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_sizes_parse_back() {
        for bytes in [0, 1, 1000, 4096, 64 << 20, 3 << 30, (1 << 30) + 1] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
        for wrong in ["", "MiB", "64MB", "-1", "99999999999GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
