//! Rows of CSV and TSV: columns by name, the other columns as JSON.

use std::collections::HashSet;
use std::io::BufRead;

use crate::bytes::show_bytes;

use super::records::Records;
use super::{Problem, Rows};

/// Delimiters and quoting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    /// The byte between two fields.
    pub(crate) delimiter: u8,
    /// Whether fields may be quoted.
    pub(crate) quotes: bool,
    /// Whether to reject a first record that has one field but contains another delimiter.
    pub(crate) doubts_delimiter: bool,
    /// Whether the first record names the columns.
    pub(crate) header: bool,
    /// Maximum row size in bytes.
    pub(crate) row_bytes_max: usize,
}

/// Parses the delimiter option.
pub(crate) fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(byte),
        _ => Err("a delimiter is one ASCII character, and neither a quote nor a line break; \\t \
                  is a tab"
            .to_owned()),
    }
}

/// Rows with named columns.
pub(crate) struct Delimited<R> {
    records: Records<R>,
    names: Vec<String>,
    key: usize,
    value: Option<usize>,
    /// The line of a first record that is a data row and was read to count the columns.
    held: Option<u64>,
    /// The file has no record.
    empty: bool,
}

impl<R: BufRead> Delimited<R> {
    /// Reads the header; `key` defaults to the first column.
    pub(crate) fn open(
        input: R,
        lines: Lines,
        key: Option<&str>,
        value: Option<&str>,
    ) -> Result<Self, Problem> {
        let mut records = Records::new(input, lines.delimiter, lines.quotes, lines.row_bytes_max);
        let first = records.next()?;
        let line = first.unwrap_or(1);
        if lines.doubts_delimiter && first.is_some() {
            check_delimiter(&records, line)?;
        }
        let names = match lines.header {
            true => header(&records, line, lines.quotes)?,
            false => (1..=records.len()).map(|number| number.to_string()).collect(),
        };
        let empty = first.is_none();
        let find = |wanted: &str| match names.iter().position(|name| name == wanted) {
            None if !empty => Err(Problem::new(
                line,
                format!("there is no column `{wanted}`; there are: {}", names.join(", ")),
            )),
            place => Ok(place.unwrap_or(0)),
        };
        let key = key.map_or(Ok(0), find)?;
        let value = value.map(find).transpose()?;
        let held = if lines.header { None } else { first };
        Ok(Self { key, value, held, empty, records, names })
    }

    fn rest_as_json(&self, line: u64, value: &mut Vec<u8>) -> Result<(), Problem> {
        value.push(b'{');
        for (place, name) in self.names.iter().enumerate().filter(|&(place, _)| place != self.key) {
            if value.len() > 1 {
                value.push(b',');
            }
            let field = self.records.field(place);
            let text = std::str::from_utf8(field).map_err(|_| {
                let shown = show_bytes(&field[..field.len().min(40)]);
                Problem::of_row(
                    line,
                    format!(
                        "column `{name}` is not UTF-8 ({shown}), so the row cannot become JSON; \
                         choose the value's column with --value"
                    ),
                )
            })?;
            push_json(value, name);
            value.push(b':');
            push_json(value, text);
        }
        value.push(b'}');
        Ok(())
    }
}

impl<R: BufRead> Rows for Delimited<R> {
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Option<u64>, Problem> {
        if self.empty {
            return Ok(None);
        }
        let line = match self.held.take() {
            Some(line) => line,
            None => match self.records.next()? {
                Some(line) => line,
                None => return Ok(None),
            },
        };
        let (fields, columns) = (self.records.len(), self.names.len());
        if fields != columns {
            let ending = if fields == 1 { "" } else { "s" };
            return Err(Problem::of_row(
                line,
                format!("the row has {fields} field{ending}, the first line has {columns}"),
            ));
        }
        key.clear();
        key.extend_from_slice(self.records.field(self.key));
        value.clear();
        match self.value {
            Some(place) => value.extend_from_slice(self.records.field(place)),
            None => self.rest_as_json(line, value)?,
        }
        Ok(Some(line))
    }
}

fn header<R: BufRead>(
    records: &Records<R>,
    line: u64,
    quotes: bool,
) -> Result<Vec<String>, Problem> {
    let mut names: Vec<String> = Vec::with_capacity(records.len());
    let mut known = HashSet::with_capacity(records.len());
    for place in 0..records.len() {
        let name = std::str::from_utf8(records.field(place)).map_err(|_| {
            Problem::new(line, "the header is not UTF-8; if it is not a header, use --no-header")
        })?;
        // A quoted name may contain a carriage return on purpose.
        if !quotes && name.contains('\r') {
            return Err(Problem::new(
                line,
                "the header holds a carriage return without a line feed; lines end with LF or CRLF",
            ));
        }
        if !known.insert(name) {
            return Err(Problem::new(
                line,
                format!(
                    "two columns are called `{name}`; if this is not a header, use --no-header"
                ),
            ));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Rejects a record that would load as one column although it contains another delimiter.
fn check_delimiter<R: BufRead>(records: &Records<R>, line: u64) -> Result<(), Problem> {
    // Quoted text is intentional.
    if records.len() != 1 || records.is_quoted() {
        return Ok(());
    }
    let field = records.field(0);
    let others = [(b';', ";"), (b'\t', "\\t"), (b'|', "|")];
    match others.iter().find(|(other, _)| field.contains(other)) {
        Some((_, shown)) => Err(Problem::new(
            line,
            format!(
                "the line has no comma, and `{shown}` seems to separate its fields; use \
                 --delimiter '{shown}', or --delimiter , if there is one column"
            ),
        )),
        None => Ok(()),
    }
}

/// Appends text as a JSON string.
fn push_json(into: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(into, text).expect("text is always JSON, and memory takes it");
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: Lines = Lines {
        delimiter: b',',
        quotes: true,
        doubts_delimiter: true,
        header: true,
        row_bytes_max: 4 << 20,
    };

    type Read = Result<Vec<(u64, String, String)>, Problem>;

    fn read(text: &[u8], lines: Lines, key: Option<&str>, value: Option<&str>) -> Read {
        let mut rows = Delimited::open(text, lines, key, value)?;
        let (mut key, mut value, mut all) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(line) = rows.next(&mut key, &mut value)? {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((line, text(&key), text(&value)));
        }
        Ok(all)
    }

    fn row(line: u64, key: &str, value: &str) -> (u64, String, String) {
        (line, key.to_owned(), value.to_owned())
    }

    #[test]
    fn other_columns_become_json_in_order() {
        let text = b"id,name,\"say \"\"hi\"\"\"\n1,Ada,x\n2,\"a\nb\",\n";
        let expected = vec![
            row(2, "1", r#"{"name":"Ada","say \"hi\"":"x"}"#),
            row(3, "2", r#"{"name":"a\nb","say \"hi\"":""}"#),
        ];
        assert_eq!(read(text, CSV, None, None).unwrap(), expected);
    }

    #[test]
    fn key_and_value_are_columns_by_name() {
        let read = read(b"a,b,c\n1,2,3\n", CSV, Some("c"), Some("b")).unwrap();
        assert_eq!(read, [row(2, "3", "2")]);
    }

    #[test]
    fn without_header_columns_are_numbered() {
        let lines = Lines { header: false, ..CSV };
        let rows = read(b"1,2\n3,4\n", lines, Some("2"), None).unwrap();
        assert_eq!(rows, [row(1, "2", r#"{"1":"1"}"#), row(2, "4", r#"{"1":"3"}"#)]);
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        for header in [true, false] {
            assert_eq!(read(b"", Lines { header, ..CSV }, Some("id"), None).unwrap(), []);
        }
    }

    #[test]
    fn problems_name_their_line() {
        let cases: [(&[u8], Option<&str>, u64, &str); 5] = [
            (b"a,b\n1,2\n\n1,2,3\n", None, 4, "has 3 fields, the first line has 2"),
            (b"a,b\n1,2\n", Some("x"), 1, "no column `x`; there are: a, b"),
            (b"a,a\n1,2\n", None, 1, "two columns are called `a`"),
            (b"a,b\n1,\xff\n", None, 2, "not UTF-8"),
            (b"a,b\r1,2\r", None, 1, "carriage return"),
        ];
        for (text, key, line, part) in cases {
            let problem = read(text, CSV, key, None).unwrap_err();
            assert_eq!(problem.line, line);
            assert!(problem.message.contains(part), "{}", problem.message);
        }
    }

    #[test]
    fn tsv_header_rejects_bare_carriage_returns() {
        let lines = Lines { delimiter: b'\t', quotes: false, ..CSV };
        assert!(
            read(b"a\tb\r1\t2\r", lines, None, None)
                .unwrap_err()
                .message
                .contains("carriage return")
        );
        assert_eq!(
            read(b"a\tb\n1\t2\r3\n", lines, None, Some("b")).unwrap(),
            [row(2, "1", "2\r3")]
        );
    }

    #[test]
    fn non_utf8_value_is_kept() {
        let mut rows = Delimited::open(&b"a,b\n1,\xff\n"[..], CSV, None, Some("b")).unwrap();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        assert_eq!(rows.next(&mut key, &mut value), Ok(Some(2)));
        assert_eq!(value, b"\xff");
    }
}
