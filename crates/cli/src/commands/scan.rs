//! `plimsoll scan`: keys and values in order, by prefix or between two keys.

use std::ops::Bound;

use plimsoll::{Keyspace, Range, Snapshot};
use serde_json::Map;

use crate::args::{Globals, Scan};
use crate::bytes::{key_bytes, preview, push_field, put_json, show_bytes, show_hex};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::{moment, store};

pub(crate) fn run(globals: &Globals, args: Scan, output: &mut Output) -> Outcome {
    let printer = Printer {
        keys_only: args.keys_only,
        null: args.null,
        hex: args.keys.hex,
        width: output.width(),
        line: Vec::new(),
    };
    let limit = args.limit.unwrap_or(u64::MAX);
    let db = store::open_to_read(globals, &args.store)?;
    let keyspace = store::known_keyspace(&db, &args.keyspace.keyspace)?;
    let snapshot = moment::snapshot(&db, args.at.at)?;
    let range = open_range(&snapshot, &keyspace, args)?;
    print(range, limit, printer, output)?;
    Ok(Exit::Done)
}

fn open_range<'s>(snapshot: &'s Snapshot, keyspace: &Keyspace, args: Scan) -> Result<Range<'s>, Failure> {
    let hex = args.keys.hex;
    let bytes = |key: Option<_>| key.map(|key| key_bytes(key, hex)).transpose().map_err(Failure::usage);
    let (from, to, prefix) = (bytes(args.from)?, bytes(args.to)?, bytes(args.prefix)?);
    let mut range = match prefix {
        Some(prefix) => snapshot.prefix(keyspace, &prefix)?,
        None => {
            let lower = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let upper = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            snapshot.range(keyspace, (lower, upper))?
        }
    };
    if args.reverse {
        range = range.reverse();
    }
    if args.keys_only {
        range = range.keys_only();
    }
    Ok(range)
}

fn print(mut range: Range<'_>, limit: u64, mut printer: Printer, output: &mut Output) -> Result<(), Failure> {
    for _ in 0..limit {
        match range.advance()? {
            Some((key, value)) => printer.print(key, value, output)?,
            None => break,
        }
    }
    Ok(())
}

/// Prints pairs; keeps one line's buffer.
struct Printer {
    keys_only: bool,
    null: bool,
    hex: bool,
    width: usize,
    line: Vec<u8>,
}

impl Printer {
    fn print(&mut self, key: &[u8], value: &[u8], output: &mut Output) -> Result<(), Failure> {
        if self.null {
            output.raw(key)?;
            return output.raw(b"\0");
        }
        match output.reader() {
            Reader::Json => self.print_json(key, value, output),
            Reader::Pipe => self.print_line(key, value, output),
            Reader::People => self.print_for_people(key, value, output),
        }
    }

    fn print_json(&self, key: &[u8], value: &[u8], output: &mut Output) -> Result<(), Failure> {
        let mut object = Map::new();
        match self.hex {
            true => drop(object.insert("key_hex".to_owned(), show_hex(key).into())),
            false => put_json(&mut object, "key", key),
        }
        if !self.keys_only {
            put_json(&mut object, "value", value);
        }
        output.json(&object)
    }

    fn print_line(&mut self, key: &[u8], value: &[u8], output: &mut Output) -> Result<(), Failure> {
        self.line.clear();
        match self.hex {
            true => self.line.extend_from_slice(show_hex(key).as_bytes()),
            false => push_field(&mut self.line, key),
        }
        if !self.keys_only {
            self.line.push(b'\t');
            push_field(&mut self.line, value);
        }
        self.line.push(b'\n');
        output.raw(&self.line)?;
        // A line of a large value is not kept for the small ones that follow.
        self.line.shrink_to(1 << 20);
        Ok(())
    }

    fn print_for_people(&self, key: &[u8], value: &[u8], output: &mut Output) -> Result<(), Failure> {
        let key = if self.hex { show_hex(key) } else { show_bytes(key) };
        if self.keys_only {
            return output.line(&key);
        }
        let left = self.width.saturating_sub(key.chars().count() + 2).max(24);
        let key = output.paint(Style::Strong, &key);
        output.line(&format!("{key}  {}", preview(value, left)))
    }
}
