//! `plimsoll diff`: lists the keys that differ between two moments, of the same or of different
//! branches.

use std::ffi::OsString;

use plimsoll::{Branch, Db, Difference, Error, Glsn, Moment, Snapshot, VersionInfo};
use serde_json::{Map, Value, json};

use crate::args::{Diff, Globals};
use crate::bytes::{put_json, shorten, show_bytes, show_key};
use crate::commit_summary::About;
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::{At, MAIN, parse_at};
use crate::output::{Output, Reader, Style};
use crate::size::{count_of, show_size};
use crate::{branches, keyspaces, moment, store};

pub(crate) fn run(globals: &Globals, args: Diff, output: &mut Output) -> Outcome {
    let db = store::open_to_read(globals, &args.store)?;
    print(&db, args, output)
}

/// Prints the differences between two moments of an open store.
pub(crate) fn print(db: &Db, args: Diff, output: &mut Output) -> Outcome {
    let hex = args.keys.hex;
    let asked = Asked::new(db, &args.before, args.after, args.prefix)?;
    let prefix = args.keys.optional(asked.prefix)?.unwrap_or_default();
    let name = args.keys.keyspace();
    let keyspace = keyspaces::keyspace_ever(db, name)?;
    let branch = branches::find(db, args.on.name())?;
    let state = |text: &str| State::new(db, &branch, text, name);
    let (before, after) = (state(&asked.before)?, state(&asked.after)?);
    let diff = match (&before, &after) {
        (State::OfMain(before, _), State::OfMain(after, _)) => {
            db.diff(&keyspace, *before, *after, &prefix)?
        }
        _ => db.diff_between(&keyspace, &before.snapshot(db)?, &after.snapshot(db)?, &prefix)?,
    };
    let mut changes = 0;
    for change in diff {
        let change = change?;
        print_change(&change, &About::at(db, change.by.0)?, hex, output)?;
        changes += 1;
    }
    if output.reader() == Reader::People {
        let moments = match (&before, &after) {
            (State::OfMain(before, _), State::OfMain(after, _)) => {
                format!("GLSN {before} and {after}")
            }
            _ => format!("{} and {}", before.show(&asked.before), after.show(&asked.after)),
        };
        let summary =
            format!("{} between {moments}", count_of(changes, "difference", "differences"));
        let summary = output.paint(Style::Faint, &summary);
        output.line(&summary)?;
    }
    Ok(if changes == 0 { Exit::Done } else { Exit::No })
}

/// The moments as given, and the prefix of the keys.
struct Asked {
    before: String,
    after: String,
    prefix: Option<OsString>,
}

impl Asked {
    fn new(
        db: &Db,
        before: &str,
        after: Option<OsString>,
        prefix: Option<OsString>,
    ) -> Result<Self, Failure> {
        // A tag's name may contain `..`.
        let both = match split(before) {
            Some(_) if has_tag(db, before)? => None,
            both => both,
        };
        match (both, after, prefix) {
            (Some((before, after)), prefix, None) => {
                Ok(Self { before: before.to_owned(), after: after.to_owned(), prefix })
            }
            (Some(_), _, Some(_)) => Err(Failure::usage(format!(
                "`{before}` names both moments; only a prefix of the keys may follow it"
            ))),
            (None, Some(after), prefix) => {
                let not_text = |_| Failure::usage("the later moment is not valid UTF-8");
                Ok(Self {
                    before: before.to_owned(),
                    after: after.into_string().map_err(not_text)?,
                    prefix,
                })
            }
            (None, None, _) => Err(Failure::usage(format!(
                "the later moment is missing; write e.g. `{before} newest`, or {before}..draft for \
                 that of a branch"
            ))),
        }
    }
}

/// Splits the two moments of `A..B`. The name of a tag in `main@{TAG}` may contain `..`.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let at = text.bytes().enumerate().find_map(|(at, byte)| {
        match byte {
            b'{' if text[..at].ends_with('@') => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b'.' if depth == 0 && text[at..].starts_with("..") => return Some(at),
            _ => {}
        }
        None
    })?;
    Some((&text[..at], &text[at + 2..]))
}

/// One of the two states.
enum State {
    /// A moment of main. If it was the newest one, the snapshot keeps it readable.
    OfMain(Glsn, Option<Snapshot>),
    OnBranch(Snapshot),
}

impl State {
    /// The state that `text` names; `branch` is the branch of a moment that names none.
    fn new(db: &Db, branch: &Branch, text: &str, keyspace: &str) -> Result<Self, Failure> {
        let at = parse_at(text).map_err(Failure::usage)?;
        let at = match at {
            At::Tag(name) if is_branch(db, &name)? => At::Branch { name, at: Box::new(At::Newest) },
            At::Tag(name) if !has_tag(db, &name)? => {
                return Err(branches::no_branch_or_tag(db, &name)?);
            }
            at => at,
        };
        let is_of_main = match &at {
            At::Branch { name, .. } => name == MAIN,
            _ => branch.name() == MAIN,
        };
        if !is_of_main {
            return Ok(Self::OnBranch(branches::snapshot(db, branch, Some(&at), keyspace)?));
        }
        let at = if let At::Branch { at, .. } = at { *at } else { at };
        if at.is_newest() {
            let snapshot = db.snapshot();
            return Ok(Self::OfMain(snapshot.at(), Some(snapshot)));
        }
        Ok(Self::OfMain(Glsn(moment::glsn(db, &at, keyspace)?), None))
    }

    fn snapshot(&self, db: &Db) -> Result<Snapshot, Failure> {
        match self {
            Self::OfMain(glsn, None) => Ok(db.snapshot_at(Moment::Glsn(*glsn))?),
            Self::OfMain(_, Some(snapshot)) | Self::OnBranch(snapshot) => Ok(snapshot.clone()),
        }
    }

    /// For people; `text` as it was given.
    fn show(&self, text: &str) -> String {
        match self {
            Self::OfMain(glsn, _) => format!("GLSN {glsn}"),
            Self::OnBranch(_) => text.to_owned(),
        }
    }
}

fn has_tag(db: &Db, name: &str) -> Result<bool, Failure> {
    match db.tag_at(name) {
        Err(Error::InvalidInput(_)) => Ok(false),
        tag => Ok(tag.map(|_| true)?),
    }
}

/// Whether a word is the name of a branch, and not that of a tag.
fn is_branch(db: &Db, name: &str) -> Result<bool, Failure> {
    let is_branch = name == MAIN
        || match db.branch(name) {
            Err(Error::InvalidInput(_)) => false,
            branch => branch.map(|_| true)?,
        };
    match (is_branch, has_tag(db, name)?) {
        (true, true) => Err(Failure::usage(format!(
            "`{name}` is a tag and a branch; write {name}@{{newest}} for the branch, and \
             main@{{{name}}} for the tag"
        ))),
        (is_branch, _) => Ok(is_branch),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_moments_are_split_outside_of_braces() {
        let cases = [
            ("main..draft", Some(("main", "draft"))),
            ("main@{v1..2}..draft", Some(("main@{v1..2}", "draft"))),
            ("draft..main@{v1..2}", Some(("draft", "main@{v1..2}"))),
            ("a}..b", Some(("a}", "b"))),
            ("a{..b", Some(("a{", "b"))),
            ("main@{v1..2}", None),
            ("1.0", None),
            ("é..ü", Some(("é", "ü"))),
        ];
        for (text, both) in cases {
            assert_eq!(split(text), both, "{text}");
        }
    }
}
