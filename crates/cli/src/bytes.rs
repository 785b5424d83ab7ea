//! Keys and values as text: escaped for people, escaped for lines, hexadecimal, and JSON.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt;

use serde_json::{Map, Value};

/// Turns a key of the command line into its bytes.
pub(crate) fn key_bytes(text: OsString, hex: bool) -> Result<Vec<u8>, String> {
    if hex { parse_hex(&text.to_string_lossy()) } else { Ok(text.into_vec()) }
}

/// Reads pairs of hexadecimal digits.
pub(crate) fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|_| {
        format!("`{text}` is not hexadecimal: write two digits (0-9, a-f) for each byte")
    })
}

/// Escapes bytes for one line of a terminal: text stays as it is; control characters and bytes that
/// are not UTF-8 become escapes.
pub(crate) fn show_bytes(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_character(&mut shown, character);
        }
        push_hex(&mut shown, chunk.invalid());
    }
    shown
}

/// A key as a word of `batch` and `shell`, which parse it back to the same bytes.
pub(crate) fn show_key(key: &[u8], hex: bool) -> String {
    if hex {
        return hex::encode(key);
    }
    if key.is_empty() {
        return "\"\"".to_owned();
    }
    let mut shown = String::with_capacity(key.len());
    if key.starts_with(b"#") || key.starts_with(b"--") {
        shown.push('\\');
    }
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            if matches!(character, ' ' | '"' | '\'') {
                shown.push('\\');
                shown.push(character);
            } else {
                push_character(&mut shown, character);
            }
        }
        push_hex(&mut shown, chunk.invalid());
    }
    shown
}

/// Appends a character; escapes control characters and the backslash.
fn push_character(shown: &mut String, character: char) {
    match character {
        '\\' => shown.push_str("\\\\"),
        '\n' => shown.push_str("\\n"),
        '\t' => shown.push_str("\\t"),
        '\r' => shown.push_str("\\r"),
        other if other.is_control() => push_hex(shown, other.encode_utf8(&mut [0; 4]).as_bytes()),
        other => shown.push(other),
    }
}

fn push_hex(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(shown, "\\x{byte:02x}");
    }
}

/// The beginning of a value of `bytes` bytes for one line of a terminal, followed by its size if
/// the value is truncated.
pub(crate) fn preview(beginning: &[u8], bytes: u64, characters_max: usize) -> String {
    // A character is up to four bytes, so this many always fill the line.
    let head = &beginning[..beginning.len().min(characters_max * 4)];
    let shown = show_bytes(head);
    if head.len() as u64 == bytes && shown.chars().count() <= characters_max {
        return shown;
    }
    let size = crate::size::show_size(bytes);
    let kept: String = shown.chars().take(characters_max.saturating_sub(size.len() + 4)).collect();
    format!("{kept}… ({size})")
}

/// Truncates a line of a terminal that is too long.
pub(crate) fn shorten(shown: &str, characters_max: usize) -> String {
    if shown.chars().count() <= characters_max {
        return shown.to_owned();
    }
    let kept: String = shown.chars().take(characters_max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Appends a field of tab-separated output: escapes tab, line breaks and backslash as `\t`, `\n`,
/// `\r`, `\\`, and keeps all other bytes.
pub(crate) fn push_field(line: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'\t' => line.extend_from_slice(b"\\t"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\\' => line.extend_from_slice(b"\\\\"),
            other => line.push(other),
        }
    }
}

/// Adds bytes to a JSON object: as `name` if they are UTF-8, otherwise as `name_hex`.
pub(crate) fn put_json(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), hex::encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_accepts_either_case() {
        assert_eq!(parse_hex("00ffA1"), Ok(vec![0, 255, 161]));
        for wrong in ["0", "0g", "é1", "+1"] {
            assert!(parse_hex(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shown_bytes_have_no_control_characters() {
        assert_eq!(show_bytes(b"a\tb\n\x1b[31m\xff\\ \xc3\xa9"), "a\\tb\\n\\x1b[31m\\xff\\\\ é");
    }

    #[test]
    fn preview_fits_and_shows_total_size() {
        assert_eq!(preview(b"short", 5, 20), "short");
        assert_eq!(preview(&[b'x'; 80], 100, 20), "xxxxxxxxxxx… (100 B)");
        assert!(preview(&[0xff; 1000], 1000, 20).chars().count() <= 22);
    }

    #[test]
    fn long_text_is_truncated() {
        assert_eq!(shorten("a subject", 9), "a subject");
        assert_eq!(shorten("a subject", 8), "a subje…");
        assert_eq!(shorten("a subject", 3), "a…");
    }

    #[test]
    fn field_escapes_line_breaks() {
        let mut line = Vec::new();
        push_field(&mut line, b"a\tb\nc\rd\\e\xff");
        assert_eq!(line, b"a\\tb\\nc\\rd\\\\e\xff");
    }
}
