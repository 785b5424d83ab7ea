//! What attempts of a recovery have shown: the next attempt does without it.

use std::collections::BTreeSet;
use std::ops::Range;

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;

/// What attempts have shown to be unusable although it can be read.
#[derive(Default)]
pub(crate) struct Doubts {
    /// Commits that cannot be replayed.
    pub(crate) unusable: BTreeSet<Glsn>,
    /// Pages of blob files that are not the ones that were written.
    pub(crate) wrong_pages: Vec<(BlobId, Range<u32>)>,
    /// Whether the files of the index contradict each other.
    pub(crate) index: bool,
}

impl Doubts {
    /// Adds commits; whether one of them is new.
    pub(crate) fn learn(&mut self, commits: BTreeSet<Glsn>) -> bool {
        let known = self.unusable.len();
        self.unusable.extend(commits);
        self.unusable.len() > known
    }
}
