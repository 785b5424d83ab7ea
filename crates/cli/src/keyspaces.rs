//! Finds and lists keyspaces by name, and rejects writes to reserved ones.

use std::time::Duration;

use plimsoll::{Compression, Db, Keyspace, Retention, Snapshot};
use serde_json::json;

use crate::exit::Failure;
use crate::output::{Output, Reader, Style};

/// A keyspace as of a snapshot, including one that was dropped later.
pub(crate) fn keyspace_at(db: &Db, snapshot: &Snapshot, name: &str) -> Result<Keyspace, Failure> {
    match snapshot.keyspace(name)? {
        Some(keyspace) => Ok(keyspace),
        None => known_keyspace(db, name),
    }
}

/// A keyspace that exists or existed, for reading its past.
pub(crate) fn keyspace_ever(db: &Db, name: &str) -> Result<Keyspace, Failure> {
    match db.find_keyspace(name)? {
        Some(keyspace) => Ok(keyspace),
        None => known_keyspace(db, name),
    }
}

/// A keyspace that must exist now.
pub(crate) fn known_keyspace(db: &Db, name: &str) -> Result<Keyspace, Failure> {
    let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
    if name != "default" && !names.iter().any(|known| known == name) {
        let known = if names.is_empty() { "default".to_owned() } else { names.join(", ") };
        return Err(Failure::usage(format!(
            "there is no keyspace `{name}` in this store; there are: {known}"
        )));
    }
    Ok(db.keyspace(name)?)
}

/// Prefix of keyspaces that hold the bookkeeping of commands.
const OWN: &str = "plimsoll.";

/// Rejects the name of a reserved keyspace, because writes to it would make an import resume at the
/// wrong place.
pub(crate) fn check_writable(name: &str) -> Result<(), Failure> {
    match name.starts_with(OWN) {
        true => Err(Failure::usage(format!(
            "keyspace `{name}` cannot be written to: names that begin with `{OWN}` are for the \
             bookkeeping of commands such as import"
        ))),
        false => Ok(()),
    }
}

/// The names of the reserved keyspaces that exist.
pub(crate) fn own(db: &Db) -> Vec<String> {
    let names = db.keyspaces().into_iter().map(|keyspace| keyspace.name);
    names.filter(|name| name.starts_with(OWN)).collect()
}

/// Lists all keyspaces with their settings.
pub(crate) fn print_list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let keyspaces = db.keyspaces();
    let width = keyspaces.iter().map(|keyspace| keyspace.name.chars().count()).max().unwrap_or(0);
    keyspaces.iter().try_for_each(|keyspace| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{:<width$}", keyspace.name));
            let mut line = format!("{name}  {}", keyspace.retention);
            if keyspace.compression != Compression::None {
                line += &format!(", {}", keyspace.compression);
            }
            if keyspace.ttl.is_some() {
                line += &format!(", expires after {}", show_ttl(keyspace.ttl));
            }
            output.line(&line)
        }
        Reader::Json => {
            let mut object = json!({
                "name": keyspace.name,
                "retention": keyspace.retention.to_string(),
                "compression": keyspace.compression.to_string(),
            });
            if let Some(ttl) = keyspace.ttl {
                object["ttl_seconds"] = ttl.as_secs_f64().into();
            }
            output.json(&object)
        }
        _ => print_one(&keyspace.name, keyspace.retention, output),
    })
}

/// A time to live in the spelling of the command line.
pub(crate) fn show_ttl(ttl: Option<Duration>) -> String {
    ttl.map_or_else(|| "none".to_owned(), |ttl| Retention::Time(ttl).to_string())
}

/// Prints one keyspace with its retention.
pub(crate) fn print_one(
    name: &str,
    retention: Retention,
    output: &mut Output,
) -> Result<(), Failure> {
    match output.reader() {
        Reader::People => output.line(&format!("{name}  {retention}")),
        Reader::Pipe => output.fields(&[name.as_bytes(), retention.to_string().as_bytes()]),
        Reader::Json => output.json(&json!({ "name": name, "retention": retention.to_string() })),
    }
}
