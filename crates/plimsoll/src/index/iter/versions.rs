//! An iterator over all versions.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;

use crate::index::iter::attached::{ATTACHED, Attached, STEPS_MAX, merge_of};
use crate::index::iter::bounds::{Bounds, Place};
use crate::index::iter::handle::Detachable;
use crate::index::run::table::Table;
use crate::index::sources::merge::{Cursor, Direction, Merge};
use crate::index::sources::source::{Run, Source};
use crate::index::sources::view::{KeyRange, OwnRange, View, beyond, seek_lower, tables_in};
use crate::types::error::Result;
use crate::types::version::{Stored, Version};

/// An iterator over all versions. The caller keeps the key of the version that was last returned or
/// skipped, and passes it to each step.
#[derive(Debug)]
pub(crate) struct Versions {
    attached: Option<Attached>,
    bounds: Bounds,
    after: Glsn,
    upto: Glsn,
    /// GLSNs that must be readable in each view that the iterator is attached in.
    readable_at: Option<[Glsn; 2]>,
    place: Place,
    /// The version that was last returned or skipped.
    glsn: Glsn,
    /// Whether that version is the range deletion which hides the version that comes next.
    is_range_deletion: bool,
    /// The number of versions of the same key that were returned.
    lent: u64,
    /// Size of table descriptions that only this iterator holds.
    tables_bytes: usize,
}

impl Detachable for Versions {
    fn detach(&mut self) -> Option<Arc<View>> {
        self.attached.take().map(|attached| attached.view)
    }

    fn attach(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()> {
        if self.attached.is_none() {
            if let (Some(moments), Bound::Included(key) | Bound::Excluded(key)) =
                (self.readable_at, self.bounds.lower())
            {
                moments.into_iter().try_for_each(|at| view.check_readable(key, at))?;
            }
            let lower =
                if self.place == Place::Past { Bound::Included(key) } else { self.bounds.lower() };
            let range = (lower, self.bounds.upper());
            let sources = view.sources().chain(view.history.iter().map(Source::Run));
            let mut tables = 0;
            // A range deletion is found at the versions that it deleted. These may be older than
            // `after`, so all sources are needed.
            let is_wanted = |glsn: &Glsn| *glsn > self.after && *glsn <= self.upto;
            let deletes = view.ranges.within(range).any(|range| range.glsns.iter().any(is_wanted));
            let after = if deletes { Glsn::NONE } else { self.after };
            let cursors = sources
                .filter_map(|source| version_cursor(source, range, after, self.upto, &mut tables))
                .collect();
            self.tables_bytes = tables * size_of::<Table>();
            self.attached = Some(Attached::new(view, Merge::new(cursors, Direction::Forward)));
        }
        Ok(())
    }

    fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    fn attached_bytes(&self) -> usize {
        self.attached.as_ref().map_or(0, |attached| attached.heap_bytes() + self.tables_bytes)
    }

    fn kept_bytes(&self) -> usize {
        size_of::<Self>() + self.bounds.heap_bytes()
    }
}

impl Versions {
    /// An iterator that is not attached yet.
    pub(crate) fn new(range: OwnRange, after: Glsn, upto: Glsn) -> Self {
        Self {
            attached: None,
            bounds: Bounds::new(range),
            after,
            upto,
            readable_at: None,
            place: Place::Before,
            glsn: Glsn::NONE,
            is_range_deletion: false,
            lent: 0,
            tables_bytes: 0,
        }
    }

    /// Refuses views in which the keyspace can no longer be read at one of `moments`.
    pub(crate) fn readable_at(self, moments: [Glsn; 2]) -> Self {
        Self { readable_at: Some(moments), ..self }
    }

    /// The view that it is attached in.
    pub(crate) fn view(&self) -> Weak<View> {
        self.attached.as_ref().map_or_else(Weak::new, |attached| Arc::downgrade(&attached.view))
    }

    /// Whether the last returned version was the first one of its key.
    pub(crate) fn is_first_of_key(&self) -> bool {
        self.lent == 1
    }

    /// The next version, borrowed until the next call. `key` receives its key and must hold the key
    /// that the last call left there. The iterator must be attached.
    pub(crate) fn next<'a>(&'a mut self, key: &'a mut Vec<u8>) -> Result<Option<Version<'a>>> {
        if self.place == Place::Done {
            return Ok(None);
        }
        match self.find(key) {
            Ok(true) => {
                self.bounds.pass(Direction::Forward);
                self.lent += 1;
                Ok(match self.is_range_deletion {
                    true => Some(Version { key, glsn: self.glsn, stored: Stored::Deleted }),
                    false => merge_of(&mut self.attached).top(),
                })
            }
            Ok(false) => {
                self.place = Place::Done;
                Ok(None)
            }
            Err(error) => {
                if let Some(attached) = &mut self.attached {
                    attached.is_placed = false;
                }
                Err(error)
            }
        }
    }

    fn find(&mut self, key: &mut Vec<u8>) -> Result<bool> {
        let attached = self.attached.as_mut().expect(ATTACHED);
        match (attached.is_placed, self.place) {
            (true, _) if self.is_range_deletion => {}
            (true, _) => attached.merge.advance()?,
            // Versions of one key have descending GLSNs, and only a forged one has GLSN 0.
            (false, Place::Past) => {
                attached.merge.seek(key, Glsn(self.glsn.0.saturating_sub(1)))?
            }
            (false, _) => seek_lower(&mut attached.merge, self.bounds.lower())?,
        }
        attached.is_placed = true;
        self.is_range_deletion = false;
        let mut passed = 0;
        loop {
            let Some(version) = attached.merge.top() else { return Ok(false) };
            if beyond(version.key, self.bounds.upper()) {
                return Ok(false);
            }
            let same_key = self.place == Place::Past && version.key == *key;
            let copy = same_key && version.glsn == self.glsn;
            let (key_is_new, glsn) = (!same_key, version.glsn);
            if key_is_new {
                key.clear();
                key.extend_from_slice(version.key);
                self.lent = 0;
                passed = 0;
            }
            let younger = if same_key { self.glsn } else { Glsn::MAX };
            let deletion = match version.stored {
                Stored::Deleted => None,
                _ => attached.view.ranges.deletion_of(version.key, glsn, younger),
            };
            self.place = Place::Past;
            if let Some(deletion) = deletion
                && !copy
                && deletion > self.after
                && deletion <= self.upto
            {
                (self.glsn, self.is_range_deletion) = (deletion, true);
                return Ok(true);
            }
            let outside = glsn > self.upto || glsn <= self.after;
            self.glsn = glsn;
            if !outside && !copy {
                return Ok(true);
            }
            passed += 1;
            if passed < STEPS_MAX || copy {
                attached.merge.advance()?;
            } else {
                let target = if glsn > self.upto { self.upto } else { Glsn::NONE };
                attached.merge.skip_to(key, target)?;
            }
        }
    }
}

/// A cursor over the tables of a source that may have wanted versions. Adds the number of table
/// descriptions that only the cursor holds to `own`.
fn version_cursor(
    source: Source<'_>,
    range: KeyRange<'_>,
    after: Glsn,
    upto: Glsn,
    own: &mut usize,
) -> Option<Cursor> {
    if source.min_glsn() > upto || source.max_glsn() <= after {
        return None;
    }
    match source {
        Source::Memtable(memtable) => Some(Cursor::memtable(memtable)),
        Source::Run(run) => {
            let wanted = wanted_tables(run, range, after, upto)?;
            *own += if Arc::ptr_eq(&wanted, run.tables()) { 0 } else { wanted.len() };
            Some(Cursor::run(wanted))
        }
    }
}

/// All tables of the run if most of them may have wanted versions, otherwise only those.
fn wanted_tables(run: &Run, range: KeyRange<'_>, after: Glsn, upto: Glsn) -> Option<Arc<[Table]>> {
    let wanted = |table: &&Table| table.info.max_glsn > after && table.info.min_glsn <= upto;
    let inside = tables_in(run, range);
    let count = inside.iter().filter(wanted).count();
    match count {
        0 => None,
        // A few hundred descriptions are cheap to copy; beyond that, share the run's own list.
        1..=256 => Some(inside.iter().filter(wanted).cloned().collect()),
        _ => Some(Arc::clone(run.tables())),
    }
}
