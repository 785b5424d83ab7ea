//! An open log: what its parts share, and who owns what.
//!
//! - [`Segments`]: the list of segments and their offset tables.
//! - [`Tail`]: the end of the log in memory, and the right to append.
//! - [`Durability`]: the writer of the active segment, group commit, whether the log is poisoned.
//! - [`Blobs`]: blob files and their ids.
//!
//! Each owner knows only those above it in this list. What needs several of them (appending, reading, trimming, backup) is written against
//! [`OpenLog`].
//!
//! The order of locks: `Segments::trimming`, `Tail::order` (who appends), `Durability::writer` (who writes and syncs), the tail's state, the list of
//! segments, a segment's table; the locks of group commit and of the blobs' registry are taken last and alone. The pool is never asked for a page
//! while the tail's state is held: loading the page may need it.

use std::sync::Arc;

use crate::file_log::blobs::blob_files::Blobs;
use crate::file_log::durability::Durability;
use crate::file_log::env::Env;
use crate::file_log::segments::list::Segments;
use crate::file_log::tail::Tail;
use crate::glsn::{Bounds, Glsn};
use crate::log;

/// An open file log.
#[derive(Debug)]
pub(crate) struct OpenLog {
    pub(crate) env: Arc<Env>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) tail: Arc<Tail>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) blobs: Arc<Blobs>,
}

impl OpenLog {
    /// What the log holds.
    pub(crate) fn bounds(&self) -> Bounds {
        // Durable first: it never passes `next`.
        let durable = self.durability.group.durable();
        Bounds { first: self.segments.first(), next: self.tail.next(), durable }
    }

    /// The last GLSN that readers may see.
    pub(crate) fn readable(&self) -> Glsn {
        match self.env.options.durability {
            log::Durability::Sync => self.durability.group.durable(),
            log::Durability::Buffered => self.tail.last(),
        }
    }
}
