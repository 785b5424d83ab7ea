//! `plimsoll put`: sets one key to one value in a durable commit.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use plimsoll::Durability;

use crate::args::{Globals, Put};
use crate::branches;
use crate::exit::{Exit, Outcome};
use crate::keyspaces;
use crate::output::{Fact, Output, Reader};
use crate::size::show_size;
use crate::store;

pub(crate) fn run(globals: &Globals, args: Put, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    keyspaces::check_writable(args.keys.keyspace())?;
    let db = store::open_to_write(globals, &args.store, args.on.creates_store(), Durability::Sync)?;
    let branch = branches::find(&db, args.on.name())?;
    let keyspace = db.keyspace(args.keys.keyspace())?;
    let mut transaction = branch.begin();
    let bytes = match argument(args.value) {
        Some(value) => {
            match args.ttl {
                Some(ttl) => transaction.put_with_ttl(&keyspace, &key, &value, ttl)?,
                None => transaction.put(&keyspace, &key, &value)?,
            }
            value.len() as u64
        }
        None => {
            let mut value = io::stdin().lock();
            match args.ttl {
                Some(ttl) => transaction.put_reader_with_ttl(&keyspace, &key, &mut value, ttl)?,
                None => transaction.put_reader(&keyspace, &key, &mut value)?,
            }
        }
    };
    let glsn = transaction.commit()?;
    store::close_after_commits(db);
    output.report(&format!("It is committed as GLSN {glsn}."), |output| {
        match output.plain_reader() {
            Reader::People => {
                output.line(&format!("{} committed as GLSN {glsn}", show_size(bytes)))
            }
            Reader::Pipe => output.line(&glsn.to_string()),
            Reader::Json => {
                output.facts(&[Fact::count("glsn", glsn.0), Fact::bytes("bytes", bytes)])
            }
        }
    })?;
    Ok(Exit::Done)
}

/// The value on the command line; `None` if it is read from stdin.
fn argument(value: Option<OsString>) -> Option<Vec<u8>> {
    value.filter(|value| value != "-").map(OsString::into_vec)
}
