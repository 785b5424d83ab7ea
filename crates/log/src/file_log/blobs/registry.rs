//! The registry of blob files: assigned ids, files that no record names yet, and open files.
//!
//! Invariant: an id is never assigned twice. The highest assigned id is in every record, in every
//! segment's header, and in the file names. An id that is missing there belonged to a discarded
//! file; so that it is not assigned again, each opening leaves a gap above the highest known id
//! ([`plimsoll_disk::random::first_id_after`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

use crate::blob::{Blob, BlobId, BlobRef};
use crate::file_log::env::lock;
use crate::members::Members;

/// Heap bytes of an open blob file, here and in the pool.
const OPEN_LEASE_BYTES: u64 = 512;

/// Open blob files take at most this part of the budget; then the least recently used is closed.
const OPEN_PART: u64 = 128;

/// The blob files of an open log.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The highest number of an id that any node has assigned. After opening, until the first id is
    /// assigned: the number before that id.
    last_id: AtomicU64,
    /// The node of the ids that are assigned here.
    node: AtomicU16,
    /// The members that assign ids together, if several processes may have the log open.
    members: Option<Arc<Members>>,
    state: Mutex<State>,
    open_max: usize,
}

#[derive(Debug)]
struct State {
    /// Files that are being written, or are finished and not named by a record yet.
    unnamed: BTreeSet<BlobId>,
    open: HashMap<BlobId, Opened>,
    clock: u64,
    lease: Lease,
}

#[derive(Debug)]
struct Opened {
    blob: Blob,
    used: u64,
}

impl Registry {
    pub(crate) fn new(
        last_id: u64,
        members: Option<Arc<Members>>,
        budget: &Budget,
    ) -> Result<Self, OutOfBudget> {
        let lease = budget.lease(Kind::Metadata, 0)?;
        let state = State { unnamed: BTreeSet::new(), open: HashMap::new(), clock: 0, lease };
        let open_max = (budget.limit_bytes() / OPEN_PART / OPEN_LEASE_BYTES).max(16) as usize;
        let (last_id, node) = (AtomicU64::new(last_id), AtomicU16::new(0));
        Ok(Self { last_id, node, members, state: Mutex::new(state), open_max })
    }

    /// From now on, ids of this node are assigned.
    pub(crate) fn set_node(&self, node: u16) {
        self.node.store(node, Ordering::Relaxed);
    }

    /// Notes a file that another log has written, before it is copied, so that no sweep removes it
    /// and its number is not assigned here.
    pub(crate) fn begin_copy(&self, id: BlobId) {
        self.last_id.fetch_max(id.number(), Ordering::Relaxed);
        lock(&self.state).unnamed.insert(id);
    }

    /// The highest number that was assigned.
    pub(crate) fn last_id(&self) -> u64 {
        let theirs = self.members.as_ref().map_or(0, |members| members.blob_ids.last_blob_id());
        self.last_id.load(Ordering::Relaxed).max(theirs)
    }

    /// Assigns an id to a file that is about to be written; `None` if all ids are used up. (A
    /// record that names a larger id would be refused by the next opening.)
    pub(crate) fn begin(&self) -> Option<BlobId> {
        if let Some(members) = &self.members {
            let mut state = lock(&self.state);
            // Pinned before the id is assigned, so that no sweep of another process comes in
            // between.
            let oldest = state
                .unnamed
                .first()
                .map_or_else(|| members.blob_ids.last_blob_id() + 1, |id| id.0);
            members.blob_ids.pin_blobs(Some(oldest));
            let id = BlobId(members.blob_ids.next_blob_id(BlobId::LAST.0)?);
            state.unnamed.insert(id);
            return Some(id);
        }
        let next = |last: u64| (last < BlobId::LAST.0).then(|| last + 1);
        let last = self.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let id = BlobId::of(self.node.load(Ordering::Relaxed), last + 1);
        lock(&self.state).unnamed.insert(id);
        Some(id)
    }

    /// Notes that a record names these files.
    pub(crate) fn named(&self, blobs: &[BlobRef]) {
        if !blobs.is_empty() {
            let mut state = lock(&self.state);
            for blob in blobs {
                state.unnamed.remove(&blob.id);
            }
            self.pin(&state);
        }
    }

    /// Publishes to the other members which files may be unnamed.
    fn pin(&self, state: &State) {
        if let Some(members) = &self.members {
            members.blob_ids.pin_blobs(state.unnamed.first().map(|id| id.0));
        }
    }

    /// Notes that the caller has recorded this file itself and that no record will name it.
    pub(crate) fn handed_over(&self, id: BlobId) {
        let mut state = lock(&self.state);
        state.unnamed.remove(&id);
        self.pin(&state);
    }

    /// Whether a file is being written, or is finished and neither named by a record nor handed
    /// over yet.
    pub(crate) fn is_unnamed(&self, id: BlobId) -> bool {
        lock(&self.state).unnamed.contains(&id)
    }

    /// A blob file that is open already.
    pub(crate) fn find_open(&self, id: BlobId) -> Option<Blob> {
        let mut state = lock(&self.state);
        state.clock += 1;
        let now = state.clock;
        let opened = state.open.get_mut(&id)?;
        opened.used = now;
        Some(opened.blob.clone())
    }

    /// Keeps a blob file open; if another thread was faster, its file is returned.
    pub(crate) fn keep_open(&self, id: BlobId, blob: Blob) -> Result<Blob, OutOfBudget> {
        let mut state = lock(&self.state);
        if let Some(known) = state.open.get(&id) {
            return Ok(known.blob.clone());
        }
        if state.open.len() >= self.open_max
            && let Some(oldest) =
                state.open.iter().min_by_key(|(_, opened)| opened.used).map(|(id, _)| *id)
        {
            state.open.remove(&oldest);
        } else {
            state.lease.grow(OPEN_LEASE_BYTES)?;
        }
        let used = state.clock;
        state.open.insert(id, Opened { blob: blob.clone(), used });
        Ok(blob)
    }

    /// Closes a file that is about to be removed.
    pub(crate) fn forget(&self, id: BlobId) {
        let mut state = lock(&self.state);
        if state.unnamed.remove(&id) {
            self.pin(&state);
        }
        let gone = state.open.remove(&id);
        if gone.is_some() {
            state.lease.shrink(OPEN_LEASE_BYTES);
        }
        // Drop the file outside of the lock, because the pool then drops its pages.
        drop(state);
        drop(gone);
    }
}
