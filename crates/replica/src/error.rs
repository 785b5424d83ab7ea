//! Errors of a cluster, named by what the caller should do next.

use std::io;
use std::path::{Path, PathBuf};

use plimsoll::Glsn;
use plimsoll::order::OrderError;

use crate::retry::remedy;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] plimsoll::Error),
    /// The base of the cluster, which is an archive, failed.
    #[error(transparent)]
    Archive(plimsoll_archive::Error),
    /// The log in the bucket failed.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The bucket failed.
    #[error("{place}: {what}: {source}; {}", remedy(source))]
    Bucket {
        /// The bucket.
        place: String,
        /// The object, or the operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the store failed.
    #[error("{}; check the path and its permissions", at_file(path, source))]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The bucket does not support put-if-absent, so it cannot order commits.
    #[error(
        "{place}: this bucket cannot order the commits of a cluster: {what}; use a local folder, \
         or a service with conditional writes (If-None-Match: *)"
    )]
    Unfit {
        /// The bucket.
        place: String,
        /// The test that failed.
        what: String,
    },
    /// The servers of the place are configured so that they may lose commits which they have
    /// confirmed: change their configuration.
    #[error("{place}: this place may lose commits: {what}")]
    Unsafe {
        /// The place.
        place: String,
        /// The setting, and the remedy.
        what: String,
    },
    /// There is a cluster at this place: join it, or create another one at another place.
    #[error(
        "{place}: there is a cluster here already; join it with `plimsoll cluster join`, or give \
         another place for a new cluster"
    )]
    ClusterExists {
        /// The bucket.
        place: String,
    },
    /// The place holds something else: give the cluster its own folder or prefix.
    #[error("{place}: this place holds `{object}` and no cluster; give a new folder or prefix")]
    NotEmpty {
        /// The bucket.
        place: String,
        /// An object or folder there.
        object: String,
    },
    /// There is no cluster at this place.
    #[error(
        "{place}: there is no cluster here; check that the URL is right and that the bucket is \
         mounted, or create a cluster with `plimsoll cluster create`"
    )]
    NotACluster {
        /// The bucket.
        place: String,
    },
    /// The cluster, or the file in a member's folder, has a format that this version does not know.
    #[error(
        "{place}: the cluster has format {format}, and this version of Plimsoll knows format \
         {known}; run the version that created it on every member, or leave the cluster with that \
         version and create a new one with this one"
    )]
    Format {
        /// The object or file.
        place: String,
        /// Its format.
        format: u64,
        /// The format of this version.
        known: u64,
    },
    /// An object of the cluster, or the file in a member's folder, is damaged.
    #[error("{place}: {what}")]
    Damaged {
        /// The object or file.
        place: String,
        /// The damage, and the remedy.
        what: String,
    },
    /// The store is not a member of a cluster.
    #[error(
        "{}: this store is not a member of a cluster; `plimsoll cluster join` makes a member at \
         another path, and `plimsoll cluster create` makes a cluster from this store",
        path.display()
    )]
    NotAMember {
        /// The store.
        path: PathBuf,
    },
    /// The store is a member of a cluster: leave that cluster first.
    #[error(
        "{}: this store is a member of the cluster {url}; leave it first (`plimsoll cluster \
         leave`), or use another path",
        path.display()
    )]
    IsAMember {
        /// The store.
        path: PathBuf,
        /// Its cluster.
        url: String,
    },
    /// The cluster at this place is another one than the member's.
    #[error(
        "{place}: this is another cluster (its id is {found:032x}) than that of {} ({own:032x}); \
         check the URL, or join the cluster at another path",
        path.display()
    )]
    OtherCluster {
        /// The bucket.
        place: String,
        /// The store.
        path: PathBuf,
        /// The id of the cluster at the place.
        found: u128,
        /// The id of the member's cluster.
        own: u128,
    },
    /// The member's bucket is at another URL: if it was moved, join there.
    #[error(
        "{}: the bucket of this member is {own}, not {given}; if it was moved, `plimsoll cluster \
         join {given} {}` records that. Never use a copy of a bucket beside the bucket",
        path.display(),
        path.display()
    )]
    OtherUrl {
        /// The store.
        path: PathBuf,
        /// The recorded URL.
        own: String,
        /// The other URL.
        given: String,
    },
    /// A heal of the cluster was begun and did not end: repeat it.
    #[error(
        "{place}: a heal of this cluster was begun and is not finished; run `plimsoll cluster \
         heal` again"
    )]
    HealUnfinished {
        /// The bucket.
        place: String,
    },
    /// The cluster was moved to another bucket: use that one.
    #[error(
        "{place}: this cluster was moved to {url}; give that URL. A member goes on there when it \
         is opened"
    )]
    Moved {
        /// The old bucket.
        place: String,
        /// The new one.
        url: String,
    },
    /// A move of a cluster to this place did not end: repeat it.
    #[error(
        "{place}: a move of a cluster to this place is not finished; run `plimsoll cluster move` \
         again"
    )]
    MoveUnfinished {
        /// The bucket.
        place: String,
    },
    /// The cluster was healed from members that lack commits of this one: heal it again with this
    /// member, or join anew.
    #[error(
        "{}: this member has commits up to GLSN {newest}, but its cluster was healed from a member \
         that ended with GLSN {healed}, so the commits after that are only here, at position \
         {position} of the old log. To keep them, run `plimsoll cluster heal` with this member \
         and one that is up to date, which works until another member commits. Otherwise set \
         this folder aside and join with a new one",
        path.display()
    )]
    Ahead {
        /// The member.
        path: PathBuf,
        /// Its newest GLSN.
        newest: Glsn,
        /// The last position of the old log that it has recorded.
        position: u64,
        /// The last GLSN of the history that the cluster has.
        healed: Glsn,
    },
    /// The cluster was healed after its bucket was cut or set back, and the history of this member
    /// cannot be compared with that of the cluster: join anew.
    #[error(
        "{}: this member ends with GLSN {newest}, and its cluster was healed after the bucket was \
         cut or set back. The log of the cluster begins later, so it cannot be told whether this \
         member has commits that the cluster lacks, and its files are not replaced. Set this \
         folder aside and join with a new one; compare both with `plimsoll log`",
        path.display()
    )]
    Incomparable {
        /// The member.
        path: PathBuf,
        /// Its newest GLSN.
        newest: Glsn,
    },
    /// Two members have different histories, so the log cannot continue both: give only the one
    /// whose commits are to stay.
    #[error(
        "{} and {} have different histories: {what}; heal with the members of one history, and \
         set the others aside",
        one.display(),
        other.display()
    )]
    Diverged {
        /// The member that has the most.
        one: PathBuf,
        /// Another one.
        other: PathBuf,
        /// Where they differ.
        what: String,
    },
    /// The bucket has commits that none of the given members has, and that cannot be applied:
    /// give the member that has them, or accept the loss.
    #[error(
        "{place}: {what}. Give also the member that has these commits, or repeat this with \
         --accept-loss, which gives them up"
    )]
    WouldLose {
        /// The bucket.
        place: String,
        /// The commits.
        what: String,
    },
    /// The bucket is empty: it may be a folder that is not mounted.
    #[error(
        "{place}: this place is empty. If the bucket is lost, name the place with --bucket, so \
         that a folder that is not mounted is not taken for a bucket that was emptied"
    )]
    EmptyBucket {
        /// The bucket.
        place: String,
    },
    /// No member was given from which to heal.
    #[error("no member was given; give the folder of at least one member")]
    NoMember,
    /// A member cannot be the source of a heal.
    #[error("{}: {what}", path.display())]
    Unusable {
        /// The member.
        path: PathBuf,
        /// The reason, and the remedy.
        what: String,
    },
    /// The destination of a new member is in use.
    #[error(
        "{}: the destination exists; give a folder that is empty or does not exist",
        path.display()
    )]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
}

/// The system's error with the path of its file, which most have already.
fn at_file(path: &Path, source: &io::Error) -> String {
    let (path, error) = (path.display().to_string(), source.to_string());
    if error.contains(&path) { error } else { format!("{path}: {error}") }
}

/// Result of a call to this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn bucket(place: &str, what: impl Into<String>, source: io::Error) -> Self {
        Self::Bucket { place: place.to_owned(), what: what.into(), source }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

impl From<plimsoll_archive::Error> for Error {
    fn from(error: plimsoll_archive::Error) -> Self {
        match error {
            plimsoll_archive::Error::Store(error) => Self::Store(error),
            error => Self::Archive(error),
        }
    }
}
