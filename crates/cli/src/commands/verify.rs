//! `plimsoll verify`: reads and checks every byte.

use plimsoll::{Damage, DamagedKey, DamagedKeys, VerifyReport};
use serde_json::{Map, Value, json};

use crate::args::{Globals, Verify};
use crate::bytes::{put_json, show_bytes};
use crate::commands::archive;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::progress::Progress;
use crate::size::{count_of, show_size};
use crate::store;

/// Maximum number of attempts while another process writes.
const ATTEMPTS_MAX: u32 = 16;

pub(crate) fn run(globals: &Globals, args: &Verify, output: &mut Output) -> Outcome {
    if let Some(archive) = archive::find(&args.store)? {
        return archive::verify(archive, output);
    }
    let progress = Progress::of_bytes(Some(0));
    let look = || {
        let options = store::options(globals);
        plimsoll::verify(&args.store, options, &mut |step| {
            progress.set_of(step.done_bytes, step.total_bytes)
        })
        .map_err(Failure::from)
    };
    let mut report = look();
    for _ in 0..ATTEMPTS_MAX {
        match &report {
            // Another process dropped the data meanwhile.
            Err(failure) if failure.is_gone() => report = look(),
            _ => break,
        }
    }
    let report = report?;
    drop(progress);
    output.report("Everything was read and checked.", |output| print(&report, output))?;
    Ok(match (report.damage.is_empty(), report.opens) {
        (true, _) => Exit::Done,
        (false, true) => Exit::No,
        (false, false) => Exit::Corrupt,
    })
}

/// Prints the report.
pub(crate) fn print(report: &VerifyReport, output: &mut Output) -> Result<(), Failure> {
    if output.reader() == Reader::Json {
        return output.json(&json!({
            "problems": report.problems,
            "damage": report.damage.iter().map(as_json).collect::<Vec<_>>(),
            "notes": report.notes,
            "files": report.files,
            "bytes": report.bytes,
            "opens": report.opens,
        }));
    }
    // Report success to a pipe too, because silence would look like a command that did nothing.
    for damage in &report.damage {
        let shown = output.paint(Style::Bad, &show(damage));
        output.line(&shown)?;
    }
    report.notes.iter().try_for_each(|note| output.line(&format!("note: {note}")))?;
    let read =
        format!("{} in {}", show_size(report.bytes), count_of(report.files, "file", "files"));
    let verdict = match report.damage.len() {
        0 => output.paint(Style::Good, "no problems"),
        problems => output.paint(Style::Bad, &count_of(problems as u64, "problem", "problems")),
    };
    output.line(&format!("{verdict}; read {read}"))
}

/// Damage on one line.
pub(crate) fn show(damage: &Damage) -> String {
    let mut line = format!("{}, offset {}", damage.file, damage.offset);
    if let Some(glsns) = &damage.glsns {
        let (first, last) = (glsns.start(), glsns.end());
        let shown = if first == last {
            format!(" (GLSN {first})")
        } else {
            format!(" (GLSN {first} to {last})")
        };
        line.push_str(&shown);
    }
    line = format!("{line}: {}", damage.what);
    let keys: Vec<String> = damage
        .keys
        .iter()
        .map(|key| format!("{} at GLSN {}", show_bytes(&key.key), key.glsn))
        .collect();
    if let Some(first) = damage.keys.first() {
        let more = if damage.more_keys > 0 {
            format!(" and {} more", damage.more_keys)
        } else {
            String::new()
        };
        line = format!(
            "{line}; values lost in keyspace {}: {}{more}",
            first.keyspace,
            keys.join(", ")
        );
    }
    if let Some(range) = &damage.key_range {
        line = format!(
            "{line}; keys lost in keyspace {}: those {}",
            range.keyspace,
            show_range(range)
        );
    }
    format!("{line}; {}", damage.hint)
}

/// A range of keys, without the name of its first keyspace.
pub(crate) fn show_range(range: &DamagedKeys) -> String {
    let mut line = format!("from {} to {}", show_bytes(&range.first), show_bytes(&range.last));
    if range.last_keyspace != range.keyspace {
        line.push_str(&format!(" of keyspace {}", range.last_keyspace));
    }
    if !range.between.is_empty() {
        line.push_str(&format!(", with all keys of {}", range.between.join(", ")));
    }
    line
}

/// A version of a key as JSON.
pub(crate) fn key_as_json(key: &DamagedKey) -> Value {
    let mut object = Map::new();
    object.insert("keyspace".to_owned(), key.keyspace.clone().into());
    put_json(&mut object, "key", &key.key);
    object.insert("glsn".to_owned(), key.glsn.0.into());
    object.insert("bytes".to_owned(), key.bytes.into());
    Value::Object(object)
}

/// A range of keys as JSON.
pub(crate) fn range_as_json(range: &DamagedKeys) -> Value {
    let mut object = Map::new();
    object.insert("keyspace".to_owned(), range.keyspace.clone().into());
    put_json(&mut object, "first", &range.first);
    put_json(&mut object, "last", &range.last);
    object.insert("last_keyspace".to_owned(), range.last_keyspace.clone().into());
    object.insert("between".to_owned(), range.between.clone().into());
    Value::Object(object)
}

/// Damage as JSON.
pub(crate) fn as_json(damage: &Damage) -> Value {
    json!({
        "file": damage.file,
        "offset": damage.offset,
        "first_glsn": damage.glsns.as_ref().map(|glsns| glsns.start().0),
        "last_glsn": damage.glsns.as_ref().map(|glsns| glsns.end().0),
        "keys": damage.keys.iter().map(key_as_json).collect::<Vec<_>>(),
        "more_keys": damage.more_keys,
        "key_range": damage.key_range.as_ref().map(range_as_json),
        "what": damage.what,
        "hint": damage.hint,
        "command": damage.command,
    })
}
