//! Borders that a run of the store crosses ([`plimsoll_disk::borders`]).

pub use plimsoll_disk::borders::*;

/// Like [`plimsoll_disk::borders::at_next`], for an action that simulates another thread: it may
/// load pages even if the call within which it runs may not.
#[cfg(feature = "testing")]
pub fn at_next(border: Border, deed: impl FnOnce() + 'static) {
    plimsoll_disk::borders::at_next(border, || plimsoll_memory::pool::ResidentOnly::pause(deed));
}
