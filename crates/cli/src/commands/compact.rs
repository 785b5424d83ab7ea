//! `plimsoll compact`: merges the runs of the index now.

use plimsoll::Durability;

use crate::args::{Compact, Globals};
use crate::disk_use::{self, bytes_on_disk};
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Compact, output: &mut Output) -> Outcome {
    let bytes_before = bytes_on_disk(&args.store);
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let before = db.stats();
    db.compact()?;
    let after = db.stats();
    store::close_after_commits(db);
    let mut facts =
        vec![Fact::count("runs before", runs(&before)), Fact::count("runs after", runs(&after))];
    facts.extend(disk_use::freed(bytes_before, bytes_on_disk(&args.store)));
    output.report("The runs are merged.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}

fn runs(stats: &plimsoll::Stats) -> u64 {
    (stats.index.runs.len() + stats.index.history_runs.len()) as u64
}
