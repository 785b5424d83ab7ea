//! The batches of an order, as a repair of the order reads them, and the batch with which a
//! repaired order begins.

use plimsoll_disk::random::entropy;
use plimsoll_log::glsn::Glsn;

use crate::txn::replica::batch::{Batch, BatchBuilder, Head};
use crate::types::error::Result;

/// A batch of an order.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderBatch {
    /// The id of the log of every replica.
    pub order_id: u128,
    /// Its position.
    pub position: u64,
    /// The hash of the batch before it.
    pub previous: [u8; 32],
    /// Its own hash.
    pub hash: [u8; 32],
    /// The GLSN of its first entry.
    pub first: Glsn,
    /// The number of its entries; the last one has the GLSN `first + entries - 1`.
    pub entries: u64,
    /// The chain hash of the log before it; 0 if that log is empty.
    pub chain: u64,
    /// The highest number of a replica so far.
    pub replicas: u16,
    /// The hashes of the files of its blobs.
    pub blobs: Vec<[u8; 32]>,
}

impl OrderBatch {
    /// Reads a batch, and calls `each` with its entries.
    ///
    /// # Errors
    /// It is damaged, or a newer version wrote it.
    pub fn read(bytes: Vec<u8>, each: &mut dyn FnMut(Glsn, u32, &[u8])) -> Result<Self> {
        let batch = Batch::decode(bytes).map_err(|refusal| refusal.at(0))?;
        let Head { order_id, position, previous, first, chain, replicas, .. } = batch.head;
        let (mut entries, mut blobs) = (0, Vec::new());
        for record in batch.records() {
            let record = record.map_err(|refusal| refusal.at(position))?;
            blobs.extend(record.blobs.iter().map(|named| named.hash));
            for (stream, payload) in &record.entries {
                each(Glsn(first.0 + entries), stream.0, payload);
                entries += 1;
            }
        }
        let hash = batch.hash;
        Ok(Self { order_id, position, previous, hash, first, entries, chain, replicas, blobs })
    }

    /// The bytes of a batch without records at a position, with which an order continues after
    /// the end of a log. No replica has a number above `replicas`.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn beginning(
        order_id: u128,
        position: u64,
        previous: [u8; 32],
        end: (Glsn, u64),
        replicas: u16,
    ) -> Result<Vec<u8>> {
        let (end, chain) = end;
        let head = Head {
            append_micros: 0,
            order_id,
            position,
            previous,
            nonce: entropy()?,
            first: end.next(),
            // No replica has this number from then on: each gets a new one.
            replica: replicas,
            replicas,
            count: 0,
            chain,
        };
        Ok(BatchBuilder::new(&head).finish())
    }
}
