//! The entries of the log that may be trimmed.
//!
//! Once a user's stream is known, only explicit calls trim the log, so entries ordered after all of
//! these calls had ended are present. Until then the log is trimmed automatically, as far as
//! cursors permit.

/// Upper bound of the trimmed log.
#[derive(Debug)]
pub(super) struct Freed {
    /// The log may be trimmed up to this GLSN.
    to: u64,
    /// A trim is in progress, so the log may be trimmed up to the newest entry.
    is_under_way: bool,
}

impl Default for Freed {
    fn default() -> Self {
        Self { to: 0, is_under_way: true }
    }
}

impl Freed {
    /// A trim begins.
    pub(super) fn asked(&mut self) {
        self.is_under_way = true;
    }

    /// The trim has ended, when this was the newest entry.
    pub(super) fn ended(&mut self, newest: u64) {
        if std::mem::take(&mut self.is_under_way) {
            self.to = newest;
        }
    }

    /// Whether the log may begin here.
    pub(super) fn may_begin_at(&self, first: u64) -> bool {
        self.is_under_way || first <= self.to + 1
    }
}
