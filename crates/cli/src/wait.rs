//! Waits for the store's lock while another process has the store open for writing.
//!
//! Invariant: Ctrl-C ends the wait. A command that handles it passes its [`Interrupt`]; for any
//! other command the signal ends the process.

use std::time::Duration;

use plimsoll::Error;
use plimsoll_disk::clock::{Clock, SystemClock};

use crate::args::Globals;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::time::show_duration;

/// Interval between attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Calls `open`, which needs exclusive use of the store, until it succeeds or `--wait` is over.
pub(crate) fn for_lock<T>(
    globals: &Globals,
    open: impl FnMut() -> plimsoll::Result<T>,
) -> Result<T, Failure> {
    wait(globals, None, "", open)
}

/// Like [`for_lock`], for an `open` that shares the store.
pub(crate) fn to_share<T>(
    globals: &Globals,
    interrupt: Option<&Interrupt>,
    open: impl FnMut() -> plimsoll::Result<T>,
) -> Result<T, Failure> {
    wait(globals, interrupt, ", or have that process open it shared", open)
}

/// Calls `open` until it succeeds or `--wait` is over. The error then suggests closing the store in
/// the process that has it, or `remedy`.
fn wait<T>(
    globals: &Globals,
    interrupt: Option<&Interrupt>,
    remedy: &str,
    mut open: impl FnMut() -> plimsoll::Result<T>,
) -> Result<T, Failure> {
    let timeout = globals.wait.unwrap_or_default();
    let clock = SystemClock::new();
    let begun = clock.monotonic_nanos();
    loop {
        let locked = match open() {
            Err(Error::Locked { path, pid, who }) => {
                Error::Locked { path, pid, who: advise(&who, remedy) }
            }
            done => return Ok(done?),
        };
        let waited = Duration::from_nanos(clock.monotonic_nanos() - begun);
        let left = timeout.saturating_sub(waited);
        if left.is_zero() {
            return Err(Failure::from(locked).advise(&advice(timeout)));
        }
        if interrupt.is_some_and(Interrupt::was_received) {
            return Err(Failure::new(Exit::Interrupted, "interrupted while waiting for the store"));
        }
        clock.sleep(POLL_INTERVAL.min(left));
    }
}

/// The library advises opening the store read-only, which a waiting command cannot do, or shared,
/// which a command that needs exclusive use cannot do.
fn advise(who: &str, remedy: &str) -> String {
    let who = match remedy.is_empty() {
        true => who.strip_suffix(", or open it shared, too").unwrap_or(who),
        false => who,
    };
    who.strip_suffix(", or open read-only")
        .map_or_else(|| who.to_owned(), |who| format!("{who}{remedy}"))
}

fn advice(timeout: Duration) -> String {
    match timeout.is_zero() {
        true => "With --wait 10s this command waits for it.".to_owned(),
        false => format!("Waited {} (--wait).", show_duration(timeout)),
    }
}
