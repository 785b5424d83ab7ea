//! The command line of `clone`, `fetch`, `pull`, `push` and `remote`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use plimsoll::CommitId;

#[derive(Args, Debug)]
#[command(after_help = "\
The clone has the commits of the other store, with their ids: main with its history, and each \
other branch as origin/NAME; `plimsoll pull STORE origin NAME` makes a branch NAME of it. The \
settings of keyspaces are copied; tags, cursors and streams are not. The address is remembered as \
origin. After an interrupted clone, `plimsoll pull STORE` continues main, and `plimsoll fetch \
STORE origin NAME` each other branch; retention and time to live may then be missing.

--depth and --at leave out a part of the history. Such a partial clone has only commits of \
first-parent lines, without the commits that were merged. The oldest one, the boundary commit, has \
the complete state. A partial clone can pull, fetch, and push to a store that has its boundary \
commits. It cannot merge branches whose common ancestor it may lack. To get more of the history, \
clone again. Both also clone a store whose log no longer has the older commits.

Prints one line per branch: its name and the id of its last commit (a pipe gets them \
tab-separated, and the id with all its digits). --json prints an object for each, with \"branch\" \
and \"tip\".

An address is the path of a store's folder; file:// and the absolute path; or a store on another \
machine: ssh://[USER@]HOST[:PORT]/PATH, or [USER@]HOST:PATH with a path from the home folder. That \
one runs `ssh HOST plimsoll sync-server PATH`. PLIMSOLL_SSH names another program than ssh, and \
PLIMSOLL_SYNC_SERVER another command than `plimsoll sync-server`. exec:COMMAND runs any command \
that serves a store on its standard input and output, split at spaces, without a shell; only if \
PLIMSOLL_ALLOW_EXEC is 1, because such an address can do whatever you can. A path with a `:` \
before its first `/` must begin with ./.

The other store must be writable, because the ids of its commits are kept there. It may be open in \
other processes that share it; --wait also waits for it. A folder takes 32 MiB of memory, in \
addition to --memory.

Examples:
  plimsoll clone /srv/hub.plimsoll demo.plimsoll
  plimsoll clone ssh://ada@example.org/srv/hub.plimsoll demo.plimsoll
  plimsoll clone ada@example.org:hub.plimsoll demo.plimsoll
  plimsoll clone file:///srv/hub.plimsoll demo.plimsoll --json
  plimsoll clone /srv/hub.plimsoll demo.plimsoll --depth 1")]
pub(crate) struct CloneStore {
    /// Address of the other store
    pub(crate) address: String,
    /// New store; a path that does not exist, or an empty folder
    pub(crate) store: PathBuf,
    /// Clone at most N commits of each branch; fewer if the other store does not retain the states
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<NonZeroU32>,
    /// Clone the state of the commit of main with this id (see `plimsoll log --ids`), and nothing
    /// before it or on other branches
    #[arg(long, value_name = "ID", conflicts_with = "depth")]
    pub(crate) at: Option<CommitId>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The commits are transferred to the branch REMOTE/BRANCH of STORE, e.g. origin/main, which then \
ends with the same commit as the branch there. Read it with --branch origin/main, compare it with \
`plimsoll diff STORE main..origin/main`, merge it with `plimsoll merge STORE origin/main`.

Prints the branch, the commits that it ended with before and ends with now, and the number of \
transferred commits; a pipe gets the four tab-separated, and whole ids (empty: no commit). --json \
prints {\"branch\", \"from\", \"to\", \"commits\"}. If the command is interrupted, the next one \
continues it.

Examples:
  plimsoll fetch demo.plimsoll
  plimsoll fetch demo.plimsoll origin draft")]
pub(crate) struct Fetch {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the other store (see `plimsoll remote`)
    #[arg(default_value = "origin")]
    pub(crate) remote: String,
    /// Branch of the other store
    #[arg(default_value = "main")]
    pub(crate) branch: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
If the branch here has no commits of its own, it gets those of the other store, and then ends with \
the same commit. A branch that does not exist here is created. If both branches have new commits, \
they are merged by a new commit. A key that both changed in different ways is a conflict. If there \
is one, nothing is written to the branch, the exit code is 1, and every conflict is printed as \
`plimsoll merge` does; the fetched commits stay on the branch REMOTE/BRANCH, so that `plimsoll \
merge STORE REMOTE/BRANCH --into BRANCH --rule KEYSPACE=RULE` decides.

Prints the branch, the commits that it ended with before and ends with now, and the number of \
commits that were added to it, or the GLSN of the merge. A pipe gets these fields, tab-separated: \
branch, id before, id after, number of commits (0 if the commits were in this store; empty for a \
merge), GLSN of the merge (empty without one). --json prints {\"branch\", \"from\", \"to\", \
\"commits\", \"glsn\"}.

Examples:
  plimsoll pull demo.plimsoll
  plimsoll pull demo.plimsoll origin draft")]
pub(crate) struct Pull {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the other store (see `plimsoll remote`)
    #[arg(default_value = "origin")]
    pub(crate) remote: String,
    /// Branch of the other store, and of this one
    #[arg(default_value = "main")]
    pub(crate) branch: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The branch of the same name of the other store gets the commits that it lacks, and then ends with \
the same commit. It is created if it does not exist. If it has commits that this one does not \
contain, the push is refused: pull them first. --force makes that branch equal to this one, by a \
new commit there; its own commits stay in its history.

Prints the branch, the commits that it ended with before and ends with now, and the number of \
transferred commits, as `plimsoll fetch` does. Tags, cursors, streams and the settings of \
keyspaces are not transferred. The drop of a keyspace arrives as the deletion of its keys on main.

Examples:
  plimsoll push demo.plimsoll
  plimsoll push demo.plimsoll origin draft
  plimsoll push demo.plimsoll /mnt/stick/copy.plimsoll
  plimsoll push demo.plimsoll origin main --force")]
pub(crate) struct Push {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the other store (see `plimsoll remote`), or its address with a `/` or `:`
    #[arg(default_value = "origin")]
    pub(crate) remote: String,
    /// Branch of this store, and of the other one
    #[arg(default_value = "main")]
    pub(crate) branch: String,
    /// Push also if the branch there has commits that this one does not contain
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
`clone`, `fetch`, `pull` and `push` of another machine start this command over ssh. It ends when \
they do. The client may fetch every branch, and push to every branch, also with force. To limit \
that for a key of ssh, set its command in authorized_keys, e.g. command=\"plimsoll sync-server \
--read-only /srv/hub.plimsoll\". Errors of the store are sent to the client.

The store must be writable, also with --read-only, because the ids of its commits are kept there. \
It is shared with other processes. --memory is 32 MiB by default.

Examples:
  plimsoll sync-server demo.plimsoll
  plimsoll sync-server demo.plimsoll --read-only
  ssh example.org plimsoll sync-server /srv/hub.plimsoll")]
pub(crate) struct SyncServer {
    /// Store
    pub(crate) store: PathBuf,
    /// Refuse pushes
    #[arg(long)]
    pub(crate) read_only: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Remote {
    /// Remember the address of another store under a name
    Add(RemoteAdd),
    /// List the names and addresses of other stores
    List(RemoteList),
    /// Forget an address; the branches that were fetched from there stay
    Remove(RemoteRemove),
}

#[derive(Args, Debug)]
#[command(after_help = "\
An address is the path of a store's folder, or one of the other forms that `plimsoll clone --help` \
lists. A relative path is made absolute. The store there is opened only by `fetch`, `pull` and \
`push`. A name that exists gets the new address.

A name has no `/`, and follows the rules of `plimsoll branch create`, because the branches that \
are fetched from there are named NAME/BRANCH.

Examples:
  plimsoll remote add demo.plimsoll hub /srv/hub.plimsoll
  plimsoll remote add demo.plimsoll far ssh://ada@example.org:2222/srv/hub.plimsoll
  plimsoll remote add demo.plimsoll stick ../stick/demo.plimsoll")]
pub(crate) struct RemoteAdd {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the other store
    pub(crate) name: String,
    /// Its address
    pub(crate) address: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A pipe gets one line per store: name, tab, address.

Examples:
  plimsoll remote list demo.plimsoll")]
pub(crate) struct RemoteList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll remote remove demo.plimsoll hub")]
pub(crate) struct RemoteRemove {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the other store
    pub(crate) name: String,
}
