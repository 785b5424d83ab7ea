//! `plimsoll clone`, `fetch`, `pull` and `push`: exchange commits with another store.

use plimsoll::{
    CloneDepth, CommitId, Db, Durability, Error, Glsn, InvalidInput, Moved, Pulled,
    absolute_address,
};
use serde_json::json;

use crate::args::{CloneStore, Fetch, Globals, Pull, Push};
use crate::commands::remote::{explain, is_address};
use crate::commands::undo::conflicts_with_advice;
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::MAIN;
use crate::output::{Output, Reader, Style};
use crate::size::count_of;
use crate::{store, wait};

/// The number of digits of a commit's id that people see.
pub(crate) const DIGITS: usize = 12;

pub(crate) fn clone(globals: &Globals, args: &CloneStore, output: &mut Output) -> Outcome {
    let options = store::options(globals).durability(Durability::Sync);
    let address = absolute_address(&args.address)?;
    let depth = match (args.depth, args.at) {
        (Some(commits), _) => CloneDepth::Commits(commits),
        (None, Some(id)) => CloneDepth::At(id),
        (None, None) => CloneDepth::Full,
    };
    let db = wait::to_share(globals, None, || {
        Db::clone_store_with(&address, &args.store, options.clone(), depth)
    })?;
    let mut tips = vec![(MAIN.to_owned(), db.main().tip()?)];
    for branch in db.branches()? {
        let tip = db.branch(&branch.name)?.tip()?;
        tips.push((branch.name, tip));
    }
    let printed = output.report("The store is cloned.", |output| print_tips(&tips, output));
    store::close_after_commits(db);
    printed.map(|()| Exit::Done)
}

fn print_tips(tips: &[(String, Option<CommitId>)], output: &mut Output) -> Result<(), Failure> {
    let width = tips.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    tips.iter().try_for_each(|(name, tip)| match output.reader() {
        Reader::People => {
            let name = output.paint(Style::Strong, &format!("{name:<width$}"));
            output.line(&format!("{name}  {}", end(*tip)))
        }
        Reader::Pipe => output.fields(&[name.as_bytes(), whole(*tip).as_bytes()]),
        Reader::Json => {
            output.json(&json!({ "branch": name, "tip": tip.map(|id| id.to_string()) }))
        }
    })
}

pub(crate) fn fetch(globals: &Globals, args: &Fetch, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let (remote, branch) = (&args.remote, &args.branch);
    let moved =
        wait_for_other(globals, || db.fetch(remote, branch), |error| of_other(&db, remote, error))?;
    report(db, &Change::of(format!("{remote}/{branch}"), &moved), output, print)
}

pub(crate) fn push(globals: &Globals, args: &Push, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    // An unknown name would be read as a path.
    if !is_address(&args.remote) && !db.remotes()?.iter().any(|it| it.name == args.remote) {
        let error = InvalidInput::NoRemote { name: args.remote.clone() };
        return Err(explain(&db, error.into()).advise(
            "To push to a store that is not remembered, give its path with a `/`, e.g. ./other.",
        ));
    }
    let push = || match args.force {
        true => db.push_forced(&args.remote, &args.branch),
        false => db.push(&args.remote, &args.branch),
    };
    let moved = wait_for_other(globals, push, |error| explain(&db, error))?;
    report(db, &Change::of(args.branch.clone(), &moved), output, print)
}

pub(crate) fn pull(globals: &Globals, args: &Pull, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let (remote, name) = (&args.remote, &args.branch);
    let before = tip(&db, name)?;
    let pull = || db.pull(remote, name);
    let change = match wait_for_other(globals, pull, |error| of_other(&db, remote, error))? {
        Pulled::Conflicts(found) => {
            let theirs = format!("{remote}/{name}");
            let what = format!("changed on {name} and on {theirs}; nothing was written to {name}");
            let advice = format!(
                "To resolve the conflicts, run `plimsoll merge {} {theirs} --into {name}` with \
                 --rule \
                 KEYSPACE=RULE: ours, theirs, newest, counter, text, json or json-set.",
                args.store.display()
            );
            return conflicts_with_advice(found, &what, &advice, output);
        }
        Pulled::FastForward(moved) => Change::of(name.clone(), &moved),
        Pulled::Merged(glsn) => Change {
            branch: name.clone(),
            from: before,
            to: tip(&db, name)?,
            commits: None,
            merged: Some(glsn),
        },
        // Up to date.
        _ => Change {
            branch: name.clone(),
            from: before,
            to: before,
            commits: Some(0),
            merged: None,
        },
    };
    report(db, &change, output, print_pulled)
}

/// Runs an exchange, and waits for the other store if a process has it for itself (`--wait`).
fn wait_for_other<T>(
    globals: &Globals,
    mut exchange: impl FnMut() -> plimsoll::Result<T>,
    explain: impl FnOnce(Error) -> Failure,
) -> Result<T, Failure> {
    let mut refusal = None;
    let exchanged = wait::to_share(globals, None, || {
        exchange().inspect_err(|error| refusal = Some(error.clone()))
    });
    exchanged.map_err(|failure| match refusal {
        Some(error @ Error::InvalidInput(_)) => explain(error),
        _ => failure,
    })
}

/// The last commit of a branch; `None` also if there is no such branch.
fn tip(db: &Db, name: &str) -> Result<Option<CommitId>, Failure> {
    match db.branch(name).and_then(|branch| branch.tip()) {
        Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => Ok(None),
        tip => Ok(tip?),
    }
}

/// The error for a branch that the other store does not have, or for a remote.
fn of_other(db: &Db, remote: &str, error: Error) -> Failure {
    match &error {
        Error::InvalidInput(InvalidInput::NoBranch { name }) => Failure::usage(format!(
            "there is no branch `{name}` in the store `{remote}`; `plimsoll branch list` lists the \
             branches of a store"
        )),
        _ => explain(db, error),
    }
}

/// The change of a branch.
struct Change {
    branch: String,
    from: Option<CommitId>,
    to: Option<CommitId>,
    /// The number of transferred commits; `None` if it was merged.
    commits: Option<u64>,
    /// The commit that merged it.
    merged: Option<Glsn>,
}

impl Change {
    fn of(branch: String, moved: &Moved) -> Self {
        let (from, to, commits) = (moved.from, moved.to, Some(moved.commits));
        Self { branch, from, to, commits, merged: None }
    }

    /// One line for people.
    fn line(&self) -> String {
        let Self { branch, from, to, commits, merged } = self;
        if from == to {
            return format!("{branch}: up to date at {}", end(*to));
        }
        let how = match (merged, commits) {
            (Some(glsn), _) => format!(", merged as of GLSN {glsn}"),
            // The branch was only made equal to commits that the store had.
            (None, None | Some(0)) => String::new(),
            (None, Some(commits)) => format!(", {}", count_of(*commits, "commit", "commits")),
        };
        format!("{branch}: {} -> {}{how}", end(*from), end(*to))
    }
}

/// Closes the store, and prints the result.
fn report(
    db: Db,
    change: &Change,
    output: &mut Output,
    print: impl FnOnce(&Change, &mut Output) -> Result<(), Failure>,
) -> Outcome {
    store::close_after_commits(db);
    output.report(&format!("{}.", change.line()), |output| print(change, output))?;
    Ok(Exit::Done)
}

fn print(change: &Change, output: &mut Output) -> Result<(), Failure> {
    let Change { branch, from, to, commits, .. } = change;
    match output.reader() {
        Reader::People => output.line(&change.line()),
        Reader::Pipe => output.fields(&[
            branch.as_bytes(),
            whole(*from).as_bytes(),
            whole(*to).as_bytes(),
            commits.unwrap_or_default().to_string().as_bytes(),
        ]),
        Reader::Json => output.json(&json!({
            "branch": branch,
            "from": from.map(|id| id.to_string()),
            "to": to.map(|id| id.to_string()),
            "commits": commits,
        })),
    }
}

fn print_pulled(change: &Change, output: &mut Output) -> Result<(), Failure> {
    let Change { branch, from, to, commits, merged } = change;
    let number = |number: Option<u64>| number.map_or_else(String::new, |it| it.to_string());
    let glsn = merged.map(|glsn| glsn.0);
    match output.reader() {
        Reader::People => output.line(&change.line()),
        Reader::Pipe => output.fields(&[
            branch.as_bytes(),
            whole(*from).as_bytes(),
            whole(*to).as_bytes(),
            number(*commits).as_bytes(),
            number(glsn).as_bytes(),
        ]),
        Reader::Json => output.json(&json!({
            "branch": branch,
            "from": from.map(|id| id.to_string()),
            "to": to.map(|id| id.to_string()),
            "commits": commits,
            "glsn": glsn,
        })),
    }
}

/// An id as people see it.
pub(crate) fn short(id: CommitId) -> String {
    id.to_string()[..DIGITS].to_owned()
}

/// The end of a branch as people see it.
fn end(id: Option<CommitId>) -> String {
    id.map_or_else(|| "nothing".to_owned(), short)
}

/// An id with all its digits; empty without one.
fn whole(id: Option<CommitId>) -> String {
    id.map_or_else(String::new, |id| id.to_string())
}
