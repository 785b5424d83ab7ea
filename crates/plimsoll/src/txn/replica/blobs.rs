//! Blob files of a replica's records: stored in the order before the batch that names them is
//! appended, and copied from the order before another replica applies that batch.
//!
//! Invariant: a record is written to the local log only when its blob files are on this disk, and
//! have the hashes that its batch states.

use std::io::{self, Read};
use std::sync::atomic::Ordering;

use plimsoll_log::blob::{BlobId, BlobRef};

use crate::order::{OrderError, PLACE_FILE};
use crate::txn::replica::Replica;
use crate::txn::replica::access::Deadline;
use crate::txn::replica::batch::{Hash, NamedBlob};
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;

/// Bytes that are hashed at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Reads bytes and hashes them.
struct Hashing<R> {
    bytes: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.bytes.read(into)?;
        self.hasher.update(&into[..n]);
        Ok(n)
    }
}

/// The blob files of a commit, once they are in the order.
#[derive(Debug)]
pub(super) struct StoredBlobs {
    ids: Vec<BlobId>,
    pub(super) hashes: Vec<Hash>,
    /// The position of this replica in the order before the files were stored.
    position: u64,
}

impl Replica {
    /// Stores the blob files of a commit in the order.
    pub(super) fn put_blobs(&self, blobs: &[BlobRef]) -> Result<StoredBlobs> {
        let position = lock(&self.place).position;
        let ids: Vec<BlobId> = blobs.iter().map(|blob| blob.id).collect();
        let put = |id: &BlobId| self.put_blob(*id, self.access.deadline());
        let hashes = ids.iter().map(put).collect::<Result<Vec<_>>>()?;
        Ok(StoredBlobs { ids, hashes, position })
    }

    /// Whether files of the same names may have replaced those of a commit. This happens if the
    /// disk of this replica was set back: the order then has batches of an earlier opening that the
    /// disk has lost, and the blob files of those batches have the same ids.
    pub(super) fn may_be_replaced(&self, blobs: &StoredBlobs) -> bool {
        !blobs.ids.is_empty() && self.own_elsewhere.load(Ordering::Acquire) > blobs.position
    }

    /// Fails if the files of a commit may have been replaced.
    ///
    /// # Errors
    /// [`Error::Unavailable`]. If the commit is tried again, its files get other names.
    pub(super) fn check_stored(&self, blobs: &StoredBlobs) -> Result<()> {
        match blobs.ids.first().filter(|_| self.may_be_replaced(blobs)) {
            Some(id) => Err(self.access.replaced(*id)),
            None => Ok(()),
        }
    }

    /// Stores a finished blob file in the order; returns its hash.
    fn put_blob(&self, id: BlobId, deadline: Deadline) -> Result<Hash> {
        let hash = self.hash_of_file(id)?;
        let mut unreadable = None;
        let stored = self.access.call(0, deadline, |order| {
            let file = self.applier.log.read_blob_file(id).map_err(|error| {
                // Not a failure of the order, so it is not repeated.
                let what = error.to_string();
                unreadable = Some(error);
                OrderError::Corrupt(what)
            });
            order.put_blob(hash, &mut file?)
        });
        if let Some(error) = unreadable {
            return Err(Error::of_log(error));
        }
        stored?;
        Ok(hash)
    }

    fn hash_of_file(&self, id: BlobId) -> Result<Hash> {
        let mut file = self.applier.log.read_blob_file(id).lift()?;
        let (mut hasher, mut piece) = (blake3::Hasher::new(), vec![0; PIECE_BYTES]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(*hasher.finalize().as_bytes()),
                n => hasher.update(&piece[..n]),
            };
        }
    }

    /// Copies a blob file of another replica from the order, unless it is here.
    pub(super) fn fetch_blob(
        &self,
        position: u64,
        named: &NamedBlob,
        deadline: Deadline,
    ) -> Result<()> {
        let (log, id) = (&self.applier.log, named.blob.id);
        // No sweep removes the file until its record is in the log.
        log.expect_blob(id);
        match self.hash_of_file(id) {
            // The file is here already, but may have been left unsynced.
            Ok(hash) if hash == named.hash => return log.sync_blob(id).lift(),
            // A file with other contents was left by a process that was killed, unless a record or
            // a run of this store names it.
            Ok(_) | Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
        let is_kept = log.has_blob_file(id).lift()?
            && (self.applier.index.runs.must_keep_blob(id) || log.is_blob_named(id).lift()?);
        if is_kept {
            return Err(Error::Forked {
                glsn: None,
                message: format!(
                    "the batch at position {position} of the order names the blob file {}, but \
                     this replica has another file of that name: two replicas were made by copying \
                     one folder with its file `{}`; remove that file from one of the two folders",
                    id.file_name(),
                    PLACE_FILE
                ),
            });
        }
        let damaged = |what: &str| {
            Error::corrupt(format!(
                "the blob that the batch at position {position} of the order names as {} {what}; \
                 commits are refused until the order has it, reads go on",
                id.file_name()
            ))
        };
        let found = self.access.call(position, deadline, |order| order.get_blob(named.hash))?;
        let bytes = found.ok_or_else(|| damaged("is missing"))?;
        let mut bytes = Hashing { bytes, hasher: blake3::Hasher::new() };
        log.copy_blob(named.blob, &mut bytes).map_err(|error| match Error::of_log(error) {
            Error::Corrupt { .. } => damaged("is damaged"),
            Error::Io { kind: io::ErrorKind::UnexpectedEof, .. } => damaged("is cut"),
            error => error,
        })?;
        if *bytes.hasher.finalize().as_bytes() != named.hash {
            log.discard_blob(id).lift()?;
            return Err(damaged("does not have the hash that the batch states"));
        }
        Ok(())
    }
}
