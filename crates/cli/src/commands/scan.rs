//! `plimsoll scan`: lists keys and values in order, by prefix or between two keys.
//!
//! The iterator returns values with their keys. A value that exceeds the memory budget ends the
//! iterator; the value is then streamed, and a new iterator continues after its key.

mod printer;

use std::ffi::OsString;
use std::io::{self, Read};
use std::ops::Bound;

use plimsoll::{Db, Error, Keyspace, Range, Snapshot};

use crate::args::{Globals, Scan};
use crate::exit::{Exit, Failure, Outcome};
use crate::key_range::{Edge, KeyRange};
use crate::output::{Output, Reader};
use crate::size::count_of;
use crate::stderr::say;
use crate::{branches, keyspaces, store};

use self::printer::Printer;

pub(crate) fn run(globals: &Globals, args: Scan, output: &mut Output) -> Outcome {
    let range = range(&args)?;
    let at = args.at.at.as_ref();
    store::read_at(globals, &args.store, at, output, |db, output| {
        print(db, &args, range.clone(), output)
    })
}

fn print(db: &Db, args: &Scan, range: KeyRange, output: &mut Output) -> Outcome {
    let printer = Printer::new(args, output);
    let name = args.keys.keyspace();
    let snapshot = branches::read(db, &args.at, name)?;
    let keyspace = keyspaces::keyspace_at(db, &snapshot, name)?;
    let (reverse, left) = (args.reverse, args.limit.unwrap_or(u64::MAX));
    let on_branch = args.at.branch().is_some();
    if on_branch && args.skip_damaged {
        return Err(Failure::usage("--skip-damaged is for branch main only"));
    }
    let mut past = PastDamage { skips: args.skip_damaged, skipped: 0, on_branch };
    // A terminal shows only the beginning of a value, which is read separately.
    let by_key = output.reader() == Reader::People && !args.keys_only;
    let keys_only = args.keys_only || by_key;
    let KeyRange { lower, upper } = range;
    let mut walk = Walk { snapshot, keyspace, lower, upper, reverse, left, rows: 0, printer };
    while let Err(stop) =
        if by_key { walk.print_by_key(output) } else { walk.print(keys_only, output) }
    {
        walk.skip_damage(stop, &mut past, output)?;
    }
    Ok(if past.skipped == 0 { Exit::Done } else { Exit::Corrupt })
}

fn range(args: &Scan) -> Result<KeyRange, Failure> {
    let key = |key: &Option<OsString>| args.keys.optional(key.clone());
    let (from, to, prefix) = (key(&args.from)?, key(&args.to)?, key(&args.prefix)?);
    Ok(KeyRange::new(prefix.as_deref().unwrap_or_default(), from, to))
}

/// A scan that can resume after any key.
struct Walk {
    snapshot: Snapshot,
    keyspace: Keyspace,
    lower: Edge,
    upper: Edge,
    reverse: bool,
    /// Number of pairs that may still be printed.
    left: u64,
    /// Number of pairs printed by earlier iterators.
    rows: u64,
    printer: Printer,
}

impl Walk {
    fn range(&self, keys_only: bool) -> Result<Range<'_>, Stop> {
        let bounds =
            (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        let range = self.snapshot.range(&self.keyspace, bounds)?;
        let range = if self.reverse { range.reverse() } else { range };
        Ok(if keys_only { range.keys_only() } else { range })
    }

    /// Resumes after `key`.
    fn pass(&mut self, key: Vec<u8>) {
        let edge = if self.reverse { &mut self.upper } else { &mut self.lower };
        *edge = Bound::Excluded(key);
    }

    /// Prints keys with their values; streams values that are too large for the iterator.
    fn print(&mut self, keys_only: bool, output: &mut Output) -> Result<(), Stop> {
        loop {
            match self.print_while_values_fit(keys_only, output)? {
                Stopped::AtEnd => return Ok(()),
                Stopped::AtLarge => {
                    let Some((key, _)) = self.range(true)?.next().transpose()? else {
                        return Ok(());
                    };
                    self.print_large(&key, output)?;
                    self.pass(key);
                    self.left -= 1;
                    self.rows += 1;
                }
            }
        }
    }

    fn print_while_values_fit(
        &mut self,
        keys_only: bool,
        output: &mut Output,
    ) -> Result<Stopped, Stop> {
        let (mut last, mut printed) = (None, 0);
        let mut printer = std::mem::take(&mut self.printer);
        let mut range = self.range(keys_only)?;
        let stopped = loop {
            if printed == self.left {
                break Ok(Stopped::AtEnd);
            }
            match range.advance() {
                Ok(Some((key, value))) => {
                    printer.print(key, value, output)?;
                    printed += 1;
                    let last = last.get_or_insert_with(Vec::new);
                    last.clear();
                    last.extend_from_slice(key);
                }
                Ok(None) => break Ok(Stopped::AtEnd),
                Err(Error::OutOfBudget(_)) if !keys_only => break Ok(Stopped::AtLarge),
                Err(error) => {
                    break Err(explain_partial_scan(
                        error,
                        self.rows + printed,
                        self.snapshot.at().0,
                    ));
                }
            }
        };
        drop(range);
        self.printer = printer;
        self.left -= printed;
        self.rows += printed;
        if let Some(last) = last {
            self.pass(last);
        }
        stopped
    }

    /// After a read error, reports the unreadable key and, if requested, resumes after it.
    fn skip_damage(
        &mut self,
        failure: Stop,
        past: &mut PastDamage,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let Stop::Damaged(error) = failure else { return Err(failure.into()) };
        if past.on_branch {
            return Err(error.into());
        }
        let bounds =
            (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        let Some(skipped) = self.snapshot.skip_damage(&self.keyspace, bounds, self.reverse)? else {
            // A second read succeeded.
            return if past.skips { Ok(()) } else { Err(error.into()) };
        };
        output.flush()?;
        if !past.skips {
            let advice = "--skip-damaged prints everything else.";
            return Err(Failure::new(Exit::Corrupt, skipped.to_string()).advise(advice));
        }
        say(format_args!("left out: {skipped}"));
        past.skipped += 1;
        let (lower, upper) = skipped.bounds;
        let (edge, end) =
            if self.reverse { (&mut self.upper, lower) } else { (&mut self.lower, upper) };
        *edge = match end {
            // Read the boundary key itself again.
            Bound::Excluded(key) => Bound::Included(key),
            Bound::Included(key) => Bound::Excluded(key),
            // Nothing after it can be read.
            Bound::Unbounded => {
                self.left = 0;
                Bound::Unbounded
            }
        };
        Ok(())
    }

    fn print_large(&mut self, key: &[u8], output: &mut Output) -> Result<(), Stop> {
        // Check the value first, because half a value cannot be retracted.
        check(self.value(key)?)?;
        let mut printer = std::mem::take(&mut self.printer);
        printer.print_large(key, &|| self.value(key).map_err(Failure::from), output)?;
        self.printer = printer;
        Ok(())
    }

    /// Prints keys with the beginnings of their values.
    fn print_by_key(&mut self, output: &mut Output) -> Result<(), Stop> {
        let (mut last, mut printed) = (None, 0);
        let outcome = self.print_each(&mut last, &mut printed, output);
        self.left -= printed;
        if let Some(last) = last {
            self.pass(last);
        }
        outcome
    }

    fn print_each(
        &self,
        last: &mut Option<Vec<u8>>,
        printed: &mut u64,
        output: &mut Output,
    ) -> Result<(), Stop> {
        let mut keys = self.range(true)?;
        while *printed < self.left {
            let Some((key, _)) = keys.advance()? else { break };
            check_beginning(self.value(key)?)?;
            self.printer.print_for_people(key, self.value(key)?, output)?;
            *last = Some(key.to_vec());
            *printed += 1;
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> Result<plimsoll::ValueReader, Stop> {
        let value = self.snapshot.get_reader(&self.keyspace, key)?;
        Ok(value.expect("the scan saw the key in the same snapshot"))
    }
}

/// Reads a whole value.
fn check(mut value: plimsoll::ValueReader) -> Result<(), Stop> {
    io::copy(&mut value, &mut io::sink()).map(drop).map_err(cause)
}

/// Reads the beginning of a value.
fn check_beginning(value: plimsoll::ValueReader) -> Result<(), Stop> {
    io::copy(&mut value.take(BEGINNING_BYTES), &mut io::sink()).map(drop).map_err(cause)
}

/// More than a terminal shows of a value.
const BEGINNING_BYTES: u64 = 4096;

/// The store's error inside an I/O error of a reader.
fn cause(error: io::Error) -> Stop {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
        Some(error) => error.clone().into(),
        None => Failure::system(error.to_string()).into(),
    }
}

/// Explains why an iterator ended after `rows` rows.
fn explain_partial_scan(error: Error, rows: u64, at: u64) -> Stop {
    let failure = Failure::from(error.clone());
    if rows == 0 || !failure.is_gone() {
        return error.into();
    }
    let rows = count_of(rows, "row that was printed is", "rows that were printed are");
    let advice = format!(
        "The {rows} correct as of GLSN {at}; the writer has dropped the rest meanwhile. Run the \
         command again, or continue with --from."
    );
    Stop::Failed(failure.advise(&advice))
}

/// Data that was skipped.
struct PastDamage {
    /// Whether to skip damaged data.
    skips: bool,
    skipped: u64,
    /// Damage is located on branch main only.
    on_branch: bool,
}

/// Why a scan stopped.
enum Stop {
    /// Data cannot be read.
    Damaged(Error),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Corrupt { .. } | Error::Dropped { .. } => Self::Damaged(error),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Damaged(error) => error.into(),
            Stop::Failed(failure) => failure,
        }
    }
}

/// Where a scan stopped.
enum Stopped {
    AtEnd,
    AtLarge,
}
