//! Whether commits ordered since a transaction's snapshot changed anything that it read.

use std::ops::Bound;

use plimsoll_log::glsn::Glsn;

use crate::index::sources::view::View;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::read_set::ReadSet;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{BRANCHES, SIDE, SYSTEM};

/// Refuses a transaction if a commit ordered after `at` changed anything in `reads`.
pub(super) fn validate(view: &View, reads: &ReadSet, at: Glsn) -> Result<()> {
    for range in reads.ranges() {
        let changed = match range.last {
            None => view.changed(&range.first, at)?.map(|by| (range.first.clone(), by)),
            Some(_) => changed_on_main(view, (Bound::Included(&range.first), range.upper()), at)?,
        };
        if let Some((key, by)) = changed {
            let key = branch_key::user_key(&key).into_owned();
            return Err(Error::Conflict { key, at, by });
        }
    }
    Ok(())
}

/// The first key in a range that was changed after `at`, ignoring keys on branches, which a
/// coarsened read set may cover.
fn changed_on_main(
    view: &View,
    read: (Bound<&[u8]>, Bound<&[u8]>),
    at: Glsn,
) -> Result<Option<(Vec<u8>, Glsn)>> {
    let side = Span::of_keyspace(SIDE);
    if side.overlap(read).is_none() {
        return view.changed_in(read.0, read.1, at);
    }
    for part in [Span::before(SIDE), Span::after(SIDE)] {
        if let Some((first, upper)) = part.overlap(read)
            && let Some(changed) = view.changed_in(first, upper, at)?
        {
            return Ok(Some(changed));
        }
    }
    Ok(None)
}

/// As [`validate`], of a transaction on a branch. Among the versions on branches, only those of its
/// own chain count, because the states that the branch sees of its ancestors and of main are those
/// at its forks, which do not change.
pub(super) fn validate_on_branch(
    view: &View,
    reads: &ReadSet,
    at: Glsn,
    lens: &Lens,
) -> Result<()> {
    let is_own = |key: &[u8]| branch_key::split(key).1 == lens.ancestry().chain;
    // A set that was coarsened may cover other groups, and keyspaces in between.
    let (group, own) = (lens.group_span(), [SYSTEM, BRANCHES].map(Span::of_keyspace));
    for range in reads.ranges() {
        let changed = match range.last {
            None => view.changed(&range.first, at)?.map(|by| (range.first.clone(), by)),
            Some(_) => {
                let read = (Bound::Included(&range.first[..]), range.upper());
                let mut changed = None;
                for keyspace in &own {
                    if let (None, Some((first, upper))) = (&changed, keyspace.overlap(read)) {
                        changed = view.changed_in(first, upper, at)?;
                    }
                }
                if let (None, Some((first, upper))) = (&changed, group.overlap(read)) {
                    changed = view.changed_where(first, upper, at, is_own)?;
                }
                changed
            }
        };
        if let Some((key, by)) = changed {
            let key = branch_key::user_key(&key).into_owned();
            return Err(Error::Conflict { key, at, by });
        }
    }
    Ok(())
}
