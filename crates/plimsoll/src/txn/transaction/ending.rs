//! The end of a transaction: metadata for its commit, the commit, or an abort.

use std::sync::{Arc, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;

use super::Transaction;
use crate::txn::commit::CommitOptions;
use crate::txn::gap_search::{DELETIONS_FOR_A_SEARCH, search_for_gaps};
use crate::txn::own_gaps::OwnGaps;
use crate::txn::payload::MAX_METADATA_BYTES;
use crate::txn::pending::Updates;
use crate::txn::resolution::Updated;
use crate::txn::ticket::CommitTicket;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

impl Transaction {
    /// Sets metadata that is stored with the commit, up to 64 KiB: for example author, reason and
    /// origin.
    ///
    /// # Errors
    /// The metadata is too long.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<()> {
        if metadata.len() > MAX_METADATA_BYTES {
            let (bytes, limit_bytes) = (metadata.len() as u64, MAX_METADATA_BYTES as u64);
            return Err(InvalidInput::MetadataTooLong { bytes, limit_bytes }.into());
        }
        let mut kept =
            Buffer::with_capacity(&self.committer.reader.budget, Kind::WriteSet, metadata.len())?;
        kept.extend_from_slice(metadata);
        self.metadata = kept;
        Ok(())
    }

    /// Commits. Returns the commit's GLSN once it is durable (according to the store's durability)
    /// and visible. A transaction that wrote nothing returns the GLSN of its snapshot.
    ///
    /// # Errors
    /// After [`crate::Error::Conflict`], run the transaction again. After other errors nothing was
    /// committed, with two exceptions: after [`crate::Error::Poisoned`], the outcome is unknown
    /// until the store is reopened; after [`crate::Error::Stalled`], the commit may have been
    /// ordered and become durable later.
    pub fn commit(self) -> Result<Glsn> {
        let committer = Arc::clone(&self.committer);
        let first = self.first_of_many_deletions();
        let glsn = self.commit_as(true)?.wait()?;
        // A process that only writes would have to apply everything for this search.
        if let Some(first) = first.filter(|_| !committer.peers.only_writes()) {
            search_for_gaps(&committer, &first);
        }
        Ok(glsn)
    }

    /// The lowest index key in the write set, if the transaction has called `delete` many times.
    fn first_of_many_deletions(&self) -> Option<Vec<u8>> {
        if self.deletions < DELETIONS_FOR_A_SEARCH {
            return None;
        }
        let map = self.writes.map();
        Some(self.writes.at(map.first()?).0.to_vec())
    }

    /// Orders the commit without waiting until it is durable. Later commits are ordered after it.
    ///
    /// # Errors
    /// As for [`Transaction::commit`].
    pub fn commit_submit(self) -> Result<CommitTicket> {
        self.commit_as(false)
    }

    /// Lets the commit be refused with `Conflict` unless the commit's time is before `micros`, in
    /// microseconds since 1970 UTC.
    pub(crate) fn must_commit_before(&mut self, micros: u64) {
        self.expiries.must_commit_before(micros);
    }

    fn commit_as(self, waits: bool) -> Result<CommitTicket> {
        Ok(self.commit_with(None::<std::iter::Empty<_>>, waits)?.0)
    }

    /// Commits with further updates, of keys that the transaction did not write. Returns the
    /// outcomes of the updated keys.
    pub(crate) fn commit_with<'f>(
        self,
        more: Option<impl Iterator<Item = (Vec<u8>, Updates<'f>)>>,
        waits: bool,
    ) -> Result<(CommitTicket, Vec<Updated>)> {
        if self.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        self.record_pops();
        let Self { committer, moment, lens, reads, writes, pending, gaps, .. } = self;
        let Self { metadata, spaces, expiries, .. } = self;
        if writes.is_empty() && pending.is_empty() && more.is_none() {
            return Ok((CommitTicket::of_snapshot(&committer, &moment), Vec::new()));
        }
        let (ordered, updated) = committer.commit_updates(
            &moment,
            (reads.into_inner().unwrap_or_else(PoisonError::into_inner), expiries),
            writes,
            gaps.into_inner().map_or_else(|_| Vec::new(), OwnGaps::into_gaps),
            pending.into_updates().chain(more.into_iter().flatten()),
            CommitOptions { spaces: &spaces, metadata: &metadata, waits, lens: lens.as_deref() },
        )?;
        Ok((CommitTicket::of_commit(&committer, ordered), updated))
    }

    /// Aborts the transaction, like dropping it.
    pub fn abort(self) {}
}
