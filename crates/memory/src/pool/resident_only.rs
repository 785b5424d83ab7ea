//! Reads that must not wait: while [`ResidentOnly`] is entered, its thread gets resident pages only.
//!
//! For callers that hold a lock of their own which others need, such as the lock of an interpreter: they answer from memory under that
//! lock, and release it only for what has to be loaded.
//!
//! Law: a page that is not resident is neither loaded nor waited for; the request fails, and the guard tells so.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use super::LoadError;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Loads,
    ResidentOnly,
    /// As `ResidentOnly`, after a page was not resident.
    Missed,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Loads) };
}

/// Restricts this thread to resident pages until it is dropped.
#[must_use = "pages are loaded again once it is dropped"]
pub struct ResidentOnly {
    before: Mode,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl ResidentOnly {
    /// From now on this thread gets resident pages only.
    #[inline]
    pub fn enter() -> Self {
        Self { before: MODE.replace(Mode::ResidentOnly), _thread: PhantomData }
    }

    /// Whether a page was requested that is not resident.
    #[inline]
    pub fn missed(&self) -> bool {
        MODE.get() == Mode::Missed
    }

    /// Calls `then` as if it had not been entered.
    #[inline]
    pub fn pause<T>(then: impl FnOnce() -> T) -> T {
        let _back = Self { before: MODE.replace(Mode::Loads), _thread: PhantomData };
        then()
    }
}

impl Drop for ResidentOnly {
    #[inline]
    fn drop(&mut self) {
        MODE.set(self.before);
    }
}

/// Refuses to load a page, or to wait for one, where only resident ones are wanted.
pub(super) fn check_may_load() -> Result<(), LoadError> {
    if MODE.get() == Mode::Loads {
        return Ok(());
    }
    MODE.set(Mode::Missed);
    Err(LoadError::Io { kind: io::ErrorKind::WouldBlock, message: "a page is not in memory".to_owned(), source: None })
}
