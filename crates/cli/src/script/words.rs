//! Splits a line into words.
//!
//! ```text
//! put greeting 'hello world'      # a comment
//! put "tab\tand\x00byte" \x6fut
//! ```
//!
//! Invariant: every byte string can be written, and only a quoted word can be empty.

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) bytes: Vec<u8>,
    /// Begins with a quotation mark or a backslash, so it is neither an option nor a comment.
    pub(crate) quoted: bool,
}

impl Word {
    /// The word as text, for words other than keys and values.
    pub(super) fn text(&self) -> Result<&str, String> {
        std::str::from_utf8(&self.bytes)
            .map_err(|_| "only keys and values may hold bytes that are not text".to_owned())
    }
}

/// The words of a line, without its comment.
pub(crate) fn words(line: &[u8]) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        match rest.first() {
            None | Some(b'#') => return Ok(words),
            Some(&first) => {
                let mut bytes = Vec::new();
                rest = word(rest, &mut bytes)?;
                words.push(Word { bytes, quoted: matches!(first, b'\'' | b'"' | b'\\') });
            }
        }
    }
}

/// Reads one word into `into`; returns the rest of the line.
fn word<'a>(mut rest: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], String> {
    while let Some((&byte, behind)) = rest.split_first() {
        rest = match byte {
            byte if byte.is_ascii_whitespace() => return Ok(rest),
            b'\'' => single_quoted(behind, into)?,
            b'"' => double_quoted(behind, into)?,
            b'\\' => escape(behind, into)?,
            byte => {
                into.push(byte);
                behind
            }
        };
    }
    Ok(rest)
}

fn single_quoted<'a>(rest: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let end = rest.iter().position(|&byte| byte == b'\'').ok_or_else(|| unclosed('\''))?;
    into.extend_from_slice(&rest[..end]);
    Ok(&rest[end + 1..])
}

fn double_quoted<'a>(mut rest: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], String> {
    while let Some((&byte, behind)) = rest.split_first() {
        rest = match byte {
            b'"' => return Ok(behind),
            b'\\' => escape(behind, into)?,
            byte => {
                into.push(byte);
                behind
            }
        };
    }
    Err(unclosed('"'))
}

fn unclosed(mark: char) -> String {
    format!(
        "a {mark} is not closed on its line; a line break within a value is written as \\n in \
         double quotes"
    )
}

/// Reads the characters after a backslash.
fn escape<'a>(rest: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let Some((&byte, behind)) = rest.split_first() else {
        return Err(
            "a backslash at the end of a line has nothing to escape; write \\\\ for a backslash"
                .to_owned(),
        );
    };
    into.push(match byte {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'0' => 0,
        b'\\' | b'"' | b'\'' | b'#' | b'-' | b' ' => byte,
        b'x' => {
            let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let digits =
                digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            into.push(byte.ok_or("\\x needs two hexadecimal digits, e.g. \\x0a")?);
            return Ok(&behind[2..]);
        }
        other => {
            let other = char::from(other).escape_default();
            return Err(format!(
                "\\{other} is not an escape; write \\\\ for a backslash, or use single quotes"
            ));
        }
    });
    Ok(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(line: &str) -> Vec<Vec<u8>> {
        words(line.as_bytes()).unwrap().into_iter().map(|word| word.bytes).collect()
    }

    #[test]
    fn quotes_keep_blanks_in_words() {
        assert_eq!(bytes("put  a\tb"), [b"put", &b"a"[..], b"b"]);
        assert_eq!(bytes("put 'a b' \"c d\" e' 'f"), [b"put", &b"a b"[..], b"c d", b"e f"]);
        assert_eq!(bytes("put '' \"\""), [b"put", &b""[..], b""]);
        assert_eq!(bytes("'a\\n' \"it's\""), [&b"a\\n"[..], b"it's"]);
        assert_eq!(bytes(" \t "), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_backslash_writes_any_byte() {
        assert_eq!(
            bytes(r#"\n\t\r\0\\\"\'\#\-\  "\x00\xfF""#),
            [&b"\n\t\r\0\\\"'#- "[..], b"\x00\xff"]
        );
    }

    #[test]
    fn comment_starts_only_at_a_word_boundary() {
        assert_eq!(bytes("get a#b # c"), [b"get", &b"a#b"[..]]);
        assert_eq!(bytes("# get"), Vec::<Vec<u8>>::new());
        assert_eq!(bytes("get \\#a '#b'"), [b"get", &b"#a"[..], b"#b"]);
    }

    #[test]
    fn quoted_words_are_marked() {
        let quoted: Vec<bool> =
            words(b"--a '--b' \\--c d''").unwrap().iter().map(|word| word.quoted).collect();
        assert_eq!(quoted, [false, true, true, false]);
    }

    #[test]
    fn malformed_words_name_the_remedy() {
        for (line, part) in [
            ("'a", "not closed"),
            ("\"a", "not closed"),
            ("a\\", "\\\\"),
            ("\\x0", "two"),
            ("\\é", "\\\\"),
        ] {
            let refusal = words(line.as_bytes()).unwrap_err();
            assert!(refusal.contains(part), "{line}: {refusal}");
        }
        assert!(words(b"\\xg0").is_err() && words(b"\\x+1").is_err());
    }
}
