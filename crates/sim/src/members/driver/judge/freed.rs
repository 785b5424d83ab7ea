//! Which entries of the log may be gone.
//!
//! Once a user's stream is known, the log is freed only by who asks for it: what was ordered after
//! all of these calls had ended is there. Until then it frees itself, as far as cursors permit.

/// What may have been freed.
#[derive(Debug)]
pub(super) struct Freed {
    /// Up to this place.
    to: u64,
    /// And up to the newest, since something is freeing the log.
    is_under_way: bool,
}

impl Default for Freed {
    fn default() -> Self {
        Self { to: 0, is_under_way: true }
    }
}

impl Freed {
    /// Something begins to free the log.
    pub(super) fn asked(&mut self) {
        self.is_under_way = true;
    }

    /// Nothing frees it any more, and the newest entry is this one.
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
