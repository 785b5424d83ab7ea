//! The command line of `cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand, Debug)]
#[command(after_help = "\
A cluster is one store with a copy on several machines, its members. A bucket orders the commits \
of all members: a folder that they all reach, or a bucket of S3, Google Cloud Storage or Azure. \
There is no server. Every command works on a member's folder as on any store: one that writes \
commits in the bucket, and one that reads first applies what other members have committed, if no \
other process has the member open. One process at a time can write through a member (see --wait). \
watch and log --follow print what the process that has the member open applies.")]
pub(crate) enum Cluster {
    /// Create a cluster from a store, which becomes its first member
    Create(ClusterCreate),
    /// Make a member of a cluster
    Join(ClusterJoin),
    /// Show a cluster, and how far a member is
    Status(ClusterStatus),
    /// Replace the old part of a cluster's log by a new base
    Trim(ClusterTrim),
    /// Move a cluster to another bucket while its members commit
    Move(ClusterMove),
    /// Repair a cluster whose bucket has lost objects, from its members
    Heal(ClusterHeal),
    /// Make an ordinary store of a member
    Leave(ClusterLeave),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Tests the bucket: 8 writers race for one name, and exactly one must win; a bucket that fails the \
test is refused. Then sends the store to the bucket, as the base from which others join. If the \
command is interrupted, run it again. No other process may have the store open.

URL is a folder, which is created, or its URL file:///PATH. The folder must be on a file system \
with hard links; members on other machines need it mounted (NFS with lookupcache=positive). A \
build with the feature `cloud` also takes s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and \
az://CONTAINER/PREFIX, with the credentials of the environment; one with the feature `postgres` \
takes postgres://USER@HOST/DATABASE/SCHEMA, and one with the feature `nats` \
nats://HOST,HOST,HOST/STREAM?monitor=URL,URL,URL. Give each cluster its own folder, prefix, schema \
or stream.

Examples:
  plimsoll cluster create /srv/users.bucket --from users.plimsoll
  plimsoll cluster create s3://plimsoll/users --from users.plimsoll")]
pub(crate) struct ClusterCreate {
    /// Folder of the bucket, or a URL
    pub(crate) url: String,
    /// Store of which the cluster is made
    #[arg(long, value_name = "STORE")]
    pub(crate) from: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Restores the newest base, of which every byte is verified, and applies the log from there. The \
member then has everything that was committed anywhere. If the command is interrupted, run it \
again.

If STORE is a member of this cluster already, only URL is recorded in it: for a bucket that was \
moved.

Examples:
  plimsoll cluster join /srv/users.bucket replica.plimsoll
  plimsoll cluster join s3://plimsoll/users replica.plimsoll")]
pub(crate) struct ClusterJoin {
    /// Folder of the bucket, or a URL
    pub(crate) url: String,
    /// New member; a path that does not exist, or an empty folder
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Of a member: its bucket, and that to which the cluster was moved since, its newest GLSN, and how \
many batches of the log it has not applied, without applying anything. Of a bucket: the cluster. \
Exit code 6 if the bucket of a member cannot be reached; the member is shown nevertheless.

Examples:
  plimsoll cluster status users.plimsoll
  plimsoll cluster status s3://plimsoll/users --json")]
pub(crate) struct ClusterStatus {
    /// Member, or the bucket's folder or URL
    pub(crate) target: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
First sends what is new in the member to the bucket, as a base, and restores it from there into \
the member's folder, as a new member would: every byte is verified. If anything is wrong, nothing \
is removed. Then removes the batches that the base replaces, all but the newest (--keep), and \
archives of bases before the previous one. Large values stay in the bucket.

A member that has not applied a removed batch restores the base when it is opened the next time; \
it loses nothing. Run this regularly on one member, such as once a day. It needs free disk space \
for another copy of the store. If it is interrupted, run it again.

Examples:
  plimsoll cluster trim users.plimsoll
  plimsoll cluster trim users.plimsoll --keep 100000 --wait 1m")]
pub(crate) struct ClusterTrim {
    /// Member
    pub(crate) store: PathBuf,
    /// Batches that stay, at least 1, so that members that are behind need not restore the base
    #[arg(long, value_name = "BATCHES", default_value_t = plimsoll_replica::KEEP_BATCHES)]
    pub(crate) keep: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Sends the state of the member to the new bucket, restores it from there and verifies it, copies \
the batches that follow, and then ends the log in the old bucket. Commits of all members go on \
meanwhile; they wait while the last batches are copied. GLSNs and positions go on.

Members that are open go on in the new bucket by themselves, and others when they are opened, as \
long as the old bucket can be read. Every member must reach URL under this name; one that cannot \
goes on reading, and its commits fail until it can. Nothing is removed from the old bucket: \
delete it once `plimsoll cluster status` of every member shows the new one as its bucket.

The command opens the member, so no other program may have it open; a program that has calls \
plimsoll_replica::move_cluster, or db.move_cluster in Python. It needs free disk space for another \
copy of the store. If it is interrupted, run it again with the same URL.

Examples:
  plimsoll cluster move users.plimsoll /mnt/fast/users.bucket
  plimsoll cluster move users.plimsoll postgres://app@db/plimsoll/users")]
pub(crate) struct ClusterMove {
    /// Member
    pub(crate) store: PathBuf,
    /// New bucket: a folder that is empty or does not exist, or a URL
    pub(crate) url: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For a bucket whose objects were deleted, damaged or set back. Reads the whole bucket, compares it \
with the given members, and prints what is wrong. If nothing is, nothing is changed. Otherwise the \
state of the member that has the most is sent to the bucket as a new base, restored from there and \
verified, and the log begins anew after it. If the command is interrupted, run it again.

Give all members that are at hand on this machine; no program may have them open. Copy the folders \
of members from other machines here, if they may have more commits. Members elsewhere that are \
running fail with `Behind`, and go on when they are opened again. One that has commits which the \
healed cluster lacks is refused then, and told what to do; it loses nothing.

If the bucket has commits that no given member has, or may have, the command ends with exit code 2 \
and removes nothing; --accept-loss gives them up. If they are found near the end, it says that no \
member can commit until a heal has succeeded. If the bucket is empty, --bucket must name it, so \
that a folder that is not mounted is not taken for it. Another bucket is refused while the one of \
the members can be read.

Examples:
  plimsoll cluster heal users.plimsoll
  plimsoll cluster heal users.plimsoll copy-of-replica.plimsoll
  plimsoll cluster heal users.plimsoll --bucket /srv/users-2.bucket")]
pub(crate) struct ClusterHeal {
    /// Members
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
    /// Bucket, if it is empty, or not the one that the members name
    #[arg(long, value_name = "URL")]
    pub(crate) bucket: Option<String>,
    /// Give up commits that the bucket has, and none of the given members
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
First applies everything that any member has committed. The cluster and its other members do not \
change. The store keeps its contents, and its commits are its own from then on; to have a member \
again, join at another path.

--offline does not use the bucket, which may be lost. Commits of others that this member has not \
applied are then missing in the store.

Examples:
  plimsoll cluster leave replica.plimsoll
  plimsoll cluster leave replica.plimsoll --offline")]
pub(crate) struct ClusterLeave {
    /// Member
    pub(crate) store: PathBuf,
    /// Leave without the bucket
    #[arg(long)]
    pub(crate) offline: bool,
}
