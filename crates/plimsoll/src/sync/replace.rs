//! Replaces a branch by another one, unless a commit has changed it meanwhile.

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::branch_commits;
use crate::merge::graph::Graph;
use crate::sync::ids::{last_key, space};
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

/// Gives the branch `from` the name of `old`, and deletes `old`, in one commit. `at` is a moment
/// that the caller keeps open.
///
/// # Errors
/// [`InvalidInput::BranchMoved`] if `old` has a commit after `at`, or was deleted or renamed; then
/// nothing is changed. Errors of reads and of commits.
pub(super) fn replace(db: &Db, from: &str, old: &Branch, at: Glsn) -> Result<()> {
    branch_commits::replace(&db.store, from, (old.name(), old.id()), &|tx| {
        let now = tx.read_at()?.glsn;
        let has_merge = {
            let known = db.store.reader.snapshots.branches.known();
            known.has_merge_after(old.id(), at)
        };
        if has_merge || Graph::new(&db.store, now).may_have_commits(old.id(), at, now)? {
            return Err(InvalidInput::BranchMoved { name: old.name().to_owned() }.into());
        }
        // A received commit may have no changes, so also compare the id of the last one.
        let (space, last) = (space(&db.store), last_key(old.id()));
        let then = Snapshot::of(&db.store, Moment::Glsn(at))?.get(&space, &last)?;
        if tx.get(&space, &last)?.as_deref() != then.as_deref() {
            return Err(InvalidInput::BranchMoved { name: old.name().to_owned() }.into());
        }
        // A later commit on the branch is a conflict.
        if let Some(lens) = &old.lens {
            tx.note_span(&lens.group_span());
        }
        Ok(())
    })
}
