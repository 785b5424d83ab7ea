//! What is said on stderr, beside the output.
//!
//! Law: a message that cannot be written changes nothing: the exit code says how the command ended,
//! and what was committed stays so.

use std::fmt;
use std::io::{self, Write};

/// Says something, in one write, after the name of the command.
pub(crate) fn say(message: impl fmt::Display) {
    let _ = io::stderr().write_all(format!("plimsoll: {message}\n").as_bytes());
}
