//! `plimsoll get`: prints the value of a key, raw to a pipe.

use plimsoll::{Keyspace, Snapshot};
use serde_json::Map;

use crate::args::{Get, Globals};
use crate::bytes::{put_json, show_key};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader};
use crate::values::{write_for_people, write_json_member, write_raw};
use crate::{branches, keyspaces, store};

pub(crate) fn run(globals: &Globals, args: Get, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let name = args.keys.keyspace();
    store::read_at(globals, &args.store, args.at.at.as_ref(), output, |db, output| {
        let snapshot = branches::read(db, &args.at, name)?;
        let keyspace = keyspaces::keyspace_at(db, &snapshot, name)?;
        print(&snapshot, &keyspace, &key, args.at.branch(), output)
    })
}

fn print(
    snapshot: &Snapshot,
    keyspace: &Keyspace,
    key: &[u8],
    branch: Option<&str>,
    output: &mut Output,
) -> Outcome {
    let open = || {
        snapshot.get_reader(keyspace, key)?.ok_or_else(|| {
            let (key, at) = (show_key(key, false), snapshot.at());
            let message = match branch {
                None => format!("there is no key `{key}` at GLSN {at}"),
                Some(branch) => format!("there is no key `{key}` on branch {branch} at GLSN {at}"),
            };
            Failure::new(Exit::No, message)
        })
    };
    match output.plain_reader() {
        Reader::Pipe => write_raw(open()?, output)?,
        Reader::People => write_for_people(&open, output)?,
        Reader::Json => {
            let mut object = Map::new();
            put_json(&mut object, "key", key);
            object.insert("at".to_owned(), snapshot.at().0.into());
            // Open the value before printing, so that a missing key prints nothing.
            drop(open()?);
            output.open_object(&object)?;
            write_json_member(&open, output)?;
            output.raw(b"}\n")?;
        }
    }
    Ok(Exit::Done)
}
