//! The commits of a replica: a store whose commits are ordered by an [`Order`](crate::order::Order)
//! outside of it.
//!
//! A commit is checked against everything applied here and appended to the order in a batch
//! ([`group`]). If the order already has another batch at that position, that one is applied and
//! the commit is checked again. Otherwise the batch is applied like one of another replica: its
//! records go to the local log, their versions to the memtable. Nothing is applied before the order
//! has it, so nothing is undone.
//!
//! The order makes commits durable. The local log is synced later; a replica that was killed
//! continues from its recorded place ([`place`]) and applies again what its log lacks.
//!
//! Locks, in this order: `walk`, the commit lock, those of the group and of the place.

pub(crate) mod access;
pub(crate) mod batch;
mod blobs;
pub(crate) mod group;
pub(crate) mod joining;
pub(crate) mod place;
mod saving;
mod turns;
mod walk;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_log::blob::BlobRef;
use plimsoll_log::draft::{Draft, Ticket};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;

use crate::txn::applier::Applier;
use crate::txn::apply::When;
use crate::txn::commit::{Commit, Ordered};
use crate::txn::other_processes::Peers;
use crate::txn::replica::access::{Access, Deadline};
use crate::txn::replica::batch::{BatchBuilder, FULL_BYTES, Hash, Head};
use crate::txn::replica::blobs::StoredBlobs;
use crate::txn::replica::group::{Entered, Group, OpenBatch, Outcome, Sending, Slot};
use crate::txn::replica::place::Place;
use crate::txn::replica::saving::Saving;
use crate::txn::replica::walk::Walk;
use crate::txn::sequencer::CommitLock;
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;

/// The value of `checked_nanos` until the end of the order is reached for the first time.
const NEVER: u64 = u64::MAX;

/// The difference between the times at which two replicas make a commit that any replica could make
/// in an idle store ([`Peers::idle_delay_micros`]). The later replica can then apply the commit of
/// the earlier one, and need not make its own.
const IDLE_DELAY_MICROS: u64 = 60_000_000;

/// The number of different times at which replicas make such a commit.
const IDLE_DELAYS: u16 = 32;

/// The copies of a batch that are in memory at once while it is appended. While it is built, it
/// grows by doubling.
const COPIES: u64 = 3;

/// Memtables have room for this many times the bytes of a batch before it is appended.
const ROOM_FACTOR: usize = 2;

/// The heap bytes of a written key in [`OpenBatch::written`], without those of the key itself.
const KEY_BYTES: u64 = 80;

/// The implementation of [`Peers`] for a replica.
pub(crate) struct Replica {
    pub(crate) access: Access,
    applier: Applier,
    group: Group,
    /// Locked while batches are appended, read or applied.
    walk: Mutex<Walk>,
    /// The place up to which batches are applied. Changed under `walk` and the commit lock.
    place: Mutex<Place>,
    saving: Saving,
    /// A read first reads the order if its end was last reached longer ago than this; `None`: no
    /// read does.
    max_staleness: Option<Duration>,
    /// When the end of the order was last reached, in nanoseconds; or [`NEVER`].
    checked_nanos: AtomicU64,
    /// A random number of this opening. Combined with the number of a batch, it gives the batch's
    /// nonce.
    nonce: u128,
    /// The number of batches that this opening has begun.
    batches: AtomicU64,
    /// How long an append takes, as batches tell other replicas.
    append_micros: AtomicU32,
    /// The last position applied here whose batch another opening of this replica has appended.
    own_elsewhere: AtomicU64,
    /// Bytes of batches of others since the log was last freed.
    unfreed_bytes: AtomicU64,
    /// The size of a segment of the log.
    segment_bytes: u64,
    is_closed: AtomicBool,
}

/// An item that joins a batch.
enum Item<'a, 'c> {
    Commit(&'a mut Commit<'c>, &'a StoredBlobs),
    /// Entries that are not a transaction.
    Entries(&'a Draft<'a>),
}

impl Item<'_, '_> {
    fn with_draft<T>(
        &self,
        take: impl FnOnce(&Draft<'_>, &[Hash]) -> Result<T, LogError>,
    ) -> Result<T> {
        match self {
            Self::Commit(commit, blobs) => commit.with_draft(|draft| take(draft, &blobs.hashes)),
            Self::Entries(draft) => take(draft, &[]).lift(),
        }
    }
}

/// The result of an attempt to join the open batch.
enum Joined {
    /// The item is in the open batch.
    In { ticket: Ticket, is_first: bool, slot: Arc<Slot> },
    /// The item changes nothing.
    Nothing(Glsn),
    /// The item can join once the open batch has ended.
    Later(Arc<Slot>),
    /// The item must enter again.
    Again,
    /// The local log and the recorded place differ, so the order must be read first.
    Behind,
}

impl Replica {
    /// Orders `item`, which is checked under the commit lock. Returns its ticket; if it changes
    /// nothing, the GLSN at which it was checked, as the inner error.
    fn order_item(
        &self,
        mut item: Item<'_, '_>,
        deadline: Deadline,
    ) -> Result<Result<Ticket, Glsn>> {
        let (begun_micros, mut losses) = (self.access.clock.wall_micros(), 0);
        loop {
            if losses > 0 && self.access.has_passed(deadline) {
                return Err(self.access.outrun(begun_micros, losses));
            }
            let entered = self.group.enter();
            let held = self.applier.sequencer.lock()?;
            let joined = self.join(&held, &entered, &mut item, deadline)?;
            drop(held);
            drop(entered);
            match joined {
                Joined::Nothing(at) => return Ok(Err(at)),
                Joined::Later(slot) => drop(slot.wait()),
                Joined::Again => {}
                Joined::Behind => self.catch_up_with_order()?,
                Joined::In { ticket, is_first, slot } => {
                    if is_first {
                        self.lead();
                    }
                    match slot.wait() {
                        Outcome::Done => return Ok(Ok(ticket)),
                        Outcome::Again => losses += 1,
                        Outcome::Failed(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Checks `item` against everything applied and adds it to the open batch.
    fn join(
        &self,
        held: &CommitLock<'_>,
        _entered: &Entered<'_>,
        item: &mut Item<'_, '_>,
        deadline: Deadline,
    ) -> Result<Joined> {
        let (place, next) = (*lock(&self.place), self.applier.log.bounds().next);
        {
            let mut state = self.group.state();
            if !state.may_join() {
                return Ok(Joined::Again);
            }
            if let Some(open) = state.open.as_mut().filter(|it| it.position != place.position + 1) {
                // Batches of other replicas were applied since the open batch was begun.
                open.is_closed = true;
                let slot = Arc::clone(&open.slot);
                drop(state);
                self.group.notify();
                return Ok(Joined::Later(slot));
            }
        }
        if place.glsn.next() != next {
            return Ok(Joined::Behind);
        }
        if let Item::Commit(_, blobs) = item {
            self.check_stored(blobs)?;
        }
        self.applier.apply(held, next, When::Live)?;
        if let Item::Commit(commit, _) = item {
            commit.validate()?;
        }
        // Only holders of the commit lock add to the open batch, but its leader may close it.
        let mut state = self.group.state();
        if !state.may_join() {
            return Ok(Joined::Again);
        }
        if let Item::Commit(commit, _) = item {
            if let Some(open) = &state.open
                && commit.depends_on(&|lower, upper| open.writes_in(lower, upper))
            {
                return Ok(Joined::Later(Arc::clone(&open.slot)));
            }
            if commit.changes_nothing() {
                return Ok(Joined::Nothing(self.applier.sequencer.applied()));
            }
        }
        let bytes = item.with_draft(|draft, _| {
            self.applier.log.check_draft(draft)?;
            Ok(BatchBuilder::bytes_of(draft))
        })?;
        let is_first = state.open.is_none();
        if let Some(open) = state.open.as_mut() {
            let is_too_long = open.builder.len() + bytes > FULL_BYTES;
            if is_too_long || open.lease.grow(COPIES * bytes as u64).is_err() {
                open.is_closed = true;
                let slot = Arc::clone(&open.slot);
                drop(state);
                self.group.notify();
                return Ok(Joined::Later(slot));
            }
        }
        let mut begun = None;
        if is_first {
            begun = Some(self.begin_batch(&place, COPIES * bytes as u64, deadline)?);
        }
        let open = begun.as_mut().or(state.open.as_mut()).expect("begun above if there was none");
        let last_micros = open.last_micros;
        let ticket = item.with_draft(|draft, hashes| {
            let micros = self.applier.log.time_after(last_micros, draft.times)?;
            let (first, last) = open.builder.push(draft, hashes, micros);
            Ok(Ticket { first, last, timestamp_micros: micros })
        })?;
        open.last_micros = ticket.timestamp_micros;
        open.deadline = open.deadline.max(deadline);
        if let Item::Commit(commit, _) = item {
            if commit.ends_batch() {
                open.is_closed = true;
            } else {
                let mut bytes = 0;
                commit.for_each_written(&mut |key| {
                    bytes += key.len() as u64 + KEY_BYTES;
                    open.written.insert(key.to_vec());
                });
                open.is_closed |= open.lease.grow(bytes).is_err();
            }
        }
        open.is_closed |= open.builder.len() >= FULL_BYTES;
        let (slot, is_closed) = (Arc::clone(&open.slot), open.is_closed);
        if begun.is_some() {
            state.open = begun;
        }
        drop(state);
        if is_closed {
            self.group.notify();
        }
        Ok(Joined::In { ticket, is_first, slot })
    }

    fn begin_batch(&self, place: &Place, bytes: u64, deadline: Deadline) -> Result<OpenBatch> {
        Ok(OpenBatch {
            position: place.position + 1,
            builder: BatchBuilder::new(&self.head_after(place)),
            written: Default::default(),
            last_micros: self.applier.log.last_micros(),
            is_closed: false,
            deadline,
            lease: self.applier.budget.lease(Kind::Staging, bytes)?,
            slot: Arc::default(),
        })
    }

    /// The head of a batch that follows `place`, where the log ends.
    fn head_after(&self, place: &Place) -> Head {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        Head {
            append_micros: self.append_micros.load(Ordering::Relaxed),
            order_id: place.order_id,
            position: place.position + 1,
            previous: place.hash,
            nonce: self.nonce ^ u128::from(number),
            first: place.glsn.next(),
            replica: place.replica,
            replicas: place.replicas,
            count: 0,
            chain: self.applier.log.end_chain(),
        }
    }

    /// Appends the open batch, which this thread has begun, and tells its commits the outcome.
    fn lead(&self) {
        let mut sending = self.group.close();
        let outcome = match self.send(&mut sending) {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Again,
            Err(error) => Outcome::Failed(error),
        };
        sending.end(outcome);
    }

    /// Appends a batch and applies it; false if another one is at its position, which is then
    /// applied.
    fn send(&self, sending: &mut Sending<'_>) -> Result<bool> {
        let OpenBatch { position, builder, deadline, lease, .. } = sending.batch();
        let mut walk = lock(&self.walk);
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        // Order nothing that cannot be applied here.
        self.applier.log.check_own().lift()?;
        self.check_order(&mut walk, deadline)?;
        if lock(&self.place).position + 1 != position {
            return Ok(false);
        }
        if !self.yield_to_others(&mut walk, position, deadline)? {
            self.catch_up_by(&mut walk, deadline)?;
            return Ok(false);
        }
        self.reserve_room(ROOM_FACTOR * builder.len())?;
        let is_done = self.append_and_apply(&mut walk, position, builder.finish(), deadline);
        drop(lease);
        is_done
    }

    /// Applies everything that is in the order.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Forked`], [`Error::Corrupt`], [`Error::Behind`], and those
    /// of applying a commit.
    pub(crate) fn catch_up_with_order(&self) -> Result<()> {
        let deadline = self.access.walk_deadline();
        let done = self.catch_up_by(&mut lock(&self.walk), deadline);
        self.free_log();
        done
    }

    /// Whether a read must read the order first.
    fn is_stale(&self) -> bool {
        self.max_staleness.is_some_and(|max| {
            let now = self.access.clock.monotonic_nanos();
            let checked = self.checked_nanos.load(Ordering::Acquire);
            checked == NEVER || u128::from(now.saturating_sub(checked)) > max.as_nanos()
        })
    }

    /// The position of the next batch; `None` once the store is closed.
    pub(crate) fn next_position(&self) -> Option<u64> {
        let is_closed = self.is_closed.load(Ordering::Acquire);
        (!is_closed).then(|| lock(&self.place).position + 1)
    }

    /// Where this replica stands in the order.
    pub(crate) fn place(&self) -> Place {
        *lock(&self.place)
    }

    /// Prepares for the end: the order is not read any more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // Waits for a batch that is being applied.
        drop(lock(&self.walk));
    }
}

impl Peers for Replica {
    fn order(&self, commit: &mut Commit<'_>) -> Result<Ordered> {
        let blobs: Vec<BlobRef> = commit.blobs();
        let stored = self.put_blobs(&blobs)?;
        match self.order_item(Item::Commit(commit, &stored), self.access.deadline()) {
            Ok(Ok(ticket)) => {
                commit.note_named();
                Ok(Ordered { glsn: ticket.last, is_durable: true })
            }
            Ok(Err(at)) => Ok(Ordered { glsn: at, is_durable: true }),
            Err(error) => {
                let may_be_made = matches!(error, Error::InDoubt { .. } | Error::Poisoned { .. });
                // A file that was replaced belongs to another commit, and must stay.
                if may_be_made || self.may_be_replaced(&stored) {
                    commit.note_named();
                }
                Err(error)
            }
        }
    }

    // Unlike in other stores, a later entry may have an earlier time: a commit of another replica,
    // or one that waits for the order.
    fn ordered_between_commits(&self) -> Result<Glsn> {
        let _held = self.applier.sequencer.lock()?;
        // The commits of a batch have their times, but are not in the log yet.
        match self.group.state().is_idle() {
            true => Ok(Glsn(self.applier.log.bounds().next.0 - 1)),
            false => Ok(Glsn::MAX),
        }
    }

    fn append(&self, draft: &Draft<'_>) -> Result<Ticket> {
        let ticket = self.order_item(Item::Entries(draft), self.access.deadline())?;
        Ok(ticket.expect("entries always change something"))
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn is_only_process(&self) -> bool {
        true
    }

    fn is_caught_up(&self) -> bool {
        !self.applier.must_load_own_records() && !self.is_stale()
    }

    fn are_own_records_current(&self) -> bool {
        !self.applier.must_load_own_records()
    }

    fn are_keyspaces_current(&self) -> bool {
        !self.applier.must_load_own_records()
    }

    fn catch_up(&self) -> Result<()> {
        if self.is_stale() {
            self.catch_up_with_order()?;
        }
        if self.applier.must_load_own_records() {
            let _held = self.applier.sequencer.lock()?;
            self.applier.load_own_records()?;
        }
        Ok(())
    }

    fn idle_delay_micros(&self) -> u64 {
        u64::from(lock(&self.place).replica % IDLE_DELAYS) * IDLE_DELAY_MICROS
    }

    fn catch_up_with_replicas(&self) -> Result<()> {
        self.catch_up_with_order()
    }

    fn reread_keyspaces(&self) -> Result<bool> {
        self.applier.load_own_keyspaces().map(|()| true)
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = *lock(&self.place);
        write!(f, "Replica({}, position {})", place.replica, place.position)
    }
}
