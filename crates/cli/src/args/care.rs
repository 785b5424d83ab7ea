//! The command line of what cares for the bytes of a store: verify, backup, rebuild, salvage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{InKeyspace, KeysAs};

#[derive(Args, Debug)]
#[command(after_help = "\
Problems are listed one a line: file and offset, GLSNs, keyspace and keys where they can be known, and the command that helps. Each value above \
1 KiB is compared with the checksum that it was written with. Notes need nothing done. Exit code 0: no problems; 1: there are some; 4: so damaged that \
the store cannot be opened.

Examples:
  plimsoll verify demo.plimsoll")]
pub(crate) struct Verify {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Files that never change again are linked where both folders are on one file system, else copied. Linked files share their bytes \
on disk with the store: a failing disk damages both; --copy shares nothing. What is copied is checked page by page. What is linked is not read, \
unless --verify is given: then the whole backup is read and checked, as by `plimsoll verify`, and exit code 1 says that there are problems.

Examples:
  plimsoll backup demo.plimsoll /backup/demo-2024-01-31.plimsoll
  plimsoll backup --verify demo.plimsoll /backup/checked.plimsoll
  plimsoll backup --copy demo.plimsoll demo-copy.plimsoll")]
pub(crate) struct Backup {
    /// Store
    pub(crate) store: PathBuf,
    /// Folder to make; must not exist or be empty
    pub(crate) destination: PathBuf,
    /// Copy every file, link none
    #[arg(long)]
    pub(crate) copy: bool,
    /// Read and check the whole backup when it is made
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For a store whose log is sound and whose index is not. No other process may have the store open. The old index stays until the new one \
is whole: there must be room for both. Where the index holds commits that the log does not have, nothing is done, and they are named.

Examples:
  plimsoll rebuild demo.plimsoll")]
pub(crate) struct Rebuild {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
With --drop, for damage in the middle: what is damaged is dropped, all else stays. It names a GLSN, or a key as KEY or key:KEY (digits alone are a \
GLSN), of which `plimsoll verify` says that it is damaged; what is sound is refused, `plimsoll delete` deletes it. A key whose newest value is dropped is \
deleted; its other versions stay. Reading a version that was dropped, at its old moment, is an error that says so. A record of the log is dropped as a \
whole, with all values in it above 1 KiB. Where pages of the index are dropped, which only happens where `plimsoll rebuild` cannot help, the moments \
before them can no longer be read in their keyspaces. --drop-damaged drops all that is damaged.

With --cut-at, for a log whose end is damaged: all commits from that GLSN on are lost to the store.

With --from-index, for a store whose log lost its end, or all of it, and whose index is sound: what is whole of the log is kept, and one \
commit behind it brings each key to the newest state that the index holds. Keys whose values are lost with the log are listed, exit \
code 4; they keep what the log has.

What is taken out of the store is moved aside, not deleted, and listed.

Examples:
  plimsoll salvage demo.plimsoll --drop 1042 --dry-run
  plimsoll salvage demo.plimsoll --drop 1042 --drop README.md
  plimsoll salvage demo.plimsoll --cut-at 1042
  plimsoll salvage demo.plimsoll --from-index")]
pub(crate) struct Salvage {
    /// Store
    pub(crate) store: PathBuf,
    /// Drop what is damaged at this GLSN or key; may be given several times
    #[arg(long, value_name = "GLSN|KEY", conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) drop: Vec<OsString>,
    /// Drop everything that is damaged
    #[arg(long, conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) drop_damaged: bool,
    /// Say what --drop would drop, and change nothing
    #[arg(long, conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) dry_run: bool,
    /// First GLSN that is cut off
    #[arg(long, value_name = "GLSN", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "from_index")]
    pub(crate) cut_at: Option<u64>,
    /// Keep the newest state that the index holds
    #[arg(long)]
    pub(crate) from_index: bool,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
    #[command(flatten)]
    pub(crate) keys: KeysAs,
}
