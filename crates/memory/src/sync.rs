//! The atomics of this crate's lock-free parts: those of `std`, or those of loom when it tries out every order of events
//! (`RUSTFLAGS="--cfg loom" cargo test -p plimsoll-memory --lib --release loom`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
