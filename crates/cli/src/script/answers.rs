//! Prints results of lines: text for people, one tab-separated line each for a pipe, one JSON
//! object each for a program.

use plimsoll::{Keyspace, Ttl};
use serde_json::{Map, json};

use crate::bytes::{preview, put_json, show_key};
use crate::exit::Failure;
use crate::key_range::KeyRange;
use crate::output::{Fact, Output, Reader, Style};
use crate::script::source::Source;
use crate::size::count_of;
use crate::stderr::say;
use crate::time::{of_system, show_time};
use crate::values::{beginning, write_field, write_for_people, write_json_member};

/// Options of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) limit: u64,
    pub(super) reverse: bool,
    pub(super) keys_only: bool,
}

/// Prints the value of a key; returns whether it exists.
pub(super) fn get(
    source: &Source<'_>,
    keyspace: &Keyspace,
    key: &[u8],
    output: &mut Output,
) -> Result<bool, Failure> {
    let Some(value) = source.reader(keyspace, key)? else { return Ok(false) };
    let again = || {
        source
            .reader(keyspace, key)
            .map(|value| value.expect("the key existed in the same snapshot"))
    };
    match output.reader() {
        Reader::Pipe => {
            write_field(value, output)?;
            output.raw(b"\n")?;
        }
        Reader::People => write_for_people(&again, output)?,
        Reader::Json => {
            let mut object = Map::new();
            put_json(&mut object, "key", key);
            object.insert("at".to_owned(), source.at().into());
            output.open_object(&object)?;
            write_json_member(&again, output)?;
            output.raw(b"}\n")?;
        }
    }
    Ok(true)
}

/// Prints when a value expires; returns whether there is a value.
pub(crate) fn ttl(ttl: Ttl, output: &mut Output) -> Result<bool, Failure> {
    let Ttl::Expires { at, left } = ttl else {
        if ttl == Ttl::Unlimited {
            match output.reader() {
                Reader::People => output.line("it does not expire")?,
                Reader::Pipe => output.line("")?,
                Reader::Json => {
                    output.json(&json!({ "ttl_seconds": null, "expires": null }))?;
                }
            }
        }
        return Ok(ttl == Ttl::Unlimited);
    };
    let (seconds, at) = (left.as_secs_f64(), show_time(of_system(at)));
    match output.reader() {
        Reader::People => output.line(&format!("{seconds:.0} seconds, until {at}"))?,
        Reader::Pipe => output.line(&format!("{seconds:.6}"))?,
        Reader::Json => output.json(&json!({ "ttl_seconds": seconds, "expires": at }))?,
    }
    Ok(true)
}

/// Prints the keys of a range, with their values unless only keys are requested.
pub(super) fn scan(
    source: &Source<'_>,
    keyspace: &Keyspace,
    range: &KeyRange,
    wanted: Wanted,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut keys = source.keys(keyspace, range)?;
    if wanted.reverse {
        keys = keys.reverse();
    }
    for _ in 0..wanted.limit {
        let Some((key, _)) = keys.advance()? else { break };
        if wanted.keys_only {
            print_key(key, output)?;
        } else {
            print_pair(source, keyspace, key, output)?;
        }
    }
    Ok(())
}

fn print_key(key: &[u8], output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::People | Reader::Pipe => output.line(&show_key(key, false)),
        Reader::Json => {
            let mut object = Map::new();
            put_json(&mut object, "key", key);
            output.json(&object)
        }
    }
}

fn print_pair(
    source: &Source<'_>,
    keyspace: &Keyspace,
    key: &[u8],
    output: &mut Output,
) -> Result<(), Failure> {
    let open = || {
        source
            .reader(keyspace, key)
            .map(|value| value.expect("the scan returned the key at the same moment"))
    };
    match output.reader() {
        Reader::People => {
            let shown = show_key(key, false);
            let left = output.width().saturating_sub(shown.chars().count() + 2).max(24);
            let value = open()?;
            let bytes = value.len();
            // A character takes at most four bytes.
            let head = beginning(value, left * 4)?;
            let shown = output.paint(Style::Strong, &shown);
            output.line(&format!("{shown}  {}", preview(&head, bytes, left)))
        }
        Reader::Pipe => {
            output.raw(show_key(key, false).as_bytes())?;
            output.raw(b"\t")?;
            write_field(open()?, output)?;
            output.raw(b"\n")
        }
        Reader::Json => {
            let mut object = Map::new();
            put_json(&mut object, "key", key);
            output.open_object(&object)?;
            write_json_member(&open, output)?;
            output.raw(b"}\n")
        }
    }
}

/// Prints a number of keys.
pub(crate) fn count(keys: u64, output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::People => output.line(&count_of(keys, "key", "keys")),
        Reader::Pipe => output.line(&keys.to_string()),
        Reader::Json => output.facts(&[Fact::count("keys", keys)]),
    }
}

/// Prints an estimated number of keys.
pub(crate) fn about(keys: u64, output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::People => output.line(&format!("about {}", count_of(keys, "key", "keys"))),
        Reader::Pipe | Reader::Json => count(keys, output),
    }
}

/// Prints the commit of an answered line.
pub(super) fn committed(glsn: u64, output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::People => output.line(&format!("committed as GLSN {glsn}")),
        Reader::Pipe => output.line(&glsn.to_string()),
        Reader::Json => output.facts(&[Fact::count("glsn", glsn)]),
    }
}

/// Printed to stderr, because a pipe gets values only.
pub(super) fn no_such_key(key: &[u8]) {
    say(format_args!("there is no key `{}`", show_key(key, false)));
}
