//! `plimsoll count`: the number of keys in a range, counted or estimated.

use std::ops::ControlFlow;

use crate::args::{CountKeys, Globals};
use crate::exit::{Exit, Outcome};
use crate::key_range::KeyRange;
use crate::output::Output;
use crate::script::answers;
use crate::{branches, keyspaces, store};

pub(crate) fn run(globals: &Globals, args: CountKeys, output: &mut Output) -> Outcome {
    let key = |key| args.keys.optional(key);
    let (from, to, prefix) = (key(args.from)?, key(args.to)?, key(args.prefix)?);
    let range = KeyRange::new(&prefix.unwrap_or_default(), from, to);
    let name = args.keys.keyspace();
    store::read_at(globals, &args.store, args.at.at.as_ref(), output, |db, output| {
        let snapshot = branches::read(db, &args.at, name)?;
        let keyspace = keyspaces::keyspace_at(db, &snapshot, name)?;
        if args.approximate {
            answers::about(db.approximate_len(&keyspace, range.bounds())?, output)?;
            return Ok(Exit::Done);
        }
        let mut count = 0;
        snapshot.range(&keyspace, range.bounds())?.keys_only().visit(|_, _| {
            count += 1;
            ControlFlow::<()>::Continue(())
        })?;
        answers::count(count, output)?;
        Ok(Exit::Done)
    })
}
