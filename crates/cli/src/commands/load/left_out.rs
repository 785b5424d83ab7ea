//! Bad rows that a load leaves out: how many there are, and what is wrong with the first ones.

use crate::size::count_of;
use crate::stderr::say;

/// Maximum number of bad rows that are named.
const NAMED_MAX: usize = 5;

/// Bad rows.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    count: u64,
    /// Line and fault.
    first: Vec<(u64, String)>,
}

impl LeftOut {
    /// One more.
    pub(super) fn add(&mut self, line: u64, message: String) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((line, message));
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Names the first ones on stderr.
    pub(super) fn tell(&self, name: &str) {
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
