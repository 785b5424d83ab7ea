//! Opens stores for the commands.

use std::io::ErrorKind;
use std::path::Path;

use plimsoll::{Db, Durability, Error, InvalidInput, Io, Options};

use crate::args::{Globals, HowToRead};
use crate::exit::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::member;
use crate::moment::At;
use crate::output::Output;
use crate::stderr::say;
use crate::wait;

/// Shown if the system denies opening a store for writing.
const FORBIDDEN: &str = "This user may not write to the store; \"Users, containers, builds\" in \
                         docs/explanation/processes.md says how several users share one.";

/// Shown if the system denies creating a store.
const FORBIDDEN_TO_MAKE: &str =
    "This user may not create a store there; give a path in a folder that this user may write to.";

/// The options given on the command line.
pub(crate) fn options(globals: &Globals) -> Options {
    let io = match globals.io {
        HowToRead::Auto => Io::Auto,
        HowToRead::Direct => Io::Direct,
        HowToRead::Cached => Io::Cached,
    };
    let options = Options::new().create(false).warm(!globals.no_warm).io(io);
    match globals.memory {
        Some(bytes) => options.memory_bytes(bytes),
        None => options,
    }
}

/// Opens a store read-only, while another process may write.
pub(crate) fn open_to_read(globals: &Globals, path: &Path) -> Result<Db, Failure> {
    member::refresh(path, options(globals))?;
    // A command reads once, so it gains nothing from the warm image.
    Ok(print_warnings(Db::open(path, options(globals).read_only(true).warm(false))?))
}

/// Opens a store to follow its newest commits if processes share it; otherwise like
/// [`open_to_read`]. Also returns whether it follows.
pub(crate) fn open_to_follow(globals: &Globals, path: &Path) -> Result<(Db, bool), Failure> {
    Ok(open_member_or_reader(globals, path)?)
}

/// As [`open_to_follow`], with the store's error.
pub(crate) fn open_member_or_reader(
    globals: &Globals,
    path: &Path,
) -> plimsoll::Result<(Db, bool)> {
    member::refresh(path, options(globals))?;
    let options = options(globals).read_only(true).warm(false);
    let read = || Ok((print_warnings(Db::open(path, options.clone())?), false));
    if plimsoll::members(path, &options)?.is_empty() {
        return read();
    }
    match Db::open(path, options.clone().shared(true)) {
        Ok(db) => Ok((print_warnings(db), true)),
        Err(Error::InvalidInput(_) | Error::Locked { .. }) => read(),
        Err(error) => Err(error),
    }
}

/// Maximum number of attempts if another process drops the data being read.
const ATTEMPTS_MAX: u32 = 16;

/// Opens a store and reads its newest moment with `look`. If another process drops that data
/// meanwhile, reopens and retries, a bounded number of times and only if nothing was printed.
pub(crate) fn read_newest(
    globals: &Globals,
    path: &Path,
    output: &mut Output,
    mut look: impl FnMut(&Db, &mut Output) -> Outcome,
) -> Outcome {
    for _ in 1..ATTEMPTS_MAX {
        match look(&open_to_read(globals, path)?, output) {
            Err(failure) if failure.is_gone() && !output.has_printed() => {}
            done => return done,
        }
    }
    look(&open_to_read(globals, path)?, output)
}

/// Like [`read_newest`] if no moment was requested; a requested moment is read once.
pub(crate) fn read_at(
    globals: &Globals,
    path: &Path,
    at: Option<&At>,
    output: &mut Output,
    mut look: impl FnMut(&Db, &mut Output) -> Outcome,
) -> Outcome {
    match at {
        Some(at) if !at.is_newest() => look(&open_to_read(globals, path)?, output),
        _ => read_newest(globals, path, output, look),
    }
}

/// Opens a store for writing, shared with other processes; `create` creates a missing store.
pub(crate) fn open_to_write(
    globals: &Globals,
    path: &Path,
    create: bool,
    durability: Durability,
) -> Result<Db, Failure> {
    open_to_write_unless(None, globals, path, create, durability)
}

/// Like [`open_to_write`], for a command that handles Ctrl-C: an interrupt ends the wait for the
/// store.
pub(crate) fn open_to_write_unless(
    interrupt: Option<&Interrupt>,
    globals: &Globals,
    path: &Path,
    create: bool,
    durability: Durability,
) -> Result<Db, Failure> {
    let mut is_forbidden = false;
    let open = || {
        open_shared(path, options(globals).create(create).durability(durability)).inspect_err(
            |error| {
                is_forbidden = matches!(error, Error::Io { kind: ErrorKind::PermissionDenied, .. });
            },
        )
    };
    match wait::to_share(globals, interrupt, open) {
        Ok(db) => Ok(print_warnings(db)),
        Err(failure) if is_forbidden => {
            Err(failure.advise(if path.exists() { FORBIDDEN } else { FORBIDDEN_TO_MAKE }))
        }
        Err(failure) => Err(failure),
    }
}

/// Opens a store for writing, shared with other processes; exclusively if the file system does not
/// support sharing, or if the store is a member of a cluster.
pub(crate) fn open_shared(path: &Path, options: Options) -> plimsoll::Result<Db> {
    if member::is_member(path)? {
        return member::open(path, options);
    }
    match Db::open(path, options.clone().shared(true)) {
        Err(Error::InvalidInput(InvalidInput::CannotBeShared { .. })) => Db::open(path, options),
        opened => opened,
    }
}

/// Prints the warnings of opening the store.
fn print_warnings(db: Db) -> Db {
    for warning in db.warnings() {
        say(warning);
    }
    db
}

/// Closes a store whose commits were durable when they returned. Errors of closing are printed but
/// do not fail the command; a user who saw a failure would run the command again and commit
/// everything twice.
pub(crate) fn close_after_commits(db: Db) {
    if let Err(error) = db.close() {
        say(format_args!(
            "{error}\nThe commits are kept; the next command that writes completes the unfinished \
             work."
        ));
    }
}
