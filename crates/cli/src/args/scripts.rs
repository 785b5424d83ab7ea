//! The command line of `batch` and `shell`.

use std::path::PathBuf;

use clap::Args;

use super::{InKeyspace, OnBranch};
use crate::script::LANGUAGE;

#[derive(Args, Debug)]
#[command(after_help = format!("\
{LANGUAGE}

All lines are one transaction: if one fails, nothing is committed, and the message names the \
line. With --each-line, each line is its own transaction, and so is each block from `begin` to \
`commit`; all are durable when the command ends, and if a line fails, the lines before it stay \
committed. `delete` also succeeds for a key that does not exist. A pipe gets the output of get, \
scan and count, then the GLSN of the last commit; all lines run even if the pipe's reader closes \
it. Exit code 1: a key did not exist.

Examples:
  plimsoll batch demo.plimsoll < commands
  plimsoll batch demo.plimsoll commands --each-line
  plimsoll batch demo.plimsoll commands --branch draft
  printf 'put a 1\\nput b \"two words\"\\n' | plimsoll batch demo.plimsoll"))]
pub(crate) struct Batch {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// File with the commands, or - for stdin
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// Run each line as its own transaction
    #[arg(long)]
    pub(crate) each_line: bool,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}

#[derive(Args, Debug)]
#[command(after_help = format!("\
{LANGUAGE}

.help prints this text, .quit ends the shell. Each line is its own transaction and durable when \
its answer is printed, unless it follows `begin`. A shell shares the store with other commands and \
with programs that share it. --read-only shows the newest state if processes share the store, and \
otherwise the durable state at opening. Typed lines are saved in ~/.plimsoll_history \
(PLIMSOLL_HISTORY names another file; empty: none).

Lines can also be piped in: the first error ends the command with its exit code, and so does a \
closed output (6).

Examples:
  plimsoll shell demo.plimsoll
  plimsoll shell demo.plimsoll --read-only
  plimsoll shell demo.plimsoll --branch draft
  echo 'count' | plimsoll shell demo.plimsoll --read-only"))]
pub(crate) struct Shell {
    /// Store
    pub(crate) store: PathBuf,
    /// Create the store if it does not exist
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) create: bool,
    /// Open read-only; works while other processes write
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}
