//! Malformed rows that a load skips: their number, and the errors of the first few.

use crate::size::count_of;
use crate::stderr::say;

/// Maximum number of malformed rows that are listed.
const NAMED_MAX: usize = 5;

/// Malformed rows.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    count: u64,
    /// Line and error.
    first: Vec<(u64, String)>,
}

impl LeftOut {
    /// Adds a row.
    pub(super) fn add(&mut self, line: u64, message: String) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((line, message));
        }
    }

    /// The number of malformed rows.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Lists the first ones on stderr.
    pub(super) fn print(&self, name: &str) {
        for (line, message) in &self.first {
            say(format_args!("{name}, line {line}: {message}; this row is left out"));
        }
        let more = self.count - self.first.len() as u64;
        if more > 0 {
            say(format_args!(
                "{} left out",
                count_of(more, "more bad row is", "more bad rows are")
            ));
        }
    }
}
