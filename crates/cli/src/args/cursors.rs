//! The command line of `cursor`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Cursor {
    /// List the cursors and the GLSN that each reads next
    List(CursorList),
    /// Make a cursor
    Create(CursorCreate),
    /// Move a cursor on: everything before a GLSN was dealt with
    Advance(CursorAdvance),
    /// Remove a cursor, so that the log may be trimmed without regard to it
    Drop(CursorDrop),
}

#[derive(Args, Debug)]
#[command(after_help = "\
A cursor is a named place in the log. The log is not trimmed past the oldest cursor: neither by `plimsoll trim`, nor where every keyspace limits \
its past and the log trims itself. `plimsoll log --cursor NAME` reads from a cursor and moves it. A pipe gets name, tab, GLSN a line.

Examples:
  plimsoll cursor list demo.plimsoll")]
pub(crate) struct CursorList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
One that is there already stays where it is, and is shown.

Examples:
  plimsoll cursor create demo.plimsoll mailer
  plimsoll cursor create demo.plimsoll audit --at 1")]
pub(crate) struct CursorCreate {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
    /// GLSN that it reads next [default: that of the next entry]
    #[arg(long, value_name = "GLSN")]
    pub(crate) at: Option<u64>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For programs that read the log by themselves; `plimsoll log --cursor NAME` moves its cursor itself. A cursor does not go back: what lies before \
it may be trimmed.

Examples:
  plimsoll cursor advance demo.plimsoll mailer 1042")]
pub(crate) struct CursorAdvance {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
    /// GLSN that it reads next
    pub(crate) next: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A follower that does not come back holds the log for ever: drop its cursor.

Examples:
  plimsoll cursor drop demo.plimsoll mailer")]
pub(crate) struct CursorDrop {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the cursor
    pub(crate) name: String,
}
