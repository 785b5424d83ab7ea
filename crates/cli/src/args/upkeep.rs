//! The command line of what looks after a store: keyspaces, counting, freeing space.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use plimsoll::Retention;

use super::{AtMoment, InKeyspace, KeysAs};
use crate::moment::{At, parse_at};
use crate::retention::parse_retention;

#[derive(Debug, Subcommand)]
pub(crate) enum Keyspace {
    /// List the keyspaces and what they keep
    List(KeyspaceList),
    /// Make a keyspace
    Create(KeyspaceCreate),
    /// Show or change which past versions a keyspace keeps
    Retention(KeyspaceRetention),
    /// Delete a keyspace with all its keys
    Drop(KeyspaceDrop),
}

#[derive(Args, Debug)]
#[command(after_help = "\
A pipe gets name, tab, retention a line.

Examples:
  plimsoll keyspace list demo.plimsoll")]
pub(crate) struct KeyspaceList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A keyspace is also made by the first put into it. One that is there already is left as it is, unless it keeps something else: \
that is an error (`plimsoll keyspace retention` changes it).

Retention:
  forever    every version (default)
  latest     the latest version only
  7d, 12h    what a reader of this age or younger can see
  1000glsns  what the last 1000 GLSNs can see

Examples:
  plimsoll keyspace create demo.plimsoll users
  plimsoll keyspace create demo.plimsoll sessions --retention 7d")]
pub(crate) struct KeyspaceCreate {
    /// Store; it is made if there is none
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// Which past versions it keeps: forever, latest, an age such as 7d, or 1000glsns
    #[arg(long, value_parser = parse_retention, default_value = "forever", value_name = "RETENTION")]
    pub(crate) retention: Retention,
}

#[derive(Args, Debug)]
#[command(after_help = "\
What a shorter retention gives up is dropped when runs are merged (`plimsoll compact` does so now). What is gone does not come \
back with a longer one.

Examples:
  plimsoll keyspace retention demo.plimsoll default
  plimsoll keyspace retention demo.plimsoll default latest
  plimsoll keyspace retention demo.plimsoll sessions 7d")]
pub(crate) struct KeyspaceRetention {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// From now on: forever, latest, an age such as 7d, or 1000glsns; without it, show what is kept
    #[arg(value_parser = parse_retention)]
    pub(crate) retention: Option<Retention>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
All keys are deleted in one transaction, with the keyspace. Its past stays readable (get, scan and count with --at) as long as its \
retention says: one that keeps every version keeps its space, too. With --forget its past goes as well, when runs are merged. \
The default keyspace cannot be dropped.

Examples:
  plimsoll keyspace drop demo.plimsoll sessions
  plimsoll keyspace drop demo.plimsoll sessions --forget")]
pub(crate) struct KeyspaceDrop {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// Give up its past, too, so that its space is freed
    #[arg(long)]
    pub(crate) forget: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Frees whole segments of the log. Values that are still current or retained are moved out first, and keys with their retained versions stay; \
but commits below can no longer be listed by `plimsoll log`, no time below can be looked up, and `plimsoll rebuild` is no longer possible. \
Which past versions are kept is not for this command to say: see `plimsoll keyspace retention`.

Examples:
  plimsoll trim demo.plimsoll --until 100000
  plimsoll trim demo.plimsoll --until 2024-01-31")]
pub(crate) struct Trim {
    /// Store
    pub(crate) store: PathBuf,
    /// Free what lies before this GLSN or time
    #[arg(long, value_name = "GLSN|TIME", value_parser = parse_at)]
    pub(crate) until: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Merges all runs into as few as there can be, and drops versions that no keyspace keeps any more. The store does so by itself, in the background, \
while it is open; this does it now. It takes up to as much free space as the index has.

Examples:
  plimsoll compact demo.plimsoll")]
pub(crate) struct Compact {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll count demo.plimsoll
  plimsoll count demo.plimsoll src/ --at 100
  plimsoll count demo.plimsoll --from b --to d --keyspace users")]
pub(crate) struct Count {
    /// Store
    pub(crate) store: PathBuf,
    /// Only keys that begin with this
    pub(crate) prefix: Option<OsString>,
    /// Only this key and those after it
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Only keys before this one
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    #[command(flatten)]
    pub(crate) at: AtMoment,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
    #[command(flatten)]
    pub(crate) keys: KeysAs,
}
