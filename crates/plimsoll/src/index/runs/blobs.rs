//! The blob files that the index uses, and those that it may have stopped using since the log last
//! removed files.
//!
//! Invariant: a blob file is in use while a manifest names it or may come to name it, and while a
//! job reads through a view that has it. Other readers retry with a newer view instead.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

use plimsoll_log::blob::BlobId;

use crate::index::run::table::{TableId, TableInfo};
use crate::index::sources::view::View;
use crate::types::lock::lock;

/// Maximum number of blob files that are remembered individually.
const LEFT_MAX: usize = 4096;

/// The blob files of an open index, in addition to those in its current view.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    /// Files being written, and files not named by a manifest yet.
    in_work: Mutex<BTreeSet<BlobId>>,
    /// The views through which jobs read.
    of_jobs: Mutex<Vec<Weak<View>>>,
    left: Mutex<Left>,
    /// Files whose values are to be moved out.
    vacated: Mutex<Arc<BTreeSet<BlobId>>>,
}

/// Files of tables that are no longer current. Other tables may still use them.
#[derive(Debug)]
pub(crate) enum Left {
    These(BTreeSet<BlobId>),
    /// More files than are remembered.
    Many,
}

impl Default for Left {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Blobs {
    /// Registers a file that is about to be written and then named by a manifest.
    pub(crate) fn begin(&self, blob: BlobId) {
        lock(&self.in_work).insert(blob);
    }

    /// Ends the registration: a manifest names the file, or none ever will.
    pub(crate) fn end(&self, blob: BlobId) {
        lock(&self.in_work).remove(&blob);
    }

    /// Selects files for new jobs to move the values out of.
    pub(crate) fn vacate(&self, blobs: BTreeSet<BlobId>) {
        *lock(&self.vacated) = Arc::new(blobs);
    }

    /// Excludes a file that has a damaged value, which stays there.
    pub(crate) fn stop_vacating(&self, blob: BlobId) {
        Arc::make_mut(&mut lock(&self.vacated)).remove(&blob);
    }

    /// The files whose values are to be moved out.
    pub(crate) fn vacated(&self) -> Arc<BTreeSet<BlobId>> {
        Arc::clone(&lock(&self.vacated))
    }

    /// Registers a view through which a job reads or copies files, for as long as the job keeps it.
    pub(crate) fn job_reads(&self, view: &Arc<View>) {
        let mut views = lock(&self.of_jobs);
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(view));
    }

    /// Records tables that are no longer current.
    pub(crate) fn note_removed<'a>(&self, tables: impl Iterator<Item = &'a TableInfo>) {
        let mut left = lock(&self.left);
        for table in tables {
            let Left::These(these) = &mut *left else { return };
            these.extend(&table.blobs);
            if let TableId::Blob(blob) = table.id {
                these.insert(blob);
            }
            if these.len() > LEFT_MAX {
                *left = Left::Many;
            }
        }
    }

    /// The files of tables that ceased to be current since the last call. Files that jobs still
    /// need are returned by a later call.
    pub(crate) fn take_left(&self) -> Left {
        let taken = std::mem::take(&mut *lock(&self.left));
        let Left::These(these) = taken else { return Left::Many };
        let (later, now): (BTreeSet<_>, _) =
            these.into_iter().partition(|blob| self.is_being_relocated(*blob));
        if let Left::These(these) = &mut *lock(&self.left) {
            these.extend(later);
        }
        Left::These(now)
    }

    /// Returns files that could not be removed, for a later call.
    pub(crate) fn put_back(&self, blobs: Left) {
        let mut left = lock(&self.left);
        match (&mut *left, blobs) {
            (Left::These(these), Left::These(blobs)) => these.extend(blobs),
            (left, Left::Many) => *left = Left::Many,
            (Left::Many, _) => {}
        }
    }

    /// Whether a file is in use. `view` is loaded after the registered files were checked, so that
    /// a file that a manifest begins to name in between is found in the view.
    pub(crate) fn uses(&self, blob: BlobId, view: impl FnOnce() -> Arc<View>) -> bool {
        self.is_being_relocated(blob) || names(&view(), blob)
    }

    fn is_being_relocated(&self, blob: BlobId) -> bool {
        if lock(&self.in_work).contains(&blob) {
            return true;
        }
        self.views_of_jobs().iter().any(|view| names(view, blob))
    }

    /// The views through which jobs currently read.
    pub(crate) fn views_of_jobs(&self) -> Vec<Arc<View>> {
        // Collected, so that the caller drops them outside the lock: dropping the last reference to
        // a view removes files.
        lock(&self.of_jobs).iter().filter_map(Weak::upgrade).collect()
    }
}

fn names(view: &View, blob: BlobId) -> bool {
    view.infos()
        .any(|info| info.id == TableId::Blob(blob) || info.blobs.binary_search(&blob).is_ok())
}
