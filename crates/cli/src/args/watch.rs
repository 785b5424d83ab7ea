//! The command line of `watch`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{Keys, OnBranch};
use crate::number::{parse_count, parse_glsn};

#[derive(Args, Debug)]
#[command(after_help = "\
One line per change, in commit order: GLSN, + (put) or - (delete), key and value. A pipe gets \
these fields separated by tabs, with tab, line breaks and backslash written as \\t, \\n, \\r, \
\\\\; a terminal shows the beginning of a value; --json prints one object per line: {\"glsn\", \
\"time\", \"op\", \"key\", \"value\"}. A range deletion is one change. A pipe gets -- with the \
range's first key and its end (empty: the end of the keyspace) in place of key and value; JSON has \
the op delete_range, \"key\" and \"end\". A change is printed once it is durable, even if another \
process commits it. Ctrl-C ends the command (exit code 130).

To continue after a stop without a gap, pass the last printed GLSN as --from: its changes are \
printed again, because the command may have stopped between them. --from fails if the log was \
trimmed past it; a cursor (`plimsoll cursor`) prevents that. If the GLSN is not in the log yet, \
the command waits for it.

With --expiries, a value that expires is a change, too: ! in place of + or -, the op expire in \
JSON, with the GLSN of the commit that put the value, and its expiry as time. It is printed within \
a second, before the changes with a later time. The command then keeps the store open, shared with \
other processes that open it shared. Expiries that pass while the command does not run are not \
printed. --limit counts them.

Prints the changes on one branch only (main, or that of --branch), not those of its \
ancestors. If the branch is deleted, the command prints the changes before that and fails. \
The drop of the keyspace is a change on main only, although it removes the keys on all branches.

Examples:
  plimsoll watch demo.plimsoll
  plimsoll watch demo.plimsoll src/ --from 1
  plimsoll watch demo.plimsoll admin/ --keyspace users --json
  plimsoll watch demo.plimsoll sessions/ --expiries
  plimsoll watch demo.plimsoll --branch draft")]
pub(crate) struct Watch {
    /// Store
    pub(crate) store: PathBuf,
    /// Print only changes of keys that begin with this
    pub(crate) prefix: Option<OsString>,
    /// First GLSN whose changes are printed [default: that of the next commit]
    #[arg(long, value_name = "GLSN", value_parser = parse_glsn)]
    pub(crate) from: Option<u64>,
    /// Exit after this many changes
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    /// Print also when values expire; only on branch main
    #[arg(long)]
    pub(crate) expiries: bool,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}
