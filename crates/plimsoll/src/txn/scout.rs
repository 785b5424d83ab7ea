//! Looking for a gap right after a commit that deleted much: the next walk then seeks over keys
//! that nobody has walked over.
//!
//! Laws:
//! 1. It is a walk like any other, at a moment that is visible: what it publishes is as true as
//!    what other walks publish.
//! 2. It loads no page, waits for no memory, and fails nobody: what it cannot find is left to the
//!    walk that comes.
//! 3. It ends after a few keys that are alive: scattered deletions cost a few steps.

use std::sync::Arc;

use plimsoll_memory::pool::ResidentOnly;

use crate::borders::{Border, hit};
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::range::Range;
use crate::types::index_key::IndexKey;

/// A commit with fewer deletions is not followed by a search.
pub(crate) const DELETIONS_FOR_A_SEARCH: u64 = 16;

/// The search ends at this many keys that are alive.
const ALIVE_MAX: usize = 4;

/// Memory is free if more than one part in this of the budget is.
const KEPT_FREE: u64 = 8;

/// Walks from the first key that a commit wrote, which is visible.
pub(crate) fn search_for_gaps(committer: &Arc<Committer>, first: &[u8]) {
    let budget = &committer.reader.budget;
    let Some((space, key)) = IndexKey::new(first).split() else { return };
    if budget.free_bytes() < budget.limit_bytes() / KEPT_FREE {
        return;
    }
    let span = Span::new(space, &(key..));
    hit(Border::GapSearched);
    let moment = Arc::new(committer.open_newest());
    let _only = ResidentOnly::enter();
    let mut walk = Range::at_moment(committer, span, &moment).keys_only();
    for _ in 0..ALIVE_MAX {
        if !matches!(walk.advance(), Ok(Some(_))) {
            return;
        }
    }
}
