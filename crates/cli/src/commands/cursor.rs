//! `plimsoll cursor`: lists, creates, advances and drops cursors.

use std::path::Path;

use plimsoll::{Db, Durability, Glsn};
use serde_json::json;

use crate::args::{Cursor, CursorAdvance, CursorCreate, CursorDrop, Globals};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::store;

pub(crate) fn run(globals: &Globals, command: &Cursor, output: &mut Output) -> Outcome {
    match command {
        Cursor::List(args) => list(&store::open_to_read(globals, &args.store)?, output)?,
        Cursor::Create(args) => create(globals, args, output)?,
        Cursor::Advance(args) => advance(globals, args, output)?,
        Cursor::Drop(args) => drop_cursor(globals, args)?,
    }
    Ok(Exit::Done)
}

fn list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let cursors = db.log().cursors();
    let width = cursors.iter().map(|cursor| cursor.name.chars().count()).max().unwrap_or(0);
    cursors.iter().try_for_each(|cursor| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{:<width$}", cursor.name));
            output.line(&format!("{name}  {}", place(db, cursor.next.0)))
        }
        _ => print_one(db, &cursor.name, cursor.next.0, output),
    })
}

/// Describes a cursor's position for people.
pub(crate) fn place(db: &Db, next: u64) -> String {
    match entries_after(db, next) {
        0 => format!("reads GLSN {next} next, nothing is left to read"),
        entries => {
            format!(
                "reads GLSN {next} next, {}",
                crate::size::count_of(entries, "entry behind", "entries behind")
            )
        }
    }
}

/// The number of entries after a cursor.
pub(crate) fn entries_after(db: &Db, next: u64) -> u64 {
    (db.newest().0 + 1).saturating_sub(next)
}

fn print_one(db: &Db, name: &str, next: u64, output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::People => output.line(&format!("{name} {}", place(db, next))),
        Reader::Pipe => output.fields(&[name.as_bytes(), next.to_string().as_bytes()]),
        Reader::Json => {
            output.json(&json!({ "name": name, "next": next, "behind": entries_after(db, next) }))
        }
    }
}

/// Closes the store and prints a cursor's new position.
fn report(db: Db, name: &str, next: u64, output: &mut Output) -> Result<(), Failure> {
    let printed = output.report(&format!("Cursor {name} is at GLSN {next}."), |output| {
        print_one(&db, name, next, output)
    });
    store::close_after_commits(db);
    printed
}

fn create(globals: &Globals, args: &CursorCreate, output: &mut Output) -> Result<(), Failure> {
    let db = open(globals, &args.store)?;
    let at = args.at.unwrap_or(db.newest().0 + 1);
    let next = db.log().cursor(&args.name, Glsn(at))?;
    report(db, &args.name, next.0, output)
}

fn advance(globals: &Globals, args: &CursorAdvance, output: &mut Output) -> Result<(), Failure> {
    let db = open(globals, &args.store)?;
    check_is_there(&db, &args.name)?;
    db.log().advance_cursor(&args.name, Glsn(args.next))?;
    report(db, &args.name, args.next, output)
}

fn drop_cursor(globals: &Globals, args: &CursorDrop) -> Result<(), Failure> {
    let db = open(globals, &args.store)?;
    check_is_there(&db, &args.name)?;
    db.log().drop_cursor(&args.name)?;
    store::close_after_commits(db);
    Ok(())
}

fn open(globals: &Globals, path: &Path) -> Result<Db, Failure> {
    store::open_to_write(globals, path, false, Durability::Sync)
}

fn check_is_there(db: &Db, name: &str) -> Result<(), Failure> {
    let names: Vec<String> = db.log().cursors().into_iter().map(|cursor| cursor.name).collect();
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    let known = if names.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    };
    Err(Failure::usage(format!(
        "there is no cursor `{name}` in this store; {known}. `plimsoll cursor create` creates one"
    )))
}
