//! The language of `plimsoll batch` and `plimsoll shell`: one parser and one session for both.
//!
//! A line is one command. [`words`] splits it, [`statement`] parses it, [`session`] runs it, and
//! [`answers`] prints the result. Lines that match a command of the command line run that command.

pub(crate) mod answers;
pub(crate) mod session;
mod source;
pub(crate) mod statement;
pub(crate) mod words;

/// The text of `.help`, also in the help of both commands.
pub(crate) const LANGUAGE: &str = "\
Commands, one per line:
  put KEY VALUE            set a key; `put KEY --file PATH` takes the value from a file; --ttl TIME
                           lets it expire
  get KEY                  print a value
  delete KEY...            delete keys
  delete --prefix PREFIX   delete all keys with a prefix; or --from KEY --to KEY: a range
  add KEY [NUMBER]         add to the number that a key has (8 bytes, little endian)
  append KEY VALUE         append to the value of a key
  cas KEY EXPECTED NEW     replace the expected value: --absent for no EXPECTED, --delete for no NEW
  expire KEY TIME          let the value of a key expire after a time such as 30m
  persist KEY              remove the expiry of a value; `ttl KEY` tells when it expires
  scan [PREFIX]            list keys and values: --from KEY --to KEY --limit COUNT --reverse --keys
  count [PREFIX]           count keys: --from KEY --to KEY
  use KEYSPACE             keyspace of the following lines; the first put creates it
  keyspaces                list keyspaces
  branch NAME              branch of the following lines; `branches` lists branches
  begin, commit, rollback  several lines in one transaction
  history, log, diff, stat show committed data, with the options of these commands (`log --help`)

get, ttl, scan and count take --at MOMENT: a GLSN, a time or draft@{1 hour ago}, as `get --at` does.
Blanks separate words. 'Single quotes' keep everything as it is. In \"double quotes\", and without
quotes, a backslash writes \\n \\t \\r \\0 \\\\ \\\" \\' \\# \\-, a blank, or any byte as \\xHH.
A word that starts with # starts a comment. Quote a key that starts with --.";
