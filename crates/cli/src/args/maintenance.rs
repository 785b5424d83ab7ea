//! The command line of maintenance: keyspaces, counting, freeing space.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use plimsoll::{Compression, Retention};

use super::{AtMoment, Keys};
use crate::duration::parse_duration;
use crate::moment::{At, parse_at};
use crate::retention::parse_retention;

#[derive(Debug, Subcommand)]
pub(crate) enum Keyspace {
    /// List the keyspaces with their settings
    List(KeyspaceList),
    /// Create a keyspace
    Create(KeyspaceCreate),
    /// Show or change which past versions a keyspace keeps
    Retention(KeyspaceRetention),
    /// Show or change how the values of a keyspace are compressed
    Compression(KeyspaceCompression),
    /// Show or change after which time the values of a keyspace expire
    Ttl(KeyspaceTtl),
    /// Delete a keyspace with all its keys
    Drop(KeyspaceDrop),
}

#[derive(Args, Debug)]
#[command(after_help = "\
A pipe gets one line per keyspace: name, tab, retention.

Examples:
  plimsoll keyspace list demo.plimsoll")]
pub(crate) struct KeyspaceList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The first put into a keyspace also creates it. A keyspace that already exists is left unchanged; \
                        if its retention or compression differs, that is an error (`plimsoll \
                        keyspace retention` and `plimsoll keyspace compression` change them).

Retention:
  forever    every version (default)
  latest     the latest version only
  7d, 12h    the versions visible at any moment of this period
  1000glsns  the versions visible at any of the last 1000 GLSNs

Examples:
  plimsoll keyspace create demo.plimsoll users
  plimsoll keyspace create demo.plimsoll sessions --retention 7d
  plimsoll keyspace create demo.plimsoll pages --compression lz4")]
pub(crate) struct KeyspaceCreate {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// Past versions to keep: forever, latest, an age such as 7d, or 1000glsns
    #[arg(
        long,
        value_parser = parse_retention,
        default_value = "forever",
        value_name = "RETENTION"
    )]
    pub(crate) retention: Retention,
    /// Compression of its values: none, lz4, or zstd:LEVEL with a level from 1 to 22 [default:
    /// none]
    #[arg(long, value_name = "COMPRESSION")]
    pub(crate) compression: Option<Compression>,
    /// Let its values expire after this time, e.g. 30m, 7d [default: they do not expire]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A new time to live applies to values that are put from then on without one of their own. \
Values that exist keep their expiry.

Examples:
  plimsoll keyspace ttl demo.plimsoll sessions
  plimsoll keyspace ttl demo.plimsoll sessions 30m
  plimsoll keyspace ttl demo.plimsoll sessions none")]
pub(crate) struct KeyspaceTtl {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// New time to live: e.g. 30m or 7d, or none; if omitted, print the current one
    #[arg(value_name = "TIME", value_parser = parse_ttl)]
    pub(crate) ttl: Option<NewTtl>,
}

/// A new time to live of a keyspace; `None`: its values do not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewTtl(pub(crate) Option<Duration>);

fn parse_ttl(text: &str) -> Result<NewTtl, String> {
    if text == "none" {
        Ok(NewTtl(None))
    } else {
        parse_duration(text).map(|ttl| NewTtl(Some(ttl)))
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
A new compression applies to what is written from then on: values above 1 KiB, and pages of the \
index, which hold keys and smaller values. What exists stays as it is, and readable. A value or a \
page is stored compressed only if that saves an eighth of it or more.

Compression:
  none     values are stored as they are (default)
  lz4      fast, for values that are read often
  zstd:3   smaller; levels from 1 (fast) to 22 (small), 3 if none is given

Examples:
  plimsoll keyspace compression demo.plimsoll pages
  plimsoll keyspace compression demo.plimsoll pages lz4
  plimsoll keyspace compression demo.plimsoll archive zstd:12")]
pub(crate) struct KeyspaceCompression {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// New compression: none, lz4, or zstd:LEVEL; if omitted, print the current one
    pub(crate) compression: Option<Compression>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Versions that a shorter retention no longer covers are dropped when runs are merged (`plimsoll \
                        compact` does that at once). A longer retention does not bring them back.

Examples:
  plimsoll keyspace retention demo.plimsoll default
  plimsoll keyspace retention demo.plimsoll default latest
  plimsoll keyspace retention demo.plimsoll sessions 7d")]
pub(crate) struct KeyspaceRetention {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// New retention: forever, latest, an age such as 7d, or 1000glsns; if omitted, print the
    /// current one
    #[arg(value_parser = parse_retention)]
    pub(crate) retention: Option<Retention>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Deletes the keyspace and all its keys in one transaction. Its past stays readable (get, scan and \
                        count with --at) according to its retention; a keyspace that keeps every \
                        version also keeps its space. With --forget, merges of runs also drop its \
                        past. The default keyspace cannot be dropped.

Examples:
  plimsoll keyspace drop demo.plimsoll sessions
  plimsoll keyspace drop demo.plimsoll sessions --forget")]
pub(crate) struct KeyspaceDrop {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
    /// Drop its past versions, too, to free their space
    #[arg(long)]
    pub(crate) forget: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Deletes whole segments of the log. Values that are current or retained are moved out first, so no \
                        key loses a retained version; but `plimsoll log` can no longer list the \
                        older commits, older times cannot be looked up, and the index cannot be \
                        rebuilt from the log alone. Trimming does not change which past versions \
                        are kept; see `plimsoll keyspace retention`.

Examples:
  plimsoll trim demo.plimsoll --until 100000
  plimsoll trim demo.plimsoll --until 2024-01-31
  plimsoll trim demo.plimsoll --until newest")]
pub(crate) struct Trim {
    /// Store
    pub(crate) store: PathBuf,
    /// Delete the log before this GLSN, time or tag; all of it with `newest`
    #[arg(long, value_name = "MOMENT", value_parser = parse_at)]
    pub(crate) until: At,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Commit times rise with GLSNs. After a commit under a clock that was ahead by more than a day, \
                        commits are refused until the clock catches up, because versions would \
                        not age. If this machine's clock is now right, this command makes commit \
                        times follow it again. Commits before the restart count as made before \
                        it, even if their recorded time is later.

Examples:
  plimsoll restart-time demo.plimsoll")]
pub(crate) struct RestartTime {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Merges the runs of the index into as few as possible, and drops versions that are no longer \
                        retained. An open store does this in the background; this command does it \
                        at once. A merge needs at most as much free space as the index occupies: \
                        a merge that writes history frees its inputs at its end, any other frees \
                        them part by part. It also frees the parts of the log that no keyspace \
                        retains; after `keyspace retention STORE NAME latest`, that includes the \
                        space of deleted and overwritten data. Rows of a bulk load that the log \
                        retains stay in their file, unless they are merged with as much other data.

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
  plimsoll count demo.plimsoll --from b --to d --keyspace users
  plimsoll count demo.plimsoll --approximate")]
pub(crate) struct Count {
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
    /// Estimate the number of keys now instead of counting them, at the cost of a few page reads
    #[arg(long, conflicts_with_all = ["at", "branch"])]
    pub(crate) approximate: bool,
    #[command(flatten)]
    pub(crate) at: AtMoment,
    #[command(flatten)]
    pub(crate) keys: Keys,
}
