//! The command line of verify, backup and recover.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line per problem: file and offset; GLSNs, keyspace and keys, if they can be determined; \
                        and the command that helps. Each value above 1 KiB is checked against its \
                        stored checksum. Notes need no action. Exit code 0: no \
                        problems; 1: problems found; 4: too damaged to open.

Of an archive (`plimsoll archive`): prints each damaged object, and the moments that can be \
                        restored.

Examples:
  plimsoll verify demo.plimsoll
  plimsoll verify /backup/demo.archive")]
pub(crate) struct Verify {
    /// Store, or folder of an archive
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Immutable files are hard-linked if both folders are on one file system, and copied otherwise. \
                        Linked files share their bytes on disk with the store, so a failing disk \
                        damages both; --copy links nothing. Copied files are checked page by \
                        page. Linked files are not read, unless --verify is given; it reads and \
                        checks the whole backup like `plimsoll verify`. Exit code 1: problems found.

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
Builds a sound store from everything readable in the log and the index: entries keep their GLSNs \
and times, sound files are hard-linked or copied, and unreadable entries are marked as lost. \
STORE is not changed; no process may have it open. A key whose newest value is lost is deleted; \
its other versions are kept, and reading a lost version is an error. All losses are listed, by \
GLSN, keyspace and key. A store without damage is copied. DESTINATION appears once it is complete \
and verified. Exit code 0: nothing is lost; 1: something is lost.

Examples:
  plimsoll recover demo.plimsoll --dry-run
  plimsoll recover demo.plimsoll recovered.plimsoll")]
pub(crate) struct Recover {
    /// Damaged store
    pub(crate) store: PathBuf,
    /// Folder of the new store; it must be empty or not exist
    pub(crate) destination: Option<PathBuf>,
    /// List what would be lost without writing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}
