//! `plimsoll history`: lists every retained version of a key on a branch.

use plimsoll::{Branch, Db, VersionInfo};
use serde_json::{Map, json};

use crate::args::{Globals, History};
use crate::branches;
use crate::bytes::{shorten, show_bytes, show_key};
use crate::commit_summary::About;
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::output::{Output, Reader, Style};
use crate::size::show_size;
use crate::store;
use crate::time::show_time;

pub(crate) fn run(globals: &Globals, args: History, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    store::read_newest(globals, &args.store, output, |db, output| {
        let branch = branches::find(db, args.on.name())?;
        list(db, &branch, args.keys.keyspace(), &key, args.limit, output)
    })
}

/// Prints the versions of a key of an open store.
pub(crate) fn print(db: &Db, args: History, output: &mut Output) -> Outcome {
    let key = args.keys.key(args.key)?;
    let branch = branches::find(db, args.on.name())?;
    list(db, &branch, args.keys.keyspace(), &key, args.limit, output)
}

fn list(
    db: &Db,
    branch: &Branch,
    keyspace: &str,
    key: &[u8],
    limit: Option<u64>,
    output: &mut Output,
) -> Outcome {
    let keyspace = keyspaces::keyspace_ever(db, keyspace)?;
    let mut versions = 0;
    for version in branch.history(&keyspace, key)?.take(usize_of(limit)) {
        let version = version?;
        if versions == 0 && output.reader() == Reader::People {
            let header = output.paint(
                Style::Faint,
                &format!("{:>10}  {:<27}  {:>12}  {}", "GLSN", "time (UTC)", "size", "by"),
            );
            output.line(&header)?;
        }
        print_version(&version, &About::at(db, version.glsn.0)?, output)?;
        versions += 1;
    }
    if versions == 0 && limit != Some(0) {
        return Err(Failure::new(
            Exit::No,
            format!("there never was a key `{}`", show_key(key, false)),
        ));
    }
    Ok(Exit::Done)
}

fn usize_of(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

fn print_version(version: &VersionInfo, about: &About, output: &mut Output) -> Result<(), Failure> {
    let time = version.time.map(|stored| show_time(about.time(stored)));
    match output.reader() {
        Reader::Json => {
            let mut object = Map::new();
            object.insert("glsn".to_owned(), version.glsn.0.into());
            object.insert("time".to_owned(), json!(time));
            object.insert("bytes".to_owned(), json!(version.bytes));
            object.insert("deleted".to_owned(), version.bytes.is_none().into());
            about.put_json(&mut object);
            output.json(&object)
        }
        Reader::Pipe => {
            let (glsn, time) = (version.glsn.to_string(), time.unwrap_or_default());
            let bytes =
                version.bytes.map_or_else(|| "deleted".to_owned(), |bytes| bytes.to_string());
            output.fields(&[
                glsn.as_bytes(),
                time.as_bytes(),
                bytes.as_bytes(),
                about.line().as_bytes(),
            ])
        }
        Reader::People => {
            let size = match version.bytes {
                Some(bytes) => format!("{:>12}", show_size(bytes)),
                None => output.paint(Style::Bad, &format!("{:>12}", "deleted")),
            };
            let by = shorten(
                &show_bytes(about.line().as_bytes()),
                output.width().saturating_sub(55).max(30),
            );
            let line = format!(
                "{:>10}  {:<27}  {size}  {by}",
                version.glsn,
                time.as_deref().unwrap_or("-")
            );
            output.line(line.trim_end())
        }
    }
}
