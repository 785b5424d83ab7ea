//! The command line of `branch`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::moment::{At, MAIN, parse_at};

/// The branch whose keys are read or written.
#[derive(Args, Debug)]
pub(crate) struct OnBranch {
    /// Branch of the keys (see `plimsoll branch`) [default: main]
    #[arg(long, value_name = "BRANCH")]
    pub(crate) branch: Option<String>,
}

impl OnBranch {
    /// The name that was given.
    pub(crate) fn name(&self) -> Option<&str> {
        self.branch.as_deref()
    }

    /// Whether it is branch main, also by its name.
    pub(crate) fn is_main(&self) -> bool {
        self.name().is_none_or(|name| name == MAIN)
    }

    /// Whether a store that does not exist is created. It is created only for main, because a new
    /// store has no other branch.
    pub(crate) fn creates_store(&self) -> bool {
        self.is_main()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Branch {
    /// List branches with their parents and forks
    List(BranchList),
    /// Create a branch, which begins with the state of another one
    Create(BranchCreate),
    /// Give a branch another name
    Rename(BranchRename),
    /// Delete a branch; those that descend from it stay
    Delete(BranchDelete),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Branch main always exists. The commands for data take --branch. A pipe gets one line per branch: \
name, tab, parent (empty if it was deleted), tab, GLSN of the fork, tab, time of the fork.

Examples:
  plimsoll branch list demo.plimsoll")]
pub(crate) struct BranchList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Creating a branch is one small commit: no data is copied. The versions that the branch sees stay \
readable until it is deleted, whatever the retention of their keyspaces.

A name has 1 to 255 bytes and no control characters. Refused: main, newest, now, yesterday, \
numbers, relative times (\"2 hours ago\"), names that begin like a date or with `-`, and names \
that contain `:`, `..` or `@{`.

Examples:
  plimsoll branch create demo.plimsoll draft
  plimsoll branch create demo.plimsoll second-try --from draft
  plimsoll branch create demo.plimsoll before-import --at 120
  plimsoll branch create demo.plimsoll third-try --at \"draft@{2 hours ago}\"")]
pub(crate) struct BranchCreate {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the branch
    pub(crate) name: String,
    /// The branch that it leaves [default: main, or the branch that --at names]
    #[arg(long, value_name = "BRANCH")]
    pub(crate) from: Option<String>,
    /// Moment: a GLSN, a time, commit:ID, a tag, or one on a branch, as for `get --at` [default:
    /// newest]
    #[arg(long, value_name = "MOMENT", value_parser = parse_at)]
    pub(crate) at: Option<At>,
    /// Keyspace whose imported commits --at refers to
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll branch rename demo.plimsoll draft proposal")]
pub(crate) struct BranchRename {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the branch
    pub(crate) name: String,
    /// Its new name
    pub(crate) new_name: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Commits made only on this branch become unreadable. Their space is freed once no branch remains \
that descends from the same child of main.

Examples:
  plimsoll branch delete demo.plimsoll draft")]
pub(crate) struct BranchDelete {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the branch
    pub(crate) name: String,
}
