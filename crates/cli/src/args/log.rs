//! The command line of `log`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::args::Keys;
use crate::moment::parse_only_time;
use crate::number::{parse_count, parse_glsn, parse_stream};

#[derive(Args, Debug)]
#[command(after_help = "\
One line per entry, newest first: GLSN, time, commit or stream, number of operations or bytes, and \
a summary of a transaction's metadata (of an imported Git commit: id, author, subject) or the \
payload. The time of an imported commit is its committer's; with --json, \"stored\" is the time of \
its import. With --ops, each operation follows on its own line: + or -, keyspace, bytes, key. The \
deletion of a range has its first key and, behind it, its end; in a pipe its sign is --, in JSON \
its op is delete_range.

--since and --until take times as `get --at` does. If committers' times go back, both work as in \
git log: --since stops at the last commit that is older, --until skips every commit that is newer.

With --cursor, printing starts at the cursor, oldest entry first, and the cursor advances past \
the entries once they are written to standard output. If the command is killed before that, the \
cursor stays and the next run prints these entries again: each entry is printed at least once. The \
log is not trimmed past a cursor (`plimsoll cursor`). Moving a cursor is a commit: with --follow, \
if a process has the store for itself, entries are printed, and the cursor advances when that \
process closes it. Commits that only advance cursors are not shown.

With --branch, prints the commits of the branch, then those of its ancestors up to the forks.

With --ids, the id of the commit follows its GLSN (JSON: \"id\"): 64 hexadecimal digits, of which \
people see the first 12. A commit has the same id in every store that `clone`, `fetch`, `pull` or \
`push` transferred it to. Entries of streams, and commits that changed only the store's own \
records, have none. The ids are kept in the store, so it must be writable: the first time, the \
values of all commits are read once, and the ids are written by a commit of the store's own.

Examples:
  plimsoll log demo.plimsoll --limit 20
  plimsoll log demo.plimsoll --branch draft --ops
  plimsoll log demo.plimsoll --branch origin/main --ids
  plimsoll log demo.plimsoll --since \"2 weeks ago\"
  plimsoll log demo.plimsoll --key README.md --until 2024-01-31
  plimsoll log demo.plimsoll --reverse --from 100 --ops --json
  plimsoll log demo.plimsoll --follow
  plimsoll log demo.plimsoll --follow --cursor mailer --ops --json")]
pub(crate) struct Log {
    /// Store
    pub(crate) store: PathBuf,
    /// First GLSN [default: the oldest; with --follow: that of the next entry]
    #[arg(long, value_name = "GLSN", value_parser = parse_glsn)]
    pub(crate) from: Option<u64>,
    /// Last GLSN
    #[arg(long, value_name = "GLSN", value_parser = parse_glsn)]
    pub(crate) to: Option<u64>,
    /// Only entries of this time or later
    #[arg(long, value_name = "TIME", value_parser = parse_only_time)]
    pub(crate) since: Option<Timestamp>,
    /// Only entries up to this time
    #[arg(long, value_name = "TIME", value_parser = parse_only_time)]
    pub(crate) until: Option<Timestamp>,
    /// Only commits that put or deleted this key (as far as its versions are retained)
    #[arg(long, value_name = "KEY", conflicts_with = "stream")]
    pub(crate) key: Option<OsString>,
    /// Only this stream; transactions are stream 0
    #[arg(long, value_name = "NUMBER", value_parser = parse_stream)]
    pub(crate) stream: Option<u32>,
    /// Print at most this many
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    /// Oldest first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Wait for new entries, oldest first; ends with Ctrl-C
    #[arg(long, conflicts_with_all = ["to", "until", "reverse"])]
    pub(crate) follow: bool,
    /// Start at this cursor and move it past the printed entries; created at --from if it does not
    /// exist
    #[arg(long, value_name = "NAME", conflicts_with_all = ["to", "since", "until", "reverse"])]
    pub(crate) cursor: Option<String>,
    /// Show each operation of a transaction
    #[arg(long)]
    pub(crate) ops: bool,
    /// Show the ids of commits, which are the same in every store that has the commit
    #[arg(long, conflicts_with_all = ["follow", "cursor", "stream"])]
    pub(crate) ids: bool,
    /// Skip damaged data, report it on standard error, and exit with code 4
    #[arg(long, conflicts_with = "follow")]
    pub(crate) skip_damaged: bool,
    /// Only commits that this branch contains [default: the entries of all branches]
    #[arg(long, value_name = "BRANCH", conflicts_with = "stream")]
    pub(crate) branch: Option<String>,
    #[command(flatten)]
    pub(crate) keys: Keys,
}
