//! Walks the versions of a run, in order or against it.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Touch;

use crate::error::Result;
use crate::run::partition::Partition;
use crate::version::Version;

/// How a cursor gets its pages.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    /// From the pool: as points while the walk is short, as a scan once it is long.
    Pool(Touch),
    /// Straight from the file into a chunk of its own (64 KiB at a time, `Kind::Sort`), leaving the pool alone: for compaction.
    Private(Budget),
}

/// A walk over a run: its partitions do not overlap and are sorted.
#[derive(Debug)]
pub(crate) struct RunCursor {
    partitions: Arc<[Partition]>,
    feed: Feed,
}

impl RunCursor {
    /// A cursor that stands nowhere yet.
    pub(crate) fn new(partitions: Arc<[Partition]>, feed: Feed) -> Self {
        Self { partitions, feed }
    }

    /// Goes to the first version at or behind (`key`, `glsn`) in the order key ascending, GLSN descending; `Glsn::MAX` finds the newest
    /// version of the key.
    pub(crate) fn seek(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        let _ = (key, glsn, &self.partitions, &self.feed);
        unimplemented!()
    }

    /// Goes to the last version before (`key`, `glsn`).
    pub(crate) fn seek_before(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        let _ = (key, glsn);
        unimplemented!()
    }

    /// Goes to the first version.
    pub(crate) fn seek_first(&mut self) -> Result<()> {
        unimplemented!()
    }

    /// Goes to the last version.
    pub(crate) fn seek_last(&mut self) -> Result<()> {
        unimplemented!()
    }

    /// The version it stands on; `None` before the first, behind the last, or nowhere.
    pub(crate) fn current(&self) -> Option<Version<'_>> {
        unimplemented!()
    }

    /// Goes one version on.
    pub(crate) fn next(&mut self) -> Result<()> {
        unimplemented!()
    }

    /// Goes one version back.
    pub(crate) fn prev(&mut self) -> Result<()> {
        unimplemented!()
    }
}
