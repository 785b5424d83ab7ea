//! The command line of values that expire: `ttl`, `expire`, `persist`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{AtMoment, Keys, OnBranch};
use crate::duration::parse_duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Prints how many seconds are left, and when the value expires (UTC); a pipe gets the seconds, or \
nothing if the value does not expire. Exit code 1: the key has no value.

Examples:
  plimsoll ttl demo.plimsoll session/ada
  plimsoll ttl demo.plimsoll session/ada --json")]
pub(crate) struct Ttl {
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
The value is written again. Exit code 1: the key has no value.

Examples:
  plimsoll expire demo.plimsoll session/ada 30m
  plimsoll expire demo.plimsoll code/1234 90s --keyspace codes")]
pub(crate) struct Expire {
    /// Store
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    /// Time from now until the value expires, e.g. 90s, 30m, 12h, 7d
    #[arg(value_name = "TIME", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 1: the key has no value.

Examples:
  plimsoll persist demo.plimsoll session/ada
  plimsoll persist demo.plimsoll code/1234 --keyspace codes")]
pub(crate) struct Persist {
    /// Store
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}
