//! The command line of `batch` and `shell`.

use std::path::PathBuf;

use clap::Args;

use super::InKeyspace;
use crate::script::LANGUAGE;

#[derive(Args, Debug)]
#[command(after_help = format!("\
{LANGUAGE}

All lines are one transaction: if one fails, nothing is committed, and the message names the line. With --each-line each line is \
a transaction of its own, and so are the lines between `begin` and `commit`; all are durable when the command ends, and if a \
line fails those before it stay. `delete` does not ask whether a key is there. A pipe gets what get, scan and count print, and last the GLSN of the \
last commit. Exit code 1: a key was not there.

Examples:
  plimsoll batch demo.plimsoll < commands
  plimsoll batch demo.plimsoll commands --each-line
  printf 'put a 1\\nput b \"two words\"\\n' | plimsoll batch demo.plimsoll"))]
pub(crate) struct Batch {
    /// Store; it is made if there is none
    pub(crate) store: PathBuf,
    /// File with the commands, or - for stdin
    #[arg(default_value = "-", hide_default_value = true)]
    pub(crate) file: PathBuf,
    /// Make each line a transaction of its own
    #[arg(long)]
    pub(crate) each_line: bool,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}

#[derive(Args, Debug)]
#[command(after_help = format!("\
{LANGUAGE}

.help prints this, .quit leaves. Each line is a transaction of its own and durable when it is answered, unless `begin` stands before it. \
A shell that can write keeps other writers out as long as it is open; --read-only works beside them and shows what was \
durable when it was opened. Typed lines are remembered in ~/.plimsoll_history (PLIMSOLL_HISTORY names another file; empty: none).

Lines may also come through a pipe: the first one that fails ends the command with its exit code.

Examples:
  plimsoll shell demo.plimsoll
  plimsoll shell demo.plimsoll --read-only
  echo 'count' | plimsoll shell demo.plimsoll --read-only"))]
pub(crate) struct Shell {
    /// Store
    pub(crate) store: PathBuf,
    /// Make the store if there is none
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) create: bool,
    /// Change nothing; works while another process writes
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}
