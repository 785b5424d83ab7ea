//! `plimsoll log`: the entries of the log, one a line, and the new ones as they come.
//!
//! A reader beside a writer sees what was durable when it opened the store, so following means to open it again whenever its files
//! have changed; they are looked at once a second.

mod entry;
mod fingerprint;

use std::path::Path;
use std::time::Duration;

use plimsoll::{Db, Error};
use plimsoll_disk::clock::{Clock, SystemClock};

use crate::args::{Globals, Log};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;

use self::entry::Printer;
use self::fingerprint::Fingerprint;

const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// How long a Ctrl-C waits at most.
const NAP: Duration = Duration::from_millis(50);

pub(crate) fn run(globals: &Globals, args: &Log, output: &mut Output) -> Outcome {
    let mut walk =
        Walk { from: args.from, left: args.limit.unwrap_or(u64::MAX), args, printer: Printer::new(args.ops, output) };
    if !args.follow {
        let db = store::open_to_read(globals, &args.store)?;
        walk.check_start(&db)?;
        walk.print(&db, output)?;
        return Ok(Exit::Done);
    }
    let interrupt = Interrupt::listen()?;
    loop {
        let seen = Fingerprint::of(&args.store);
        let db = store::open_to_read(globals, &args.store)?;
        walk.print(&db, output)?;
        drop(db);
        output.flush()?;
        if walk.left == 0 {
            return Ok(Exit::Done);
        }
        if wait_for_change(&args.store, &seen, &interrupt) == Waited::Interrupted {
            return Ok(Exit::Interrupted);
        }
    }
}

/// A walk over the log, in one go or resumed.
struct Walk<'a> {
    /// The next GLSN; `None` until the walk has begun where it does by default.
    from: Option<u64>,
    /// How many entries may still be printed.
    left: u64,
    args: &'a Log,
    printer: Printer,
}

impl Walk<'_> {
    fn check_start(&self, db: &Db) -> Result<(), Failure> {
        let newest = db.newest();
        match self.from {
            Some(asked) if asked > newest => Err(Error::Future { asked, newest }.into()),
            _ => Ok(()),
        }
    }

    /// Prints what there is from `from` on.
    fn print(&mut self, db: &Db, output: &mut Output) -> Result<(), Failure> {
        let log = db.log();
        let newest = db.newest();
        let default = if self.args.follow { newest + 1 } else { log.bounds().first };
        let from = self.from.unwrap_or(default);
        self.from = Some(from.max(newest + 1));
        let to = self.args.to.unwrap_or(newest);
        if from > newest.min(to) {
            return Ok(());
        }
        let mut scan = log.scan(from..=to, self.args.stream)?;
        while self.left > 0 {
            match scan.next() {
                Some(entry) => self.printer.print(db, &entry?, output)?,
                None => break,
            }
            self.left -= 1;
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Waited {
    Changed,
    Interrupted,
}

fn wait_for_change(store: &Path, seen: &Fingerprint, interrupt: &Interrupt) -> Waited {
    let clock = SystemClock::new();
    loop {
        for _ in 0..LOOK_EVERY.as_millis() / NAP.as_millis() {
            if interrupt.came() {
                return Waited::Interrupted;
            }
            clock.sleep(NAP);
        }
        if Fingerprint::of(store) != *seen {
            return Waited::Changed;
        }
    }
}
