//! `plimsoll ttl`, `expire` and `persist`: print and change when a value expires.

use std::path::Path;
use std::time::SystemTime;

use plimsoll::{Branch, Durability, Keyspace};

use crate::args::{Expire, Globals, Keys, OnBranch, Persist, Ttl};
use crate::branches;
use crate::bytes::show_key;
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::output::Output;
use crate::script::answers;
use crate::stderr::say;
use crate::store;
use crate::time::now;

pub(crate) fn ttl(globals: &Globals, args: Ttl, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let db = store::open_to_read(globals, &args.store)?;
    let snapshot = branches::read(&db, &args.at, args.keys.keyspace())?;
    let keyspace = keyspaces::keyspace_at(&db, &snapshot, args.keys.keyspace())?;
    match answers::ttl(snapshot.ttl(&keyspace, &key)?, output)? {
        true => Ok(Exit::Done),
        false => no_value(&key),
    }
}

pub(crate) fn expire(globals: &Globals, args: Expire, _: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let at = SystemTime::from(now()).checked_add(args.ttl);
    let at = at.ok_or_else(|| Failure::usage("the time is too long"))?;
    change(globals, &args.store, &args.on, &args.keys, &key, |branch, keyspace| {
        branch.expire_at(keyspace, &key, at)
    })
}

pub(crate) fn persist(globals: &Globals, args: Persist, _: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    change(globals, &args.store, &args.on, &args.keys, &key, |branch, keyspace| {
        branch.persist(keyspace, &key)
    })
}

/// Changes the expiry of a key in a store that it opens and closes.
fn change(
    globals: &Globals,
    path: &Path,
    on: &OnBranch,
    keys: &Keys,
    key: &[u8],
    change: impl FnOnce(&Branch, &Keyspace) -> plimsoll::Result<bool>,
) -> Outcome {
    keyspaces::check_writable(keys.keyspace())?;
    let db = store::open_to_write(globals, path, false, Durability::Sync)?;
    let branch = branches::find(&db, on.name())?;
    let is_there = change(&branch, &keyspaces::known_keyspace(&db, keys.keyspace())?)?;
    store::close_after_commits(db);
    if is_there { Ok(Exit::Done) } else { no_value(key) }
}

fn no_value(key: &[u8]) -> Outcome {
    say(format_args!("`{}` has no value", show_key(key, false)));
    Ok(Exit::No)
}
