//! The branch that a command reads or writes, and how branches are listed.

use plimsoll::{Branch, BranchInfo, Db, Error, Glsn, InvalidInput, Moment, Snapshot};
use serde_json::json;

use crate::args::AtMoment;
use crate::exit::Failure;
use crate::moment::{self, At, MAIN};
use crate::output::{Output, Reader, Style};
use crate::time::{of_system, show_time};

/// The most names that an error lists.
const NAMES_MAX: usize = 10;

/// The branch with this name; main without a name.
pub(crate) fn find(db: &Db, name: Option<&str>) -> Result<Branch, Failure> {
    match name {
        None | Some(MAIN) => Ok(db.main()),
        Some(name) => db.branch(name).map_err(|error| explain(db, error)),
    }
}

/// The branch of a command that opens the store again and again.
pub(crate) struct Followed {
    name: Option<String>,
    /// The branch that had the name first.
    id: Option<u32>,
}

impl Followed {
    pub(crate) fn new(name: Option<&str>) -> Self {
        Self { name: name.map(str::to_owned), id: None }
    }

    /// The branch, also if it was renamed since; `None` if it was deleted since.
    pub(crate) fn find(&mut self, db: &Db) -> Result<Option<Branch>, Failure> {
        let Some(id) = self.id else {
            let branch = find(db, self.name.as_deref())?;
            self.id = Some(branch.id());
            return Ok(Some(branch));
        };
        let names = self.name.iter().cloned();
        if let Some(branch) = with_id(db, names, id)? {
            return Ok(Some(branch));
        }
        with_id(db, db.branches()?.into_iter().map(|branch| branch.name), id)
    }

    /// The name of the branch in its commits once it is deleted.
    pub(crate) fn name_when_deleted(&self) -> String {
        self.id.unwrap_or_default().to_string()
    }

    pub(crate) fn deleted(&self) -> Failure {
        was_deleted(self.name.as_deref().unwrap_or(MAIN))
    }
}

/// The error for a branch that was deleted while the command ran.
pub(crate) fn was_deleted(name: &str) -> Failure {
    Failure::usage(format!("branch `{name}` was deleted"))
}

/// The branch with this number: main, or one of the branches with these names. `None` if there is
/// no such branch.
fn with_id(
    db: &Db,
    names: impl Iterator<Item = String>,
    id: u32,
) -> Result<Option<Branch>, Failure> {
    if id == db.main().id() {
        return Ok(Some(db.main()));
    }
    for name in names {
        match db.branch(&name) {
            Ok(branch) if branch.id() == id => return Ok(Some(branch)),
            Ok(_) | Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The snapshot that the command line asks for.
pub(crate) fn read(db: &Db, place: &AtMoment, keyspace: &str) -> Result<Snapshot, Failure> {
    if let (Some(name), Some(At::Branch { name: other, .. })) = (place.on.name(), &place.at) {
        return Err(named_twice("--branch", name, other));
    }
    let branch = find(db, place.on.name())?;
    snapshot(db, &branch, place.at.as_ref(), keyspace)
}

/// A snapshot of `branch` at a moment of a keyspace, or of the branch that the moment names; the
/// newest without a moment.
pub(crate) fn snapshot(
    db: &Db,
    branch: &Branch,
    at: Option<&At>,
    keyspace: &str,
) -> Result<Snapshot, Failure> {
    match at {
        None | Some(At::Newest) => Ok(branch.snapshot()),
        Some(At::Branch { name, at }) => {
            snapshot(db, &find(db, Some(name))?, Some(at.as_ref()), keyspace)
        }
        Some(at) => Ok(branch.snapshot_at(Moment::Glsn(Glsn(moment::glsn(db, at, keyspace)?)))?),
    }
}

/// The error for a branch that is named by an option and by a moment.
pub(crate) fn named_twice(option: &str, name: &str, other: &str) -> Failure {
    Failure::usage(format!(
        "{option} names branch `{name}`, and the moment names branch `{other}`; give only one of \
         them"
    ))
}

/// Names the existing branches if one does not exist.
pub(crate) fn explain(db: &Db, error: Error) -> Failure {
    let Error::InvalidInput(InvalidInput::NoBranch { name }) = &error else { return error.into() };
    let Ok(known) = known(db) else { return error.into() };
    Failure::usage(format!(
        "there is no branch `{name}` in this store; there are: {known}. `plimsoll branch create` \
         creates one"
    ))
}

/// The names of the branches.
fn known(db: &Db) -> Result<String, Failure> {
    let branches = db.branches()?;
    let mut names: Vec<String> = vec![MAIN.to_owned()];
    names.extend(branches.into_iter().map(|branch| branch.name));
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok(format!("{}{more}", names.join(", ")))
}

/// The error for a word that is neither the name of a branch nor that of a tag.
pub(crate) fn no_branch_or_tag(db: &Db, name: &str) -> Result<Failure, Failure> {
    let (branches, tags) = (known(db)?, moment::known_tags(db, name)?);
    Ok(Failure::usage(format!(
        "there is no branch or tag `{name}` in this store; the branches are: {branches}; of tags, \
         {tags}"
    )))
}

/// Lists all branches.
pub(crate) fn print_list(db: &Db, output: &mut Output) -> Result<(), Failure> {
    let branches = db.branches()?;
    if output.reader() == Reader::People {
        output.line(&output.paint(Style::Strong, MAIN))?;
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

/// The fork of a branch, for people.
pub(crate) fn place(branch: &BranchInfo) -> String {
    let parent = branch.parent.as_deref().unwrap_or("a deleted branch");
    match time(branch) {
        Some(time) => format!("left {parent} at GLSN {}, {time}", branch.fork),
        None => format!("left {parent} at GLSN {}", branch.fork),
    }
}

fn time(branch: &BranchInfo) -> Option<String> {
    branch.fork_time.map(|time| show_time(of_system(time)))
}

/// Prints one branch.
pub(crate) fn print_one(branch: &BranchInfo, output: &mut Output) -> Result<(), Failure> {
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
