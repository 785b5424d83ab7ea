//! `plimsoll restore`: creates a store from a dump, a backup or an archive.

use plimsoll::Db;

use crate::args::{Globals, Restore};
use crate::commands::archive;
use crate::exit::{Exit, Failure, Outcome};
use crate::load::input::Input;
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Restore, output: &mut Output) -> Outcome {
    if let Some(archive) = archive::find(&args.source)? {
        return archive::restore(globals, args, archive, output);
    }
    if args.at.is_some() {
        return Err(Failure::usage(
            "--at is for archives; a dump or a backup is restored as it is, and `get --at` reads \
             its earlier moments",
        ));
    }
    let options = store::options(globals);
    let facts = if args.source.is_dir() {
        let report = Db::restore_backup(&args.source, &args.store, options)?;
        vec![
            Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
            Fact::count("files", report.files),
            Fact::bytes("bytes copied", report.bytes_copied),
        ]
    } else {
        let from = Input::find(&args.source)?.open()?;
        let report = Db::restore(&args.store, options, from)?;
        let resumed = if report.resumed { "yes" } else { "no" };
        vec![
            Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
            Fact::count("changes", report.changes),
            Fact::new("resumed", resumed, report.resumed),
        ]
    };
    output.report("The store is restored.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}
