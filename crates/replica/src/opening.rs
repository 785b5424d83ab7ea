//! Opens a member.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Options, recorded_order_place};
use plimsoll_archive::Folders;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;

use crate::cluster::Place;
use crate::error::{Error, Result};
use crate::joining::join;
use crate::member_order::MemberOrder;
use crate::membership::{self, Membership};
use crate::moving;
use crate::rebase;

/// Opens the member at `path` of the cluster `url`. If there is nothing at the path, joins the
/// cluster first. If the cluster was [moved](crate::move_cluster()), the member goes on in its new
/// bucket. If somebody has moved the bucket itself, [`join`] records its new URL.
///
/// A commit is in the bucket when it returns. Reads are local; [`Db::sync`] applies everything that
/// any member has committed. Only one process at a time can have a member open for writing.
///
/// # Errors
/// [`Error::NotAMember`]: the store at the path is not a member. [`Error::OtherCluster`]: it is a
/// member of another cluster. [`Error::OtherUrl`]: its bucket is elsewhere. As for [`join`] and
/// [`Db::open`].
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
/// # Db::open(path("first"), options.clone())?.close()?;
/// # plimsoll_replica::create(&url, path("first"), options.clone())?;
/// let db = plimsoll_replica::open(path("replica"), &url, options)?;
/// db.put(&db.keyspace("default")?, "key", "value")?;
/// # Ok(())
/// # }
/// ```
pub fn open(path: impl AsRef<Path>, url: &str, options: Options) -> Result<Db> {
    let path = path.as_ref();
    let Some(member) = membership::membership(path)? else {
        return match is_empty(path)? {
            true => {
                join(url, path, options.clone())?;
                open_member(path, options)
            }
            false => Err(Error::NotAMember { path: path.to_owned() }),
        };
    };
    let (given, own) = (Place::find(url, Folders::Existing)?, member.url.clone());
    if given.url != own {
        // The cluster may have been moved from one to the other. A copy of the bucket has the same
        // id, and must not be written beside it.
        let newest = |place: Place| moving::current(place).ok().map(|place| place.url);
        let newest_own = Place::find(&own, Folders::Existing).ok().and_then(newest);
        if newest_own.is_none() || newest_own != newest(given.clone()) {
            return Err(Error::OtherUrl { path: path.to_owned(), own, given: given.url });
        }
    }
    let place = Place::find(&own, Folders::Existing)?;
    open_at(path, place, member.id, options)
}

/// Opens the member at `path` of the cluster that its folder names. See [`open`].
///
/// # Errors
/// As for [`open`].
///
/// # Examples
/// See the [crate](crate).
pub fn open_member(path: impl AsRef<Path>, options: Options) -> Result<Db> {
    let path = path.as_ref();
    let member = membership::membership(path)?;
    let member = member.ok_or_else(|| Error::NotAMember { path: path.to_owned() })?;
    let place = Place::find(&member.url, Folders::Existing)?;
    open_at(path, place, member.id, options)
}

/// Opens the store at a path with the order of a cluster. If the batches that it needs were
/// removed, restores the newest base first. If the cluster was moved, goes on in its new bucket.
pub(crate) fn open_at(path: &Path, place: Place, id: u128, options: Options) -> Result<Db> {
    rebase::continue_rebase(path)?;
    let checked = check_id(&place, path, id);
    let place = match checked.is_ok().then(|| moving::follow(&place, id)) {
        Some(Ok(Some(moved))) => {
            membership::write(path, &Membership { url: moved.url.clone(), id })?;
            moved
        }
        Some(Err(error @ Error::Unsafe { .. })) => return Err(error),
        // Reads need no bucket, and commits get the error.
        None | Some(Ok(None) | Err(_)) => place,
    };
    let order = Arc::new(MemberOrder::new(path.to_owned(), id, place.clone())?);
    let place = &place;
    match checked {
        // Each batch names the cluster, too. Reads need no bucket.
        Err(Error::Bucket { .. }) => {}
        checked => {
            checked?;
            match place.check() {
                // Servers that cannot be asked now are asked at the next opening.
                Ok(()) | Err(Error::Bucket { .. }) => {}
                checked => checked?,
            }
            place.restore_folders()?;
            check_fence(path, place)?;
            match order.first() {
                Ok(first) if rebase::is_behind(path, first)? => {
                    match rebase::rebase(path, place, options.clone()) {
                        Err(
                            error @ (Error::Ahead { .. }
                            | Error::Incomparable { .. }
                            | Error::Store(
                                plimsoll::Error::Forked { .. } | plimsoll::Error::Locked { .. },
                            )),
                        ) => return Err(error),
                        // It opens as it is: reads go on, and commits fail with `Behind`.
                        Err(_) => rebase::continue_rebase(path)?,
                        Ok(()) => {}
                    }
                }
                // Reads need no bucket, and commits get the error.
                Ok(_) | Err(_) => {}
            }
        }
    }
    let open = || {
        let order = Arc::clone(&order);
        Db::open(path, options.clone().create(false).shared(false).order(order))
    };
    match open() {
        // It was trimmed again before a member that was restored got its number.
        Err(plimsoll::Error::Behind { .. }) => {
            rebase::rebase(path, place, options.clone())?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

/// Fails for a member without a place while a heal is not finished: there is no log that it can go
/// on with.
fn check_fence(path: &Path, place: &Place) -> Result<()> {
    if recorded_order_place(path)?.is_some() {
        return Ok(());
    }
    match place.newest_base() {
        Ok(newest) => place.check_no_fence(newest.as_ref()),
        // Commits get the error.
        Err(_) => Ok(()),
    }
}

pub(crate) fn check_id(place: &Place, path: &Path, own: u128) -> Result<()> {
    let found = place.identity()?.id;
    match found == own {
        true => Ok(()),
        false => {
            Err(Error::OtherCluster { place: place.url.clone(), path: path.to_owned(), found, own })
        }
    }
}

/// Whether a path is free, or an empty folder.
pub(crate) fn is_empty(path: &Path) -> Result<bool> {
    let disk = OsDisk::new();
    match disk.entry(path).map_err(Error::file(path))? {
        None => Ok(true),
        Some(entry) if entry.is_dir => Ok(disk.names(path).map_err(Error::file(path))?.is_empty()),
        Some(_) => Ok(false),
    }
}

/// Removes a folder and everything in it, if there is one.
pub(crate) fn remove_folder(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    if disk.entry(path)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(path)? {
        let path = path.join(&entry.name);
        if entry.is_dir { remove_folder(disk, &path)? } else { disk.remove(&path)? }
    }
    disk.remove_dir(path)
}
