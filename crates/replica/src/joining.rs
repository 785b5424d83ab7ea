//! Makes a new member from the base of a cluster and its log.
//!
//! ```text
//! DEST.joining-NUMBER  the store while it is restored
//! DEST                 that folder, once it is a member
//! ```
//!
//! The number is random, so that two calls do not meet. A call that is killed leaves its folder.

use std::path::{Path, PathBuf};

use plimsoll::{Glsn, Options};
use plimsoll_archive::Folders;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::entropy;
use plimsoll_disk::vfs::Disk;

use crate::cluster::Place;
use crate::error::{Error, Result};
use crate::membership::{self, Membership};
use crate::moving;
use crate::opening::{is_empty, open_at, remove_folder};
use crate::rebase::restore_base;

/// The result of joining a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JoinReport {
    /// The URL of the bucket, or the absolute path of its folder.
    pub url: String,
    /// The id of the cluster.
    pub id: u128,
    /// The newest GLSN of the restored base.
    pub base: Glsn,
    /// The newest GLSN of the member: everything that was committed anywhere when it joined.
    pub newest: Glsn,
    /// Bytes of the restored files.
    pub bytes: u64,
}

/// Makes a member of the cluster `url` at `dest`: restores the newest base, of which every byte is
/// verified, and applies the log from there. If this is interrupted, repeat it. If the store at
/// `dest` is a member of this cluster already, only the URL of its bucket is recorded, for a bucket
/// that was moved.
///
/// # Errors
/// [`Error::NotACluster`], [`Error::Unsafe`], [`Error::DestinationExists`], [`Error::Archive`]
/// (which names the damaged objects of the base), [`Error::IsAMember`]; the store, the bucket.
///
/// # Examples
/// See the [crate](crate).
pub fn join(url: &str, dest: impl AsRef<Path>, options: Options) -> Result<JoinReport> {
    let dest = dest.as_ref();
    let mut place = Place::find(url, Folders::Existing)?;
    let identity = place.identity()?;
    place.check()?;
    if let Some(moved) = moving::follow(&place, identity.id)? {
        place = moved;
    }
    let membership = Membership { url: place.url.clone(), id: identity.id };
    let mut report = JoinReport {
        url: place.url.clone(),
        id: identity.id,
        base: identity.base(),
        newest: Glsn::NONE,
        bytes: 0,
    };
    match membership::membership(dest) {
        Ok(Some(member)) if member.id == identity.id => membership::write(dest, &membership)?,
        Ok(Some(member)) => {
            return Err(Error::IsAMember { path: dest.to_owned(), url: member.url });
        }
        // The file that names the cluster is damaged; the store checks the batches' id.
        Err(Error::Damaged { .. }) if membership::is_partial(dest)? => {
            membership::write(dest, &membership)?;
        }
        Err(error) => return Err(error),
        Ok(None) => {
            if !is_empty(dest)? {
                return Err(Error::DestinationExists { path: dest.to_owned() });
            }
            let draft = Draft::begin(dest)?;
            let restored = restore_base(&place, &draft.path, options.clone())?;
            (report.base, report.bytes) = (restored.glsn, restored.bytes);
            membership::write(&draft.path, &membership)?;
            draft.finish(dest)?;
        }
    }
    let db = open_at(dest, place, identity.id, options)?;
    report.newest = db.sync()?;
    db.close()?;
    Ok(report)
}

/// The folder in which a store is restored. Removed on drop, unless it is finished.
struct Draft {
    path: PathBuf,
    is_finished: bool,
}

impl Draft {
    fn begin(dest: &Path) -> Result<Self> {
        let exists = || Error::DestinationExists { path: dest.to_owned() };
        let mut name = dest.file_name().ok_or_else(exists)?.to_owned();
        let number = entropy().map_err(Error::file(dest))? as u64;
        name.push(format!(".joining-{number:016x}"));
        let path = dest.with_file_name(name);
        Ok(Self { path, is_finished: false })
    }

    /// Gives the store its name.
    fn finish(mut self, dest: &Path) -> Result<()> {
        let disk = OsDisk::new();
        let parent = match dest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let finished = || {
            if disk.entry(dest)?.is_some() {
                disk.remove_dir(dest)?;
            }
            disk.rename(&self.path, dest)?;
            disk.sync_dir(parent)
        };
        finished().map_err(Error::file(dest))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_finished {
            // The first failure is the one to report.
            let _ = remove_folder(&OsDisk::new(), &self.path);
        }
    }
}
