//! Numbers in readable form.

/// A rate with three digits and a unit of a thousand or a million.
pub(super) fn short(rate: f64) -> String {
    match rate {
        r if r >= 999_500.0 => format!("{} M", digits(r / 1e6)),
        r if r >= 999.5 => format!("{} k", digits(r / 1e3)),
        r => digits(r),
    }
}

fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A time that is given in nanoseconds.
pub(super) fn micros(nanos: f64) -> String {
    match nanos {
        n if n >= 1e9 => format!("{} s", digits(n / 1e9)),
        n if n >= 1e6 => format!("{} ms", digits(n / 1e6)),
        n if n >= 1e3 => format!("{} µs", digits(n / 1e3)),
        n => format!("{n:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        let shown = [0.123, 9.99, 42.0, 999.9, 1234.0, 456_789.0, 2_500_000.0].map(short);
        assert_eq!(shown, ["0.12", "9.99", "42.0", "1.00 k", "1.23 k", "457 k", "2.50 M"]);
        assert_eq!(
            [700.0, 1500.0, 2e6, 3e9].map(micros),
            ["700 ns", "1.50 µs", "2.00 ms", "3.00 s"]
        );
    }
}
