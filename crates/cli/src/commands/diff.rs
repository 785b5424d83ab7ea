//! `plimsoll diff`: lists the keys that differ between two moments.

use plimsoll::{Db, Difference, Glsn, VersionInfo};
use serde_json::{Map, Value, json};

use crate::about::About;
use crate::args::{Diff, Globals};
use crate::bytes::{put_json, shorten, show_bytes, show_key};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::size::{count_of, show_size};
use crate::{keyspaces, moment, store};

pub(crate) fn run(globals: &Globals, args: Diff, output: &mut Output) -> Outcome {
    let db = store::open_to_read(globals, &args.store)?;
    print(&db, args, output)
}

/// Prints the differences between two moments of an open store.
pub(crate) fn print(db: &Db, args: Diff, output: &mut Output) -> Outcome {
    let hex = args.keys.hex;
    let prefix = args.keys.optional(args.prefix)?;
    let keyspace = keyspaces::keyspace_ever(db, args.keys.keyspace())?;
    let name = args.keys.keyspace();
    let (before, after) =
        (moment::glsn(db, &args.before, name)?, moment::glsn(db, &args.after, name)?);
    let mut changes = 0;
    for change in
        db.diff(&keyspace, Glsn(before), Glsn(after), prefix.as_deref().unwrap_or_default())?
    {
        let change = change?;
        print_change(&change, &About::at(db, change.by.0)?, hex, output)?;
        changes += 1;
    }
    if output.reader() == Reader::People {
        let summary = format!(
            "{} between GLSN {before} and {after}",
            count_of(changes, "difference", "differences")
        );
        let summary = output.paint(Style::Faint, &summary);
        output.line(&summary)?;
    }
    Ok(if changes == 0 { Exit::Done } else { Exit::No })
}

fn print_change(
    change: &Difference,
    about: &About,
    hex: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let (sign, style, word) = match (&change.before, &change.after) {
        (None, _) => ("+", Style::Good, "added"),
        (_, None) => ("-", Style::Bad, "removed"),
        _ => ("~", Style::Changed, "changed"),
    };
    match output.reader() {
        Reader::Json => {
            let mut object = Map::new();
            object.insert("change".to_owned(), word.into());
            match hex {
                true => drop(object.insert("key_hex".to_owned(), hex::encode(&change.key).into())),
                false => put_json(&mut object, "key", &change.key),
            }
            object.insert("before".to_owned(), version_json(change.before.as_ref()));
            object.insert("after".to_owned(), version_json(change.after.as_ref()));
            object.insert("by".to_owned(), change.by.0.into());
            about.put_json(&mut object);
            output.json(&object)
        }
        Reader::Pipe => {
            let size = |version: Option<&VersionInfo>| {
                version
                    .and_then(|version| version.bytes)
                    .map_or_else(String::new, |bytes| bytes.to_string())
            };
            let (before, after) = (size(change.before.as_ref()), size(change.after.as_ref()));
            let sizes = [sign.as_bytes(), before.as_bytes(), after.as_bytes()];
            output.fields_with_key(&sizes, &show_key(&change.key, hex), &[about.line().as_bytes()])
        }
        Reader::People => {
            let key = show_key(&change.key, hex);
            let size = |version: Option<&VersionInfo>| {
                version.and_then(|version| version.bytes).map(show_size)
            };
            let sizes = match (size(change.before.as_ref()), size(change.after.as_ref())) {
                (Some(before), Some(after)) => format!("{before} → {after}"),
                (before, after) => before.or(after).unwrap_or_default(),
            };
            let left = output
                .width()
                .saturating_sub(key.chars().count() + sizes.chars().count() + 6)
                .max(30);
            let by = shorten(&show_bytes(about.line().as_bytes()), left);
            let line = output.paint(style, &format!("{sign} {key}"));
            let sizes = output.paint(Style::Faint, &sizes);
            output.line(format!("{line}  {sizes}  {by}").trim_end())
        }
    }
}

fn version_json(version: Option<&VersionInfo>) -> Value {
    version.map_or(Value::Null, |version| json!({ "glsn": version.glsn.0, "bytes": version.bytes }))
}
