//! `plimsoll rebuild`: the index anew from the log.

use crate::args::{Globals, Rebuild};
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::progress::Progress;
use crate::{store, wait};

pub(crate) fn run(globals: &Globals, args: &Rebuild, output: &mut Output) -> Outcome {
    let progress = Progress::of_items(Some(0), "transactions");
    let report = wait::for_lock(globals, || {
        plimsoll::rebuild(&args.store, store::options(globals), &mut |glsn, newest| progress.set_of(glsn, newest))
    })?;
    drop(progress);
    let facts =
        [Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0), Fact::count("versions", report.versions)];
    output.report("The index is rebuilt.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}
