//! Borders that a run of the store crosses ([`plimsoll_disk::borders`]).

pub use plimsoll_disk::borders::*;

/// [`plimsoll_disk::borders::at_next`], for an action that stands for another thread's: it may load
/// pages although the call that it runs in may not.
#[cfg(feature = "testing")]
pub fn at_next(border: Border, deed: impl FnOnce() + 'static) {
    plimsoll_disk::borders::at_next(border, || plimsoll_memory::pool::ResidentOnly::pause(deed));
}
