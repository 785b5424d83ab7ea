//! Writes values of any length in pieces: raw, as a field of a line, as JSON, or for a terminal.
//!
//! Whether a value is UTF-8 is known only at its end, so a value is read twice where that matters,
//! rather than held in memory.
//!
//! Invariant: a piece never ends inside a character, so text can be processed piece by piece.

use std::io::{self, Read};

use plimsoll::ValueReader;

use crate::bytes::{push_field, show_bytes};
use crate::exit::Failure;
use crate::output::Output;

/// Values longer than this are written in pieces even if they are in memory, because their escaped
/// form would take as much again outside the budget.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// Opens the same value on each call.
pub(crate) type OpenValue<'a> = &'a dyn Fn() -> Result<ValueReader, Failure>;

/// Writes the raw bytes.
pub(crate) fn write_raw(value: ValueReader, output: &mut Output) -> Result<(), Failure> {
    each_piece(value, |piece| output.raw(piece))
}

/// Writes a field of a tab-separated line.
pub(crate) fn write_field(value: impl Read, output: &mut Output) -> Result<(), Failure> {
    let mut field = Vec::new();
    each_piece(value, |piece| {
        field.clear();
        push_field(&mut field, piece);
        output.raw(&field)
    })
}

/// Writes a member of a JSON object: `"value":"…"`, or `"value_hex":"…"` if the value is not UTF-8.
pub(crate) fn write_json_member<R: Read>(
    open: &dyn Fn() -> Result<R, Failure>,
    output: &mut Output,
) -> Result<(), Failure> {
    if every_text(open()?, |_| true)? {
        output.raw(b"\"value\":\"")?;
        each_piece(open()?, |piece| {
            let json = serde_json::Value::from(String::from_utf8_lossy(piece)).to_string();
            output.raw(&json.as_bytes()[1..json.len() - 1])
        })?;
    } else {
        output.raw(b"\"value_hex\":\"")?;
        each_piece(open()?, |piece| output.raw(hex::encode(piece).as_bytes()))?;
    }
    output.raw(b"\"")
}

/// Writes the value for people: text as it is, other bytes escaped so that they cannot confuse a
/// terminal; ends with a line break.
pub(crate) fn write_for_people(open: OpenValue<'_>, output: &mut Output) -> Result<(), Failure> {
    let fits = |character: char| !character.is_control() || matches!(character, '\n' | '\t' | '\r');
    let plain = every_text(open()?, |text| text.chars().all(fits))?;
    let mut last = None;
    each_piece(open()?, |piece| {
        last = piece.last().copied();
        if plain { output.raw(piece) } else { output.raw(show_bytes(piece).as_bytes()) }
    })?;
    if plain && last == Some(b'\n') { Ok(()) } else { output.raw(b"\n") }
}

/// The first bytes of a value, at least `bytes` of them if it has that many.
pub(crate) fn beginning(value: ValueReader, bytes: usize) -> Result<Vec<u8>, Failure> {
    let mut beginning = Vec::with_capacity(bytes);
    value.take(bytes as u64).read_to_end(&mut beginning).map_err(unreadable)?;
    Ok(beginning)
}

/// Whether a value is UTF-8 and `holds` returns true for each piece of it.
fn every_text(value: impl Read, holds: impl Fn(&str) -> bool) -> Result<bool, Failure> {
    let mut all = true;
    each_piece(value, |piece| {
        all = all && std::str::from_utf8(piece).is_ok_and(&holds);
        Ok(())
    })?;
    Ok(all)
}

fn each_piece(
    mut value: impl Read,
    mut visit: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut held = 0;
    loop {
        let read = value.read(&mut piece[held..]).map_err(unreadable)?;
        let filled = held + read;
        // At the end of the value, an incomplete character stays incomplete.
        held = if read == 0 { 0 } else { unfinished(&piece[..filled]) };
        if filled > held {
            visit(&piece[..filled - held])?;
        }
        if read == 0 {
            return Ok(());
        }
        piece.copy_within(filled - held..filled, 0);
    }
}

/// The number of bytes of an incomplete character at the end.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let wanted = match bytes[bytes.len() - back] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if wanted > back { back } else { 0 };
    }
    0
}

/// The store's error if a read failed midway, with its exit code.
fn unreadable(error: io::Error) -> Failure {
    match error.downcast::<plimsoll::Error>() {
        Ok(error) => error.into(),
        Err(error) => Failure::system(format!("cannot read the value: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let bytes = self.1.min(into.len());
            self.0.read(&mut into[..bytes])
        }
    }

    #[test]
    fn pieces_keep_characters_whole() {
        let text = "aé€😀".repeat(50);
        for bytes in 1..9 {
            let mut joined = String::new();
            each_piece(Slow(text.as_bytes(), bytes), |piece| {
                joined.push_str(std::str::from_utf8(piece).unwrap());
                Ok(())
            })
            .unwrap();
            assert_eq!(joined, text);
        }
    }

    #[test]
    fn non_utf8_bytes_are_kept_and_detected() {
        for wrong in [&b"a\xff"[..], b"\xe2\x82", b"\x80\x80\x80\x80", b"ab\xf0\x9f\x98"] {
            for bytes in 1..5 {
                let mut joined = Vec::new();
                each_piece(Slow(wrong, bytes), |piece| {
                    joined.extend_from_slice(piece);
                    Ok(())
                })
                .unwrap();
                assert_eq!(joined, wrong);
                assert!(!every_text(Slow(wrong, bytes), |_| true).unwrap());
            }
        }
    }
}
