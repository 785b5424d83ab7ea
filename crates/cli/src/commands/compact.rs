//! `plimsoll compact`: merges the runs of the index now.

use plimsoll::Durability;

use crate::args::{Compact, Globals};
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Compact, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let before = db.stats();
    db.compact()?;
    let after = db.stats();
    store::close_after_commits(db);
    let facts = [
        Fact::count("runs before", runs(&before)),
        Fact::count("runs after", runs(&after)),
        Fact::bytes("bytes before", before.disk_bytes),
        Fact::bytes("bytes after", after.disk_bytes),
    ];
    output.report("The runs are merged.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}

fn runs(stats: &plimsoll::Stats) -> u64 {
    (stats.index.runs.len() + stats.index.history_runs.len()) as u64
}
