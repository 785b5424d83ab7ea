//! Iterators over the index: the keys of one snapshot ([`visible`]), and all versions
//! ([`versions`]). `handle` defines when they release their sources and how they continue.

pub(crate) mod attached;
pub(crate) mod bounds;
pub(crate) mod estimate;
pub(crate) mod handle;
pub(crate) mod kept_cursors;
pub(crate) mod passed;
pub(crate) mod resting_key;
pub(crate) mod versions;
pub(crate) mod visible;

use std::ops::Bound;
use std::sync::Arc;

#[cfg(test)]
use plimsoll_log::glsn::Glsn;

use crate::index::iter::handle::Detachable;
#[cfg(test)]
use crate::index::iter::versions::Versions;
use crate::index::iter::visible::Visible;
use crate::index::sources::merge::Direction;
use crate::index::sources::view::View;
use crate::types::as_of::AsOf;
use crate::types::error::Result;
use crate::types::index_key::KeptKey;

impl View {
    /// Iterates over the keys of a range as of `at`, each with its newest version that is not
    /// younger. Deleted keys are omitted.
    ///
    /// # Errors
    /// `Trimmed` if `at` is below the oldest readable GLSN of the keyspace in which the range
    /// begins.
    pub(crate) fn visible(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        at: AsOf<'_>,
        direction: Direction,
    ) -> Result<Visible> {
        let mut iter = Visible::new(
            (lower.map(KeptKey::from_slice), upper.map(KeptKey::from_slice)),
            at,
            direction,
        );
        iter.attach(self, &[])?;
        Ok(iter)
    }

    #[cfg(test)]
    /// Iterates over all versions in a range that are younger than `after` and not younger than
    /// `upto`, including deletions and history: by key, then newest first.
    pub(crate) fn versions(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
        upto: Glsn,
    ) -> Result<Versions> {
        let mut iter = Versions::new(
            (lower.map(KeptKey::from_slice), upper.map(KeptKey::from_slice)),
            after,
            upto,
        );
        iter.attach(self, &[])?;
        Ok(iter)
    }
}
