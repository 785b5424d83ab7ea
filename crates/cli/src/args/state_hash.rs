//! The command line of `state-hash`.

use std::path::PathBuf;

use clap::Args;

use crate::args::AtMoment;

#[derive(Args, Debug)]
#[command(after_help = "\
Prints 64 hexadecimal digits: BLAKE3 over all keys and values of all keyspaces, and when the \
values expire. Two states have the same hash if and only if these are the same, whatever their \
histories: use it to compare a store with its copy, a restored dump, or a branch with the one it \
was merged into. Settings of keyspaces, and keyspaces without keys, do not count, and neither \
do values that have expired by the time of the moment. Reads every key and value.

Examples:
  plimsoll state-hash demo.plimsoll
  plimsoll state-hash demo.plimsoll --branch draft
  plimsoll state-hash demo.plimsoll --at 120")]
pub(crate) struct StateHash {
    /// Store
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) at: AtMoment,
    /// Keyspace whose imported commits --at refers to
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}
