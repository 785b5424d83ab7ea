//! Searches for a gap right after a commit that deleted many keys, so that the next scan can seek
//! over keys that no scan has passed yet.
//!
//! Invariants:
//! 1. The search is an ordinary scan of a visible snapshot, so the gaps that it publishes are as
//!    valid as any others.
//! 2. It loads no page, waits for no memory, and reports no error. The next scan finds the gaps
//!    that it misses.
//! 3. It ends after a few live keys, so scattered deletions cost only a few steps.

use std::sync::Arc;

use plimsoll_memory::pool::ResidentOnly;

use crate::borders::{Border, hit};
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::range::Range;
use crate::types::index_key::IndexKey;

/// Commits with fewer deletions cause no search.
pub(crate) const DELETIONS_FOR_A_SEARCH: u64 = 16;

/// The search ends after this many live keys.
const ALIVE_MAX: usize = 4;

/// Divisor: the search requires this part of the budget to be free.
const KEPT_FREE: u64 = 8;

/// Scans from the first key that a commit wrote; the commit is visible.
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
    let mut range = Range::at_moment(committer, span, &moment).keys_only();
    for _ in 0..ALIVE_MAX {
        if !matches!(range.advance(), Ok(Some(_))) {
            return;
        }
    }
}
