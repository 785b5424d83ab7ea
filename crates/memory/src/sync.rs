//! Synchronisation primitives of this crate: those of `std`, or of a model checker.
//!
//! - loom, every schedule of a small test: `RUSTFLAGS="--cfg loom" cargo test -p plimsoll-memory
//!   --lib --release loom`
//! - shuttle, many random schedules of a large test: `RUSTFLAGS="--cfg shuttle" cargo test -p
//!   plimsoll-memory --lib --release shuttle`

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
