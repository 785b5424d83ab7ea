//! Walks (iterators) over the index: the keys of one moment ([`visible`]), and all versions
//! ([`versions`]). `seat` defines when they are suspended and how they continue.

pub(crate) mod bounds;
pub(crate) mod estimate;
pub(crate) mod kept_cursors;
pub(crate) mod passed;
pub(crate) mod resting_key;
pub(crate) mod seat;
pub(crate) mod seated;
pub(crate) mod versions;
pub(crate) mod visible;

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::sources::merge::Direction;
use crate::index::sources::view::View;
use crate::index::walk::seat::Walk;
#[cfg(test)]
use crate::index::walk::versions::Versions;
use crate::index::walk::visible::Visible;
use crate::types::error::Result;
use crate::types::index_key::KeptKey;

impl View {
    /// Walks the keys of a range as of `at`, each with its newest version that is not younger;
    /// deleted keys are left out.
    ///
    /// # Errors
    /// `Trimmed` below the oldest moment at which the keyspace that the range begins in can be
    /// read.
    pub(crate) fn visible(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        at: Glsn,
        direction: Direction,
    ) -> Result<Visible> {
        let mut walk = Visible::new(
            (lower.map(KeptKey::from_slice), upper.map(KeptKey::from_slice)),
            at,
            direction,
        );
        walk.sit_down(self, &[])?;
        Ok(walk)
    }

    #[cfg(test)]
    /// Walks all versions of a range that are younger than `after` and not younger than `upto`,
    /// deletions and history included: by key, newest first.
    pub(crate) fn versions(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
        upto: Glsn,
    ) -> Result<Versions> {
        let mut walk = Versions::new(
            (lower.map(KeptKey::from_slice), upper.map(KeptKey::from_slice)),
            after,
            upto,
        );
        walk.sit_down(self, &[])?;
        Ok(walk)
    }
}
