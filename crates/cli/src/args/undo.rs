//! `revert`, `reset`, `merge` and `cherry-pick`: undo a commit, go back to a moment, merge a
//! branch, apply one commit to a branch.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::branches::OnBranch;
use crate::moment::{At, parse_at};

#[derive(Args, Debug)]
#[command(after_help = "\
Each key that the commit changed gets the value that it had before, in one commit. The history \
stays, and reverting the new commit restores the state. A key that was changed again since is a \
conflict. If there is one, nothing is written, the exit code is 1, and every conflict is printed \
with the sizes of the values after the commit (base), now (ours) and before the commit (theirs). \
--rule decides instead:
  ours      keep the present value
  theirs    put back the value from before the commit
  counter   numbers as of `plimsoll add`: subtract what the commit added
  text      texts: undo the lines that the commit changed; a conflict if they have changed since
  json      JSON objects: undo the fields that the commit changed; a conflict as above
  json-set  JSON arrays as sets: remove what the commit added, add what it removed
  conflict  report it (default)

Prints the GLSN of the new commit once it is durable; nothing if there was nothing to change. \
With --preview, prints what would be done, one key per line: put, delete or conflict, keyspace, \
key. --json prints one object per key with \"action\", \"keyspace\", \"key\" (or \"key_hex\") and, \
of a conflict, \"base_bytes\", \"ours_bytes\" and \"theirs_bytes\" (null: no value).

Keyspaces themselves are not created, dropped or changed, and those that hold the bookkeeping of \
commands (plimsoll.import) keep it: an import continues as if the commit had not been undone. \
To undo `keyspace drop`, create the keyspace again, then revert the commit that dropped it.

With --branch, undoes a commit of that branch, or of an ancestor before the fork, by a commit on \
the branch. Reverting the commit of a merge undoes what it changed; merging again brings only \
later commits.

Examples:
  plimsoll revert demo.plimsoll 120 --preview
  plimsoll revert demo.plimsoll newest
  plimsoll revert demo.plimsoll 120 --branch draft
  plimsoll revert demo.plimsoll 120 --rule stock=counter --rule pages=text")]
pub(crate) struct Revert {
    /// Store
    pub(crate) store: PathBuf,
    /// Commit: its GLSN, newest, or commit:ID of an imported Git commit
    #[arg(value_parser = parse_commit)]
    pub(crate) commit: At,
    /// Print what would be done, and write nothing
    #[arg(long)]
    pub(crate) preview: bool,
    /// Rule for the keys of a keyspace that were changed again since
    #[arg(long = "rule", value_name = "KEYSPACE=RULE", value_parser = parse_rule)]
    pub(crate) rules: Vec<(String, Rule)>,
    /// Undo only what the commit did in this keyspace; may be repeated [default: all]
    #[arg(long = "keyspace", value_name = "NAME")]
    pub(crate) keyspaces: Vec<String>,
    /// Keep what the commit did in this keyspace; may be repeated
    #[arg(long = "except", value_name = "NAME")]
    pub(crate) excluded: Vec<String>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Applies what changed on a branch since the newest state that both branches contain, in one commit. \
The merge is recorded: the next merge of the two begins where this one ended. A key that both \
changed in different ways is a conflict. If there is one, nothing is written, the exit code is 1, \
and every conflict is printed with the sizes of the values in that state (base), on the branch \
that is changed (ours) and on the merged branch (theirs). --rule decides instead:
  ours      keep the value of the branch that is changed
  theirs    take the value of the merged branch
  counter   numbers as of `plimsoll add`: add what both added
  newest    keep the value or deletion that was committed last
  text      texts: take the changed lines of both; a conflict if they changed the same lines
  json      JSON objects: take the changed fields of both, also within fields that are objects; a \
  conflict if they changed the same field
  json-set  JSON arrays as sets: add what either added, remove what either removed
  conflict  report it (default)

Prints the GLSN of the new commit once it is durable; nothing if there was nothing to merge. With \
--preview, prints what would be done, one key per line: put, delete or conflict, keyspace, key. \
--json prints one object per key, as `plimsoll revert` does.

Examples:
  plimsoll merge demo.plimsoll draft --preview
  plimsoll merge demo.plimsoll draft
  plimsoll merge demo.plimsoll main --into draft
  plimsoll merge demo.plimsoll draft --rule stock=counter --rule pages=text")]
pub(crate) struct Merge {
    /// Store
    pub(crate) store: PathBuf,
    /// Branch that is merged
    pub(crate) from: String,
    /// Branch that is changed
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub(crate) into: String,
    /// Print what would be done, and write nothing
    #[arg(long)]
    pub(crate) preview: bool,
    /// Rule for the keys of a keyspace that both branches changed
    #[arg(long = "rule", value_name = "KEYSPACE=RULE", value_parser = parse_rule)]
    pub(crate) rules: Vec<(String, Rule)>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Applies the changes of one commit, made on any branch, to the branch --into, in one new commit. A \
key whose value there differs from both the value before the commit and the value after it is a \
conflict. If there is one, nothing is written, the exit code is 1, and every conflict is printed \
with the sizes of the values before the commit (base), on the branch (ours) and after the commit \
(theirs). --rule decides instead, as for `plimsoll merge`.

The new commit has the metadata of the old one, with a note of its GLSN. The command prints the \
GLSN of the new commit once it is durable; nothing if there was nothing to change. With --preview, \
prints what would be done, one key per line: put, delete or conflict, keyspace, key. --json prints \
one object per key, as `plimsoll revert` does. Keyspaces that hold the bookkeeping of commands \
(plimsoll.import) are left out.

Examples:
  plimsoll cherry-pick demo.plimsoll 120 --preview
  plimsoll cherry-pick demo.plimsoll 120 --into release
  plimsoll cherry-pick demo.plimsoll 120 --into release --rule default=theirs")]
pub(crate) struct CherryPick {
    /// Store
    pub(crate) store: PathBuf,
    /// Commit: its GLSN, newest, or commit:ID of an imported Git commit
    #[arg(value_parser = parse_commit)]
    pub(crate) commit: At,
    /// Branch that is changed
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub(crate) into: String,
    /// Print what would be done, and write nothing
    #[arg(long)]
    pub(crate) preview: bool,
    /// Rule for the keys of a keyspace that are a conflict otherwise
    #[arg(long = "rule", value_name = "KEYSPACE=RULE", value_parser = parse_rule)]
    pub(crate) rules: Vec<(String, Rule)>,
    /// Apply only the changes in this keyspace; may be repeated [default: all]
    #[arg(long = "keyspace", value_name = "NAME")]
    pub(crate) keyspaces: Vec<String>,
    /// Leave out the changes in this keyspace; may be repeated
    #[arg(long = "except", value_name = "NAME")]
    pub(crate) excluded: Vec<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Makes all keys equal to what they were at that moment, in one commit. The history stays: a reset \
to the GLSN before the new commit undoes it. Prints the GLSN of the new commit once it is durable; \
nothing if there was nothing to change. With --preview, prints what would be done, one key per \
line: put or delete, keyspace, key.

A keyspace that did not exist at that moment is emptied, but not dropped. If one had keys then and \
was dropped since, create it again first, or name the others with --keyspace. Other branches stay \
as they are. Up to its fork, a branch has the history of its parent.

Examples:
  plimsoll reset demo.plimsoll --to 120 --preview
  plimsoll reset demo.plimsoll --to \"2 hours ago\"
  plimsoll reset demo.plimsoll --to 120 --keyspace users --keyspace orders
  plimsoll reset demo.plimsoll --branch draft --to \"2 hours ago\"")]
pub(crate) struct Reset {
    /// Store
    pub(crate) store: PathBuf,
    /// Moment: a GLSN, a time, a tag or commit:ID, as for `get --at`
    #[arg(long, value_name = "MOMENT", value_parser = parse_at)]
    pub(crate) to: At,
    /// Reset only this keyspace; may be repeated [default: all]
    #[arg(long = "keyspace", value_name = "NAME")]
    pub(crate) keyspaces: Vec<String>,
    /// Print what would be done, and write nothing
    #[arg(long)]
    pub(crate) preview: bool,
    #[command(flatten)]
    pub(crate) on: OnBranch,
}

/// A rule of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rule {
    Conflict,
    Ours,
    Theirs,
    Counter,
    Newest,
    Text,
    Json,
    JsonSet,
}

fn parse_rule(text: &str) -> Result<(String, Rule), String> {
    let refusal = || {
        format!(
            "`{text}` is not a rule; write KEYSPACE=RULE with ours, theirs, newest, counter, text, \
             json, json-set or conflict"
        )
    };
    let (keyspace, rule) = text.rsplit_once('=').ok_or_else(refusal)?;
    Ok((keyspace.to_owned(), Rule::from_str(rule, false).map_err(|_| refusal())?))
}

fn parse_commit(text: &str) -> Result<At, String> {
    match parse_at(text) {
        Ok(At::Time(_) | At::Branch { .. }) | Err(_) => Err(format!(
            "`{text}` is not a commit; write its GLSN, newest, a tag, or commit:1a2b3c4 (`plimsoll \
             log` lists the commits)"
        )),
        commit => commit,
    }
}
