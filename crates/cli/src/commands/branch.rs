//! `plimsoll branch`: lists, creates, renames and deletes branches.

use plimsoll::{BranchInfo, Db, Durability, Error, Glsn, InvalidInput, Moment};
use serde_json::json;

use crate::args::{Branch, BranchCreate, BranchDelete, BranchRename, Globals};
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::{self, At};
use crate::output::{Output, Reader, Style};
use crate::store;
use crate::time::{of_system, show_time};

/// The most names that an error lists.
const NAMES_MAX: usize = 10;

pub(crate) fn run(globals: &Globals, command: &Branch, output: &mut Output) -> Outcome {
    match command {
        Branch::List(args) => list(&store::open_to_read(globals, &args.store)?, output)?,
        Branch::Create(args) => create(globals, args, output)?,
        Branch::Rename(args) => rename(globals, args)?,
        Branch::Delete(args) => delete(globals, args)?,
    }
    Ok(Exit::Done)
}

/// The branch with this name.
pub(crate) fn find(db: &Db, name: &str) -> Result<plimsoll::Branch, Failure> {
    db.branch(name).map_err(|error| explain(db, error))
}

fn list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let branches = db.branches()?;
    if output.reader() == Reader::People {
        output.line(&output.paint(Style::Strong, "main"))?;
    }
    let width = branches.iter().map(|branch| branch.name.chars().count()).max().unwrap_or(0);
    branches.iter().try_for_each(|branch| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{:<width$}", branch.name));
            output.line(&format!("{name}  {}", place(branch)))
        }
        _ => print_one(branch, output),
    })
}

/// Where a branch left its parent, for people.
fn place(branch: &BranchInfo) -> String {
    let parent = branch.parent.as_deref().unwrap_or("a deleted branch");
    match time(branch) {
        Some(time) => format!("left {parent} at GLSN {}, {time}", branch.fork),
        None => format!("left {parent} at GLSN {}", branch.fork),
    }
}

fn time(branch: &BranchInfo) -> Option<String> {
    branch.fork_time.map(|time| show_time(of_system(time)))
}

fn print_one(branch: &BranchInfo, output: &mut Output) -> Result<(), Failure> {
    let time = time(branch);
    match output.reader() {
        Reader::People => output.line(&format!("{} {}", branch.name, place(branch))),
        Reader::Pipe => output.fields(&[
            branch.name.as_bytes(),
            branch.parent.as_deref().unwrap_or_default().as_bytes(),
            branch.fork.to_string().as_bytes(),
            time.unwrap_or_default().as_bytes(),
        ]),
        Reader::Json => output.json(&json!({
            "name": branch.name,
            "parent": branch.parent,
            "fork": branch.fork.0,
            "fork_time": time,
        })),
    }
}

fn create(globals: &Globals, args: &BranchCreate, output: &mut Output) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let parent = find(&db, &args.from)?;
    let moment = match &args.at {
        None | Some(At::Newest) => Moment::Newest,
        Some(at) => Moment::Glsn(Glsn(moment::glsn(&db, at, &args.keyspace)?)),
    };
    db.create_branch_at(&args.name, &parent, moment)?;
    let branches = db.branches()?;
    let made = branches.iter().find(|branch| branch.name == args.name);
    let printed = made.map_or(Ok(()), |made| {
        let text = format!("Branch {} {}.", made.name, place(made));
        output.report(&text, |output| print_one(made, output))
    });
    store::close_after_commits(db);
    printed
}

fn rename(globals: &Globals, args: &BranchRename) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    db.rename_branch(&args.name, &args.new_name).map_err(|error| explain(&db, error))?;
    store::close_after_commits(db);
    Ok(())
}

fn delete(globals: &Globals, args: &BranchDelete) -> Result<(), Failure> {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    db.delete_branch(&args.name).map_err(|error| explain(&db, error))?;
    store::close_after_commits(db);
    Ok(())
}

/// Names the existing branches if one does not exist.
fn explain(db: &Db, error: Error) -> Failure {
    let Error::InvalidInput(InvalidInput::NoBranch { name }) = &error else { return error.into() };
    let Ok(branches) = db.branches() else { return error.into() };
    let mut names: Vec<String> = vec!["main".to_owned()];
    names.extend(branches.into_iter().map(|branch| branch.name));
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Failure::usage(format!(
        "there is no branch `{name}` in this store; there are: {}{more}. `plimsoll branch create` \
         creates one",
        names.join(", ")
    ))
}
