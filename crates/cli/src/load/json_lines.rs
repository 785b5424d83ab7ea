//! Rows of JSON lines: one object per line. One field is the key; another field or all others are
//! the value.
//!
//! A field whose bytes are not text is written as `NAME_hex`, as `dump --json` and `scan --json`
//! do.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Problem, Rows};

/// Rows of JSON lines.
pub(crate) struct JsonLines<R> {
    input: R,
    key: String,
    value: Option<String>,
    row_bytes_max: usize,
    line: u64,
    /// Whether the last call failed within a line. The next call skips the rest of the line; the
    /// failed one does not, because the rest may be slow to arrive.
    is_within_line: bool,
    buffer: Vec<u8>,
}

impl<R: BufRead> JsonLines<R> {
    pub(crate) fn new(input: R, key: &str, value: Option<&str>, row_bytes_max: usize) -> Self {
        let (key, value) = (key.to_owned(), value.map(str::to_owned));
        Self {
            input,
            key,
            value,
            row_bytes_max,
            line: 0,
            is_within_line: false,
            buffer: Vec::new(),
        }
    }

    /// Reads the next non-blank line; false at the end.
    fn read_line(&mut self) -> Result<bool, Problem> {
        if std::mem::take(&mut self.is_within_line) {
            self.input.skip_until(b'\n').map_err(|error| Problem::unreadable(&error))?;
        }
        loop {
            self.buffer.clear();
            self.buffer.shrink_to(64 * 1024);
            let limit = (self.row_bytes_max as u64).saturating_add(1);
            let read = io::Read::take(&mut self.input, limit).read_until(b'\n', &mut self.buffer);
            if read.map_err(|error| Problem::unreadable(&error))? == 0 {
                return Ok(false);
            }
            self.line += 1;
            if self.buffer.len() > self.row_bytes_max {
                self.is_within_line = !self.buffer.ends_with(b"\n");
                return Err(Problem {
                    is_of_one_row: true,
                    ..Problem::too_long(self.line, self.row_bytes_max, "")
                });
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn parse(&self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<(), String> {
        let line =
            std::str::from_utf8(&self.buffer).map_err(|_| "the line is not UTF-8".to_owned())?;
        let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim_end();
        let Fields(fields) =
            serde_json::from_str(line).map_err(|error| not_an_object(line, &error))?;
        let find = |wanted: &str| {
            let mut found = fields.iter().filter(|(name, _)| name == wanted);
            match (found.next(), found.next()) {
                (Some((_, value)), None) => Ok(value.get()),
                (Some(_), Some(_)) => Err(format!("the object has two fields `{wanted}`")),
                (None, _) => Err(format!("the object has no field `{wanted}`")),
            }
        };
        let has = |wanted: &str| fields.iter().any(|(name, _)| name == wanted);
        // The field itself, or the one with its bytes in hexadecimal.
        let field_of = |wanted: &str| {
            let hex = format!("{wanted}_hex");
            if has(&hex) && !has(wanted) { (hex, true) } else { (wanted.to_owned(), false) }
        };
        let (key_field, is_hex) = field_of(&self.key);
        let json = find(&key_field)?;
        if json == "null" || json.starts_with(['{', '[']) {
            return Err(format!(
                "field `{}` is not a key: a key is a text, a number, true or false",
                self.key
            ));
        }
        key.extend_from_slice(&bytes_of(&key_field, json, is_hex)?);
        match self.value.as_deref().map(field_of) {
            Some((field, is_hex)) => {
                value.extend_from_slice(&bytes_of(&field, find(&field)?, is_hex)?);
            }
            None => push_rest(&fields, &key_field, value),
        }
        Ok(())
    }
}

impl<R: BufRead> Rows for JsonLines<R> {
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Option<u64>, Problem> {
        if !self.read_line()? {
            return Ok(None);
        }
        key.clear();
        value.clear();
        self.parse(key, value).map_err(|message| Problem::of_row(self.line, message))?;
        Ok(Some(self.line))
    }
}

/// The bytes of a field, which holds them as text or in hexadecimal.
fn bytes_of<'a>(field: &str, json: &'a str, is_hex: bool) -> Result<Cow<'a, [u8]>, String> {
    let text = text_of(field, json)?;
    if !is_hex {
        return Ok(text);
    }
    match hex::decode(&*text) {
        Ok(bytes) if json.starts_with('"') => Ok(Cow::Owned(bytes)),
        _ => Err(format!(
            "field `{field}` is not hexadecimal: write two digits (0-9, a-f) for each byte"
        )),
    }
}

/// A string without its quotation marks; any other value as written. A lone surrogate is valid JSON
/// but not text.
fn text_of<'a>(field: &str, json: &'a str) -> Result<Cow<'a, [u8]>, String> {
    if !json.starts_with('"') {
        return Ok(Cow::Borrowed(json.as_bytes()));
    }
    let text = serde_json::from_str::<String>(json);
    text.map(|text| Cow::Owned(text.into_bytes())).map_err(|_| {
        format!("field `{field}` is not text: it has a lone surrogate (\\ud800 to \\udfff)")
    })
}

/// Appends an object with all fields but the key, as written and in their order.
fn push_rest(fields: &[(Cow<'_, str>, &RawValue)], key: &str, value: &mut Vec<u8>) {
    value.push(b'{');
    for (name, field) in fields.iter().filter(|(name, _)| name != key) {
        if value.len() > 1 {
            value.push(b',');
        }
        serde_json::to_writer(&mut *value, name).expect("text is always JSON, and memory takes it");
        value.push(b':');
        value.extend_from_slice(field.get().as_bytes());
    }
    value.push(b'}');
}

/// The fields of an object in their order. Their values are not parsed, because that would take
/// many times the line's memory.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A field's name, borrowed from the line unless it holds escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Describes the error; the parser sees a single line and calls it line 1.
fn not_an_object(line: &str, error: &serde_json::Error) -> String {
    if line.trim_start().starts_with('[') {
        return "not a JSON object: an array begins here; each line must be one object".to_owned();
    }
    if error.is_data() {
        return "not a JSON object but another value; each line must be one object".to_owned();
    }
    let message = error.to_string();
    format!("not a JSON object: {}", message.replacen("at line 1 column", "at column", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, value: Option<&str>) -> Result<Vec<(u64, String, String)>, Problem> {
        let mut rows = JsonLines::new(text.as_bytes(), "id", value, 4 << 20);
        let (mut key, mut value, mut all) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(line) = rows.next(&mut key, &mut value)? {
            all.push((
                line,
                String::from_utf8(key.clone()).unwrap(),
                String::from_utf8(value.clone()).unwrap(),
            ));
        }
        Ok(all)
    }

    fn row(line: u64, key: &str, value: &str) -> (u64, String, String) {
        (line, key.to_owned(), value.to_owned())
    }

    #[test]
    fn other_fields_are_kept_as_written() {
        let text =
            "{\"id\":\"a\\n\",\"x\":1.50,\"y\\u0041\":{\"z\": [1, 2]}}\n\n  {\"n\":null, \"id\":7}";
        let expected =
            vec![row(1, "a\n", r#"{"x":1.50,"yA":{"z": [1, 2]}}"#), row(3, "7", r#"{"n":null}"#)];
        assert_eq!(read(text, None).unwrap(), expected);
    }

    #[test]
    fn a_field_can_be_the_value() {
        let text = "{\"id\":1,\"v\":\"tëxt\"}\n{\"id\":2,\"v\":[1]}\n";
        assert_eq!(read(text, Some("v")).unwrap(), [row(1, "1", "tëxt"), row(2, "2", "[1]")]);
    }

    #[test]
    fn bytes_that_are_not_text_are_read_from_hexadecimal_fields() {
        let text = "{\"id_hex\":\"00ff\",\"v_hex\":\"FE\"}\n{\"id\":\"a\",\"v\":\"\"}\n";
        let mut rows = JsonLines::new(text.as_bytes(), "id", Some("v"), 4 << 20);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        rows.next(&mut key, &mut value).unwrap();
        assert_eq!((&key[..], &value[..]), (&b"\x00\xff"[..], &b"\xfe"[..]));
        rows.next(&mut key, &mut value).unwrap();
        assert_eq!((&key[..], &value[..]), (&b"a"[..], &b""[..]));
        let refused = [
            (r#"{"id_hex":"0","v":1}"#, "not hexadecimal"),
            (r#"{"id_hex":12,"v":1}"#, "not hexadecimal"),
            (r#"{"id":1,"v_hex":"xx"}"#, "not hexadecimal"),
        ];
        for (text, part) in refused {
            let problem = read(text, Some("v")).unwrap_err();
            assert!(problem.message.contains(part), "{}", problem.message);
        }
    }

    #[test]
    fn a_field_itself_comes_before_the_one_in_hexadecimal() {
        let both = r#"{"id":1,"id_hex":"00","v":"a","v_hex":"00"}"#;
        assert_eq!(read(both, Some("v")).unwrap(), [row(1, "1", "a")]);
    }

    #[test]
    fn ambiguous_value_field_is_refused() {
        let surrogate = r#"{"id":1,"v":"\udc00"}"#;
        let twice = r#"{"id":1,"v":1,"v":2}"#;
        assert!(read(surrogate, Some("v")).unwrap_err().message.contains("field `v` is not text"));
        assert!(read(twice, Some("v")).unwrap_err().message.contains("two fields `v`"));
        assert_eq!(read(surrogate, None).unwrap(), [row(1, "1", r#"{"v":"\udc00"}"#)]);
        assert_eq!(read(twice, None).unwrap(), [row(1, "1", r#"{"v":1,"v":2}"#)]);
    }

    #[test]
    fn problems_name_their_line() {
        let cases = [
            (
                "{\"id\":1}\n{\"id\":2\n",
                2,
                "not a JSON object: EOF while parsing an object at column",
            ),
            ("[1]\n", 1, "not a JSON object: an array begins here"),
            ("[\n", 1, "not a JSON object: an array begins here"),
            ("{\"id\":1}\n7\n", 2, "not a JSON object but another value; each"),
            ("{\"x\":1}\n", 1, "no field `id`"),
            ("{\"id\":null}\n", 1, "is not a key"),
            ("{\"id\":{}}\n", 1, "is not a key"),
            ("{\"id\":1}\n{\"id\":\"\\ud83d\"}\n", 2, "field `id` is not text"),
            ("{\"id\":1,\"id\":2}\n", 1, "two fields `id`"),
            ("\n{\"id\":1} x\n", 2, "not a JSON object"),
        ];
        for (text, line, part) in cases {
            let problem = read(text, None).unwrap_err();
            assert_eq!(problem.line, line, "{text}");
            assert!(problem.message.contains(part), "{}", problem.message);
        }
    }

    #[test]
    fn endless_line_is_refused() {
        let problem = read(&"x".repeat((4 << 20) + 2), None).unwrap_err();
        assert!(problem.message.contains("longer than 4.0 MiB"));
    }
}
