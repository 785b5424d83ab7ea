//! `plimsoll tag`: lists, creates and deletes tags.

use plimsoll::{Db, Durability, Glsn, Moment, TagInfo};
use serde_json::json;

use crate::args::{Globals, Tag, TagCreate, TagDelete};
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::{self, At};
use crate::output::{Output, Reader, Style};
use crate::store;
use crate::time::{of_system, show_time};

pub(crate) fn run(globals: &Globals, command: &Tag, output: &mut Output) -> Outcome {
    match command {
        Tag::List(args) => list(&store::open_to_read(globals, &args.store)?, output)?,
        Tag::Create(args) => create(globals, args, output)?,
        Tag::Delete(args) => delete(globals, args)?,
    }
    Ok(Exit::Done)
}

fn list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let tags = db.tags()?;
    let width = tags.iter().map(|tag| tag.name.chars().count()).max().unwrap_or(0);
    tags.iter().try_for_each(|tag| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{:<width$}", tag.name));
            output.line(&format!("{name}  {}", place(tag)))
        }
        _ => print_one(tag, output),
    })
}

/// The moment of a tag, for people.
pub(crate) fn place(tag: &TagInfo) -> String {
    match time(tag) {
        Some(time) => format!("GLSN {}, {time}", tag.glsn),
        None => format!("GLSN {}", tag.glsn),
    }
}

/// The time of a tag's commit.
pub(crate) fn time(tag: &TagInfo) -> Option<String> {
    tag.time.map(|time| show_time(of_system(time)))
}

fn print_one(tag: &TagInfo, output: &mut Output) -> Result<(), Failure> {
    let time = time(tag);
    match output.reader() {
        Reader::People => output.line(&format!("{} {}", tag.name, place(tag))),
        Reader::Pipe => output.fields(&[
            tag.name.as_bytes(),
            tag.glsn.to_string().as_bytes(),
            time.unwrap_or_default().as_bytes(),
        ]),
        Reader::Json => output.json(&json!({ "name": tag.name, "glsn": tag.glsn.0, "time": time })),
    }
}

fn create(globals: &Globals, args: &TagCreate, output: &mut Output) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let moment = match &args.at {
        None | Some(At::Newest) => Moment::Newest,
        Some(at) => Moment::Glsn(Glsn(moment::glsn(&db, at, &args.keyspace)?)),
    };
    let tag = db.tag(&args.name, moment)?;
    let printed = output.report(&format!("Tag {} is at GLSN {}.", tag.name, tag.glsn), |output| {
        print_one(&tag, output)
    });
    store::close_after_commits(db);
    printed
}

fn delete(globals: &Globals, args: &TagDelete) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    match db.delete_tag(&args.name) {
        Err(plimsoll::Error::InvalidInput(plimsoll::InvalidInput::NoTag { .. })) => {
            return Err(Failure::usage(moment::no_tag(&db, &args.name)?));
        }
        deleted => deleted?,
    }
    store::close_after_commits(db);
    Ok(())
}
