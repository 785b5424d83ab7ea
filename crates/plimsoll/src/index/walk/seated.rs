//! What a walk holds while it is seated.

use std::sync::Arc;

use crate::index::sources::merge::Merge;
use crate::index::sources::view::View;

/// After this many unwanted versions of one key, the walk seeks past them instead of stepping on.
pub(super) const STEPS_MAX: u32 = 8;

/// The state that a walk holds while it is seated.
#[derive(Debug)]
pub(super) struct Sat {
    pub(super) merge: Merge,
    /// Whether the merge is positioned where the walk continues.
    pub(super) is_placed: bool,
    pub(super) view: Arc<View>,
}

impl Sat {
    pub(super) fn new(view: &Arc<View>, merge: Merge) -> Self {
        Self { merge, is_placed: false, view: Arc::clone(view) }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.merge.heap_bytes()
    }
}

pub(super) const SITS: &str = "a walk sits down before it is asked";

pub(super) fn merge_of(sat: &mut Option<Sat>) -> &mut Merge {
    &mut sat.as_mut().expect(SITS).merge
}
