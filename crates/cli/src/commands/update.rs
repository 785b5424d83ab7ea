//! `plimsoll add`, `append` and `cas`: update one key without a conflict, in a durable commit.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use plimsoll::{Branch, Durability, Keyspace, Overflow};

use crate::args::{Add, Append, Cas, Globals, Keys, OnBranch};
use crate::branches;
use crate::bytes::show_key;
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::output::{Fact, Output, Reader};
use crate::size::show_size;
use crate::stderr::say;
use crate::store;

pub(crate) fn add(globals: &Globals, args: Add, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let sum = update(globals, &args.store, &args.on, &args.keys, |branch, keyspace| {
        branch.add(keyspace, &key, args.number, Overflow::Checked)
    })?;
    output.report(&format!("The sum {sum} is committed."), |output| {
        match output.plain_reader() {
            Reader::People | Reader::Pipe => output.line(&sum.to_string()),
            Reader::Json => output.facts(&[Fact::new("value", "", sum)]),
        }
    })?;
    Ok(Exit::Done)
}

pub(crate) fn append(globals: &Globals, args: Append, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let more = match args.value.filter(|value| value != "-") {
        Some(value) => value.into_vec(),
        None => {
            let mut more = Vec::new();
            let read =
                io::stdin().lock().take(plimsoll::MAX_VALUE_BYTES + 1).read_to_end(&mut more);
            read.map_err(|error| Failure::system(format!("cannot read stdin: {error}")))?;
            more
        }
    };
    let bytes = update(globals, &args.store, &args.on, &args.keys, |branch, keyspace| {
        branch.append(keyspace, &key, &more)
    })?;
    output.report("It is committed.", |output| match output.plain_reader() {
        Reader::People => output.line(&format!("the value has {} now", show_size(bytes))),
        Reader::Pipe => output.line(&bytes.to_string()),
        Reader::Json => output.facts(&[Fact::bytes("bytes", bytes)]),
    })?;
    Ok(Exit::Done)
}

pub(crate) fn cas(globals: &Globals, args: Cas, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let values = args.values.into_iter().map(OsString::into_vec).collect();
    let [expected, new] =
        expected_and_new(values, args.absent, args.delete).map_err(Failure::usage)?;
    let is_swapped = update(globals, &args.store, &args.on, &args.keys, |branch, keyspace| {
        branch.compare_and_swap(keyspace, &key, expected.as_deref(), new.as_deref())
    })?;
    if output.plain_reader() == Reader::Json {
        output.report("", |output| output.facts(&[Fact::new("swapped", "", is_swapped)]))?;
    }
    if is_swapped {
        return Ok(Exit::Done);
    }
    say(format_args!("the value of `{}` is not the expected one", show_key(&key, false)));
    Ok(Exit::No)
}

/// The expected value and the new one; `None` means no value.
fn expected_and_new(
    values: Vec<Vec<u8>>,
    absent: bool,
    delete: bool,
) -> Result<[Option<Vec<u8>>; 2], String> {
    let wanted = 2 - usize::from(absent) - usize::from(delete);
    let given = values.len();
    let mut values = values.into_iter();
    let expected = if absent { None } else { values.next() };
    let new = if delete { None } else { values.next() };
    if given != wanted {
        return Err(format!(
            "expected {wanted} values, not {given}: the expected one unless --absent is given, \
             and the new one unless --delete is"
        ));
    }
    Ok([expected, new])
}

/// Runs an update in a store that it opens and closes.
fn update<T>(
    globals: &Globals,
    path: &Path,
    on: &OnBranch,
    keys: &Keys,
    update: impl FnOnce(&Branch, &Keyspace) -> plimsoll::Result<T>,
) -> Result<T, Failure> {
    keyspaces::check_writable(keys.keyspace())?;
    let db = store::open_to_write(globals, path, on.creates_store(), Durability::Sync)?;
    let branch = branches::find(&db, on.name())?;
    let updated = update(&branch, &db.keyspace(keys.keyspace())?)?;
    store::close_after_commits(db);
    Ok(updated)
}
