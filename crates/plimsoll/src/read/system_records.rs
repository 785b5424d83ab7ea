//! The store's own records as this process knows them: the keyspaces, the positions of the named
//! cursors, the tags, the branches, and whether the log has streams of the user.
//!
//! They are read when the store is opened, and again when another process has changed them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::index::OpenIndex;
use crate::index::sources::view::Direction;
use crate::read::open_moments::Snapshots;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::branch_registry::Registry;
use crate::types::branches::damaged_branch;
use crate::types::cursors::{Cursors, damaged_cursor, decode_cursor};
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{
    BRANCHES, CURSORS, DEFAULT, Keyspaces, Record, SYSTEM, TAGS, dropped_name,
};
use crate::types::tags::{Tagged, damaged_tag};
use crate::types::version::Stored;

/// The key among the keyspaces' names whose record shows that the user has appended to a stream; no
/// keyspace can have this name.
pub(crate) const STREAMS_MARK: &str = "\u{1}streams";

/// The records of an open store.
pub(crate) struct OwnRecords {
    budget: Budget,
    index: Arc<OpenIndex>,
    keyspaces: Arc<Keyspaces>,
    /// The open moments, which also hold the tags and the branches.
    snapshots: Arc<Snapshots>,
    pub(crate) cursors: Cursors,
    /// Whether the user has appended to a stream.
    pub(crate) streams_known: AtomicBool,
    is_loaded: AtomicBool,
}

impl OwnRecords {
    /// Records that are not loaded yet.
    pub(crate) fn new(
        budget: &Budget,
        index: &Arc<OpenIndex>,
        keyspaces: &Arc<Keyspaces>,
        snapshots: &Arc<Snapshots>,
    ) -> Self {
        Self {
            budget: budget.clone(),
            index: Arc::clone(index),
            keyspaces: Arc::clone(keyspaces),
            snapshots: Arc::clone(snapshots),
            cursors: Cursors::default(),
            streams_known: AtomicBool::new(false),
            is_loaded: AtomicBool::new(false),
        }
    }

    /// Loads the records as of `at`, when the store is opened. The default keyspace has the
    /// settings of `default` where its record has none.
    ///
    /// # Errors
    /// The disk, the budget, corruption.
    pub(crate) fn load(&self, default: Record, at: Glsn) -> Result<()> {
        self.keyspaces.load(DEFAULT.0, default);
        self.refresh_keyspaces(at)?;
        self.refresh_cursors(at)?;
        self.refresh_tags(at)?;
        self.refresh_branches(at)?;
        // Release: pairs with the load in `is_loaded`.
        self.is_loaded.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the records were loaded. They are not refreshed before that.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Reads the records of all keyspaces as of `at`. A keyspace without a record keeps the state
    /// that is known here.
    ///
    /// # Errors
    /// As for [`OwnRecords::load`].
    pub(crate) fn refresh_keyspaces(&self, at: Glsn) -> Result<()> {
        let span = Span::new(SYSTEM, &(..));
        let view = self.index.sources.view();
        let mut iter =
            view.visible(span.lower(), span.upper(), AsOf::unexpiring(at), Direction::Forward)?;
        let mut key = Vec::new();
        while let Some(version) = iter.next(&mut key)? {
            if version.user_key() == STREAMS_MARK.as_bytes() {
                self.streams_known.store(true, Ordering::Release);
                continue;
            }
            let Stored::Inline(record) = version.stored else {
                return Err(Error::damaged("the record of a keyspace is not stored inline"));
            };
            let dropped = dropped_name(version.user_key());
            let name = std::str::from_utf8(dropped.unwrap_or(version.user_key()))
                .map_err(|_| Error::damaged("the name of a keyspace is not valid UTF-8"))?;
            let record = Record::decode(record)?;
            match dropped {
                Some(_) => self.keyspaces.load_dropped(name, record),
                None => self.keyspaces.load(name, record),
            }
        }
        Ok(())
    }

    /// Reads the positions of all cursors as of `at`.
    ///
    /// # Errors
    /// As for [`OwnRecords::load`].
    pub(crate) fn refresh_cursors(&self, at: Glsn) -> Result<()> {
        let all = self.named(CURSORS, at, damaged_cursor, decode_cursor)?;
        self.cursors.places().load(all, at);
        Ok(())
    }

    /// Reads all tags as of `at`.
    ///
    /// # Errors
    /// As for [`OwnRecords::load`].
    pub(crate) fn refresh_tags(&self, at: Glsn) -> Result<()> {
        let Snapshots { tags, branches, .. } = &*self.snapshots;
        tags.load(self.named(TAGS, at, damaged_tag, Tagged::decode)?, at);
        branches.tags_changed(tags);
        Ok(())
    }

    /// Reads the records of all branches as of `at`.
    ///
    /// # Errors
    /// As for [`OwnRecords::load`].
    pub(crate) fn refresh_branches(&self, at: Glsn) -> Result<()> {
        let (span, view) = (Span::of_keyspace(BRANCHES), self.index.sources.view());
        let mut iter =
            view.visible(span.lower(), span.upper(), AsOf::unexpiring(at), Direction::Forward)?;
        let (mut key, mut all) = (Vec::new(), Registry::default());
        while let Some(version) = iter.next(&mut key)? {
            let Stored::Inline(record) = version.stored else { return Err(damaged_branch()) };
            all.add(&self.budget, version.user_key(), record, version.glsn)?;
        }
        self.snapshots.branches.load(all, at, &self.snapshots.tags);
        Ok(())
    }

    /// The records of a keyspace of the store's own as of `at`, by name.
    fn named<T>(
        &self,
        keyspace: u32,
        at: Glsn,
        damaged: fn() -> Error,
        decode: fn(&[u8]) -> Result<T>,
    ) -> Result<BTreeMap<String, T>> {
        let span = Span::new(keyspace, &(..));
        let view = self.index.sources.view();
        let mut iter =
            view.visible(span.lower(), span.upper(), AsOf::unexpiring(at), Direction::Forward)?;
        let (mut key, mut all) = (Vec::new(), BTreeMap::new());
        while let Some(version) = iter.next(&mut key)? {
            let Stored::Inline(record) = version.stored else { return Err(damaged()) };
            let name = std::str::from_utf8(version.user_key()).map_err(|_| damaged())?;
            all.insert(name.to_owned(), decode(record)?);
        }
        Ok(all)
    }
}
