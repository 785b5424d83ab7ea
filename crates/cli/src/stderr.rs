//! Messages on stderr.
//!
//! Invariant: a message that cannot be written changes nothing. The exit code reports the outcome,
//! and committed data stays.

use std::fmt;
use std::io::{self, Write};

/// Prints a message in one write, after the name of the command.
pub(crate) fn say(message: impl fmt::Display) {
    let _ = io::stderr().write_all(format!("plimsoll: {message}\n").as_bytes());
}
