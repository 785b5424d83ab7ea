//! `plimsoll remote`: lists, adds and removes the addresses of other stores.

use plimsoll::{Db, Durability, Error, InvalidInput, RemoteInfo, absolute_address};
use serde_json::json;

use crate::args::{Globals, Remote, RemoteAdd, RemoteRemove};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::store;

pub(crate) fn run(globals: &Globals, command: &Remote, output: &mut Output) -> Outcome {
    match command {
        Remote::Add(args) => add(globals, args)?,
        Remote::List(args) => list(&store::open_to_read(globals, &args.store)?, output)?,
        Remote::Remove(args) => remove(globals, args)?,
    }
    Ok(Exit::Done)
}

fn add(globals: &Globals, args: &RemoteAdd) -> Result<(), Failure> {
    let address = absolute_address(&args.address)?;
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    db.add_remote(&args.name, &address)?;
    store::close_after_commits(db);
    Ok(())
}

fn list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let remotes = db.remotes()?;
    let width = remotes.iter().map(|remote| remote.name.chars().count()).max().unwrap_or(0);
    remotes.iter().try_for_each(|RemoteInfo { name, address, .. }| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{name:<width$}"));
            output.line(&format!("{name}  {address}"))
        }
        Reader::Pipe => output.fields(&[name.as_bytes(), address.as_bytes()]),
        Reader::Json => output.json(&json!({ "name": name, "address": address })),
    })
}

fn remove(globals: &Globals, args: &RemoteRemove) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    db.remove_remote(&args.name).map_err(|error| explain(&db, error))?;
    store::close_after_commits(db);
    Ok(())
}

/// Whether an argument is an address. Otherwise it is the name of a remote, which has no `/` and no
/// `:`.
pub(crate) fn is_address(remote: &str) -> bool {
    remote.contains(['/', ':'])
}

/// Names the known remotes if one does not exist.
pub(crate) fn explain(db: &Db, error: Error) -> Failure {
    let Error::InvalidInput(InvalidInput::NoRemote { name }) = &error else {
        return crate::branches::explain(db, error);
    };
    let Ok(remotes) = db.remotes() else { return error.into() };
    let names: Vec<_> = remotes.into_iter().map(|remote| remote.name).collect();
    let known = match names.is_empty() {
        true => "this store has no remotes".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    Failure::usage(format!("there is no remote `{name}`; {known}. `plimsoll remote add` adds one"))
}
