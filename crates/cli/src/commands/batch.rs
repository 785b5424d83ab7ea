//! `plimsoll batch`: runs the commands of a file or of stdin in one transaction, or one per line.
//!
//! Invariant: an error names its line and states which of the earlier lines are committed.

use std::io::BufRead;

use plimsoll::Durability;

use crate::args::{Batch, Globals};
use crate::branches;
use crate::commands::report::{self, Opened};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::load::input::{BYTE_ORDER_MARK, Input};
use crate::output::{Fact, Output, Reader};
use crate::script::session::{Done, Mode, Place, Session};
use crate::script::statement::parse;
use crate::size::count_of;
use crate::store;

/// The longest line. Larger values are read from files.
const LINE_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn run(globals: &Globals, args: &Batch, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    // Open the input before the store, so that an unreadable file does not leave an empty store
    // behind.
    let mut input = Input::find(&args.file)?.open_until(&interrupt)?;
    // The commits must not depend on how much of the output is read.
    output.ignore_closed_pipe();
    let db = store::open_to_write_unless(
        Some(&interrupt),
        globals,
        &args.store,
        args.on.creates_store(),
        Durability::Sync,
    )?;
    let mode = if args.each_line { Mode::EachLine } else { Mode::Whole };
    let opened = Opened { db: &db, globals, store: &args.store };
    let answer = |what, words: &[_], place: Place<'_>, output: &mut _| {
        report::answer(what, words, opened, place, output)
    };
    let branch = branches::find(&db, args.on.name())?;
    let mut session = Session::new(&db, &answer, mode, branch, args.keyspace.keyspace.clone());
    let mut lines = Lines { reader: &mut input, line: Vec::new(), number: 0 };
    let ended = run_lines(&mut session, &mut lines, &interrupt, output);
    let lines_read = lines.number;
    let finished = finish(session, mode, ended, lines_read);
    store::close_after_commits(db);
    let (exit, transactions, glsn) = finished?;
    let done = glsn.map_or_else(
        || "All lines were run; there was nothing to commit.".to_owned(),
        |glsn| format!("All lines are committed, the last as GLSN {glsn}."),
    );
    output.report(&done, |output| match (output.reader(), glsn) {
        (Reader::People, _) => output.line(&format!(
            "{} in {}{}",
            count_of(lines_read, "line", "lines"),
            count_of(transactions, "transaction", "transactions"),
            glsn.map_or_else(String::new, |glsn| format!(", the last as GLSN {glsn}"))
        )),
        (Reader::Pipe, Some(glsn)) => output.line(&glsn.to_string()),
        (Reader::Pipe, None) => Ok(()),
        (Reader::Json, glsn) => output.facts(&[
            Fact::count("lines", lines_read),
            Fact::count("transactions", transactions),
            Fact::new("glsn", "", glsn),
        ]),
    })?;
    Ok(exit)
}

/// The outcome of the script.
enum Ended {
    AtEnd {
        missing: bool,
    },
    /// Interrupted by a signal before this line ran.
    Interrupted {
        before: u64,
    },
}

fn run_lines(
    session: &mut Session<'_>,
    lines: &mut Lines<'_>,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Result<Ended, Failure> {
    let mut missing = false;
    while lines.next()? {
        if interrupt.was_received() {
            return Ok(Ended::Interrupted { before: lines.number });
        }
        let Some(statement) = parse(&lines.line).map_err(Failure::usage)? else { continue };
        match session.run(statement, output)? {
            Done::Yes => {}
            Done::Missing => missing = true,
            Done::Quit => break,
        }
    }
    match interrupt.was_received() {
        true => Ok(Ended::Interrupted { before: lines.number + 1 }),
        false => Ok(Ended::AtEnd { missing }),
    }
}

/// Commits the completed lines and reports the others.
fn finish(
    mut session: Session<'_>,
    mode: Mode,
    ended: Result<Ended, Failure>,
    line: u64,
) -> Result<(Exit, u64, Option<u64>), Failure> {
    let left_open = mode == Mode::EachLine && session.is_in_transaction();
    let whole = mode == Mode::Whole;
    match ended {
        Ok(Ended::AtEnd { .. }) if left_open => {
            let glsn = session.settle()?;
            let message =
                "the last `begin` has no `commit`: the commands after it are not committed";
            Err(Failure::usage(format!("line {line}: {message}{}", committed_so_far(glsn))))
        }
        Ok(Ended::AtEnd { missing }) => {
            let glsn = session.settle()?;
            Ok((if missing { Exit::No } else { Exit::Done }, session.transactions(), glsn))
        }
        Ok(Ended::Interrupted { .. }) if whole => {
            Err(Failure::new(Exit::Interrupted, "interrupted; nothing was committed"))
        }
        Ok(Ended::Interrupted { before }) => {
            let glsn = session.settle()?;
            Err(Failure::new(
                Exit::Interrupted,
                format!("interrupted before line {before}{}", committed_so_far(glsn)),
            ))
        }
        Err(Failure::ReaderLeft) => Err(Failure::ReaderLeft),
        Err(Failure::Message { exit, message, .. }) if whole => {
            Err(Failure::new(exit, format!("line {line}: {message}\nNothing was committed.")))
        }
        Err(Failure::Message { exit, message, .. }) => {
            let so_far = match session.settle() {
                Ok(glsn) => committed_so_far(glsn),
                Err(_) => "; whether the lines before it are committed is unknown".to_owned(),
            };
            Err(Failure::new(exit, format!("line {line}: {message}{so_far}")))
        }
    }
}

fn committed_so_far(glsn: Option<u64>) -> String {
    match glsn {
        None => "\nNothing was committed.".to_owned(),
        Some(glsn) => {
            format!("\nThe transactions before it are committed, the last as GLSN {glsn}.")
        }
    }
}

/// Reads the lines of a script, one at a time.
pub(super) struct Lines<'a> {
    pub(super) reader: &'a mut dyn BufRead,
    pub(super) line: Vec<u8>,
    pub(super) number: u64,
}

impl Lines<'_> {
    /// Reads the next line; false at the end.
    pub(super) fn next(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        // Release the memory of a long line before reading shorter ones.
        self.line.shrink_to(64 << 10);
        let mut limited = std::io::Read::take(&mut *self.reader, LINE_BYTES_MAX + 1);
        let read = limited.read_until(b'\n', &mut self.line);
        let read =
            read.map_err(|error| Failure::system(format!("cannot read the commands: {error}")))?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() as u64 > LINE_BYTES_MAX {
            return Err(Failure::usage(
                "a line has at most 16 MiB; read a larger value from a file: put KEY --file PATH",
            ));
        }
        Ok(true)
    }
}
