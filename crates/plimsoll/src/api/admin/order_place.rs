//! How far a replica has applied its order.

use std::path::Path;

use plimsoll_log::glsn::Glsn;

use crate::txn::replica::place::{Place, PlaceFile};
use crate::types::error::Result;
use crate::types::options::Options;

/// Where a replica stands in its [order](crate::order): behind the batch at `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderPlace {
    /// The last position that was applied; 0 before the first.
    pub position: u64,
    /// The last GLSN of the batches up to there.
    pub glsn: Glsn,
    /// The chain hash of the log at that GLSN; 0 if it is not known.
    pub chain: u64,
    /// The hash of the batch at the position, with which the batch ends.
    pub hash: [u8; 32],
    /// The number of the replica, which no other one has; 0 before it has one.
    pub replica: u16,
    /// The highest number of any replica, as far as this one knows.
    pub replicas: u16,
}

impl From<Place> for OrderPlace {
    fn from(place: Place) -> Self {
        let Place { position, glsn, chain, hash, replica, replicas, .. } = place;
        Self { position, glsn, chain, hash, replica, replicas }
    }
}

/// How far the replica in a folder has applied its order, as the replica has recorded it last. A
/// replica records this within a second after it has applied something, and when it is closed.
/// `None` if the store is no replica. Reads one file, also while the store is open.
///
/// # Errors
/// The disk; [`crate::Error::Corrupt`].
///
/// # Examples
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// assert_eq!(plimsoll::recorded_order_place(dir.path())?, None);
/// # Ok(())
/// # }
/// ```
pub fn recorded_order_place(path: impl AsRef<Path>) -> Result<Option<OrderPlace>> {
    let file = PlaceFile::new(&Options::new().disk, path.as_ref());
    Ok(file.read()?.map(OrderPlace::from))
}
