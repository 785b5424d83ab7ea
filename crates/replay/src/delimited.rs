//! Traces as CSV: one request per line, columns by name in any order, as published by CacheLib.
//!
//! A key (`key`, `id`, `obj_id`, `object`) and a size (`size`, `value_size`, `obj_size`, `bytes`)
//! are required. `op` (GET, GET_LEASE, SET, SET_LEASE, DELETE and similar), `op_count` (repeats the
//! request) and `key_size` (pads the key) are optional. Twitter's traces have seven columns and no
//! header: time, key, key size, value size, client, operation, time to live. A field may be quoted
//! as in RFC 4180, but no field contains a line break. White space around a field is dropped. A key
//! may have any bytes.
//!
//! Invariant: a line has at most [`MAX_LINE_BYTES`], so that a file of another format causes an
//! error and does not exhaust memory.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv_core::{ReadRecordResult, Terminator};

use crate::error::{Error, Result};
use crate::request::{Operation, Request, Requests};

/// Maximum line length.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Maximum key length of CacheLib.
const MAX_KEY_BYTES: usize = 256;

const KEY_NAMES: [&str; 4] = ["key", "id", "obj_id", "object"];
const SIZE_NAMES: [&str; 4] = ["size", "value_size", "obj_size", "bytes"];
const OPERATION_NAMES: [&str; 2] = ["op", "operation"];
/// Known columns that a replay ignores.
const IGNORED_NAMES: [&str; 7] =
    ["op_time", "time", "timestamp", "ttl", "cache_hits", "client", "client_id"];

/// The column positions.
#[derive(Clone, Copy, Debug)]
struct Columns {
    key: usize,
    size: usize,
    operation: Option<usize>,
    times: Option<usize>,
    key_size: Option<usize>,
}

const TWITTER: Columns =
    Columns { key: 1, size: 3, operation: Some(5), times: None, key_size: None };
const TWITTER_COLUMNS: usize = 7;

/// The requests of a file.
pub(crate) struct Delimited<R> {
    path: PathBuf,
    reader: BufReader<R>,
    columns: Columns,
    line: Vec<u8>,
    lines: u64,
    fields: Fields,
    /// Whether the first line is a request.
    pending: bool,
    /// How often the last request remains to be repeated.
    repeats: u64,
    last: Request,
}

impl<R: Read> Delimited<R> {
    /// Reads the header. Unknown columns are listed in `remarks`.
    pub(crate) fn open(path: &Path, reader: R, remarks: &mut Vec<String>) -> Result<Self> {
        let mut this = Self {
            path: path.to_owned(),
            reader: BufReader::new(reader),
            columns: TWITTER,
            line: Vec::new(),
            lines: 0,
            fields: Fields::new(),
            pending: false,
            repeats: 0,
            last: Request::default(),
        };
        if !this.read_line()? {
            return Err(this.malformed("the file is empty"));
        }
        let fields: Vec<String> =
            this.fields.iter().map(|field| text_of(field).to_ascii_lowercase()).collect();
        if fields.len() == TWITTER_COLUMNS
            && [0, 2, 3].iter().all(|at| fields[*at].parse::<f64>().is_ok())
        {
            this.pending = true;
            return Ok(this);
        }
        this.columns = this.columns_of(&fields, remarks)?;
        Ok(this)
    }

    fn columns_of(&self, fields: &[String], remarks: &mut Vec<String>) -> Result<Columns> {
        let find = |names: &[&str]| fields.iter().position(|field| names.contains(&field.as_str()));
        let needed = |names: &[&str]| {
            let missing = || {
                let (names, found) = (names.join("`, `"), fields.join("`, `"));
                self.malformed(&format!(
                    "no column is called `{names}`; the first line names `{found}`"
                ))
            };
            find(names).ok_or_else(missing)
        };
        let columns = Columns {
            key: needed(&KEY_NAMES)?,
            size: needed(&SIZE_NAMES)?,
            operation: find(&OPERATION_NAMES),
            times: find(&["op_count"]),
            key_size: find(&["key_size"]),
        };
        let used = [
            Some(columns.key),
            Some(columns.size),
            columns.operation,
            columns.times,
            columns.key_size,
        ];
        for (at, name) in fields.iter().enumerate() {
            if !used.contains(&Some(at)) && !IGNORED_NAMES.contains(&name.as_str()) {
                remarks
                    .push(format!("{}: unknown column `{name}` is ignored", self.path.display()));
            }
        }
        Ok(columns)
    }

    fn malformed(&self, message: &str) -> Error {
        let at = format!("line {}", self.lines.max(1));
        Error::Malformed { path: self.path.clone(), at, message: message.to_owned() }
    }

    /// Reads the next non-blank line and its fields; `false` at the end.
    fn read_line(&mut self) -> Result<bool> {
        loop {
            self.line.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES);
            let read = limited.read_until(b'\n', &mut self.line);
            let len = read.map_err(|error| {
                self.malformed(&format!("cannot be decompressed or read: {error}"))
            })?;
            if len == 0 {
                return Ok(false);
            }
            self.lines += 1;
            if len as u64 == MAX_LINE_BYTES {
                return Err(
                    self.malformed("the line is longer than 1 MiB: corrupt, or another format")
                );
            }
            if !self.line.trim_ascii().is_empty() {
                self.fields.split(&self.line);
                return Ok(true);
            }
        }
    }

    fn parse(&mut self, request: &mut Request) -> Result<()> {
        let columns = self.columns;
        let needed = |at: usize| {
            self.fields.get(at).ok_or_else(|| self.malformed(&format!("has no column {}", at + 1)))
        };
        let number = |at: usize| {
            let field = needed(at)?;
            let text = text_of(field);
            text.parse::<u64>().map_err(|_| {
                self.malformed(&format!("`{text}` in column {} is not a number", at + 1))
            })
        };
        request.value_bytes = number(columns.size)?;
        request.key.clear();
        request.key.extend_from_slice(needed(columns.key)?);
        if let Some(at) = columns.key_size {
            let len = number(at)?.min(MAX_KEY_BYTES as u64) as usize;
            request.key.resize(len.max(request.key.len()), b'0');
        }
        request.operation = match columns.operation {
            None => Operation::ReadThrough,
            Some(at) => {
                let field = needed(at)?;
                let text = text_of(field);
                operation_of(&text)
                    .ok_or_else(|| self.malformed(&format!("`{text}` is not a known operation")))?
            }
        };
        self.repeats = columns.times.map_or(Ok(1), number)?.saturating_sub(1);
        Ok(())
    }
}

impl<R: Read> Requests for Delimited<R> {
    fn next(&mut self, request: &mut Request) -> Result<bool> {
        if self.repeats > 0 {
            self.repeats -= 1;
            request.clone_from(&self.last);
            return Ok(true);
        }
        if !std::mem::take(&mut self.pending) && !self.read_line()? {
            return Ok(false);
        }
        self.parse(request)?;
        if self.repeats > 0 {
            self.last.clone_from(request);
        }
        Ok(true)
    }
}

/// The fields of a line.
struct Fields {
    reader: csv_core::Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    len: usize,
}

impl Fields {
    fn new() -> Self {
        // A carriage return is white space at the end of a line, and an ordinary byte inside it.
        let reader = csv_core::ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self { reader, bytes: Vec::new(), ends: Vec::new(), len: 0 }
    }

    /// Splits a line.
    fn split(&mut self, line: &[u8]) {
        // Room for all fields, so that the line is read in one call.
        self.bytes.resize(line.len().max(self.bytes.len()), 0);
        self.ends.resize(
            (line.iter().filter(|byte| **byte == b',').count() + 1).max(self.ends.len()),
            0,
        );
        let (result, _, bytes, ends) =
            self.reader.read_record(line, &mut self.bytes, &mut self.ends);
        self.len = ends;
        if result != ReadRecordResult::Record {
            // The last line without a line end, or an open quotation mark at the end of the line:
            // end the record.
            let (_, _, _, more) =
                self.reader.read_record(&[], &mut self.bytes[bytes..], &mut self.ends[ends..]);
            self.len += more;
            self.reader.reset();
        }
    }

    fn get(&self, at: usize) -> Option<&[u8]> {
        let ends = &self.ends[..self.len];
        let end = *ends.get(at)?;
        let start = if at == 0 { 0 } else { ends[at - 1] };
        Some(self.bytes[start..end].trim_ascii())
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len).filter_map(|at| self.get(at))
    }
}

fn text_of(field: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(field)
}

/// Maps an operation's name for a look-through cache. Every kind of write inserts a value.
fn operation_of(text: &str) -> Option<Operation> {
    Some(match text.to_ascii_uppercase().as_str() {
        "GET" | "GETS" | "GET_LEASE" | "READ" => Operation::ReadThrough,
        "SET" | "SET_LEASE" | "ADD" | "REPLACE" | "CAS" | "APPEND" | "PREPEND" | "INCR"
        | "DECR" | "WRITE" => Operation::Set,
        "DELETE" | "DEL" | "REMOVE" => Operation::Delete,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl AsRef<[u8]>) -> Result<Vec<Request>> {
        let mut trace = Delimited::open(Path::new("trace"), text.as_ref(), &mut Vec::new())?;
        let (mut request, mut all) = (Request::default(), Vec::new());
        while trace.next(&mut request)? {
            all.push(request.clone());
        }
        Ok(all)
    }

    #[test]
    fn columns_are_found_by_name_and_operations_repeat() {
        let all = read("op,size,key,op_count,key_size\nGET,10,a,2,3\nDELETE,0,b,1,1\n").unwrap();
        let keys: Vec<_> =
            all.iter().map(|request| (request.operation, request.key.as_slice())).collect();
        let get = (Operation::ReadThrough, b"a00".as_slice());
        assert_eq!(keys, [get, get, (Operation::Delete, b"b")]);
        assert_eq!(all[0].value_bytes, 10);
    }

    #[test]
    fn keys_may_be_quoted_and_hold_any_bytes() {
        let text = b"\xef\xbb\xbf\"key\" , size\r\n\xff\x01,1\r\n\xfe\x01,2\r\n\
                     \"a,\"\"b\"\"\",3\r\na\"b,4\r\n,5\r\n";
        let all = read(text).unwrap();
        let keys: Vec<_> =
            all.iter().map(|request| (request.key.as_slice(), request.value_bytes)).collect();
        let expected: [(&[u8], u64); 5] =
            [(b"\xff\x01", 1), (b"\xfe\x01", 2), (b"a,\"b\"", 3), (b"a\"b", 4), (b"", 5)];
        assert_eq!(keys, expected);
    }

    #[test]
    fn open_quote_ends_with_its_line() {
        let all = read("size,key\n1,\"a\n2,\"b,c\"\n3,d").unwrap();
        let keys: Vec<_> =
            all.iter().map(|request| (request.value_bytes, request.key.as_slice())).collect();
        assert_eq!(keys, [(1, b"a".as_slice()), (2, b"b,c"), (3, b"d")]);
    }

    #[test]
    fn unknown_columns_are_remarked() {
        let mut remarks = Vec::new();
        Delimited::open(Path::new("trace"), &b"key,size,ttl,colour\n"[..], &mut remarks).unwrap();
        assert_eq!(remarks, ["trace: unknown column `colour` is ignored"]);
    }

    #[test]
    fn twitter_format_needs_no_header() {
        let all = read("0,k1,2,30,1,get,0\n1,k2,2,40,1,set,60\n").unwrap();
        assert_eq!((all.len(), all[1].operation, all[1].value_bytes), (2, Operation::Set, 40));
    }

    #[test]
    fn malformed_line_error_has_its_number() {
        for (text, part) in [
            ("", "line 1: the file is empty"),
            ("name,size\n", "no column is called `key`"),
            ("key,size\na,1\nb\n", "line 3: has no column 2"),
            ("key,size\n\"a,1\nb,2\n", "line 2: has no column 2"),
            ("key,size\na,one\n", "line 2: `one` in column 2 is not a number"),
            ("key,size,op\na,1,PEEK\n", "`PEEK` is not a known operation"),
        ] {
            let problem = read(text).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
