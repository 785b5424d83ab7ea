//! Threads of the store: the only place that starts one, beside syncs of several files at a time
//! (`os/sync_files.rs`).

use std::io;
use std::thread::{Builder, JoinHandle};

/// Stack of a background thread in bytes; small, because stacks lie outside the budget.
pub const STACK_BYTES: usize = 512 * 1024;

/// Starts a named thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}
