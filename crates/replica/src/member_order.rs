//! The order of an open member: that in the bucket of its cluster, which may be moved meanwhile.
//!
//! Invariants: a request that meets the end of the log in a bucket is repeated in the next one, so
//! the store does not see the move. A batch is appended only to a bucket that has its blobs.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use plimsoll::OrderBatch;
use plimsoll::order::{Appended, Order, OrderError};

use crate::bucket_order::BucketOrder;
use crate::cluster::Place;
use crate::error::Result;
use crate::membership::{self, Membership};
use crate::moving::{copy_blob, follow};

/// The order of an open member.
#[derive(Debug)]
pub(crate) struct MemberOrder {
    /// The member's folder.
    path: PathBuf,
    /// The id of the cluster.
    id: u128,
    at: RwLock<Arc<At>>,
    /// Held while the next bucket is found.
    following: Mutex<()>,
}

/// The bucket in which the log is.
#[derive(Debug)]
struct At {
    place: Place,
    order: BucketOrder,
    /// The buckets in which this member was before, since it was opened. A blob that it stored for
    /// a commit that is not appended yet is in one of them.
    before: Vec<Place>,
}

impl MemberOrder {
    pub(crate) fn new(path: PathBuf, id: u128, place: Place) -> Result<Self> {
        let order = place.order()?;
        let at = RwLock::new(Arc::new(At { place, order, before: Vec::new() }));
        Ok(Self { path, id, at, following: Mutex::new(()) })
    }

    /// The first position of the log.
    pub(crate) fn first(&self) -> Result<u64, OrderError> {
        self.at().order.first()
    }

    fn at(&self) -> Arc<At> {
        Arc::clone(&self.at.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls the order, in the next bucket if the log in this one has ended before `position`.
    fn call<T>(
        &self,
        position: u64,
        request: impl Fn(&At) -> Result<T, OrderError>,
    ) -> Result<T, OrderError> {
        // Whether a bucket before this one may have the batch of an append.
        let mut in_doubt = false;
        let doubt = |error: OrderError, in_doubt| match in_doubt {
            true => OrderError::InDoubt(error.to_string()),
            false => error,
        };
        loop {
            let at = self.at();
            let error = match request(&at) {
                Err(error @ (OrderError::Trimmed { .. } | OrderError::InDoubt(_)))
                    if at.order.has_ended(position) =>
                {
                    error
                }
                done => return done.map_err(|error| doubt(error, in_doubt)),
            };
            in_doubt |= matches!(error, OrderError::InDoubt(_));
            match self.follow(&at) {
                Ok(true) => {}
                Ok(false) => return Err(doubt(error, in_doubt)),
                Err(failure) => {
                    let what = format!("this cluster was moved, or is being moved: {failure}");
                    return Err(doubt(OrderError::Unavailable(what), in_doubt));
                }
            }
        }
    }

    /// Goes on in the next bucket. False if the cluster was not moved.
    fn follow(&self, at: &Arc<At>) -> Result<bool> {
        let _one = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(at, &self.at()) {
            // Another thread has found it.
            return Ok(true);
        }
        let Some(place) = follow(&at.place, self.id)? else { return Ok(false) };
        let order = place.order()?;
        place.restore_folders()?;
        let url = place.url.clone();
        membership::write(&self.path, &Membership { url, id: self.id })?;
        let mut before = at.before.clone();
        before.push(at.place.clone());
        let next = Arc::new(At { place, order, before });
        *self.at.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(true)
    }
}

impl At {
    /// Copies the blobs of a batch that were stored in an earlier bucket.
    fn bring_blobs(&self, batch: &[u8]) -> Result<(), OrderError> {
        if self.before.is_empty() {
            return Ok(());
        }
        let read = OrderBatch::read(batch.to_vec(), &mut |_, _, _| {});
        let read = read.map_err(|error| OrderError::Corrupt(error.to_string()))?;
        for hash in &read.blobs {
            let mut brought = Ok(());
            for place in self.before.iter().rev() {
                brought = copy_blob(place, &self.place, hash);
                if brought.is_ok() {
                    break;
                }
            }
            brought.map_err(|error| OrderError::Unavailable(error.to_string()))?;
        }
        Ok(())
    }
}

impl Order for MemberOrder {
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        self.call(position, |at| {
            at.bring_blobs(batch)?;
            at.order.append(position, batch)
        })
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        self.call(position, |at| at.order.read(position))
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        self.at().order.wait(position, timeout)
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError> {
        self.at().order.put_blob(hash, bytes)
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        self.at().order.get_blob(hash)
    }
}
