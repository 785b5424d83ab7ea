//! `plimsoll delete`: deletes keys in one transaction.

use std::collections::HashSet;

use plimsoll::Durability;

use crate::args::{Delete, Globals};
use crate::bytes::{key_bytes, show_key};
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::output::{Fact, Output, Reader};
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: Delete, output: &mut Output) -> Outcome {
    let hex = args.keys.hex;
    let keys: Result<Vec<Vec<u8>>, String> =
        args.key.into_iter().map(|key| key_bytes(key, hex)).collect();
    let keys = keys.map_err(Failure::usage)?;
    keyspaces::check_writable(&args.keyspace.keyspace)?;
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let keyspace = keyspaces::known_keyspace(&db, &args.keyspace.keyspace)?;
    let mut transaction = db.begin();
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
