//! `plimsoll state-hash`: the hash of a state, to compare it with others.

use crate::args::{Globals, StateHash};
use crate::exit::{Exit, Outcome};
use crate::output::{Output, Reader};
use crate::{branches, store};

pub(crate) fn run(globals: &Globals, args: &StateHash, output: &mut Output) -> Outcome {
    store::read_at(globals, &args.store, args.at.at.as_ref(), output, |db, output| {
        let snapshot = branches::read(db, &args.at, &args.keyspace)?;
        let hash = snapshot.state_hash().map_err(|error| branches::explain(db, error))?;
        match output.reader() {
            Reader::Json => output.json(&serde_json::json!({
                "glsn": snapshot.at().0,
                "state_hash": hash.to_string(),
            }))?,
            _ => output.line(&hash.to_string())?,
        }
        Ok(Exit::Done)
    })
}
