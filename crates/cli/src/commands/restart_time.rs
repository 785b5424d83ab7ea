//! `plimsoll restart-time`: makes the log's time follow the clock again, after commits were made
//! under a clock that was ahead.

use plimsoll::Durability;

use crate::args::{Globals, RestartTime};
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &RestartTime, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let last = db.log().restart_time()?;
    store::close_after_commits(db);
    match last {
        Some(last) => {
            let said = format!(
                "The log's time follows the clock again; GLSN {last} is the last commit before \
                 that."
            );
            output.report(&said, |output| {
                output.facts(&[Fact::new("last GLSN before", last.to_string(), last.0)])
            })?;
        }
        None => output
            .report("The log's time is not ahead of the clock: nothing was changed.", |output| {
                output.facts(&[])
            })?,
    }
    Ok(Exit::Done)
}
