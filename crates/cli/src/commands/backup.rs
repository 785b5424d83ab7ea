//! `plimsoll backup`: a consistent copy, also of a store in use.

use crate::args::{Backup, Globals};
use crate::commands::verify;
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Backup, output: &mut Output) -> Outcome {
    let made = store::read_newest(globals, &args.store, output, |db, output| {
        let report = match args.copy {
            true => db.backup_copy(&args.destination)?,
            false => db.backup(&args.destination)?,
        };
        let facts = [
            Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
            Fact::count("files", report.files),
            Fact::bytes("bytes copied", report.bytes_copied),
            Fact::bytes("bytes linked", report.bytes_linked),
        ];
        output.report("The backup is made.", |output| output.facts(&facts))?;
        Ok(Exit::Done)
    })?;
    if !args.verify {
        return Ok(made);
    }
    let found = plimsoll::verify(&args.destination, store::options(globals), &mut |_| {})?;
    output.report("The backup is made, and was checked.", |output| verify::print(&found, output))?;
    Ok(if found.damage.is_empty() { Exit::Done } else { Exit::No })
}
