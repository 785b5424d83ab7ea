//! An open log, and the owners of its parts.
//!
//! - [`Segments`]: the list of segments and their offset tables.
//! - [`Tail`]: the end of the log in memory, and the right to append.
//! - [`DurabilityState`]: the writer of the active segment, group commit, whether the log is
//!   poisoned.
//! - [`Blobs`]: blob files and their ids.
//!
//! Each owner knows only those before it in this list. Code that needs several of them (appending,
//! reading, trimming, backup) takes an [`OpenLog`].
//!
//! The order of locks: `Segments::trimming`, `Segments::noticing`, `Tail::order` (held by an
//! append), `DurabilityState::syncing` (held across a sync), `UnsyncedBlobs::syncing` (only tried
//! under the writer), `DurabilityState::writer` (held across writes, not across syncs),
//! `Segments::rebuilding`, the tail's state, the list of segments, `Segments::sealing`, a segment's
//! table. The locks of group commit and of the blobs' registry are taken last and alone. The pool
//! is never asked for a page while the tail's state is held, because loading the page may need that
//! state.

use std::sync::Arc;

use crate::durability::Durability;
use crate::file_log::blobs::blob_files::Blobs;
use crate::file_log::durability::DurabilityState;
use crate::file_log::env::Env;
use crate::file_log::segments::list::Segments;
use crate::file_log::tail::Tail;
use crate::glsn::{Bounds, Glsn};

/// An open file log.
#[derive(Debug)]
pub(crate) struct OpenLog {
    pub(crate) env: Arc<Env>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) tail: Arc<Tail>,
    pub(crate) durability: Arc<DurabilityState>,
    pub(crate) blobs: Arc<Blobs>,
}

impl OpenLog {
    /// The bounds of the log.
    pub(crate) fn bounds(&self) -> Bounds {
        // Read the durable end first, so that it does not pass `next`.
        let mut durable = self.durability.group.durable();
        if let Some(members) = self.env.members() {
            // Another member may have synced these records already.
            durable = durable.max(members.marks.durable_glsn().min(self.tail.last()));
        }
        Bounds { first: self.segments.first(), next: self.tail.next(), durable }
    }

    /// The last GLSN that readers may see.
    pub(crate) fn readable(&self) -> Glsn {
        match self.env.options.durability {
            Durability::Sync => self.durability.group.durable(),
            Durability::Buffered => self.tail.last(),
        }
    }
}
