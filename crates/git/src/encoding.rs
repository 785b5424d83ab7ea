//! The encoding of a commit's text: an `iconv` name in the commit, or UTF-8.

use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE};

/// Names of `iconv` that the WHATWG standard, which `encoding_rs` implements, lacks.
const ALIASES: [(&str, &str); 8] = [
    ("cp932", "shift_jis"),
    ("cp936", "gbk"),
    ("cp949", "euc-kr"),
    ("cp950", "big5"),
    ("eucjp", "euc-jp"),
    ("euckr", "euc-kr"),
    ("latin-9", "iso-8859-15"),
    ("latin9", "iso-8859-15"),
];

/// A method to decode the text of a commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TextEncoding {
    /// Each byte is the code point of the same number. The WHATWG standard maps ISO 8859-1 to
    /// windows-1252; git does not.
    Latin1,
    Other(&'static Encoding),
}

impl TextEncoding {
    pub(crate) const UTF_8: Self = Self::Other(UTF_8);

    /// The encoding with this name; UTF-8 if the name is unknown, which preserves ASCII.
    pub(crate) fn named(name: &[u8]) -> Self {
        let name = name.trim_ascii().to_ascii_lowercase();
        if matches!(
            &*name,
            b"iso-8859-1" | b"iso8859-1" | b"iso_8859-1" | b"latin1" | b"latin-1" | b"l1"
        ) {
            return Self::Latin1;
        }
        let alias = ALIASES.iter().find(|(alias, _)| alias.as_bytes() == name);
        let label = alias.map_or(&*name, |(_, label)| label.as_bytes());
        // A commit cannot be in UTF-16, because a zero byte ends it.
        let known = Encoding::for_label(label)
            .filter(|found| ![REPLACEMENT, UTF_16BE, UTF_16LE].contains(found));
        Self::Other(known.unwrap_or(UTF_8))
    }

    /// Decodes text; returns `false` if bytes are invalid. Invalid bytes become U+FFFD.
    pub(crate) fn decode(self, bytes: &[u8]) -> (String, bool) {
        match self {
            Self::Latin1 => (bytes.iter().copied().map(char::from).collect(), true),
            Self::Other(encoding) => {
                let (text, has_errors) = encoding.decode_without_bom_handling(bytes);
                (text.into_owned(), !has_errors)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iconv_names_are_known() {
        let decoded = |name: &str, bytes: &[u8]| TextEncoding::named(name.as_bytes()).decode(bytes);
        let cases: [(&str, &[u8], &str); 10] = [
            ("UTF8", "é".as_bytes(), "é"),
            ("latin-1", b"\x80\xe9", "\u{80}é"),
            ("ISO8859-15", b"\xa4", "€"),
            ("CP1252", b"\x80", "€"),
            ("KOI8-R", b"\xf0", "П"),
            ("CP932", b"\x93\xfa", "日"),
            ("EUC-JP", b"\xc6\xfc", "日"),
            ("ISO-2022-JP", b"\x1b$BF|\x1b(B", "日"),
            ("GB18030", b"\xba\xba", "汉"),
            ("big5", b"\xa4\xe9", "日"),
        ];
        for (name, bytes, text) in cases {
            assert_eq!(decoded(name, bytes), (text.to_owned(), true), "{name}");
        }
    }

    #[test]
    fn unknown_encoding_reports_non_utf8_bytes() {
        for name in ["", "x-own", "utf-16", "iso-2022-kr"] {
            let encoding = TextEncoding::named(name.as_bytes());
            assert_eq!(encoding.decode("é".as_bytes()), ("é".to_owned(), true), "{name}");
            assert_eq!(encoding.decode(b"a\xe9"), ("a\u{fffd}".to_owned(), false), "{name}");
        }
    }
}
