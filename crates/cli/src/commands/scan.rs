//! `plimsoll scan`: keys and values in order, by prefix or between two keys.
//!
//! Values come with their keys. One that is too large for the memory budget ends the walk; it is then streamed, and another walk goes
//! on behind it.

mod printer;

use std::ffi::OsString;
use std::ops::Bound;

use plimsoll::{Db, Error, Keyspace, Range, Snapshot};

use crate::args::{Globals, Scan};
use crate::bytes::key_bytes;
use crate::exit::{Exit, Failure, Outcome};
use crate::key_range::{Edge, KeyRange};
use crate::output::{Output, Reader};
use crate::size::count_of;
use crate::{moment, store};

use self::printer::Printer;

pub(crate) fn run(globals: &Globals, args: Scan, output: &mut Output) -> Outcome {
    let range = range(&args)?;
    let at = args.at.at.as_ref();
    store::read_at(globals, &args.store, at, output, |db, output| print(db, &args, range.clone(), output))
}

fn print(db: &Db, args: &Scan, range: KeyRange, output: &mut Output) -> Outcome {
    let printer = Printer::new(args, output);
    let name = &args.keyspace.keyspace;
    let snapshot = moment::snapshot(db, args.at.at.as_ref(), name)?;
    let keyspace = store::keyspace_at(db, &snapshot, name)?;
    let (reverse, left) = (args.reverse, args.limit.unwrap_or(u64::MAX));
    // A terminal sees the beginning of a value only, which is read by itself.
    let by_key = output.reader() == Reader::People && !args.keys_only;
    let keys_only = args.keys_only || by_key;
    let KeyRange { lower, upper } = range;
    let mut walk = Walk { snapshot, keyspace, lower, upper, reverse, left, rows: 0, printer };
    if by_key {
        walk.print_by_key(output)?;
    } else {
        walk.print(keys_only, output)?;
    }
    Ok(Exit::Done)
}

fn range(args: &Scan) -> Result<KeyRange, Failure> {
    let hex = args.keys.hex;
    let bytes = |key: &Option<OsString>| key.clone().map(|key| key_bytes(key, hex)).transpose().map_err(Failure::usage);
    let (from, to, prefix) = (bytes(&args.from)?, bytes(&args.to)?, bytes(&args.prefix)?);
    Ok(KeyRange::new(prefix.as_deref().unwrap_or_default(), from, to))
}

/// A walk over keys that can be taken up again behind any of them.
struct Walk {
    snapshot: Snapshot,
    keyspace: Keyspace,
    lower: Edge,
    upper: Edge,
    reverse: bool,
    /// How many pairs may still be printed.
    left: u64,
    /// How many were printed by the walks before this one.
    rows: u64,
    printer: Printer,
}

impl Walk {
    fn range(&self, keys_only: bool) -> Result<Range<'_>, Failure> {
        let bounds = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        let range = self.snapshot.range(&self.keyspace, bounds)?;
        let range = if self.reverse { range.reverse() } else { range };
        Ok(if keys_only { range.keys_only() } else { range })
    }

    /// The next walk begins behind `key`.
    fn pass(&mut self, key: Vec<u8>) {
        let edge = if self.reverse { &mut self.upper } else { &mut self.lower };
        *edge = Bound::Excluded(key);
    }

    /// Prints keys with values as they come, and streams those that are too large for that.
    fn print(&mut self, keys_only: bool, output: &mut Output) -> Result<(), Failure> {
        loop {
            match self.print_while_values_fit(keys_only, output)? {
                Stopped::AtEnd => return Ok(()),
                Stopped::AtLarge => {
                    let Some((key, _)) = self.range(true)?.next().transpose()? else { return Ok(()) };
                    self.print_large(&key, output)?;
                    self.pass(key);
                    self.left -= 1;
                    self.rows += 1;
                }
            }
        }
    }

    fn print_while_values_fit(&mut self, keys_only: bool, output: &mut Output) -> Result<Stopped, Failure> {
        let (mut last, mut printed) = (None, 0);
        let mut printer = std::mem::take(&mut self.printer);
        let mut range = self.range(keys_only)?;
        let stopped = loop {
            if printed == self.left {
                break Stopped::AtEnd;
            }
            match range.advance() {
                Ok(Some((key, value))) => {
                    printer.print(key, value, output)?;
                    printed += 1;
                    let last = last.get_or_insert_with(Vec::new);
                    last.clear();
                    last.extend_from_slice(key);
                }
                Ok(None) => break Stopped::AtEnd,
                Err(Error::OutOfBudget(_)) if !keys_only => break Stopped::AtLarge,
                Err(error) => return Err(behind_rows(error, self.rows + printed, self.snapshot.at())),
            }
        };
        drop(range);
        self.printer = printer;
        self.left -= printed;
        self.rows += printed;
        if let Some(last) = last {
            self.pass(last);
        }
        Ok(stopped)
    }

    fn print_large(&mut self, key: &[u8], output: &mut Output) -> Result<(), Failure> {
        let mut printer = std::mem::take(&mut self.printer);
        printer.print_large(key, &|| self.value(key), output)?;
        self.printer = printer;
        Ok(())
    }

    /// Prints keys with the beginnings of their values.
    fn print_by_key(&mut self, output: &mut Output) -> Result<(), Failure> {
        let mut keys = self.range(true)?;
        for _ in 0..self.left {
            match keys.advance()? {
                Some((key, _)) => self.printer.print_for_people(key, self.value(key)?, output)?,
                None => break,
            }
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> Result<plimsoll::ValueReader, Failure> {
        let value = self.snapshot.get_reader(&self.keyspace, key)?;
        Ok(value.expect("the walk saw the key in the same snapshot"))
    }
}

/// What ended a walk behind so many rows.
fn behind_rows(error: Error, rows: u64, at: u64) -> Failure {
    let failure = Failure::from(error);
    if rows == 0 || !failure.is_gone() {
        return failure;
    }
    let rows = count_of(rows, "row that was printed is", "rows that were printed are");
    failure.advise(&format!("The {rows} right as of GLSN {at}; the rest was dropped meanwhile by the process that writes. Run it again, or with --from."))
}

/// Where a walk stopped.
enum Stopped {
    AtEnd,
    AtLarge,
}
