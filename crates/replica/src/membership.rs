//! `CLUSTER`: the file in a member's folder that names its cluster.
//!
//! The store's own file `REPLICA` records how far it has read the log. A store with that file opens
//! only with the order of its cluster.

use std::io::ErrorKind;
use std::path::Path;

use plimsoll::order::{MEMBER_FILE, PLACE_DRAFT, PLACE_FILE};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use serde::{Deserialize, Serialize};

use crate::cluster::hex128;
use crate::error::{Error, Result};
use crate::sealed_json::{self, FORMAT, Unusable};

/// The name under which it is written.
const DRAFT: &str = "CLUSTER.new";

/// The folder into which a member restores a base, and the file that says that it is complete.
pub(crate) const NEW_BASE: &str = "base.new";
pub(crate) const READY: &str = "base.ready";

/// The folder of the files of a member that a base has replaced, and that could not be compared.
pub(crate) const REPLACED: &str = "base.old";

/// The folder in which a member verifies a base.
pub(crate) const CHECK: &str = "base.check";

const TITLE: &str = "member";

/// The longest file.
const BYTES_MAX: u64 = 64 << 10;

/// The cluster of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Membership {
    /// The URL of its bucket, or the absolute path of its folder.
    pub url: String,
    /// The id of the cluster.
    #[serde(with = "hex128")]
    pub id: u128,
}

/// The cluster of which the store at a path is a member; `None` if it is none.
///
/// # Errors
/// [`Error::File`], [`Error::Damaged`], [`Error::Format`].
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// assert_eq!(plimsoll_replica::membership(dir.path())?, None);
/// # Ok(())
/// # }
/// ```
pub fn membership(path: impl AsRef<Path>) -> Result<Option<Membership>> {
    let (disk, path) = (OsDisk::new(), path.as_ref().join(MEMBER_FILE));
    let file = match disk.open(&path, Open::Read, Caching::Buffered) {
        Ok(file) => file,
        // A user without permission cannot open the store either, and gets that error.
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied]
                .contains(&error.kind()) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Error::file(path)(error)),
    };
    let read = file.len().and_then(|bytes| {
        let mut text = vec![0; bytes.min(BYTES_MAX) as usize];
        file.read_exact_at(&mut text, 0)?;
        Ok(text)
    });
    let text = read.map_err(Error::file(&path))?;
    let place = || path.display().to_string();
    match sealed_json::decode(TITLE, &text) {
        Ok(membership) => Ok(Some(membership)),
        Err(Unusable::Format(format)) => {
            Err(Error::Format { place: place(), format, known: FORMAT })
        }
        Err(Unusable::Damaged(what)) => {
            let what = format!("{what}; `plimsoll cluster join URL` of this store writes it again");
            Err(Error::Damaged { place: place(), what })
        }
    }
}

/// Makes the store at a path a member, or changes the URL of its cluster.
pub(crate) fn write(path: &Path, membership: &Membership) -> Result<()> {
    let disk = OsDisk::new();
    let (file, draft) = (path.join(MEMBER_FILE), path.join(DRAFT));
    let written = sealed_json::encode(TITLE, membership).map_err(Into::into).and_then(|text| {
        remove_if_any(&disk, &draft)?;
        let new = disk.open(&draft, Open::CreateNew, Caching::Buffered)?;
        new.write_at(&text, 0)?;
        new.sync()?;
        disk.rename(&draft, &file)?;
        disk.sync_dir(path)
    });
    written.map_err(Error::file(file))
}

/// Whether the store at a path has a part of a membership: an end of it may have been interrupted.
pub(crate) fn is_partial(path: &Path) -> Result<bool> {
    let place = path.join(PLACE_FILE);
    Ok(OsDisk::new().entry(&place).map_err(Error::file(&place))?.is_some())
}

/// Ends the membership of the store at a path. If this is interrupted, the store opens neither as a
/// member nor without its cluster until it is repeated.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let (disk, file) = (OsDisk::new(), path.join(MEMBER_FILE));
    let removed = remove_if_any(&disk, &file).and_then(|()| disk.sync_dir(path));
    removed.map_err(Error::file(file))?;
    remove_place(path)
}

/// Removes the place of the store at a path in the log of its cluster.
pub(crate) fn remove_place(path: &Path) -> Result<()> {
    let disk = OsDisk::new();
    let removed = [PLACE_FILE, PLACE_DRAFT]
        .iter()
        .try_for_each(|name| remove_if_any(&disk, &path.join(name)))
        .and_then(|()| disk.sync_dir(path));
    removed.map_err(Error::file(path.join(PLACE_FILE)))
}

fn remove_if_any(disk: &OsDisk, path: &Path) -> std::io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
