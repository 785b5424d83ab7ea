//! An open store, shared by all objects created from it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use plimsoll::{Db, Keyspace};
use pyo3::prelude::*;

use crate::calls::interruptible;
use crate::errors::{self, OrRaise};
use crate::fork::ForkSafe;

/// Stores that are open in this process.
static OPEN: Mutex<Vec<Weak<Store>>> = Mutex::new(Vec::new());

/// Whether all stores are being closed because the interpreter exits. Set before the first close.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// An open store.
pub(crate) struct Store {
    db: Option<ForkSafe<Db>>,
    /// The keyspace that always exists.
    pub(crate) default: Keyspace,
    /// Absolute path; empty for a store in memory.
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
}

impl Store {
    pub(crate) fn new(db: Db, path: PathBuf, read_only: bool) -> PyResult<Arc<Self>> {
        let default = db.keyspace("default").or_raise()?;
        let store = Arc::new(Self { db: Some(ForkSafe::new(db)), default, path, read_only });
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|store| store.strong_count() > 0);
        open.push(Arc::downgrade(&store));
        Ok(store)
    }

    /// The engine's handle, in the process that opened the store.
    #[inline]
    pub(crate) fn db(&self) -> PyResult<&Db> {
        self.db.as_ref().expect("it is taken out only on drop").get()
    }

    /// Refreshes the engine to the newest commit. The GIL is released if commits of other processes
    /// must be applied first.
    #[inline]
    pub(crate) fn newest<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl Fn(&Db) -> T + Sync,
    ) -> PyResult<T> {
        let db = self.db()?;
        Ok(if db.is_caught_up() { ask(db) } else { py.detach(|| ask(db)) })
    }

    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.db()?.clone();
        interruptible(py, move || db.close())?.or_raise()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let db = self.db.take();
        // Closing writes files and joins threads. During interpreter shutdown a thread cannot
        // attach any more.
        let mut db = Some(db);
        if Python::try_attach(|py| py.detach(|| drop(db.take()))).is_none() {
            drop(db);
        }
    }
}

/// The result of an iterator that waits for items. It ends if the store was closed by interpreter
/// exit: the waiting thread cannot know that, and an exception would be printed.
pub(crate) fn ended_by_exit<T>(py: Python<'_>, next: PyResult<Option<T>>) -> PyResult<Option<T>> {
    match next {
        Err(error) if IS_EXITING.load(Ordering::SeqCst) && errors::is_closed(py, &error) => {
            Ok(None)
        }
        next => next,
    }
}

/// Closes every open store. Registered with `atexit`, so that memtables are flushed and the warm
/// image is saved.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    IS_EXITING.store(true, Ordering::SeqCst);
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    for store in open.iter().filter_map(Weak::upgrade) {
        if let Ok(db) = store.db() {
            let db = db.clone();
            // Acknowledged commits are safe without it.
            let _ = py.detach(move || db.close());
        }
    }
}
