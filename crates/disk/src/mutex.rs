//! Locks of mutexes whose state is consistent between any two statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock even if a holder panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
