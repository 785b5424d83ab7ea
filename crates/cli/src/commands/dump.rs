//! `plimsoll dump`: writes a store as a stream, for `plimsoll restore` or, as JSON lines, for
//! `load`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use plimsoll::{DumpOptions, DumpReport, Error};

use crate::args::{AtMoment, Dump, Globals, InKeyspace, Keys, OnBranch, Scan};
use crate::commands::scan;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: Dump, output: &mut Output) -> Outcome {
    let to_stdout = args.output.as_os_str() == "-";
    if globals.json {
        return run_json(globals, args, to_stdout, output);
    }
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "a dump is not for a terminal: redirect it, or give a file with -o",
        ));
    }
    let interrupt = Interrupt::listen()?;
    let mut options = DumpOptions::new().history(args.history).cancel_on(interrupt.flag());
    if let Some(name) = &args.keyspace {
        options = options.keyspace(name);
    }
    // If processes share the store, join them, so that they do not free data that the dump reads.
    let (db, _) = store::open_to_follow(globals, &args.store)?;
    if to_stdout {
        let mut to = Sink { to: Box::new(io::stdout()), failure: None };
        let made = db.dump(options, &mut to);
        if let Some(failure) = &to.failure {
            return Err(Failure::of_output(failure));
        }
        reported(made)?;
        return Ok(Exit::Done);
    }
    let report = to_file(&args.output, |to| db.dump(options, to))?;
    let facts = [
        Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
        Fact::count("commits", report.commits),
        Fact::count("changes", report.changes),
        Fact::bytes("bytes", report.bytes),
    ];
    output.report("The dump is written.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}

/// Writes the rows of one keyspace as JSON lines.
fn run_json(globals: &Globals, args: Dump, to_stdout: bool, output: &mut Output) -> Outcome {
    if args.history {
        return Err(Failure::usage(
            "--json dumps the newest rows; for the history as JSON use `log --reverse --ops \
             --json`",
        ));
    }
    if !to_stdout {
        return Err(Failure::usage("--json goes to stdout: redirect it instead of -o"));
    }
    let keyspace = args.keyspace.unwrap_or_else(|| "default".to_owned());
    let rows = Scan {
        store: args.store,
        prefix: None,
        from: None,
        to: None,
        limit: None,
        reverse: false,
        keys_only: false,
        null: false,
        skip_damaged: false,
        at: AtMoment { at: None, on: OnBranch { branch: None } },
        keys: Keys { keyspace: InKeyspace { keyspace }, hex: false },
    };
    scan::run(globals, rows, output)
}

fn reported(made: plimsoll::Result<DumpReport>) -> Result<DumpReport, Failure> {
    made.map_err(|error| match error {
        Error::Cancelled => Failure::new(Exit::Interrupted, "interrupted. The dump is incomplete."),
        error => error.into(),
    })
}

/// Writes a new file, durably; removes it if that fails.
#[allow(clippy::disallowed_methods, reason = "the user's file, not one of a store")]
fn to_file(
    path: &Path,
    dump: impl FnOnce(&mut Sink) -> plimsoll::Result<DumpReport>,
) -> Result<DumpReport, Failure> {
    let failed = |error: &io::Error| Failure::system(format!("{}: {error}", path.display()));
    let file = File::create_new(path).map_err(|error| failed(&error))?;
    let synced = file.try_clone().map_err(|error| failed(&error))?;
    let mut to = Sink { to: Box::new(file), failure: None };
    let made = dump(&mut to);
    let written = match &to.failure {
        Some(failure) => Err(failed(failure)),
        None => reported(made),
    };
    written
        .and_then(|report| synced.sync_all().map(|()| report).map_err(|error| failed(&error)))
        .inspect_err(|_| {
            // The first failure is the one to report.
            let _ = std::fs::remove_file(path);
        })
}

/// Keeps the failure of an output, to distinguish it from a failure of the store.
struct Sink {
    to: Box<dyn Write>,
    failure: Option<io::Error>,
}

impl Sink {
    fn note<T>(&mut self, written: io::Result<T>) -> io::Result<T> {
        written.map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.failure = Some(error);
            }
            kind.into()
        })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.note(flushed)
    }
}
