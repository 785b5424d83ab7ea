//! `plimsoll branch`: lists, creates, renames and deletes branches.

use plimsoll::{Durability, Glsn, Moment};

use crate::args::{Branch, BranchCreate, BranchDelete, BranchRename, Globals};
use crate::branches::{explain, find, named_twice, place, print_list, print_one};
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::{self, At};
use crate::output::Output;
use crate::store;

pub(crate) fn run(globals: &Globals, command: &Branch, output: &mut Output) -> Outcome {
    match command {
        Branch::List(args) => print_list(&store::open_to_read(globals, &args.store)?, output)?,
        Branch::Create(args) => create(globals, args, output)?,
        Branch::Rename(args) => rename(globals, args)?,
        Branch::Delete(args) => delete(globals, args)?,
    }
    Ok(Exit::Done)
}

fn create(globals: &Globals, args: &BranchCreate, output: &mut Output) -> Result<(), Failure> {
    let (parent, at) = match (&args.from, &args.at) {
        (Some(from), Some(At::Branch { name, .. })) => {
            return Err(named_twice("--from", from, name));
        }
        (None, Some(At::Branch { name, at })) => (Some(name.as_str()), Some(&**at)),
        (from, at) => (from.as_deref(), at.as_ref()),
    };
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let parent = find(&db, parent)?;
    let moment = match at {
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
