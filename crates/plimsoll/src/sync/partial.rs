//! Partial clones: stores without the older commits of the store that they were cloned from.
//!
//! A partial clone has only first-parent lines. Each line begins with a boundary commit, which has
//! the id, the parents, the time and the metadata of the original commit, and as its changes the
//! complete state of that commit. The id of a boundary commit cannot be verified, because it covers
//! the commit's changes and not its state; the hash of the state is verified instead. The ids of
//! later commits are verified as in any store.

use std::num::NonZeroU32;

use crate::api::db::Db;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::Ids;
use crate::sync::local::Local;
use crate::sync::peer::{LineEnd, Move, Peer, Wanted};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The part of the history that a clone gets: see [`Db::clone_store_with`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let dir = tempfile::tempdir().unwrap();
/// # let (hub, copy) = (dir.path().join("hub"), dir.path().join("copy"));
/// # let options = Options::new().memory_bytes(16 << 20);
/// let db = Db::open(&hub, options.clone())?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let second = db.put(&notes, "b", "two")?;
/// db.put(&notes, "c", "three")?;
/// let id = db.commit_id(second)?.expect("it is a commit");
/// db.close()?;
///
/// let copy = Db::clone_store_with(hub.to_str().unwrap(), &copy, options, CloneDepth::At(id))?;
/// assert_eq!(copy.boundary_commits()?, [id]);
/// assert_eq!(copy.main().len(&copy.keyspace("notes")?)?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloneDepth {
    /// The complete history of each branch.
    #[default]
    Full,
    /// At most this many commits of the first-parent line of each branch, fewer if the other store
    /// does not retain a state that old.
    Commits(NonZeroU32),
    /// The state of this commit of main, without earlier commits and other branches.
    At(CommitId),
}

impl CloneDepth {
    /// The number of commits of a branch; `None`: all.
    pub(super) fn commits(self) -> Option<u64> {
        match self {
            Self::Full => None,
            Self::Commits(commits) => Some(u64::from(commits.get())),
            Self::At(_) => Some(1),
        }
    }
}

impl Db {
    /// The commits with which the history of this store begins, if it is a partial clone
    /// ([`Db::clone_store_with`]); otherwise none. Their ids were not verified when they were
    /// received, because an id covers the changes of a commit. [`Db::commit_parents`] returns their
    /// original parents, which this store does not have.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn boundary_commits(&self) -> Result<Vec<CommitId>> {
        Ids::reading(self).boundaries(usize::MAX)
    }
}

/// Transfers a first-parent line to `own`, a partial clone: the commits of the line of `wanted`
/// that `own` lacks. Makes the branch `name` of `own` end with the wanted commit; the branch must
/// end with `before`. Returns the number of commits that were transferred.
pub(super) fn transfer_line(
    source: &mut dyn Peer,
    wanted: Wanted<'_>,
    own: &mut Local,
    (name, before, is_forward): (&str, Option<CommitId>, bool),
    depth: u64,
) -> Result<u64> {
    let id = wanted.id;
    let haves = own.haves(name)?;
    let line = source.line(wanted, depth, &haves)?;
    let mut base = None;
    for id in &line.ids {
        if own.has(id)? {
            base = Some((Some(*id), false));
            break;
        }
    }
    let moved = || Error::from(InvalidInput::BranchMoved { name: wanted.branch.to_owned() });
    let base = match (base, line.end) {
        (Some(base), _) => base,
        (None, LineEnd::Root) => (None, false),
        (None, LineEnd::Known) => return Err(moved()),
        (None, LineEnd::Boundary) => {
            let oldest = *line.ids.last().ok_or_else(moved)?;
            // It is unknown whether the new commits descend from those of the branch.
            if before.is_some() {
                return Err(InvalidInput::BelowBoundary { id: oldest.to_string() }.into());
            }
            (Some(oldest), true)
        }
    };
    let boundary = base.0.filter(|_| base.1);
    let change = Move { name, before, last: id, is_forward, boundary };
    own.receive(change, &mut |sink| {
        #[cfg(feature = "testing")]
        let sink = &mut crate::sync::forging::Forger(sink);
        source.send_line(wanted, base, sink)
    })
}
