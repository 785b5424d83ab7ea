//! The command line: commands, options and their help.

mod archive;
mod branches;
mod cluster;
mod cursors;
mod dump;
mod expiry;
mod import;
mod log;
mod maintenance;
mod recovery;
#[cfg(feature = "replay")]
mod replay;
mod scripts;
mod state_hash;
mod sync;
mod tags;
mod undo;
mod updates;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{
    Args, Command as ClapCommand, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell as CompletedShell;

use crate::bytes::key_bytes;
use crate::duration::parse_duration;
use crate::exit::Failure;
use crate::moment::{At, MAIN, parse_at};
use crate::number::parse_count;
use crate::output::Colour;
use crate::size::parse_size;

pub(crate) use self::archive::Archive;
pub(crate) use self::branches::{Branch, BranchCreate, BranchDelete, BranchRename, OnBranch};
pub(crate) use self::cluster::{
    Cluster, ClusterCreate, ClusterHeal, ClusterJoin, ClusterLeave, ClusterMove, ClusterStatus,
    ClusterTrim,
};
pub(crate) use self::cursors::{Cursor, CursorAdvance, CursorCreate, CursorDrop};
pub(crate) use self::dump::{Dump, Restore};
pub(crate) use self::expiry::{Expire, Persist, Ttl};
pub(crate) use self::import::{Export, ExportGit, Import, ImportGit, Load};
pub(crate) use self::log::Log;
pub(crate) use self::maintenance::{
    Compact, Count as CountKeys, Keyspace, KeyspaceCompression, KeyspaceCreate, KeyspaceDrop,
    KeyspaceRetention, KeyspaceTtl, NewTtl, RestartTime, Trim,
};
pub(crate) use self::recovery::{Backup, Recover, Verify};
#[cfg(feature = "replay")]
pub(crate) use self::replay::Replay;
pub(crate) use self::scripts::{Batch, Shell};
pub(crate) use self::state_hash::StateHash;
pub(crate) use self::sync::{
    CloneStore, Fetch, Pull, Push, Remote, RemoteAdd, RemoteRemove, SyncServer,
};
pub(crate) use self::tags::{Tag, TagCreate, TagDelete};
pub(crate) use self::undo::{CherryPick, Merge, Reset, Revert, Rule};
pub(crate) use self::updates::{Add, Append, Cas};
pub(crate) use self::watch::Watch;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    done, and the answer is no: key not found, moments differ, problems found, conflicts
  2    the command line or its input is wrong
  3    the store cannot be opened: there is none at this path, or it has another format
  4    bytes on disk are damaged; with --skip-damaged: done, without the damaged data
  5    the memory budget is too small for the request (see --memory)
  6    the system refused (no space left, no permission, git not installed), or another process \
  or machine does not answer
  7    conflict with another transaction: run the command again
  8    the store is locked: another process has it for itself, or 64 processes share it (see --wait)
  130  stopped by Ctrl-C or SIGTERM: import, export, load, batch, backup, archive, restore and \
  verify of an archive, dump, replay, watch, log --follow (what was committed is kept); the \
  signal kills other commands

Commands that only read (get, scan, count, history, log without --ids, diff, watch, stat, verify, \
backup, archive, dump, warm, keyspace list, cursor list, branch list, tag list, remote list, \
cluster status, shell --read-only, revert --preview, reset --preview) work while another process \
writes. Those that write share the store with each other, and with programs that open it shared; \
recover needs it for itself, and restore and clone make a new one. replay opens no store.";

/// An embedded, versioned, transactional key-value store that keeps to one memory budget.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES, max_term_width = 110)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Parses this process's command line. An error ends the process.
pub(crate) fn parse() -> Cli {
    let mut command = with_negative_numbers(Cli::command());
    let read = command
        .try_get_matches_from_mut(std::env::args_os())
        .and_then(|matches| Cli::from_arg_matches(&matches));
    read.unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Accepts `-5` as a value everywhere, because no option is a number, but a key or a value may be.
pub(crate) fn with_negative_numbers(command: ClapCommand) -> ClapCommand {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Options of every command.
#[derive(Args, Debug)]
pub(crate) struct Globals {
    /// Memory budget of the store, at least 16MiB [default: a quarter of what the machine or
    /// container has]
    #[arg(
        long,
        global = true,
        value_name = "SIZE",
        env = "PLIMSOLL_MEMORY",
        value_parser = parse_size
    )]
    #[arg(hide_env_values = true, help_heading = "Global options")]
    pub(crate) memory: Option<u64>,
    /// How to read the store's files: cached: through the page cache; direct: past it (O_DIRECT);
    /// auto: by the amount of free memory
    #[arg(
        long,
        global = true,
        value_name = "HOW",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub(crate) io: HowToRead,
    /// Disable warm restart: do not reload or save the hot set (see `plimsoll warm`); read-only
    /// commands never do
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) no_warm: bool,
    /// If another process has the store for itself, wait up to this long for it, e.g. 5s [default:
    /// do not wait]
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        value_parser = parse_duration,
        help_heading = "Global options"
    )]
    pub(crate) wait: Option<Duration>,
    /// Print JSON: one object, or one object per line
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Colour the output; auto: on a terminal, unless NO_COLOR is set; always: also to a pipe, e.g.
    /// for less -R
    #[arg(long = "color", global = true, value_name = "WHEN", default_value = "auto")]
    #[arg(help_heading = "Global options")]
    pub(crate) colour: Colour,
}

/// How the store's files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HowToRead {
    Auto,
    Direct,
    Cached,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring a history from elsewhere into a store
    #[command(subcommand)]
    Import(Import),
    /// Write the history of a store elsewhere
    #[command(subcommand)]
    Export(Export),
    /// Load rows of a CSV, TSV or JSON-lines file
    Load(Load),
    /// Print the value of a key
    Get(Get),
    /// Set a key to a value
    Put(Put),
    /// Delete keys
    Delete(Delete),
    /// Add to the number that a key has
    Add(Add),
    /// Append bytes to the value of a key
    Append(Append),
    /// Replace the value of a key if it is the expected one
    Cas(Cas),
    /// Print when the value of a key expires
    Ttl(Ttl),
    /// Let the value of a key expire
    Expire(Expire),
    /// Remove the expiry of a key's value
    Persist(Persist),
    /// List keys and values in order
    Scan(Scan),
    /// Count keys
    Count(CountKeys),
    /// Run commands from a file or stdin, all in one transaction or each in its own
    Batch(Batch),
    /// Run commands interactively
    Shell(Shell),
    /// List, create, change and drop keyspaces
    #[command(subcommand)]
    Keyspace(Keyspace),
    /// List, create, move and drop cursors: named positions of readers of the log
    #[command(subcommand)]
    Cursor(Cursor),
    /// List, create, rename and delete branches
    #[command(subcommand)]
    Branch(Branch),
    /// Merge a branch into another one, by one commit
    Merge(Merge),
    /// Apply the changes of one commit to a branch, by a new commit
    CherryPick(CherryPick),
    /// List, create and delete tags: named moments that stay readable
    #[command(subcommand)]
    Tag(Tag),
    /// Make a store with the commits of another one, to exchange commits with it
    Clone(CloneStore),
    /// Transfer new commits of a branch of another store, without merging them
    Fetch(Fetch),
    /// Fetch a branch of another store, and merge it into the branch of the same name
    Pull(Pull),
    /// Transfer new commits of a branch to another store
    Push(Push),
    /// List, add and remove the addresses of other stores
    #[command(subcommand)]
    Remote(Remote),
    /// Serve a store over standard input and output, to these commands on another machine
    SyncServer(SyncServer),
    /// Share one store between machines, with commits that a bucket orders
    #[command(subcommand)]
    Cluster(Cluster),
    /// List every version of a key, newest first
    History(History),
    /// List what changed between two moments
    Diff(Diff),
    /// Undo what a commit did, by a new commit
    Revert(Revert),
    /// Go back to an earlier moment, by a new commit
    Reset(Reset),
    /// List the entries of the log, newest first: transactions and streams
    Log(Log),
    /// Print the changes of keys under a prefix as they are committed, with their values
    Watch(Watch),
    /// Show what is in a store, and how memory and disk are used
    Stat(Stat),
    /// Print a hash of all keys and values, to compare states
    StateHash(StateHash),
    /// Read and check every byte of a store or of an archive
    Verify(Verify),
    /// Make a consistent copy of a store, also while it is in use
    Backup(Backup),
    /// Send the new data of a store to an archive, once or until Ctrl-C; `restore` restores any
    /// moment
    Archive(Archive),
    /// Write a store as a stream: to another version or machine, into other tools
    Dump(Dump),
    /// Make a store of a dump, a backup or an archive
    Restore(Restore),
    /// Build a sound store from everything readable in a damaged one
    Recover(Recover),
    /// Merge the runs of the index now
    Compact(Compact),
    /// Delete the oldest part of the log
    Trim(Trim),
    /// Have the log's time follow the clock again, after commits under a clock that was ahead
    RestartTime(RestartTime),
    /// Show or delete the warm image: the hot set, saved for the next restart
    Warm(Warm),
    /// Replay a trace of requests against the object cache
    #[cfg(feature = "replay")]
    Replay(Replay),
    /// Print a completion script for a shell
    Completions(Completions),
}

/// Where keys live.
#[derive(Args, Debug)]
pub(crate) struct InKeyspace {
    /// Keyspace of the keys
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

/// Where keys live, and how they are written.
#[derive(Args, Debug)]
pub(crate) struct Keys {
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
    /// Keys are given (and shown) as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
}

impl Keys {
    /// The name of their keyspace.
    pub(crate) fn keyspace(&self) -> &str {
        &self.keyspace.keyspace
    }

    /// The bytes of a key that was given on the command line.
    pub(crate) fn key(&self, given: OsString) -> Result<Vec<u8>, Failure> {
        key_bytes(given, self.hex).map_err(Failure::usage)
    }

    /// The bytes of a key that may be left out.
    pub(crate) fn optional(&self, given: Option<OsString>) -> Result<Option<Vec<u8>>, Failure> {
        given.map(|key| self.key(key)).transpose()
    }
}

/// The moment to read at.
#[derive(Args, Debug)]
pub(crate) struct AtMoment {
    /// Moment to read: a GLSN, a time (2024-01-31, "2024-01-31 12:00", yesterday, "2 hours ago";
    /// UTC), a tag, commit:ID, or one of these on a branch: draft@{2 hours ago} [default: newest]
    #[arg(long, value_name = "MOMENT", value_parser = parse_at, long_help = AT_LONG)]
    pub(crate) at: Option<At>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
}

impl AtMoment {
    /// The branch that is read, unless it is main.
    pub(crate) fn branch(&self) -> Option<&str> {
        let name = match &self.at {
            Some(At::Branch { name, .. }) => Some(name.as_str()),
            _ => self.on.name(),
        };
        name.filter(|name| *name != MAIN)
    }
}

const AT_LONG: &str = "\
Moment to read [default: newest]. One of:
  120, newest          a GLSN; the newest one
  2024-01-31           a time, also \"2024-01-31 12:00\" and \"2024-01-31T12:00:03+01:00\"; UTC \
  without an offset
  yesterday            24 hours ago; also now, \"2 hours ago\", \"1 week ago\"
  v1.2                 a tag (see `plimsoll tag`)
  commit:1a2b3c4       an imported Git commit, by its id or a prefix of it
  draft@{120}          branch draft at one of these moments; also \"draft@{2 hours ago}\"
A time selects the last commit in log order whose time is not later. The time of an imported \
commit is its committer's time, or its import time if that is earlier. If committers' times go \
back from one commit to the next, the last match counts, as in `git rev-list -1 --first-parent \
--before=TIME`. A time before the first commit is an error.";

#[derive(Args, Debug)]
#[command(after_help = "\
A pipe or a file gets exactly the value's bytes; a terminal gets binary values escaped. With \
--json: {\"key\", \"value\", \"at\"}, or \"value_hex\" if the value is not text. Exit code 1: no \
such key.

Examples:
  plimsoll get demo.plimsoll README.md
  plimsoll get demo.plimsoll logo.png --at 120 > logo.png
  plimsoll get demo.plimsoll README.md --at \"2024-01-31 12:00\"
  plimsoll get demo.plimsoll README.md --at commit:1a2b3c4
  plimsoll get demo.plimsoll README.md --branch draft")]
pub(crate) struct Get {
    /// Store
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) at: AtMoment,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Prints the GLSN of the commit once the commit is durable.

Examples:
  plimsoll put demo.plimsoll greeting hello
  plimsoll put demo.plimsoll logo < logo.png
  plimsoll put demo.plimsoll session/ada \"logged in\" --ttl 30m
  plimsoll put demo.plimsoll greeting hi --branch draft
  plimsoll put --hex demo.plimsoll 00ff10 value")]
pub(crate) struct Put {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Key, at most 4096 bytes
    pub(crate) key: OsString,
    /// Value, at most 1 GiB; read from stdin if it is - or omitted
    pub(crate) value: Option<OsString>,
    /// Let the value expire after this time, e.g. 90s, 30m, 12h, 7d [default: the setting of the
    /// keyspace]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
All keys are deleted in one transaction. Their earlier versions stay readable (--at, history) as \
retention allows. --prefix, or --from and --to, delete a range at once, however many keys it \
holds (on a branch, by one deletion for each key); an empty range is an error. Exit code 1: \
a key did not exist; the others are deleted.

Examples:
  plimsoll delete demo.plimsoll greeting
  plimsoll delete demo.plimsoll --prefix session/
  plimsoll delete demo.plimsoll --from 2024-01 --to 2025-01")]
pub(crate) struct Delete {
    /// Store
    pub(crate) store: PathBuf,
    /// Keys
    #[arg(required_unless_present_any = ["prefix", "from", "to"])]
    pub(crate) key: Vec<OsString>,
    /// Delete all keys with this prefix
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub(crate) prefix: Option<OsString>,
    /// Delete a range: its first key
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    pub(crate) from: Option<OsString>,
    /// Delete a range: the key to stop before
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    pub(crate) to: Option<OsString>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A pipe gets one line per key: key, tab, value. The key is written as `batch` and `shell` read it: \
blanks and quotes after a backslash, bytes that are not text as \\xHH. In the value tab, line \
breaks and backslash are \\t, \\n, \\r, \\\\. --json prints one object per line. With --keys \
--null, raw keys, each followed by a zero byte, as for xargs -0.

Examples:
  plimsoll scan demo.plimsoll src/ --keys
  plimsoll scan demo.plimsoll --from b --to d --limit 10
  plimsoll scan demo.plimsoll src/ --from src/main.rs --limit 10
  plimsoll scan demo.plimsoll --at 100 --reverse --json")]
pub(crate) struct Scan {
    /// Store
    pub(crate) store: PathBuf,
    /// Only keys with this prefix
    pub(crate) prefix: Option<OsString>,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Key to stop before
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Print at most this many
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    /// Last key first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print keys without values
    #[arg(long = "keys")]
    pub(crate) keys_only: bool,
    /// End each key with a zero byte
    #[arg(long, requires = "keys_only", conflicts_with = "json")]
    pub(crate) null: bool,
    /// Skip damaged data, report it on standard error, and exit with code 4; only on branch main
    #[arg(long, conflicts_with = "branch")]
    pub(crate) skip_damaged: bool,
    #[command(flatten)]
    pub(crate) at: AtMoment,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Prints for each version its GLSN, its time (the committer's, for an imported commit), its size, \
and a summary of the metadata of the commit that wrote it (id, author and subject, for a Git \
commit). On a branch, those of its ancestors follow, up to the forks. Exit code 1: the key never \
existed.

Examples:
  plimsoll history demo.plimsoll README.md
  plimsoll history demo.plimsoll README.md --branch draft
  plimsoll history demo.plimsoll README.md --limit 1 --json")]
pub(crate) struct History {
    /// Store
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    /// Print at most this many
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
+ added, - removed, ~ changed, with the sizes before and after and a summary of the last commit \
in between that wrote the key; between two branches, of the last such commit that only one of \
them contains. Rewriting the same value is not a difference. A pipe gets sign, bytes before, bytes \
after, key and summary, tab-separated. Exit code 0: no differences; 1: there are some.

A moment without a branch is one of main, or of the branch that --branch names.

Examples:
  plimsoll diff demo.plimsoll 100 200
  plimsoll diff demo.plimsoll main..draft
  plimsoll diff demo.plimsoll draft@{120}..draft src/
  plimsoll diff demo.plimsoll commit:1a2b3c4 newest
  plimsoll diff demo.plimsoll 2024-01-01 now src/ --json")]
pub(crate) struct Diff {
    /// Store
    pub(crate) store: PathBuf,
    /// Earlier moment: a GLSN, a time, commit:ID or a tag, as for `get --at`; a branch, or a moment
    /// on one; or both moments: A..B
    pub(crate) before: String,
    /// Later moment, or newest; not with A..B
    pub(crate) after: Option<OsString>,
    /// Only keys with this prefix
    pub(crate) prefix: Option<OsString>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Shows the contents of the store, the processes that have it open to write, and its files. Then \
come opening, io, memory, pressure, evictor, pool, row cache and the work on the index: these \
describe this command's own process, which opens the store read-only; a program gets its own from \
Db::stats(). The first 200,000 keys are counted; if there are more, the numbers of keys and bytes \
are estimates, marked with `about` (JSON: \"exact\": false), and a key that was overwritten \
recently may count more than once.

Examples:
  plimsoll stat demo.plimsoll
  plimsoll stat demo.plimsoll --exact --json")]
pub(crate) struct Stat {
    /// Store
    pub(crate) store: PathBuf,
    /// Count all keys instead of estimating
    #[arg(long)]
    pub(crate) exact: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The image lists the pages that were hot when the store was last open, and holds hot rows (small \
values cached without their pages). The next process that opens the store reloads them in the \
background. The image is a cache: it can be deleted at any time, even while the store is open; the \
open store then writes a new one.

Examples:
  plimsoll warm demo.plimsoll
  plimsoll warm --delete demo.plimsoll")]
pub(crate) struct Warm {
    /// Store
    pub(crate) store: PathBuf,
    /// Delete the image
    #[arg(long)]
    pub(crate) delete: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll
  plimsoll completions zsh > ~/.zfunc/_plimsoll
  plimsoll completions fish > ~/.config/fish/completions/plimsoll.fish")]
pub(crate) struct Completions {
    /// Shell
    pub(crate) shell: CompletedShell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        with_negative_numbers(Cli::command()).debug_assert();
    }

    #[test]
    fn global_options_stand_before_and_after_the_command() {
        for line in [
            ["plimsoll", "--memory", "64MiB", "stat", "x"],
            ["plimsoll", "stat", "x", "--memory", "64MiB"],
        ] {
            assert_eq!(Cli::parse_from(line).globals.memory, Some(64 << 20));
        }
    }

    #[test]
    fn reads_are_chosen_by_the_store_unless_it_is_told() {
        assert_eq!(Cli::parse_from(["plimsoll", "stat", "x"]).globals.io, HowToRead::Auto);
        assert_eq!(
            Cli::parse_from(["plimsoll", "stat", "x", "--io", "direct"]).globals.io,
            HowToRead::Direct
        );
    }

    #[test]
    fn each_command_has_help_with_an_example() {
        let mut cli = Cli::command();
        // Pass the global options down to the commands, because some commands refer to these
        // options.
        cli.build();
        for command in cli.get_subcommands_mut() {
            let leaves = if command.has_subcommands() {
                command.get_subcommands_mut().collect()
            } else {
                vec![command]
            };
            for leaf in leaves {
                let name = leaf.get_name().to_owned();
                assert!(leaf.render_long_help().to_string().contains("Examples:\n  "), "{name}");
            }
        }
    }
}
