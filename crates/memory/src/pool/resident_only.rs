//! Reads that must not wait: while [`ResidentOnly`] is entered, its thread gets resident pages
//! only.
//!
//! For callers that hold their own contended lock, such as an interpreter's lock. They answer from
//! memory under that lock, and release it only to load pages.
//!
//! Invariant: a page that is not resident is neither loaded nor waited for; the request fails.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use super::LoadError;

thread_local! {
    /// Whether this thread gets resident pages only.
    static RESIDENT_ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Restricts this thread to resident pages until it is dropped.
#[must_use = "pages are loaded again once it is dropped"]
pub struct ResidentOnly {
    before: bool,
    /// Not `Send`: it belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl ResidentOnly {
    /// Restricts this thread to resident pages.
    #[inline]
    pub fn enter() -> Self {
        Self { before: RESIDENT_ONLY.replace(true), _thread: PhantomData }
    }

    /// Calls `then` without the restriction.
    #[inline]
    pub fn pause<T>(then: impl FnOnce() -> T) -> T {
        let _back = Self { before: RESIDENT_ONLY.replace(false), _thread: PhantomData };
        then()
    }
}

impl Drop for ResidentOnly {
    #[inline]
    fn drop(&mut self) {
        RESIDENT_ONLY.set(self.before);
    }
}

/// Refuses to load a page, or to wait for a load, while the thread is restricted to resident pages.
pub(super) fn check_may_load() -> Result<(), LoadError> {
    if !RESIDENT_ONLY.get() {
        return Ok(());
    }
    Err(LoadError::Io {
        kind: io::ErrorKind::WouldBlock,
        message: "a page is not in memory".to_owned(),
        source: None,
    })
}
