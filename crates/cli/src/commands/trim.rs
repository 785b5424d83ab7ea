//! `plimsoll trim`: frees the old end of the log.

use plimsoll::{Durability, Glsn};

use crate::args::{Globals, Trim};
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output};
use crate::{moment, store};

pub(crate) fn run(globals: &Globals, args: &Trim, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let before = db.stats().disk_bytes;
    let first = db.log().trim(Glsn(moment::glsn(&db, &args.until, "default")?))?;
    let after = db.stats().disk_bytes;
    store::close_after_commits(db);
    output.facts(&[
        Fact::new("first GLSN", first.to_string(), first.0),
        Fact::bytes("bytes before", before),
        Fact::bytes("bytes after", after),
    ])?;
    Ok(Exit::Done)
}
