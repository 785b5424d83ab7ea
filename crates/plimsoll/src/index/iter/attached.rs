//! The state of an attached iterator.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::ranges::Cover;
use crate::index::sources::merge::{Direction, Merge};
use crate::index::sources::view::View;
use crate::types::error::Result;

/// After this many unwanted versions of one key, an iterator seeks past the rest instead of
/// stepping.
pub(super) const STEPS_MAX: u32 = 8;

/// The state that an iterator holds while it is attached.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) merge: Merge,
    /// Whether the merge is positioned where the iterator continues.
    pub(super) is_placed: bool,
    pub(super) view: Arc<View>,
    /// The interval between range deletions that contains the last key; `None` if it was not looked
    /// up yet. Boxed, because few stores have range deletions, and an idle iterator is small.
    pub(super) cover: Option<Box<Cover>>,
}

impl Attached {
    pub(super) fn new(view: &Arc<View>, merge: Merge) -> Self {
        Self { merge, is_placed: false, view: Arc::clone(view), cover: None }
    }

    /// The newest range deletion of a key that is not younger than `at`; [`Glsn::NONE`] if there is
    /// none.
    #[inline]
    pub(super) fn deleted_at(&mut self, key: &[u8], at: Glsn) -> Glsn {
        if self.view.ranges.is_empty() {
            return Glsn::NONE;
        }
        match &self.cover {
            Some(cover) if cover.contains(key) => cover.deleted_at,
            _ => self.cover.insert(Box::new(self.view.ranges.cover_of(key, at))).deleted_at,
        }
    }

    /// Whether no source has skipped the interval that [`Attached::deleted_at`] examined last. The
    /// key that it examined is then the first one in the interval.
    pub(super) fn enters_range(&self) -> bool {
        self.cover.as_ref().is_some_and(|cover| !cover.is_left_out)
    }

    /// Moves sources out of the interval that [`Attached::deleted_at`] examined, if they have
    /// nothing younger than its deletion.
    pub(super) fn skip_range(&mut self, direction: Direction) -> Result<()> {
        let Some(cover) = self.cover.as_mut().filter(|cover| !cover.is_left_out) else {
            return Ok(());
        };
        cover.is_left_out = true;
        let to = match direction {
            Direction::Forward => &cover.end,
            Direction::Backward => &cover.first,
        };
        match to {
            Some(to) => self.merge.skip_older(to, cover.deleted_at),
            None => Ok(()),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.merge.heap_bytes()
    }
}

pub(super) const ATTACHED: &str = "an iterator is attached before it is used";

pub(super) fn merge_of(attached: &mut Option<Attached>) -> &mut Merge {
    &mut attached.as_mut().expect(ATTACHED).merge
}
