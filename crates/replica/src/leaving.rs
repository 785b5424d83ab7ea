//! Ends a membership: the member becomes an ordinary store.

use std::path::Path;

use plimsoll::{Db, Glsn, Options};

use crate::error::{Error, Result};
use crate::membership;
use crate::opening::open_member;
use crate::rebase::{self, locked};

/// Whether a member first catches up with its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It applies everything that any member has committed. Fails if the bucket cannot be reached.
    CaughtUp,
    /// Nothing: the bucket is not needed. Commits of others that it has not applied yet stay
    /// missing here.
    AsItIs,
}

/// The result of leaving a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaveReport {
    /// The newest GLSN of the store.
    pub newest: Glsn,
}

/// Makes an ordinary store of the member at `path`. Its GLSNs go on, its commits are its own from
/// then on, and the cluster does not change. It cannot join again with what it has; a new member
/// can join at another path. No other process may have the store open.
///
/// # Errors
/// [`Error::NotAMember`]; the store; with [`Leave::CaughtUp`] also the bucket.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let url = format!("file://{}", path("bucket").display());
/// use plimsoll::{Db, Options};
/// use plimsoll_replica::Leave;
///
/// let options = Options::new().memory_bytes(16 << 20);
/// # Db::open(path("store"), options.clone())?.close()?;
/// plimsoll_replica::create(&url, path("store"), options.clone())?;
/// plimsoll_replica::leave(path("store"), Leave::CaughtUp, options.clone())?;
/// Db::open(path("store"), options)?;
/// # Ok(())
/// # }
/// ```
pub fn leave(path: impl AsRef<Path>, how: Leave, options: Options) -> Result<LeaveReport> {
    let path = path.as_ref();
    let member = membership::membership(path);
    let is_damaged = matches!(member, Err(Error::Damaged { .. }));
    let is_partial = !is_damaged && member?.is_none();
    if is_partial && !membership::is_partial(path)? {
        return Err(Error::NotAMember { path: path.to_owned() });
    }
    rebase::continue_rebase(path)?;
    // Otherwise an earlier call was interrupted after it had caught up.
    if how == Leave::CaughtUp && !is_partial {
        let db = open_member(path, options.clone())?;
        db.sync()?;
        db.close()?;
    }
    // A program that has the member open would write its files again.
    let lock = locked(path)?;
    membership::remove(path)?;
    drop(lock);
    let db = Db::open(path, options.create(false).read_only(false).shared(false))?;
    let newest = db.newest();
    db.close()?;
    Ok(LeaveReport { newest })
}
