//! The sources of versions: memtables and runs, their merge, and a consistent view of all of them.
//! [`Sources`] owns the current view.

pub(crate) mod merge;
pub(crate) mod source;
pub(crate) mod view;

use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};

use crate::index::sources::view::View;
use crate::types::lock::lock;

/// The current sources. Flushes, merges and writers publish a changed view; readers load it without
/// a lock.
#[derive(Debug)]
pub(crate) struct Sources {
    view: ArcSwap<View>,
    /// Held while the view is replaced.
    replacing: Mutex<()>,
}

impl Sources {
    pub(crate) fn new(view: View) -> Self {
        Self { view: ArcSwap::from_pointee(view), replacing: Mutex::new(()) }
    }

    /// The current view, which may be kept.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The current view for short use, loaded without writing to shared memory.
    pub(crate) fn current_view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Publishes a changed view.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut View)) {
        let replacing = lock(&self.replacing);
        let mut view = View::clone(&self.view.load());
        change(&mut view);
        let old = self.view.swap(Arc::new(view));
        drop(replacing);
        // Outside the lock, because the last reference to a view removes files.
        drop(old);
    }
}
