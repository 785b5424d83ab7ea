//! The text format of operations.
//!
//! ```text
//! put t0 s1 =a/01 1024#77          transaction 0, keyspace 1, key "a/01", 1024 bytes of seed 77
//! walk v2 s0 [a )b rev 10 values   snapshot 2, "b" (excluded) down to "a" (included), ten at most
//! ```
//! A sign before a key gives its role (`=` a key, `[` `(` `]` `)` an edge, `^` a prefix). A
//! non-printable byte is `%` and two hex digits, and a repeated byte is `{61*4000}`. A line that
//! begins with `#` is a comment.

mod parse;
mod print;
mod within;

use std::fmt::Write;

use crate::op::Op;

/// Formats a workload, one operation per line.
pub fn print(ops: &[Op]) -> String {
    ops.iter().fold(String::new(), |mut text, op| {
        let _ = writeln!(text, "{op}");
        text
    })
}

/// Parses a workload; an error names the line.
pub fn parse(text: &str) -> Result<Vec<Op>, String> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            line.parse().map_err(|error| format!("line {number}: {error}: {line}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::generate::{Profile, generate};

    #[test]
    fn generated_workload_round_trips_through_its_text() {
        for profile in Profile::ALL {
            for seed in 0..12 {
                let ops = generate(seed, &profile.settings().of_seed(seed), 1000);
                assert_eq!(parse(&print(&ops)).unwrap(), ops);
            }
        }
    }

    #[test]
    fn keys_of_any_bytes_round_trip() {
        let keys: [&[u8]; 6] = [
            b"",
            b"plain/01",
            b"with space",
            &[0, 255, b'%', b'{', b'#'],
            &[b'x'; 4096],
            "ä".as_bytes(),
        ];
        for key in keys {
            let op = Op::Delete { tx: 1, space: 2, key: key.to_vec() };
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }

    #[test]
    fn invalid_line_is_rejected_with_its_number() {
        let refusal = parse("# a comment\nbegin t0\n\nput t0 s0 =a 12").unwrap_err();
        assert!(refusal.starts_with("line 4: ") && refusal.contains("BYTES#SEED"), "{refusal}");
        for line in [
            "dance",
            "begin",
            "begin x1",
            "wait now",
            "get q1 s0 =a",
            "walk t0 s0 a b fwd 1 values",
            "delete t0 s0 =%g0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
