//! The state of a cluster, and of one member.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{Db, Glsn, Options, recorded_order_place};
use plimsoll_archive::Folders;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;

use crate::bases::Numbered;
use crate::cluster::Place;
use crate::error::{Error, Result};
use crate::membership::{Membership, membership};
use crate::moving;

/// The state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// When it was created.
    pub created: SystemTime,
    /// The newest GLSN of the base.
    pub base: Glsn,
    /// The number of batches in its log.
    pub batches: u64,
    /// The position of the newest batch; 0 if there is none.
    pub last: u64,
    /// The newest base; `None` if it is that from which the cluster was created.
    pub newest_base: Option<BaseStatus>,
}

/// A base that replaces the log before a position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BaseStatus {
    /// The number of the base.
    pub number: u64,
    /// The first position of the log that is needed after it.
    pub first: u64,
    /// The last position whose batch it contains.
    pub position: u64,
    /// Its newest GLSN when it was verified.
    pub glsn: Glsn,
    /// When it was stored.
    pub created: SystemTime,
    /// The bytes of its files.
    pub bytes: u64,
    /// The number of the member that made it.
    pub member: u16,
}

/// The state of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The store.
    pub path: PathBuf,
    /// Its newest GLSN.
    pub newest: Glsn,
    /// Its number in the cluster; 0 if it has none yet.
    pub number: u16,
    /// The last position of the log that it has applied, as it has recorded last.
    pub position: u64,
}

/// The state of a cluster, as one machine sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Status {
    /// The URL of the bucket, or the absolute path of its folder.
    pub url: String,
    /// The bucket to which the cluster was moved from there. A member goes on in it when it is
    /// opened, and then names it in `url`.
    pub moved_to: Option<String>,
    /// The id of the cluster.
    pub id: u128,
    /// The cluster; the error if the bucket of a member cannot be used.
    pub cluster: Result<ClusterStatus>,
    /// The member, if the status of one was asked for.
    pub member: Option<MemberStatus>,
}

/// The state of the cluster of which the store at `target` is a member, and of that member; or of
/// the cluster whose URL or folder `target` is. Changes nothing, also while another process has the
/// member open.
///
/// # Errors
/// [`Error::NotACluster`]: there is neither a member nor a cluster. The store; the bucket, unless
/// `target` is a member.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let url = format!("file://{}", path("bucket").display());
/// use plimsoll::{Db, Options};
///
/// let options = Options::new().memory_bytes(16 << 20);
/// # Db::open(path("store"), options.clone())?.close()?;
/// plimsoll_replica::create(&url, path("store"), options.clone())?;
/// let status = plimsoll_replica::status(&url, options)?;
/// assert!(status.cluster?.batches >= 1);
/// # Ok(())
/// # }
/// ```
pub fn status(target: &str, options: Options) -> Result<Status> {
    match membership(target)? {
        Some(member) => of_member(Path::new(target), member, options),
        None => {
            let given = Place::find(target, Folders::Existing)?;
            let url = given.url.clone();
            let place = moving::current(given)?;
            let moved_to = (place.url != url).then(|| place.url.clone());
            let (id, cluster) = of_cluster(&place).map_err(|error| match error {
                Error::NotACluster { .. } if is_store(Path::new(target)) => {
                    Error::NotAMember { path: PathBuf::from(target) }
                }
                error => error,
            })?;
            Ok(Status { url, moved_to, id, cluster: Ok(cluster), member: None })
        }
    }
}

/// Whether a folder looks like a store.
fn is_store(path: &Path) -> bool {
    let is_dir = |name: &str| {
        OsDisk::new().entry(&path.join(name)).is_ok_and(|it| it.is_some_and(|it| it.is_dir))
    };
    is_dir("log") && is_dir("index")
}

fn of_cluster(place: &Place) -> Result<(u128, ClusterStatus)> {
    let identity = place.identity()?;
    place.check_no_fence(place.newest_base()?.as_ref())?;
    let created = UNIX_EPOCH + Duration::from_micros(identity.created_micros);
    let order = place.order()?;
    let (last, first) = (order.end()?, order.first()?);
    let newest_base = place.newest_base()?.map(|Numbered { number, base }| BaseStatus {
        number,
        first: base.first,
        position: base.position,
        glsn: Glsn(base.glsn),
        created: UNIX_EPOCH + Duration::from_micros(base.created_micros),
        bytes: base.bytes,
        member: base.replica,
    });
    let batches = (last + 1).saturating_sub(first);
    let base = identity.base();
    Ok((identity.id, ClusterStatus { created, base, batches, last, newest_base }))
}

fn of_member(path: &Path, member: Membership, options: Options) -> Result<Status> {
    let db = Db::open(path, options.create(false).shared(false).read_only(true).warm(false))?;
    let newest = db.newest();
    drop(db);
    let (mut moved_to, own) = (None, Place::find(&member.url, Folders::Existing));
    let cluster = own.and_then(moving::current).and_then(|place| {
        moved_to = (place.url != member.url).then(|| place.url.clone());
        let (found, cluster) = of_cluster(&place)?;
        match found == member.id {
            true => Ok(cluster),
            false => Err(Error::OtherCluster {
                place: place.url,
                path: path.to_owned(),
                found,
                own: member.id,
            }),
        }
    });
    let at = recorded_order_place(path)?;
    let (number, position) = at.map_or((0, 0), |at| (at.replica, at.position));
    let member_status = MemberStatus { path: path.to_owned(), newest, number, position };
    Ok(Status { url: member.url, moved_to, id: member.id, cluster, member: Some(member_status) })
}
