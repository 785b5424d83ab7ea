//! The command line of what cares for the bytes of a store: verify, backup, rebuild, salvage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{InKeyspace, KeysAs};
use crate::number::parse_entry;

#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line per problem: file and offset; GLSNs, keyspace and keys, if they can be determined; and the command that repairs it. Each value above \
1 KiB is compared with the checksum that was stored with it. Notes need no action. Exit code 0: no problems; 1: problems found; 4: too damaged to be \
opened.

Examples:
  plimsoll verify demo.plimsoll")]
pub(crate) struct Verify {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Immutable files are hard-linked if both folders are on one file system, and copied otherwise. Linked files share their bytes on \
disk with the store, so a failing disk damages both; --copy links nothing. Copied files are checked page by page. Linked files are not read, \
unless --verify is given: then the whole backup is read and checked, as by `plimsoll verify`; exit code 1: problems found.

Examples:
  plimsoll backup demo.plimsoll /backup/demo-2024-01-31.plimsoll
  plimsoll backup --verify demo.plimsoll /backup/checked.plimsoll
  plimsoll backup --copy demo.plimsoll demo-copy.plimsoll")]
pub(crate) struct Backup {
    /// Store
    pub(crate) store: PathBuf,
    /// Folder of the backup; it must be empty or not exist
    pub(crate) destination: PathBuf,
    /// Copy every file instead of linking
    #[arg(long)]
    pub(crate) copy: bool,
    /// Read and check the whole backup afterwards
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For a store with a sound log and a damaged index. No other process may have the store open. The old index is kept until the new one \
is complete, so there must be room for both. If the index holds commits that the log does not have, the command fails and lists them.

Examples:
  plimsoll rebuild demo.plimsoll")]
pub(crate) struct Rebuild {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
--drop removes single damaged items and keeps everything else. It takes a GLSN, or a key as KEY or key:KEY (digits alone are a GLSN, and the key `key:a` is key:key:a), that \
`plimsoll verify` reports as damaged; sound data is refused (`plimsoll delete` deletes it). A key whose newest value is dropped is \
deleted; its other versions are kept. Reading a dropped version, at its old moment, is an error that says so. A record of the log is dropped as a \
whole, with all its values above 1 KiB. Pages of the index are dropped only if `plimsoll rebuild` cannot help; earlier moments of their keyspaces \
can then no longer be read. --drop-damaged drops everything that is damaged.

--cut-at is for a log with a damaged end: all commits from that GLSN on are removed from the store.

--from-index is for a store that lost the end of its log, or all of it, and has a sound index: the intact part of the log is kept, and one \
commit after it sets each key to the newest state in the index. Keys whose values were lost with the log are listed (exit code 4) and \
keep the state of the log. It is also for a store whose newest manifest is damaged or missing while its log was trimmed: an older manifest is taken if \
all that it names is there, which loses nothing; or else the run files in the folder, and then only the newest state and later moments can be read. \
Keys of damaged pages, and files of which nothing says how they belong to the store, are listed (exit code 4).

Files that are taken out of the store are moved aside and listed, not deleted.

Examples:
  plimsoll salvage demo.plimsoll --drop 1042 --dry-run
  plimsoll salvage demo.plimsoll --drop 1042 --drop README.md
  plimsoll salvage demo.plimsoll --cut-at 1042
  plimsoll salvage demo.plimsoll --from-index")]
pub(crate) struct Salvage {
    /// Store
    pub(crate) store: PathBuf,
    /// Drop the damaged data of this GLSN or key; may be given several times
    #[arg(long, value_name = "GLSN|KEY", conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) drop: Vec<OsString>,
    /// Drop everything that is damaged
    #[arg(long, conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) drop_damaged: bool,
    /// Print what --drop would drop, and change nothing
    #[arg(long, conflicts_with_all = ["cut_at", "from_index"])]
    pub(crate) dry_run: bool,
    /// First GLSN to remove
    #[arg(long, value_name = "GLSN", value_parser = parse_entry, conflicts_with = "from_index")]
    pub(crate) cut_at: Option<u64>,
    /// Keep the newest state that the index holds
    #[arg(long)]
    pub(crate) from_index: bool,
    #[command(flatten)]
    pub(crate) keyspace: InKeyspace,
    #[command(flatten)]
    pub(crate) keys: KeysAs,
}
