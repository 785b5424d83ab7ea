//! The command line of the commands that import data into a store: `import` and `load`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{InKeyspace, OnBranch};
use crate::load::Format;
use crate::load::delimited::parse_delimiter;
use crate::number::{parse_count, parse_positive};
use crate::size::parse_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Import the history of a Git repository: one commit, one transaction
    #[command(long_about = IMPORT_GIT_LONG)]
    Git(ImportGit),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Export {
    /// Write all branches to a Git repository
    #[command(long_about = EXPORT_GIT_LONG)]
    Git(ExportGit),
}

const IMPORT_GIT_LONG: &str = "\
Import the history of a Git repository: one commit, one transaction.

Keys are paths (raw bytes), values are file contents; the value of a symbolic link is its target. \
     A merge is compared with its first parent. Submodules are skipped and counted. File modes \
     are not stored.

Each transaction's metadata is JSON: {\"commit\", \"author\", \"email\", \"date\", \"committer\": \
     {\"name\", \"email\", \"date\"}, \"message\", \"parents\": [...]}, and \"headers\" if there \
     are others, for example a signature. Dates are RFC 3339 with their original offset. A message \
     above 64 KiB is truncated, and \"message_cut\" \
     is true. Text is decoded from the commit's encoding. Invalid bytes become U+FFFD in the \
     text, and \"undecoded\": {\"encoding\", \"author\", \"committer\", \"message\"} \
     has the bytes of the line or message in hexadecimal. An unreadable time zone counts as UTC.

Reads accept a time or a commit id of the history: --at 2012-01-01 is the last commit whose \
committer's time is not later; --at commit:ID is that commit. Only commits of the first-parent \
line are imported.

Run it again to continue: each transaction also records its commit (in keyspace plimsoll.import, \
which no other command writes to; without it, the next import starts over). The import \
     fails if the last imported commit is no longer an ancestor of the branch because the history \
     was rewritten. Of two concurrent imports into one keyspace, one continues; the other ends \
     with exit code 7, and resumes after it when run again.

With --all, all commits with all their parents are imported, and all branches and tags. The \
first-parent line of the branch goes to main. Each other branch goes to a branch of the same name, \
or heads/NAME if that is taken or is none that a branch can have. Modes and submodules are kept in \
keyspace git.entries; trees and commits of unusual forms are kept whole in keyspace git.objects. \
`plimsoll export git` writes the same objects and refs again. The store must be new, or have an \
earlier import with --all; the repository must be complete. A branch that was rewritten since is \
not moved and is reported. --at takes whole ids of commits on main.

Objects missing from the repository (partial clones and snapshots) are reported and skipped. A \
file whose content is missing is absent at that commit. A commit whose folders are missing is \
skipped, and the next commit includes its changes.

The history of a shallow clone is imported from the start of the clone, with a warning. \
     The earlier commits cannot be added later: for the whole history, run `git fetch \
     --unshallow` first, or import into a new store afterwards.

Without --sync the import waits for the disk only at its end. After a power loss the store holds a \
prefix of the history, and the next run continues from there.";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll import git . demo.plimsoll
  plimsoll import git --all /srv/git/project.git project.plimsoll
  plimsoll import git --branch v2.0 --memory 64MiB /srv/git/project.git project.plimsoll
  plimsoll get demo.plimsoll README.md --at 2024-01-31
  plimsoll get demo.plimsoll README.md --at commit:1a2b3c4")]
pub(crate) struct ImportGit {
    /// Repository: a working tree, a folder in it, or a bare repository
    pub(crate) repository: PathBuf,
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Branch, tag or commit whose history is imported
    #[arg(long, value_name = "REF", default_value = "HEAD")]
    pub(crate) branch: String,
    /// Import all branches and tags, and all parents of merges
    #[arg(long, conflicts_with_all = ["sync", "keyspace"])]
    pub(crate) all: bool,
    /// Make each commit durable before the next one begins
    #[arg(long)]
    pub(crate) sync: bool,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}

const EXPORT_GIT_LONG: &str = "\
Write all branches to a Git repository.

What `plimsoll import git --all` imported gets the same ids again: all commits, trees, contents \
and tags, and the refs that name them. A commit that was made in the store becomes a commit of \
the files in keyspace default, with the mode that a file had before. It gets the same id in each \
export. Its message is its metadata. If that is JSON with \"message\", then \"author\", \
\"email\" and \"date\" (RFC 3339) are the author's. Keys that Git does not accept as paths are \
left out and reported.

A repository that does not exist, or an empty folder, becomes a bare repository. Into a repository \
with an earlier export only new commits are written. Main goes to the branch that it was imported \
from, other branches to those of the same name. A branch that has commits which the store lacks is \
not replaced without --force: import it first. `git repack -a -d` makes the repository smaller.

Run it again after an interruption. Tags made in the store, and other keyspaces, are not exported. \
The refs are recorded in the store itself, so that a clone of it exports branches only.";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll export git project.plimsoll project.git
  plimsoll export git --force project.plimsoll /srv/git/project.git")]
pub(crate) struct ExportGit {
    /// Store
    pub(crate) store: PathBuf,
    /// Repository; a bare one is made if there is none
    pub(crate) repository: PathBuf,
    /// Also move branches and tags that have commits which the store lacks
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The first line of CSV and TSV names the columns. CSV fields may be quoted (RFC 4180); TSV fields \
are taken literally. A row is limited to 4 MiB, counting 8 extra bytes for each field; --max-row \
changes the limit. Without --value, the value is \
                        the rest of the row as a JSON object. Of rows with the same key, the \
                        last one wins. All rows become one commit: if a row is malformed or the \
                        command is stopped, nothing is loaded. With --batch the rows before it \
                        stay, and the message says how to resume. With --ignore-errors malformed \
                        rows are left out; an unclosed quote still ends the load. An endless \
                        stream needs --batch.

Examples:
  plimsoll load demo.plimsoll people.csv --key email
  plimsoll load demo.plimsoll prices.tsv --key sku --value price --keyspace prices
  plimsoll load demo.plimsoll export.csv --delimiter ';' --ignore-errors
  plimsoll load demo.plimsoll people.csv --key email --branch draft
  zcat events.jsonl.gz | plimsoll load demo.plimsoll - --format jsonl --key id --batch 10000")]
pub(crate) struct Load {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// File to read, or - for stdin
    pub(crate) file: PathBuf,
    /// Format [default: by the file's extension]
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// Column or field that holds the key [default: the first column; JSON lines need it]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key: Option<String>,
    /// Column or field that holds the value [default: the rest of the row as JSON]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) value: Option<String>,
    /// The first line is a row too; columns are named 1, 2, ...
    #[arg(long)]
    pub(crate) no_header: bool,
    /// Commit after each of this many rows; slower
    #[arg(long, value_name = "ROWS", value_parser = parse_positive)]
    pub(crate) batch: Option<u64>,
    /// Load all rows in one commit or none; the default without --batch
    #[arg(long, conflicts_with = "batch")]
    pub(crate) atomic: bool,
    /// Skip this many rows at the start, valid or not
    #[arg(long, value_name = "ROWS", default_value = "0", value_parser = parse_count)]
    pub(crate) skip: u64,
    /// Skip malformed rows; the result counts them, and stderr names the first ones
    #[arg(long)]
    pub(crate) ignore_errors: bool,
    /// Field delimiter of CSV: one ASCII character, or \t for a tab [default: a comma]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    pub(crate) delimiter: Option<u8>,
    /// Maximum row size; a row needs several times its size in memory, outside the budget
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = parse_size)]
    pub(crate) max_row: u64,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
}
