//! Threads of the store: the only place that starts threads, except for concurrent syncs of several
//! files (`os/sync_files.rs`).

use std::io;
use std::thread::{Builder, JoinHandle};

/// Stack size of a background thread in bytes; small, because the memory budget does not cover
/// stacks.
pub const STACK_BYTES: usize = 512 * 1024;

/// Starts a named thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}
