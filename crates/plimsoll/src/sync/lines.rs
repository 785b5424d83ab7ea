//! Commits along the first parents of a state, to find out which of them another store has.

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::{Ids, Place};
use crate::types::error::Result;

/// The newest commit of a branch.
pub(super) fn tip_of(ids: &Ids, branch: &Branch) -> Result<Option<Place>> {
    ids.tip((branch.id(), Glsn::MAX))
}

/// Commits of a branch, the newest first, at distances that double.
pub(super) fn samples(ids: &Ids, branch: &Branch) -> Result<Vec<CommitId>> {
    let Some(tip) = tip_of(ids, branch)? else { return Ok(Vec::new()) };
    let (mut samples, mut distance) = (vec![tip.id], 1);
    let mut last = tip;
    while let Some(at) = tip.glsn.0.checked_sub(distance).filter(|at| *at > 0) {
        distance *= 2;
        if at >= last.glsn.0 {
            continue;
        }
        let Some(place) = ids.tip((branch.id(), Glsn(at)))? else { break };
        samples.push(place.id);
        last = place;
    }
    Ok(samples)
}
