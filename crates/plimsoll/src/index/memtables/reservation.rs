//! Applies commits: inserts their versions into the active memtable, in room reserved in advance.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::sorted::{Inserter, SortedMap};
use smallvec::SmallVec;

use crate::index::env::counters::Counters;
use crate::index::gaps::{Gaps, WriteSpan};
use crate::index::sources::source::Memtable;
use crate::types::error::Result;
use crate::types::version::{MAX_POINTER_BYTES, Stored};

/// Room in the active memtable for the versions of the next commits. The unused part is returned on
/// drop.
pub(crate) struct Reservation<'a> {
    counters: &'a Counters,
    gaps: &'a Gaps,
    /// Runs hold everything up to this GLSN.
    held: Glsn,
    memtable: Arc<Memtable>,
    left_bytes: usize,
}

/// When inserted versions become visible to lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Immediately.
    Now,
    /// After [`super::Memtables::settle`]: several times cheaper for many versions in random order.
    Later,
}

/// Number of versions whose places in the memtable are prefetched together.
const FETCHED_AT_ONCE: usize = 8;

impl<'a> Reservation<'a> {
    /// Room of `bytes`, reserved in `memtable`, the active one. Runs hold everything up to `held`.
    pub(crate) fn new(
        counters: &'a Counters,
        gaps: &'a Gaps,
        held: Glsn,
        memtable: &Arc<Memtable>,
        bytes: usize,
    ) -> Self {
        Self { counters, gaps, held, memtable: Arc::clone(memtable), left_bytes: bytes }
    }

    /// Bytes not used yet.
    pub(crate) fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Inserts the versions of the commit at `glsn`, in key order. Its replay reads `log_bytes` of
    /// the log. Replayed versions that a run already holds are skipped.
    ///
    /// # Errors
    /// The first error of `versions`. The versions before it are inserted.
    pub(crate) fn apply<'v>(
        &mut self,
        glsn: Glsn,
        log_bytes: u64,
        link: Link,
        versions: impl Iterator<Item = Result<(&'v [u8], Stored<'v>)>> + Clone,
    ) -> Result<()> {
        self.memtable.add_log_bytes(log_bytes);
        if glsn <= self.held {
            return Ok(());
        }
        let (memtable, left_bytes) = (Arc::clone(&self.memtable), &mut self.left_bytes);
        let mut inserter = memtable.inserter(glsn);
        let (again, mut span) = (versions.clone(), WriteSpan::default());
        let (mut head, mut bytes_in) = (Vec::with_capacity(MAX_POINTER_BYTES), 0);
        let mut blob_bytes = 0;
        let mut insert = |inserter: &mut Inserter<'_>, (key, stored): (&[u8], Stored<'_>)| {
            span.add(key, stored != Stored::Deleted);
            if let Stored::InBlob { len, .. } = stored.value() {
                blob_bytes += len;
            }
            head.clear();
            let body = stored.encode_head(&mut head);
            let (value, bytes) = ([&head[..], body], head.len() + body.len());
            let inserted = match link {
                Link::Now => inserter.insert(key, glsn.0, value),
                Link::Later => inserter.defer(key, glsn.0, value),
            };
            inserted.expect("reserve reserved the memory");
            *left_bytes = left_bytes.saturating_sub(SortedMap::entry_bytes(key.len(), bytes));
            bytes_in += (key.len() + bytes) as u64;
        };
        let mut versions = versions.peekable();
        let mut next: SmallVec<[_; FETCHED_AT_ONCE]> = SmallVec::new();
        let mut done = Ok(());
        while done.is_ok() && versions.peek().is_some() {
            for version in versions.by_ref().take(FETCHED_AT_ONCE) {
                match version {
                    Ok(version) => next.push(version),
                    Err(error) => {
                        done = Err(error);
                        break;
                    }
                }
            }
            if link == Link::Now && next.len() > 1 {
                inserter.fetch(
                    &next.iter().map(|(key, _)| *key).collect::<SmallVec<[_; FETCHED_AT_ONCE]>>(),
                );
            }
            next.drain(..).for_each(|version| insert(&mut inserter, version));
        }
        self.memtable.add_blob_bytes(blob_bytes);
        Counters::add(&self.counters.bytes_in, bytes_in);
        self.gaps.commit(glsn, span, |put| {
            again
                .map_while(Result::ok)
                .filter(|(_, stored)| *stored != Stored::Deleted)
                .for_each(|(key, _)| put(key));
        });
        done
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.memtable.map().unreserve(self.left_bytes);
    }
}
