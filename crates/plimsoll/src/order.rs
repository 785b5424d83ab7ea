//! The interface to a log outside of the store that orders the commits of several replicas.
//!
//! An [`Order`] is a sequence of batches. A replica is a store that was opened with
//! [`Options::order`](crate::Options::order): it appends its commits to the order, in batches, and
//! applies the batches of all replicas. Every replica holds the whole store.
//!
//! An order moves bytes. The format of a batch is the store's, and each batch contains a hash of
//! itself, its position and the hash of the batch before it, so that every order is verified in the
//! same way. A replica refuses a batch that does not fit, names its position, and its reads go on.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod memory;

use std::fmt::Debug;
use std::io::Read;
use std::time::Duration;

/// The file in a store's folder that names its cluster. A store that has it becomes a replica when
/// it is first opened with its order, and must not have commits of its own before.
#[doc(hidden)]
pub const MEMBER_FILE: &str = "CLUSTER";

/// The file in a replica's folder that records its place in the order.
#[doc(hidden)]
pub const PLACE_FILE: &str = "REPLICA";

/// The name under which the place is written.
#[doc(hidden)]
pub const PLACE_DRAFT: &str = "REPLICA.tmp";

/// The outcome of [`Order::append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The batch is at the position, and durable.
    Done,
    /// Another batch is at the position, so the given one never will be. If an earlier try of the
    /// same call may have appended the given batch, the implementation has compared the two.
    Taken,
}

/// Why an order failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The order cannot be reached. Nothing was appended.
    #[error("{0}")]
    Unavailable(String),
    /// It is unknown whether the batch was appended. The same batch may be appended at the same
    /// position again, which ends the doubt.
    #[error("{0}")]
    InDoubt(String),
    /// The order no longer has this position.
    #[error("the order was trimmed; it now begins at position {first}")]
    Trimmed {
        /// The first position that it has.
        first: u64,
    },
    /// The order returned bytes that it was not given.
    #[error("{0}")]
    Corrupt(String),
}

/// A sequence of batches to which several replicas append. Its positions are dense and begin at 1.
///
/// Once a call has returned that a batch is at a position, every later [`Order::read`] of any
/// replica returns it. Calls come from several threads at once.
pub trait Order: Send + Sync + Debug {
    /// Appends `batch` at `position` if nothing is there yet. Returns an outcome only once it is
    /// certain. A position never has more than one batch, and has none before the previous position
    /// has one.
    ///
    /// # Errors
    /// [`OrderError::Trimmed`] and [`OrderError::Corrupt`]: nothing was appended.
    /// [`OrderError::Unavailable`]: nothing was appended, and nothing will be.
    /// [`OrderError::InDoubt`]: `batch` is at the position, or may be there later, unless another
    /// batch is appended there first.
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError>;

    /// The batch at `position`; `None` if there is none yet.
    ///
    /// # Errors
    /// [`OrderError::Trimmed`], [`OrderError::Unavailable`], [`OrderError::Corrupt`].
    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError>;

    /// Returns once there may be a batch at `position`, at the latest after `timeout`.
    ///
    /// # Errors
    /// As for [`Order::read`].
    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError>;

    /// Stores content under its BLAKE3 hash, for values that are too large for a batch; durable
    /// when it returns. Does nothing if the order has it already.
    ///
    /// # Errors
    /// [`OrderError::Unavailable`]; also an error of `bytes`.
    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError>;

    /// Content by its hash; `None` if there is none.
    ///
    /// # Errors
    /// As for [`Order::read`].
    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError>;
}
