//! Makes a parent's store unusable in a forked child.
//!
//! A child has the parent's memory, but none of its threads: a lock that a thread held stays
//! locked, and closing the store would write to the parent's files. Each engine object is therefore
//! wrapped in [`ForkSafe`], which refuses its use in a child and leaks it there.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors;

/// Number of forks between this process and the one that imported the module.
static FORKS: AtomicU32 = AtomicU32::new(0);

fn forks() -> u32 {
    // Relaxed: changes only while the process has one thread, right after a fork.
    FORKS.load(Ordering::Relaxed)
}

/// Registered with `os.register_at_fork`.
#[pyfunction]
pub(crate) fn _after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// An engine object.
pub(crate) struct ForkSafe<T> {
    /// `None` once taken out.
    object: Option<T>,
    forks: u32,
}

const PRESENT: &str = "it is taken out only by `into_inner`";

impl<T> ForkSafe<T> {
    pub(crate) fn new(object: T) -> Self {
        Self { object: Some(object), forks: forks() }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.forks != forks()
    }

    /// The object, in the process that created it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.is_foreign() {
            return Err(errors::used_after_fork());
        }
        Ok(self.object.as_ref().expect(PRESENT))
    }

    /// Like [`ForkSafe::get`].
    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        if self.is_foreign() {
            return Err(errors::used_after_fork());
        }
        Ok(self.object.as_mut().expect(PRESENT))
    }

    /// Like [`ForkSafe::get`].
    pub(crate) fn into_inner(mut self) -> PyResult<T> {
        if self.is_foreign() {
            return Err(errors::used_after_fork());
        }
        Ok(self.object.take().expect(PRESENT))
    }
}

impl<T> Drop for ForkSafe<T> {
    fn drop(&mut self) {
        if self.is_foreign() {
            std::mem::forget(self.object.take());
        }
    }
}
