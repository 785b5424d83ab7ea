//! The interface to a log outside of the store that orders the commits of several members.
//!
//! An [`Order`] moves bytes. The format of a batch is the store's, so every order is verified in
//! the same way.

use std::fmt::Debug;
use std::io::Read;
use std::time::Duration;

/// The outcome of [`Order::append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The batch is at the position, and durable.
    Done,
    /// Another batch is at the position.
    Taken,
}

/// Why an order failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The order cannot be reached; nothing was appended.
    #[error("{0}")]
    Unavailable(String),
    /// It is unknown whether the batch was appended.
    #[error("{0}")]
    InDoubt(String),
    /// The order no longer has this position.
    #[error("the order begins at position {first}")]
    Trimmed {
        /// The first position that it has.
        first: u64,
    },
    /// The order returned bytes that it cannot have been given.
    #[error("{0}")]
    Corrupt(String),
}

/// An ordered sequence of batches, to which several members append.
pub trait Order: Send + Sync + Debug {
    /// Appends `batch` at `position` if nothing is there yet. Returns only when it is known which.
    ///
    /// # Errors
    /// The order.
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError>;

    /// The batch at `position`; `None` if there is none yet.
    ///
    /// # Errors
    /// The order.
    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError>;

    /// Returns once there may be a batch at `position`, at the latest after `timeout`.
    ///
    /// # Errors
    /// The order.
    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError>;

    /// Stores content under its BLAKE3 hash, for values that are too large for a batch; durable
    /// when it returns.
    ///
    /// # Errors
    /// The order, or `bytes`.
    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError>;

    /// Content by its hash; `None` if there is none.
    ///
    /// # Errors
    /// The order.
    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError>;
}
