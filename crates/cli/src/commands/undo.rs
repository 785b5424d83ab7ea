//! `plimsoll revert`, `plimsoll reset`, `plimsoll merge` and `plimsoll cherry-pick`: undo a commit,
//! go back to a moment, merge a branch, or apply one commit to a branch, by a new commit.

use plimsoll::{
    Db, Durability, Glsn, MergeAction, MergeOutcome, MergeRule, MergeSide, MergeStep, MergeSteps,
};
use serde_json::{Map, Value, json};

use crate::args::{CherryPick, Globals, Merge, Reset, Revert, Rule};
use crate::branches::{explain, named_twice};
use crate::bytes::{put_json, show_key};
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::{At, MAIN};
use crate::output::{Fact, Output, Reader, Style};
use crate::size::{count_of, show_size};
use crate::stderr::say;
use crate::{branches, keyspaces, moment, store};

pub(crate) fn revert(globals: &Globals, args: &Revert, output: &mut Output) -> Outcome {
    args.keyspaces.iter().try_for_each(|name| keyspaces::check_writable(name))?;
    let db = open(globals, args.preview, &args.store)?;
    let branch = branches::find(&db, args.on.name())?;
    let glsn = Glsn(moment::glsn(&db, &args.commit, first_of(&args.keyspaces))?);
    let mut revert = branch.revert(glsn);
    for name in &args.keyspaces {
        revert = revert.keyspace(&keyspaces::known_keyspace(&db, name)?);
    }
    for name in args.excluded.iter().cloned().chain(keyspaces::own(&db)) {
        revert = revert.except(&keyspaces::known_keyspace(&db, &name)?);
    }
    for (name, rule) in &args.rules {
        let keyspace = keyspaces::known_keyspace(&db, name)?;
        revert = revert.rule(&keyspace, rule_of(*rule));
    }
    if args.preview {
        return preview(revert.preview().map_err(|error| explain(&db, error))?, output);
    }
    match revert.run().map_err(|error| explain(&db, error))? {
        MergeOutcome::Conflicts(found) => {
            conflicts(found, &format!("changed again after GLSN {glsn}"), output)
        }
        MergeOutcome::Merged(by) => done(db, Some(by), &format!("GLSN {glsn} is reverted"), output),
        _ => done(db, None, "", output),
    }
}

pub(crate) fn reset(globals: &Globals, args: &Reset, output: &mut Output) -> Outcome {
    args.keyspaces.iter().try_for_each(|name| keyspaces::check_writable(name))?;
    let db = open(globals, args.preview, &args.store)?;
    let name = args.on.name().unwrap_or(MAIN);
    let branch = branches::find(&db, Some(name))?;
    let to = match &args.to {
        At::Branch { name: other, at } if other == name => at,
        At::Branch { name: other, .. } if args.on.name().is_none() => {
            return Err(Failure::usage(format!(
                "`{other}@{{...}}` is a moment on a branch, and branch main would be reset; to \
                 reset branch `{other}`, add --branch {other}"
            )));
        }
        At::Branch { name: other, .. } => return Err(named_twice("--branch", name, other)),
        at => at,
    };
    let to = moment::glsn(&db, to, first_of(&args.keyspaces))?;
    let mut reset = branch.reset_to(Glsn(to));
    for name in &args.keyspaces {
        reset = reset.keyspace(&keyspaces::known_keyspace(&db, name)?);
    }
    if args.preview {
        return preview(reset.preview().map_err(|error| explain(&db, error))?, output);
    }
    let by = reset.run().map_err(|error| explain(&db, error))?;
    done(db, by, &format!("reset to GLSN {to}"), output)
}

pub(crate) fn merge(globals: &Globals, args: &Merge, output: &mut Output) -> Outcome {
    let db = open(globals, args.preview, &args.store)?;
    let (from, into) =
        (branches::find(&db, Some(&args.from))?, branches::find(&db, Some(&args.into))?);
    let mut merge = db.merge(&from).into(&into);
    for (name, rule) in &args.rules {
        let keyspace = keyspaces::known_keyspace(&db, name)?;
        merge = merge.rule(&keyspace, rule_of(*rule));
    }
    if args.preview {
        return preview(merge.preview().map_err(|error| explain(&db, error))?, output);
    }
    match merge.run().map_err(|error| explain(&db, error))? {
        MergeOutcome::Conflicts(found) => conflicts(found, "changed on both branches", output),
        MergeOutcome::Merged(by) => {
            done(db, Some(by), &format!("branch {} is merged", args.from), output)
        }
        _ => done(db, None, "", output),
    }
}

pub(crate) fn cherry_pick(globals: &Globals, args: &CherryPick, output: &mut Output) -> Outcome {
    args.keyspaces.iter().try_for_each(|name| keyspaces::check_writable(name))?;
    let db = open(globals, args.preview, &args.store)?;
    let into = branches::find(&db, Some(&args.into))?;
    let glsn = Glsn(moment::glsn(&db, &args.commit, first_of(&args.keyspaces))?);
    let mut pick = db.cherry_pick(glsn).into(&into);
    for name in &args.keyspaces {
        pick = pick.keyspace(&keyspaces::known_keyspace(&db, name)?);
    }
    for name in args.excluded.iter().cloned().chain(keyspaces::own(&db)) {
        pick = pick.except(&keyspaces::known_keyspace(&db, &name)?);
    }
    for (name, rule) in &args.rules {
        let keyspace = keyspaces::known_keyspace(&db, name)?;
        pick = pick.rule(&keyspace, rule_of(*rule));
    }
    if args.preview {
        return preview(pick.preview().map_err(|error| explain(&db, error))?, output);
    }
    match pick.run().map_err(|error| explain(&db, error))? {
        MergeOutcome::Conflicts(found) => {
            let what = format!("branch {} differs from the state before GLSN {glsn}", args.into);
            conflicts(found, &what, output)
        }
        MergeOutcome::Merged(by) => {
            let what = format!("GLSN {glsn} is applied to branch {}", args.into);
            done(db, Some(by), &what, output)
        }
        _ => done(db, None, "", output),
    }
}

/// Reports conflicts; `what` is their cause.
fn conflicts(conflicts: MergeSteps, what: &str, output: &mut Output) -> Outcome {
    let advice = "To resolve the conflicts, use --rule KEYSPACE=RULE with ours, theirs, newest, \
                  counter, text, json or json-set.";
    conflicts_with_advice(conflicts, &format!("{what}; nothing was written"), advice, output)
}

/// Reports conflicts, and how to resolve them.
pub(crate) fn conflicts_with_advice(
    conflicts: MergeSteps,
    what: &str,
    advice: &str,
    output: &mut Output,
) -> Outcome {
    let count = print(conflicts, output)?;
    output.flush()?;
    say(format_args!("{}: {what}\n{advice}", count_of(count, "conflict", "conflicts")));
    Ok(Exit::No)
}

/// The keyspace whose imported commits are meant by a time or a commit id.
fn first_of(keyspaces: &[String]) -> &str {
    keyspaces.first().map_or("default", String::as_str)
}

fn open(globals: &Globals, preview: bool, path: &std::path::Path) -> Result<Db, Failure> {
    match preview {
        true => store::open_to_read(globals, path),
        false => store::open_to_write(globals, path, false, Durability::Sync),
    }
}

fn rule_of(rule: Rule) -> MergeRule {
    match rule {
        Rule::Conflict => MergeRule::Conflict,
        Rule::Ours => MergeRule::Ours,
        Rule::Theirs => MergeRule::Theirs,
        Rule::Counter => MergeRule::Counter,
        Rule::Newest => MergeRule::Newest,
        Rule::Text => MergeRule::Text,
        Rule::Json => MergeRule::Json,
        Rule::JsonSet => MergeRule::JsonSet,
    }
}

/// Reports the commit of a revert, reset, merge or cherry-pick, which `what` describes; `None` if
/// there was nothing to change.
fn done(db: Db, by: Option<Glsn>, what: &str, output: &mut Output) -> Outcome {
    store::close_after_commits(db);
    let done = match by {
        Some(glsn) => format!("It is committed as GLSN {glsn}."),
        None => "Nothing was changed.".to_owned(),
    };
    output.report(&done, |output| match (output.plain_reader(), by) {
        (Reader::People, Some(glsn)) => output.line(&format!("{what} as of GLSN {glsn}")),
        (Reader::People, None) => output.line("there is nothing to change"),
        (Reader::Pipe, Some(glsn)) => output.line(&glsn.to_string()),
        (Reader::Pipe, None) => Ok(()),
        (Reader::Json, glsn) => output.facts(&[Fact::new("glsn", "", glsn.map(|glsn| glsn.0))]),
    })?;
    Ok(Exit::Done)
}

fn preview(steps: MergeSteps, output: &mut Output) -> Outcome {
    let mut conflicts = 0;
    let counted = steps.inspect(|step| {
        conflicts +=
            u64::from(step.as_ref().is_ok_and(|step| step.action() == MergeAction::Conflict));
    });
    let count = print(counted, output)?;
    if output.reader() == Reader::People {
        let conflicts = count_of(conflicts, "conflict", "conflicts");
        let summary = format!("{}, {conflicts}", count_of(count, "key", "keys"));
        let summary = output.paint(Style::Faint, &summary);
        output.line(&summary)?;
    }
    Ok(if conflicts > 0 { Exit::No } else { Exit::Done })
}

/// Prints steps; returns their number.
fn print(
    steps: impl Iterator<Item = plimsoll::Result<MergeStep>>,
    output: &mut Output,
) -> Result<u64, Failure> {
    let mut count = 0;
    for step in steps {
        print_step(&step?, output)?;
        count += 1;
    }
    Ok(count)
}

fn print_step(step: &MergeStep, output: &mut Output) -> Result<(), Failure> {
    let (action, style) = match step.action() {
        MergeAction::Put => ("put", Style::Good),
        MergeAction::Delete => ("delete", Style::Bad),
        MergeAction::Conflict => ("conflict", Style::Changed),
    };
    let sizes = match step.action() {
        MergeAction::Conflict => sizes(step)?,
        _ => Vec::new(),
    };
    match output.reader() {
        Reader::Json => {
            let mut object = Map::new();
            object.insert("action".to_owned(), action.into());
            object.insert("keyspace".to_owned(), step.keyspace().into());
            put_json(&mut object, "key", step.key());
            for (side, bytes) in sizes {
                object.insert(format!("{side}_bytes"), bytes.map_or(Value::Null, |b| json!(b)));
            }
            output.json(&object)
        }
        Reader::Pipe => {
            let sizes: Vec<_> = sizes
                .iter()
                .map(|(_, bytes)| bytes.map_or_else(String::new, |bytes| bytes.to_string()))
                .collect();
            let sizes: Vec<_> = sizes.iter().map(String::as_bytes).collect();
            let before = [action.as_bytes(), step.keyspace().as_bytes()];
            output.fields_with_key(&before, &show_key(step.key(), false), &sizes)
        }
        Reader::People => {
            let size = |bytes: Option<u64>| bytes.map_or_else(|| "no value".to_owned(), show_size);
            let sizes: Vec<_> =
                sizes.iter().map(|(side, bytes)| format!("{side} {}", size(*bytes))).collect();
            let line = format!("{action:<8}  {}  {}", step.keyspace(), show_key(step.key(), false));
            let line = output.paint(style, &line);
            let sizes = output.paint(Style::Faint, &sizes.join(", "));
            output.line(format!("{line}  {sizes}").trim_end())
        }
    }
}

/// The lengths of the three values of a conflict; `None`: no value.
fn sizes(step: &MergeStep) -> Result<Vec<(&'static str, Option<u64>)>, Failure> {
    let sides =
        [("base", MergeSide::Base), ("ours", MergeSide::Ours), ("theirs", MergeSide::Theirs)];
    let size = |(name, side)| Ok((name, step.reader(side)?.map(|value| value.len())));
    sides.into_iter().map(size).collect()
}
