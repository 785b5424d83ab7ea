//! The interval without live keys that an iterator has passed. The iterator publishes it as a gap,
//! and seeks over known gaps.

use plimsoll_log::glsn::Glsn;

use crate::index::gaps::list::successor;
use crate::index::gaps::{Gaps, LOOKUP_AFTER, PUBLISH_EACH};
use crate::index::sources::merge::Direction;

/// The interval without live keys that an iterator has passed since its last result.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// Number of deleted keys stepped over.
    pub(super) dead: u64,
    /// Where the interval begins (forward) or ends (backward, exclusive). Valid if `dead` or
    /// `from_gap` is set.
    pub(super) edge: Vec<u8>,
    /// Whether the interval begins at the end of a gap.
    from_gap: bool,
}

impl Passed {
    pub(super) fn clear(&mut self) {
        (self.dead, self.from_gap) = (0, false);
    }

    /// Records a step over a deleted key, and publishes or looks up a gap if it is time to. Returns
    /// the key at which the iterator can continue, if a gap is known.
    pub(super) fn step_over(
        &mut self,
        key: &[u8],
        gaps: &Gaps,
        direction: Direction,
        at: Glsn,
        asks: bool,
    ) -> Option<Vec<u8>> {
        let is_first = self.dead == 0 && !self.from_gap;
        self.dead += 1;
        match direction {
            Direction::Forward if is_first => {
                self.edge.clear();
                self.edge.extend_from_slice(key);
            }
            Direction::Backward if is_first => {
                self.edge.clear();
                self.edge.extend_from_slice(key);
                self.edge.push(0);
            }
            _ => {}
        }
        let publishes = self.dead.is_multiple_of(PUBLISH_EACH);
        if self.dead != LOOKUP_AFTER && !publishes && !asks {
            return None;
        }
        let (upto, from) = (successor(key), key);
        if publishes {
            let edge = std::mem::take(&mut self.edge);
            match direction {
                Direction::Forward => gaps.publish(&edge, &upto, at, PUBLISH_EACH),
                Direction::Backward => gaps.publish(from, &edge, at, PUBLISH_EACH),
            }
            self.edge = edge;
        }
        let to = match direction {
            Direction::Forward => gaps.past(from, at)?,
            Direction::Backward => gaps.before(&upto, at)?,
        };
        self.edge.clear();
        self.edge.extend_from_slice(&to);
        (self.dead, self.from_gap) = (0, true);
        Some(to)
    }
}
