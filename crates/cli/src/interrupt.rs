//! Ctrl-C and SIGTERM: the first asks to stop at the next good place, the second stops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Failure};

/// Whether somebody asked to stop.
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up and ends the process.
            flag::register_conditional_shutdown(signal, Exit::Interrupted as i32, Arc::clone(&came))
                .and_then(|_| flag::register(signal, Arc::clone(&came)))
                .map_err(|error| Failure::system(format!("cannot listen for signals: {error}")))?;
        }
        Ok(Self { came })
    }

    /// Whether one came.
    pub(crate) fn came(&self) -> bool {
        // Relaxed: nothing but the flag itself passes from the handler.
        self.came.load(Ordering::Relaxed)
    }
}
