//! Iterates over several runs, each key once.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::Table;
use crate::index::sources::merge::{Cursor, Direction, Merge};
use crate::types::error::Result;
use crate::types::version::Version;

/// An iterator over several runs, newest first, in key order: each key once, with its newest write.
pub(crate) struct MergedRuns {
    merge: Merge,
    /// The key of the last returned write.
    key: Option<Vec<u8>>,
}

impl MergedRuns {
    /// Positions it at the first write at or after `from`, or at the first one.
    pub(super) fn new(runs: Vec<Arc<[Table]>>, feed: &Feed, from: Option<&[u8]>) -> Result<Self> {
        let cursor = |tables| Cursor::Run(Box::new(RunCursor::new(tables, feed.clone())));
        let mut merge = Merge::new(runs.into_iter().map(cursor).collect(), Direction::Forward);
        match from {
            Some(key) => merge.seek(key, Glsn::MAX)?,
            None => merge.seek_end()?,
        }
        Ok(Self { merge, key: None })
    }

    /// Moves to the first write at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.key = None;
        self.merge.seek(key, Glsn::MAX)
    }

    /// The write of the next key, borrowed until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        if let Some(key) = &self.key {
            while self.merge.top_key().is_some_and(|top| top == key) {
                self.merge.advance()?;
            }
        }
        let Some(version) = self.merge.top() else { return Ok(None) };
        let key = self.key.get_or_insert_default();
        key.clear();
        key.extend_from_slice(version.key);
        Ok(Some(version))
    }
}
