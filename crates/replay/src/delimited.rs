//! Traces as CSV: one request a line, columns by name in any order; CacheLib's traces are such files.
//!
//! Needed are a key (`key`, `id`, `obj_id`, `object`) and a size (`size`, `value_size`, `obj_size`, `bytes`). Known besides: `op` (GET,
//! GET_LEASE, SET, SET_LEASE, DELETE and alike), `op_count` (so many times), `key_size` (keys are padded to it). Files of Twitter's form (seven
//! columns without a header: time, key, key size, value size, client, operation, time to live) are read as they are. A field in quotation marks may
//! hold commas, and marks that are doubled; no field holds a line's end. A key is its bytes, text or not.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::trace::{Operation, Problem, Request, Trace};

/// A line is no longer than this.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// What some systems write before text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// CacheLib's keys are no longer than this.
const MAX_KEY_BYTES: usize = 256;

const KEY_NAMES: [&str; 4] = ["key", "id", "obj_id", "object"];
const SIZE_NAMES: [&str; 4] = ["size", "value_size", "obj_size", "bytes"];
const OPERATION_NAMES: [&str; 2] = ["op", "operation"];
/// Known, and of no use here.
const IGNORED_NAMES: [&str; 7] = ["op_time", "time", "timestamp", "ttl", "cache_hits", "client", "client_id"];

/// Where a line says what.
#[derive(Clone, Copy, Debug)]
struct Columns {
    key: usize,
    size: usize,
    operation: Option<usize>,
    times: Option<usize>,
    key_size: Option<usize>,
}

const TWITTER: Columns = Columns { key: 1, size: 3, operation: Some(5), times: None, key_size: None };
const TWITTER_COLUMNS: usize = 7;

pub(super) struct Delimited<R> {
    path: PathBuf,
    reader: BufReader<R>,
    columns: Columns,
    line: Vec<u8>,
    lines: u64,
    /// `line` is a request that was not handed out yet.
    pending: bool,
    /// The last request is to be repeated so many times.
    repeats: u64,
    last: Request,
}

impl<R: Read> Delimited<R> {
    /// Reads the header. Columns that are not known are named on stderr.
    pub(super) fn open(path: &Path, reader: R) -> Result<Self, Problem> {
        let mut this = Self {
            path: path.to_owned(),
            reader: BufReader::new(reader),
            columns: TWITTER,
            line: Vec::new(),
            lines: 0,
            pending: false,
            repeats: 0,
            last: Request::default(),
        };
        if !this.read_line()? {
            return Err(this.malformed("the file is empty"));
        }
        let line = this.line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&this.line);
        let fields: Vec<String> = Fields::of(line).map(|field| text_of(&field).to_ascii_lowercase()).collect();
        if fields.len() == TWITTER_COLUMNS && [0, 2, 3].iter().all(|at| fields[*at].parse::<f64>().is_ok()) {
            this.pending = true;
            return Ok(this);
        }
        this.columns = this.columns_of(&fields)?;
        Ok(this)
    }

    fn columns_of(&self, fields: &[String]) -> Result<Columns, Problem> {
        let find = |names: &[&str]| fields.iter().position(|field| names.contains(&field.as_str()));
        let needed = |names: &[&str]| {
            let missing = || {
                let (names, found) = (names.join("`, `"), fields.join("`, `"));
                self.malformed(&format!("no column is called `{names}`; the first line names `{found}`"))
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
        let used = [Some(columns.key), Some(columns.size), columns.operation, columns.times, columns.key_size];
        for (at, name) in fields.iter().enumerate() {
            if !used.contains(&Some(at)) && !IGNORED_NAMES.contains(&name.as_str()) {
                eprintln!("plimsoll: {}: column `{name}` is not known and not used", self.path.display());
            }
        }
        Ok(columns)
    }

    fn malformed(&self, what: &str) -> Problem {
        Problem::Malformed { path: self.path.clone(), at: format!("line {}", self.lines.max(1)), what: what.to_owned() }
    }

    /// The next line that is not blank; `false` at the end.
    fn read_line(&mut self) -> Result<bool, Problem> {
        loop {
            self.line.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES);
            let read = limited.read_until(b'\n', &mut self.line);
            let len = read.map_err(|error| self.malformed(&format!("cannot be decompressed or read: {error}")))?;
            if len == 0 {
                return Ok(false);
            }
            self.lines += 1;
            if len as u64 == MAX_LINE_BYTES {
                return Err(self.malformed("the line is longer than 1 MiB: corrupt, or another format"));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn parse(&mut self, request: &mut Request) -> Result<(), Problem> {
        let columns = self.columns;
        let field = |at: usize| Fields::of(&self.line).nth(at);
        let needed = |at: usize| field(at).ok_or_else(|| self.malformed(&format!("has no column {}", at + 1)));
        let number = |at: usize| {
            let field = needed(at)?;
            let text = text_of(&field);
            text.parse::<u64>().map_err(|_| self.malformed(&format!("`{text}` in column {} is no number", at + 1)))
        };
        request.value_bytes = number(columns.size)?;
        request.key.clear();
        request.key.extend_from_slice(&needed(columns.key)?);
        if let Some(at) = columns.key_size {
            let len = number(at)?.min(MAX_KEY_BYTES as u64) as usize;
            request.key.resize(len.max(request.key.len()), b'0');
        }
        request.operation = match columns.operation {
            None => Operation::ReadThrough,
            Some(at) => {
                let field = needed(at)?;
                let text = text_of(&field);
                operation_of(&text).ok_or_else(|| self.malformed(&format!("`{text}` is no operation that is known")))?
            }
        };
        self.repeats = columns.times.map_or(Ok(1), number)?.saturating_sub(1);
        Ok(())
    }
}

impl<R: Read> Trace for Delimited<R> {
    fn next(&mut self, request: &mut Request) -> Result<bool, Problem> {
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
struct Fields<'a> {
    /// `None` behind the last.
    rest: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a [u8]) -> Self {
        Self { rest: Some(line.trim_ascii()) }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        let rest = self.rest?;
        let starts_quoted = rest.trim_ascii_start().first() == Some(&b'"');
        let mut is_quoted = false;
        let ends = |byte: &u8| {
            // A doubled mark ends the quotation and begins it again.
            is_quoted ^= starts_quoted && *byte == b'"';
            !is_quoted && *byte == b','
        };
        let end = rest.iter().position(ends);
        self.rest = end.map(|end| &rest[end + 1..]);
        Some(unquoted(rest[..end.unwrap_or(rest.len())].trim_ascii()))
    }
}

fn unquoted(field: &[u8]) -> Cow<'_, [u8]> {
    let Some(inner) = field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\"")) else {
        return Cow::Borrowed(field);
    };
    if !inner.contains(&b'"') {
        return Cow::Borrowed(inner);
    }
    let is_kept =
        |at: usize| inner[at] != b'"' || inner[..at].iter().rev().take_while(|byte| **byte == b'"').count() % 2 == 0;
    Cow::Owned((0..inner.len()).filter(|at| is_kept(*at)).map(|at| inner[at]).collect())
}

fn text_of(field: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(field)
}

/// What an operation comes to for a cache that is read through; sets of every kind enter a value.
fn operation_of(text: &str) -> Option<Operation> {
    Some(match text.to_ascii_uppercase().as_str() {
        "GET" | "GETS" | "GET_LEASE" | "READ" => Operation::ReadThrough,
        "SET" | "SET_LEASE" | "ADD" | "REPLACE" | "CAS" | "APPEND" | "PREPEND" | "INCR" | "DECR" | "WRITE" => {
            Operation::Set
        }
        "DELETE" | "DEL" | "REMOVE" => Operation::Delete,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl AsRef<[u8]>) -> Result<Vec<Request>, Problem> {
        let mut trace = Delimited::open(Path::new("trace"), text.as_ref())?;
        let (mut request, mut all) = (Request::default(), Vec::new());
        while trace.next(&mut request)? {
            all.push(request.clone());
        }
        Ok(all)
    }

    #[test]
    fn columns_are_found_by_name_and_operations_repeat() {
        let all = read("op,size,key,op_count,key_size\nGET,10,a,2,3\nDELETE,0,b,1,1\n").unwrap();
        let keys: Vec<_> = all.iter().map(|request| (request.operation, request.key.as_slice())).collect();
        let get = (Operation::ReadThrough, b"a00".as_slice());
        assert_eq!(keys, [get, get, (Operation::Delete, b"b")]);
        assert_eq!(all[0].value_bytes, 10);
    }

    #[test]
    fn keys_are_bytes_and_may_be_quoted() {
        let text = b"\xef\xbb\xbf\"key\" , size\r\n\xff\x01,1\r\n\xfe\x01,2\r\n\"a,\"\"b\"\"\",3\r\na\"b,4\r\n,5\r\n";
        let all = read(text).unwrap();
        let keys: Vec<_> = all.iter().map(|request| (request.key.as_slice(), request.value_bytes)).collect();
        let expected: [(&[u8], u64); 5] = [(b"\xff\x01", 1), (b"\xfe\x01", 2), (b"a,\"b\"", 3), (b"a\"b", 4), (b"", 5)];
        assert_eq!(keys, expected);
    }

    #[test]
    fn twitters_form_needs_no_header() {
        let all = read("0,k1,2,30,1,get,0\n1,k2,2,40,1,set,60\n").unwrap();
        assert_eq!((all.len(), all[1].operation, all[1].value_bytes), (2, Operation::Set, 40));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, part) in [
            ("", "line 1: the file is empty"),
            ("name,size\n", "no column is called `key`"),
            ("key,size\na,1\nb\n", "line 3: has no column 2"),
            ("key,size\na,one\n", "line 2: `one` in column 2 is no number"),
            ("key,size,op\na,1,PEEK\n", "`PEEK` is no operation"),
        ] {
            let problem = read(text).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
