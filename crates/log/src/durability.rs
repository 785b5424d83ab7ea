//! The durability that an append waits for.

use std::time::Duration;

/// When an append returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the append survives a power cut. One sync serves all waiters.
    #[default]
    Sync,
    /// As soon as the append is ordered. It is written and synced within about [`BUFFERED_DELAY`],
    /// and at close. A crash of the process or of the machine may lose the appends since the last
    /// sync, always a suffix of the order.
    Buffered,
}

/// The time for which a buffered append may stay unsynced.
pub const BUFFERED_DELAY: Duration = Duration::from_millis(200);
