//! Findings of failed attempts of a recovery, which the next attempt takes into account.

use std::collections::BTreeSet;
use std::ops::Range;

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;

/// Parts that attempts have shown to be unusable although they can be read.
#[derive(Default)]
pub(crate) struct Unusable {
    /// Commits that cannot be replayed.
    pub(crate) unusable: BTreeSet<Glsn>,
    /// Pages of blob files that are not the pages that were written last.
    pub(crate) wrong_pages: Vec<(BlobId, Range<u32>)>,
    /// Whether the files of the index contradict each other.
    pub(crate) index: bool,
}

impl Unusable {
    /// Adds commits; returns whether one of them is new.
    pub(crate) fn add(&mut self, commits: BTreeSet<Glsn>) -> bool {
        let known = self.unusable.len();
        self.unusable.extend(commits);
        self.unusable.len() > known
    }
}
