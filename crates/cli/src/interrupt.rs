//! Ctrl-C and SIGTERM: the first asks to stop at the next good place, the second stops at once. And
//! the signal that would end the command where an error says more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::{Exit, Failure};

/// A file that outgrows the process's limit is an error of the write from now on; unheard, its
/// signal ends the process.
pub(crate) fn outlive_file_size_limit() -> Result<(), Failure> {
    flag::register(SIGXFSZ, Arc::default()).map(|_| ()).map_err(no_signals)
}

/// Whether somebody asked to stop.
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in hangup.into_iter().chain([SIGINT, SIGTERM]) {
            // In this order: the first signal finds the flag down and raises it, the second finds
            // it up and ends the process.
            flag::register_conditional_shutdown(
                signal,
                Exit::Interrupted as i32,
                Arc::clone(&came),
            )
            .and_then(|_| flag::register(signal, Arc::clone(&came)))
            .map_err(no_signals)?;
        }
        Ok(Self { came })
    }

    /// From now on the first signal ends the command, as the second one does otherwise.
    pub(crate) fn end_at_once(self) {
        // Relaxed: as in `came`.
        self.came.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for a request of the store that may be cancelled: it is set once one came.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.came)
    }

    /// Whether one came.
    pub(crate) fn came(&self) -> bool {
        // Relaxed: nothing but the flag itself passes from the handler.
        self.came.load(Ordering::Relaxed)
    }
}

/// Whether this process was started with a signal ignored, as `nohup` does, to go on when its
/// terminal is closed.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(ignored.trim(), 16).is_ok_and(|ignored| ignored & 1 << (signal - 1) != 0)
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::system(format!("cannot listen for signals: {error}"))
}
