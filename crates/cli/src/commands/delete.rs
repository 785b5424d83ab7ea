//! `plimsoll delete`: deletes keys, or a range of keys, in one transaction.

use std::collections::HashSet;

use plimsoll::Durability;

use crate::args::{Delete, Globals};
use crate::branches;
use crate::bytes::show_key;
use crate::exit::{Exit, Failure, Outcome};
use crate::key_range::KeyRange;
use crate::keyspaces;
use crate::output::{Fact, Output, Reader};
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: Delete, output: &mut Output) -> Outcome {
    if args.prefix.is_some() || args.from.is_some() || args.to.is_some() {
        return delete_range(globals, args, output);
    }
    let keys = args.key.into_iter().map(|key| args.keys.key(key));
    let keys = keys.collect::<Result<Vec<Vec<u8>>, Failure>>()?;
    keyspaces::check_writable(args.keys.keyspace())?;
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let branch = branches::find(&db, args.on.name())?;
    let keyspace = keyspaces::known_keyspace(&db, args.keys.keyspace())?;
    let mut transaction = branch.begin();
    let (mut missing, mut seen) = (Vec::new(), HashSet::new());
    let mut deleted = 0;
    // A key that is named twice exists only for its first deletion.
    for key in keys.iter().filter(|key| seen.insert(key.as_slice())) {
        if transaction.contains_key(&keyspace, key)? {
            transaction.delete(&keyspace, key)?;
            deleted += 1;
        } else {
            missing.push(show_key(key, false));
        }
    }
    let glsn = if deleted > 0 { Some(transaction.commit()?) } else { None };
    store::close_after_commits(db);
    let done = match glsn {
        Some(glsn) => format!("It is committed as GLSN {glsn}."),
        None => "Nothing was deleted.".to_owned(),
    };
    output.report(&done, |output| match (output.plain_reader(), glsn) {
        (Reader::People, Some(glsn)) => {
            output.line(&format!("{} deleted as of GLSN {glsn}", count_of(deleted, "key", "keys")))
        }
        (Reader::People, None) => output.line("nothing was deleted"),
        (Reader::Pipe, Some(glsn)) => output.line(&glsn.to_string()),
        (Reader::Pipe, None) => Ok(()),
        (Reader::Json, glsn) => output.facts(&[
            Fact::new("glsn", "", glsn.map(|glsn| glsn.0)),
            Fact::count("deleted", deleted),
        ]),
    })?;
    for key in &missing {
        say(format_args!("there is no key `{key}`"));
    }
    Ok(if missing.is_empty() { Exit::Done } else { Exit::No })
}

fn delete_range(globals: &Globals, args: Delete, output: &mut Output) -> Outcome {
    let key = |key| args.keys.optional(key);
    let (prefix, from, to) = (key(args.prefix)?, key(args.from)?, key(args.to)?);
    keyspaces::check_writable(args.keys.keyspace())?;
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let branch = branches::find(&db, args.on.name())?;
    let keyspace = keyspaces::known_keyspace(&db, args.keys.keyspace())?;
    let range = KeyRange::new(&prefix.unwrap_or_default(), from, to);
    let glsn = branch.delete_range(&keyspace, range.bounds())?;
    store::close_after_commits(db);
    let done = format!("It is committed as GLSN {glsn}.");
    output.report(&done, |output| match output.plain_reader() {
        Reader::People => output.line(&format!("the range is deleted as of GLSN {glsn}")),
        Reader::Pipe => output.line(&glsn.to_string()),
        Reader::Json => output.facts(&[Fact::new("glsn", "", Some(glsn.0))]),
    })?;
    Ok(Exit::Done)
}
