//! What is known of a partition without reading it, and point look-ups in it.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_log::side::SideId;
use plimsoll_memory::pool::{Page, PoolFile, Touch};

use crate::error::Result;
use crate::version::Stored;

/// Where a partition's pages stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PartitionId {
    /// A file in the index's folder; ids are never used again.
    Run(u64),
    /// A side file of the log.
    Side(SideId),
}

/// What is known of a partition without reading it: kept in the manifest, and in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionInfo {
    /// Which file.
    pub(crate) id: PartitionId,
    /// Its pages.
    pub(crate) pages: u32,
    /// Page of its root.
    pub(crate) root: u32,
    /// Versions in it.
    pub(crate) versions: u64,
    /// Deletions among them.
    pub(crate) deletions: u64,
    /// First index key.
    pub(crate) first_key: Vec<u8>,
    /// Last index key.
    pub(crate) last_key: Vec<u8>,
    /// Oldest commit in it.
    pub(crate) min_glsn: Glsn,
    /// Newest commit in it.
    pub(crate) max_glsn: Glsn,
    /// Oldest log entry that a value of it points into.
    pub(crate) min_pointer: Option<Glsn>,
    /// Side files that values of it point into, sorted.
    pub(crate) sides: Vec<SideId>,
    /// Set where every version has this GLSN, whatever the pages say (a transaction that was written before its GLSN was known).
    pub(crate) fixed_glsn: Option<Glsn>,
}

/// A partition open to be read.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    /// What is known of it.
    pub(crate) info: Arc<PartitionInfo>,
    /// Its pages in the pool.
    pub(crate) file: PoolFile,
    /// The seed of its pages.
    pub(crate) seed: u64,
}

/// What a point look-up found.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Newest version of the key in this partition, whatever the snapshot.
    pub(crate) newest: Option<Glsn>,
    /// Newest version that is not younger than the snapshot.
    pub(crate) found: Option<Found>,
}

/// A version on a pinned page.
#[derive(Debug)]
pub(crate) struct Found {
    /// The commit that wrote it.
    pub(crate) glsn: Glsn,
    page: Page,
    start: u32,
    end: u32,
}

impl Found {
    /// What it stored.
    pub(crate) fn stored(&self) -> Stored<'_> {
        let _ = (&self.page, self.start, self.end);
        unimplemented!()
    }
}

impl Partition {
    /// Looks `key` up as of `at`. The filter is asked first: a miss costs no leaf.
    pub(crate) fn lookup(&self, key: &[u8], at: Glsn, touch: Touch) -> Result<Lookup> {
        let _ = (key, at, touch);
        unimplemented!()
    }
}
