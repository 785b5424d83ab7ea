//! Reads JSON (RFC 8259) as slices of its text.

use std::borrow::Cow;

/// The deepest nesting; deeper texts are not merged.
const DEPTH_MAX: usize = 128;

/// A text that is valid JSON.
#[derive(Clone, Copy)]
pub(super) struct Document<'a> {
    pub(super) whole: &'a [u8],
    /// The value of the text, without the white space around it.
    pub(super) value: &'a [u8],
    /// The number of fields and elements in it.
    pub(super) elements: u64,
}

impl<'a> Document<'a> {
    /// The white space before and after the value.
    pub(super) fn around(&self) -> (&'a [u8], &'a [u8]) {
        let at = self.whole.len() - self.whole.trim_ascii_start().len();
        (&self.whole[..at], &self.whole[at + self.value.len()..])
    }
}

/// The white space of an object or array, between its first items.
#[derive(Clone, Copy, Default)]
pub(super) struct Spaces<'a> {
    pub(super) open: &'a [u8],
    /// After a comma.
    pub(super) comma: &'a [u8],
    /// Between a name and its value, with the colon.
    pub(super) colon: &'a [u8],
    pub(super) close: &'a [u8],
}

/// A field of an object, or an element of an array.
pub(super) struct Element<'a> {
    /// The name as it is written; empty in an array.
    pub(super) name: &'a [u8],
    /// The decoded name.
    pub(super) key: Cow<'a, [u8]>,
    pub(super) value: &'a [u8],
}

/// An object or array.
#[derive(Default)]
pub(super) struct List<'a> {
    pub(super) elements: Vec<Element<'a>>,
    pub(super) spaces: Spaces<'a>,
}

/// Checks a text; `None` if it is not JSON, or nested too deeply.
pub(super) fn document(whole: &[u8]) -> Option<Document<'_>> {
    std::str::from_utf8(whole).ok()?;
    let mut cursor = Cursor { text: whole, at: 0, elements: 0 };
    cursor.skip_space();
    let begin = cursor.at;
    cursor.value(0)?;
    let value = &whole[begin..cursor.at];
    cursor.skip_space();
    (cursor.at == whole.len()).then_some(Document { whole, value, elements: cursor.elements })
}

/// The items of a valid object or array, which begins with `open`; `None` if it is another value,
/// or has a name twice.
pub(super) fn list(text: &[u8], open: u8) -> Option<List<'_>> {
    if text.first() != Some(&open) {
        return None;
    }
    let mut cursor = Cursor { text, at: 1, elements: 0 };
    let (mut list, mut comma) = (List::default(), None);
    list.spaces.open = cursor.skip_space();
    while !matches!(cursor.peek()?, b'}' | b']') {
        let begin = cursor.at;
        let (mut name, mut key) = (&[][..], Cow::Borrowed(&[][..]));
        if open == b'{' {
            cursor.string()?;
            name = &text[begin..cursor.at];
            key = decode(name);
            let colon = cursor.at;
            cursor.skip_space();
            cursor.expect(b':')?;
            cursor.skip_space();
            if list.elements.is_empty() {
                list.spaces.colon = &text[colon..cursor.at];
            }
        }
        let begin = cursor.at;
        cursor.value(0)?;
        list.elements.push(Element { name, key, value: &text[begin..cursor.at] });
        list.spaces.close = cursor.skip_space();
        if cursor.peek()? == b',' {
            cursor.at += 1;
            let space = cursor.skip_space();
            comma.get_or_insert(space);
        }
    }
    list.spaces.comma = comma.unwrap_or(list.spaces.open);
    if open == b'{' {
        let mut keys: Vec<&[u8]> = list.elements.iter().map(|field| &*field.key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
    }
    Some(list)
}

/// A digest of a value, the same for equal values. It does not depend on white space, escapes in
/// strings, or the order of fields.
pub(super) type Digest = [u8; blake3::OUT_LEN];

/// The digests of all values in some texts, so that each value is read once, however deep it is.
pub(super) struct Digests(Vec<(usize, Digest)>);

impl Digests {
    pub(super) fn new(documents: &[Document<'_>]) -> Self {
        let values = documents.iter().map(|document| document.elements as usize + 1).sum();
        let mut all = Vec::with_capacity(values);
        for Document { value, .. } in documents {
            Cursor { text: value, at: 0, elements: 0 }.digest(&mut all);
        }
        all.sort_unstable();
        Self(all)
    }

    /// The digest of a value, which is a part of one of the texts.
    pub(super) fn of(&self, value: &[u8]) -> &Digest {
        let address = value.as_ptr().addr();
        let place = self.0.partition_point(|(other, _)| *other < address);
        &self.0[place].1
    }
}

/// The digest of the parts of a value. `kind` is a byte for each kind of value.
fn hash(kind: u8, parts: &[u8]) -> Digest {
    blake3::Hasher::new().update(&[kind]).update(parts).finalize().into()
}

/// The bytes of a string in quotes, with its escapes replaced. A surrogate without its other half
/// has the three bytes that UTF-8 would have for it.
fn decode(quoted: &[u8]) -> Cow<'_, [u8]> {
    let text = &quoted[1..quoted.len() - 1];
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let unit = |at: usize| -> Option<u32> {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte != b'\\' {
            decoded.push(byte);
            at += 1;
            continue;
        }
        if let Some(first) = unit(at) {
            let second = unit(at + 6).filter(|it| (0xdc00..0xe000).contains(it));
            at += 6;
            let code = match second.filter(|_| (0xd800..0xdc00).contains(&first)) {
                Some(second) => {
                    at += 6;
                    0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                }
                None => first,
            };
            match char::from_u32(code) {
                Some(char) => {
                    decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                }
                None => {
                    let six = |shift: u32| 0x80 | ((code >> shift) & 0x3f) as u8;
                    decoded.extend_from_slice(&[0xe0 | (code >> 12) as u8, six(6), six(0)]);
                }
            }
            continue;
        }
        decoded.push(match text.get(at + 1) {
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(other) => *other,
            None => break,
        });
        at += 2;
    }
    Cow::Owned(decoded)
}

/// A place in a text.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    /// The fields and elements that were passed.
    elements: u64,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_while(&mut self, is_wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let begin = self.at;
        while self.peek().is_some_and(&is_wanted) {
            self.at += 1;
        }
        &self.text[begin..self.at]
    }

    fn skip_space(&mut self) -> &'a [u8] {
        self.skip_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
    }

    /// Passes a value; `None` if there is none.
    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'{' => self.items(depth, b'}'),
            b'[' => self.items(depth, b']'),
            b'"' => self.string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn items(&mut self, depth: usize, close: u8) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.skip_space();
        if self.peek()? == close {
            self.at += 1;
            return Some(());
        }
        loop {
            self.elements += 1;
            if close == b'}' {
                self.string()?;
                self.skip_space();
                self.expect(b':')?;
                self.skip_space();
            }
            self.value(depth + 1)?;
            self.skip_space();
            if self.peek()? == close {
                self.at += 1;
                return Some(());
            }
            self.expect(b',')?;
            self.skip_space();
        }
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            self.skip_while(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
            match self.peek()? {
                b'"' => return self.expect(b'"'),
                b'\\' => match self.text.get(self.at + 1)? {
                    b'u' => {
                        let digits = self.text.get(self.at + 2..self.at + 6)?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return None;
                        }
                        self.at += 6;
                    }
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let is_digit = |byte: u8| byte.is_ascii_digit();
        let _ = self.expect(b'-');
        match self.peek()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => _ = self.skip_while(is_digit),
            _ => return None,
        }
        if self.expect(b'.').is_some() && self.skip_while(is_digit).is_empty() {
            return None;
        }
        if self.expect(b'e').or_else(|| self.expect(b'E')).is_some() {
            let _ = self.expect(b'+').or_else(|| self.expect(b'-'));
            if self.skip_while(is_digit).is_empty() {
                return None;
            }
        }
        Some(())
    }

    /// Passes a valid value, and adds the digests of all values in it, each with its address.
    fn digest(&mut self, all: &mut Vec<(usize, Digest)>) -> Digest {
        let begin = self.at;
        let digest = match self.peek() {
            Some(b'"') => self.digest_string(),
            Some(open @ (b'{' | b'[')) => self.digest_items(open, all),
            _ => {
                let _ = self.value(0);
                hash(b'0', &self.text[begin..self.at])
            }
        };
        all.push((self.text[begin..].as_ptr().addr(), digest));
        digest
    }

    fn digest_items(&mut self, open: u8, all: &mut Vec<(usize, Digest)>) -> Digest {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        while !matches!(self.peek(), None | Some(b'}' | b']')) {
            items.push(if open == b'{' {
                let name = self.digest_string();
                self.skip_space();
                let _ = self.expect(b':');
                self.skip_space();
                hash(b':', [name, self.digest(all)].as_flattened())
            } else {
                self.digest(all)
            });
            self.skip_space();
            let _ = self.expect(b',');
            self.skip_space();
        }
        self.at += 1;
        if open == b'{' {
            items.sort_unstable();
        }
        hash(open, items.as_flattened())
    }

    fn digest_string(&mut self) -> Digest {
        let begin = self.at;
        let _ = self.string();
        hash(b'"', &decode(&self.text[begin..self.at]))
    }
}
