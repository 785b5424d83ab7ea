//! The thread that restores and saves, and how it is told to end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::thread::spawn;

use crate::index::Progress;
use crate::warm::{Core, lock};

/// The longest sleep: clocks have bounds.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether the store is closing.
#[derive(Debug, Default)]
pub(super) struct Signal {
    closing: Mutex<bool>,
    called: Condvar,
}

impl Signal {
    pub(super) fn close(&self) {
        *lock(&self.closing) = true;
        self.called.notify_all();
    }

    /// Sleeps, unless the store is closing; whether it is.
    fn sleep(&self, patience: Duration) -> bool {
        let closing = lock(&self.closing);
        let slept = self.called.wait_timeout_while(closing, patience.min(SLEEP_MAX), |closing| !*closing);
        *slept.unwrap_or_else(PoisonError::into_inner).0
    }
}

pub(super) fn start(core: &Arc<Core>) -> io::Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    spawn("plimsoll-warm", move || {
        while !core.signal.sleep(core.patience()) {
            while core.step() == Progress::Worked && !core.signal.sleep(core.patience()) {}
        }
    })
}
