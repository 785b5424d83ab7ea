//! `plimsoll keyspace`: lists, creates, alters and drops keyspaces.

use std::time::Duration;

use plimsoll::{Compression, Durability, Error, InvalidInput, KeyspaceInfo};
use serde_json::json;

use crate::args::{
    Globals, Keyspace, KeyspaceCompression, KeyspaceCreate, KeyspaceDrop, KeyspaceRetention,
    KeyspaceTtl, NewTtl,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::keyspaces::show_ttl;
use crate::output::{Output, Reader};
use crate::size::count_of;
use crate::store;

pub(crate) fn run(globals: &Globals, command: &Keyspace, output: &mut Output) -> Outcome {
    match command {
        Keyspace::List(args) => {
            keyspaces::print_list(&store::open_to_read(globals, &args.store)?, output)?
        }
        Keyspace::Create(args) => create(globals, args, output)?,
        Keyspace::Retention(args) => retention(globals, args, output)?,
        Keyspace::Compression(args) => compression(globals, args, output)?,
        Keyspace::Ttl(args) => ttl(globals, args, output)?,
        Keyspace::Drop(args) => drop_keyspace(globals, args, output)?,
    }
    Ok(Exit::Done)
}

fn create(globals: &Globals, args: &KeyspaceCreate, output: &mut Output) -> Result<(), Failure> {
    keyspaces::check_writable(&args.name)?;
    let db = store::open_to_write(globals, &args.store, true, Durability::Sync)?;
    let known = info(&db, &args.name);
    let keyspace =
        db.create_keyspace(&args.name, args.retention).map_err(|error| refused(error, args))?;
    match (args.compression, known) {
        (Some(asked), Some(known)) if known.compression != asked => {
            return Err(other_compression(args, known.compression, asked));
        }
        (Some(asked), None) => db.set_compression(&keyspace, asked)?,
        _ => {}
    }
    if args.ttl.is_some() {
        db.set_ttl(&keyspace, args.ttl)?;
    }
    store::close_after_commits(db);
    let done = format!("Keyspace {} is in the store.", args.name);
    output.report(&done, |output| keyspaces::print_one(&args.name, args.retention, output))
}

/// Explains in terms of the command line why the keyspace was not created.
fn refused(error: Error, args: &KeyspaceCreate) -> Failure {
    match error {
        Error::InvalidInput(InvalidInput::OtherRetention { name, keeps, asked }) => {
            Failure::usage(format!(
                "keyspace `{name}` exists with the retention {keeps}, not {asked}; `plimsoll \
                 keyspace retention {} {name} {asked}` changes it",
                args.store.display(),
            ))
        }
        error => error.into(),
    }
}

fn other_compression(args: &KeyspaceCreate, has: Compression, asked: Compression) -> Failure {
    let (name, store) = (&args.name, args.store.display());
    Failure::usage(format!(
        "keyspace `{name}` exists with the compression {has}, not {asked}; `plimsoll keyspace \
         compression {store} {name} {asked}` changes it"
    ))
}

/// The settings of a keyspace, if it exists.
fn info(db: &plimsoll::Db, name: &str) -> Option<KeyspaceInfo> {
    db.keyspaces().into_iter().find(|known| known.name == name)
}

fn compression(
    globals: &Globals,
    args: &KeyspaceCompression,
    output: &mut Output,
) -> Result<(), Failure> {
    let Some(compression) = args.compression else {
        let db = store::open_to_read(globals, &args.store)?;
        let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
        let known = info(&db, keyspace.name()).expect("a keyspace that was just found is listed");
        return print_compression(&args.name, known.compression, output);
    };
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
    db.set_compression(&keyspace, compression)?;
    store::close_after_commits(db);
    let done = format!("The compression of keyspace {} is now {compression}.", args.name);
    output.report(&done, |output| print_compression(&args.name, compression, output))
}

fn print_compression(
    name: &str,
    compression: Compression,
    output: &mut Output,
) -> Result<(), Failure> {
    let shown = compression.to_string();
    match output.reader() {
        Reader::People => output.line(&format!("{name}  {shown}")),
        Reader::Pipe => output.fields(&[name.as_bytes(), shown.as_bytes()]),
        Reader::Json => output.json(&json!({ "name": name, "compression": shown })),
    }
}

fn ttl(globals: &Globals, args: &KeyspaceTtl, output: &mut Output) -> Result<(), Failure> {
    let Some(NewTtl(ttl)) = args.ttl else {
        let db = store::open_to_read(globals, &args.store)?;
        let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
        let known = info(&db, keyspace.name()).expect("a keyspace that was just found is listed");
        return print_ttl(&args.name, known.ttl, output);
    };
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
    db.set_ttl(&keyspace, ttl)?;
    store::close_after_commits(db);
    let done = format!("The time to live of keyspace {} is now {}.", args.name, show_ttl(ttl));
    output.report(&done, |output| print_ttl(&args.name, ttl, output))
}

fn print_ttl(name: &str, ttl: Option<Duration>, output: &mut Output) -> Result<(), Failure> {
    let shown = show_ttl(ttl);
    match output.reader() {
        Reader::People => output.line(&format!("{name}  {shown}")),
        Reader::Pipe => output.fields(&[name.as_bytes(), shown.as_bytes()]),
        Reader::Json => {
            let seconds = ttl.map(|ttl| ttl.as_secs_f64());
            output.json(&json!({ "name": name, "ttl_seconds": seconds }))
        }
    }
}

fn retention(
    globals: &Globals,
    args: &KeyspaceRetention,
    output: &mut Output,
) -> Result<(), Failure> {
    let Some(retention) = args.retention else {
        let db = store::open_to_read(globals, &args.store)?;
        let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
        let known = info(&db, keyspace.name()).expect("a keyspace that was just found is listed");
        return keyspaces::print_one(&args.name, known.retention, output);
    };
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
    db.set_retention(&keyspace, retention)?;
    store::close_after_commits(db);
    let done = format!("The retention of keyspace {} is now {retention}.", args.name);
    output.report(&done, |output| keyspaces::print_one(&args.name, retention, output))
}

fn drop_keyspace(
    globals: &Globals,
    args: &KeyspaceDrop,
    output: &mut Output,
) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let keyspace = keyspaces::known_keyspace(&db, &args.name)?;
    let dropped =
        if args.forget { db.forget_keyspace(&keyspace)? } else { db.drop_keyspace(&keyspace)? };
    store::close_after_commits(db);
    let done = format!("Keyspace {} is dropped as of GLSN {}.", args.name, dropped.glsn);
    output.report(&done, |output| match output.reader() {
        Reader::People => {
            let keys = count_of(dropped.keys, "key", "keys");
            output.line(&format!("{} dropped with {keys}, as of GLSN {}", args.name, dropped.glsn))
        }
        Reader::Pipe => output.line(&dropped.glsn.to_string()),
        Reader::Json => output.json(&json!({ "glsn": dropped.glsn.0, "keys": dropped.keys })),
    })
}
