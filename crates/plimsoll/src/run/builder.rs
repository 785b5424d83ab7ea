//! Writes a partition, front to back.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::error::Result;
use crate::run::partition::{PartitionId, PartitionInfo};
use crate::version::Version;

/// Where a builder's pages go: a run file of the index, or a side file of the log.
pub(crate) trait PageSink: Send {
    /// The partition's id.
    fn id(&self) -> PartitionId;
    /// The seed under which pages are sealed.
    fn seed(&self) -> u64;
    /// Takes the next page (numbers count from 0), sealed.
    fn write_page(&mut self, page: &[u8]) -> Result<()>;
}

/// Builds one partition. Memory: a few pages (chunks of `Kind::Sort`), whatever its size.
#[derive(Debug)]
pub(crate) struct PartitionBuilder<S: PageSink> {
    sink: S,
}

impl<S: PageSink> PartitionBuilder<S> {
    /// Starts a partition. With `fixed_glsn_pending`, versions carry no GLSN of their own (they are added with [`Glsn::NONE`] and get
    /// one when the partition is adopted).
    pub(crate) fn new(sink: S, budget: &Budget, fixed_glsn_pending: bool) -> Result<Self> {
        let _ = (budget, fixed_glsn_pending);
        Ok(Self { sink })
    }

    /// Adds a version: keys ascending, one key's versions newest first.
    pub(crate) fn add(&mut self, version: &Version<'_>) -> Result<()> {
        let _ = version;
        unimplemented!()
    }

    /// Bytes written or waiting in a page.
    pub(crate) fn bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Versions added.
    pub(crate) fn versions(&self) -> u64 {
        unimplemented!()
    }

    /// Writes what is left and the footer page; the sink (not yet synced) and what is known of the partition. At least one version
    /// must have been added.
    pub(crate) fn finish(self) -> Result<(S, PartitionInfo)> {
        let _ = Glsn::NONE;
        unimplemented!()
    }
}
