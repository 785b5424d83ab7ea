//! Ctrl-C and SIGTERM: the first signal requests a stop at the next safe point, the second ends the
//! process at once. Also handles the signal that would hide a write error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::{Exit, Failure};

/// Turns a write beyond the process's file size limit into an error of that write; otherwise the
/// signal ends the process.
pub(crate) fn ignore_file_size_signal() -> Result<(), Failure> {
    flag::register(SIGXFSZ, Arc::default()).map(|_| ()).map_err(no_signals)
}

/// Whether a stop was requested.
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handlers.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in hangup.into_iter().chain([SIGINT, SIGTERM]) {
            // Order matters: the first signal finds the flag clear and sets it, the second finds it
            // set and ends the process.
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

    /// From now on the first signal ends the process, as the second one does otherwise.
    pub(crate) fn exit_on_first_signal(self) {
        // Relaxed: as in `came`.
        self.came.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for cancellable requests of the store; set by the first signal.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.came)
    }

    /// Whether a signal was received.
    pub(crate) fn was_received(&self) -> bool {
        // Relaxed: the handler passes nothing but the flag itself.
        self.came.load(Ordering::Relaxed)
    }
}

/// Whether this process was started with a signal ignored, as `nohup` does to survive the closing
/// of its terminal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(ignored.trim(), 16).is_ok_and(|ignored| ignored & 1 << (signal - 1) != 0)
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::system(format!("cannot listen for signals: {error}"))
}
