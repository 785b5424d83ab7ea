//! `plimsoll backup`: a consistent copy, also of a store in use.

use plimsoll::{BackupOptions, Error};

use crate::args::{Backup, Globals};
use crate::commands::verify;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Backup, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let made = store::read_newest(globals, &args.store, output, |db, output| {
        let options = BackupOptions::new().copy(args.copy).cancel_on(interrupt.flag());
        let report = match db.backup_with(&args.destination, options) {
            Err(Error::Cancelled) => {
                return Err(Failure::new(Exit::Interrupted, "interrupted. No backup was made."));
            }
            made => made?,
        };
        let facts = [
            Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
            Fact::count("files", report.files),
            Fact::bytes("bytes copied", report.bytes_copied),
            Fact::bytes("bytes linked", report.bytes_linked),
        ];
        output.report("The backup is complete.", |output| output.facts(&facts))?;
        Ok(Exit::Done)
    })?;
    if !args.verify {
        return Ok(made);
    }
    if interrupt.was_received() {
        return Err(Failure::new(
            Exit::Interrupted,
            "interrupted. The backup is complete, but was not checked.",
        ));
    }
    // Verification only reads, so it can be stopped at any moment.
    interrupt.exit_on_first_signal();
    let found = plimsoll::verify(&args.destination, store::options(globals), &mut |_| {})?;
    output.report("The backup is complete, and was checked.", |output| {
        verify::print(&found, output)
    })?;
    Ok(if found.damage.is_empty() { Exit::Done } else { Exit::No })
}
