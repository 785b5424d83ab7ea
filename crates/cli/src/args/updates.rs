//! The command line of updates of one key: `add`, `append`, `cas`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{Keys, OnBranch};

#[derive(Args, Debug)]
#[command(after_help = "\
Prints the sum once it is durable. A number is 8 bytes, little endian, signed; a key without a \
value counts as 0. Commands that add to one key at once do not conflict on main; on a branch they \
are retried. It is an error if the sum does not fit into 64 bits, or if the value is not a number.

Examples:
  plimsoll add demo.plimsoll visits
  plimsoll add demo.plimsoll stock/tea -3")]
pub(crate) struct Add {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    /// Number to add
    #[arg(default_value_t = 1)]
    pub(crate) number: i64,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Prints the new length in bytes once it is durable. The whole value is rewritten. Commands that \
append to one key at once do not conflict on main; on a branch they are retried.

Examples:
  plimsoll append demo.plimsoll notes \"one more\"
  plimsoll append demo.plimsoll notes < more.txt")]
pub(crate) struct Append {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    /// Bytes to append; read from stdin if they are - or omitted
    pub(crate) value: Option<OsString>,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 1: the key's value differs, and stays unchanged.

Examples:
  plimsoll cas demo.plimsoll job/1 waiting running
  plimsoll cas demo.plimsoll job/2 --absent waiting
  plimsoll cas demo.plimsoll job/1 running --delete")]
pub(crate) struct Cas {
    /// Store; created if it does not exist
    pub(crate) store: PathBuf,
    /// Key
    pub(crate) key: OsString,
    /// The expected value and the new one
    #[arg(value_name = "VALUE", num_args = 0..=2)]
    pub(crate) values: Vec<OsString>,
    /// Expect that the key has no value
    #[arg(long)]
    pub(crate) absent: bool,
    /// Delete the key instead of setting a new value
    #[arg(long)]
    pub(crate) delete: bool,
    #[command(flatten)]
    pub(crate) on: OnBranch,
    #[command(flatten)]
    pub(crate) keys: Keys,
}
