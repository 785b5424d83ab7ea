//! The command line of `cursor`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::number::parse_glsn;

#[derive(Debug, Subcommand)]
pub(crate) enum Cursor {
    /// List the cursors and the GLSN that each reads next
    List(CursorList),
    /// Create a cursor
    Create(CursorCreate),
    /// Move a cursor forward: everything before a GLSN has been processed
    Advance(CursorAdvance),
    /// Remove a cursor; the log may then be trimmed past it
    Drop(CursorDrop),
}

#[derive(Args, Debug)]
#[command(after_help = "\
A cursor is a named position in the log. Neither `plimsoll trim` nor the automatic trim (if every \
keyspace limits its retention) removes the log past the oldest cursor. `plimsoll log --cursor \
NAME` reads from a cursor and advances it. A pipe gets one line per cursor: name, tab, GLSN.

Examples:
  plimsoll cursor list demo.plimsoll")]
pub(crate) struct CursorList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
If the cursor already exists, it keeps its position, which is printed.

Examples:
  plimsoll cursor create demo.plimsoll mailer
  plimsoll cursor create demo.plimsoll audit --at 1")]
pub(crate) struct CursorCreate {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
    /// GLSN that it reads next [default: that of the next entry]
    #[arg(long, value_name = "GLSN", value_parser = parse_glsn)]
    pub(crate) at: Option<u64>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For programs that read the log on their own; `plimsoll log --cursor NAME` moves its cursor itself. \
                        A cursor cannot move back: the log before it may have been trimmed.

Examples:
  plimsoll cursor advance demo.plimsoll mailer 1042")]
pub(crate) struct CursorAdvance {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
    /// GLSN that it reads next
    #[arg(value_parser = parse_glsn)]
    pub(crate) next: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A cursor retains the log until it is dropped, so drop the cursor of a reader that is no longer in \
use.

Examples:
  plimsoll cursor drop demo.plimsoll mailer")]
pub(crate) struct CursorDrop {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
}
