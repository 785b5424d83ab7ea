//! The walk through the order: batches are read, checked against the place, and applied.
//!
//! Invariant: a batch is applied only if it follows the place by position, hash and GLSN. Records
//! that the local log has already are compared with those of the batch.

use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_log::blob::BlobRef;
use plimsoll_log::draft::{CommitTimes, Draft, DraftEntry};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;

use crate::txn::apply::When;
use crate::txn::replica::Replica;
use crate::txn::replica::access::{Deadline, Placed};
use crate::txn::replica::batch::{Batch, BatchBuilder, FORK_ADVICE, Head, Record, Refusal};
use crate::txn::replica::place::Place;
use crate::txn::replica::turns::{Pause, Turns};
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::{lock, try_lock};

/// The state of the walk.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Whether the order was found to have the batch at this replica's place since the last error.
    is_trusted: bool,
    /// Why the order is not used any more: it is the order of another store or history, or a batch
    /// of this replica could not be applied.
    stopped: Option<Error>,
    turns: Turns,
}

/// Where the blob files of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blobs {
    /// This replica has just written them.
    Here,
    /// In the order. If it is unavailable, the replica waits for it until the deadline.
    Elsewhere(Deadline),
}

/// Whether the batch follows the place, in a log whose next entry is `next`, and whose chain hash
/// is `end_chain`.
fn follows(place: &Place, head: &Head, next: Glsn, end_chain: u64) -> Result<(), Refusal> {
    let refuse = |what: &str| Err(Refusal::Forked(what.to_owned()));
    if head.order_id != place.order_id {
        return refuse("it is of the order of another store");
    }
    if head.position != place.position + 1 {
        let what = format!("it was appended at position {}", head.position);
        return Err(Refusal::Forked(what));
    }
    if head.previous != place.hash {
        return refuse("it follows another batch than the one that was applied here");
    }
    if head.first != place.glsn.next() {
        let what =
            format!("it begins with GLSN {}, and not with {}", head.first, place.glsn.next());
        return Err(Refusal::Forked(what));
    }
    if next == head.first && ![0, end_chain].contains(&head.chain) {
        return refuse("it follows a log with other contents");
    }
    if head.replicas < place.replicas {
        return refuse("it knows fewer replicas than the one before it");
    }
    Ok(())
}

impl Replica {
    /// Returns `done`. If it is an error, records it in the walk: after a fork, the order is not
    /// used any more; after another error, it is not trusted.
    fn noting_fork<T>(walk: &mut Walk, done: Result<T>) -> Result<T> {
        match done {
            Err(error @ Error::Forked { .. }) => {
                walk.stopped.get_or_insert_with(|| error.clone());
                Err(error)
            }
            Err(error) => {
                walk.is_trusted = false;
                Err(error)
            }
            done => done,
        }
    }

    /// Checks that the order still has the batch at this replica's place, before later batches are
    /// read or appended.
    pub(super) fn check_order(&self, walk: &mut Walk, deadline: Deadline) -> Result<()> {
        if let Some(error) = &walk.stopped {
            return Err(error.clone());
        }
        if walk.is_trusted {
            return Ok(());
        }
        let checked = self.check_place(deadline);
        Self::noting_fork(walk, checked)?;
        walk.is_trusted = true;
        Ok(())
    }

    fn check_place(&self, deadline: Deadline) -> Result<()> {
        let place = *lock(&self.place);
        let found = match self.access.read(place.position, deadline) {
            // The order is trimmed there, so there is nothing to compare.
            Err(Error::Behind { .. }) => return Ok(()),
            found => found?,
        };
        let what = match found {
            Some(batch) if batch.hash == place.hash => return Ok(()),
            Some(_) => "another one than that which was applied here",
            None => "missing, but was applied here",
        };
        Err(Refusal::Forked(format!("it is {what}")).at(place.position))
    }

    /// Applies all batches that follow the place.
    pub(super) fn catch_up_by(&self, walk: &mut Walk, deadline: Deadline) -> Result<()> {
        self.check_order(walk, deadline)?;
        let done = self.walk_to_end(walk, deadline);
        Self::noting_fork(walk, done)
    }

    fn walk_to_end(&self, walk: &mut Walk, mut deadline: Deadline) -> Result<()> {
        loop {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            let begun = self.access.clock.monotonic_nanos();
            let place = *lock(&self.place);
            let Some(batch) = self.access.read(place.position + 1, deadline)? else {
                self.check_end(&place)?;
                self.checked_nanos.store(begun, Ordering::Release);
                return Ok(());
            };
            self.apply_other(walk, &batch, deadline)?;
            if self.access.ends_walk(deadline) {
                // A replica that reads more slowly than others append never reaches the end.
                return Ok(());
            }
            deadline = self.access.renewed(deadline);
        }
    }

    /// Applies a batch that the order returned.
    fn apply_other(&self, walk: &mut Walk, batch: &Batch, deadline: Deadline) -> Result<()> {
        let bytes = batch.bytes() as u64;
        let _lease = self.applier.budget.lease(Kind::Staging, bytes)?;
        self.apply(batch, Blobs::Elsewhere(deadline))?;
        self.unfreed_bytes.fetch_add(bytes, Ordering::Relaxed);
        if batch.head.nonce >> 64 != self.nonce >> 64 {
            walk.turns.note_other(self.access.clock.monotonic_nanos(), batch.head.append_micros);
            if batch.head.replica == lock(&self.place).replica {
                self.own_elsewhere.fetch_max(batch.head.position, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Fails if the local log has records that the order does not have.
    fn check_end(&self, place: &Place) -> Result<()> {
        let next = self.applier.log.bounds().next;
        if place.glsn.next() == next {
            return Ok(());
        }
        Err(Error::Forked {
            glsn: Some(place.glsn.next()),
            message: format!(
                "the order ends at position {} with GLSN {}, but the log of this store ends with \
                 GLSN {}{FORK_ADVICE}",
                place.position,
                place.glsn,
                next.0 - 1
            ),
        })
    }

    /// Appends a batch and applies it; false if another one is at its position, which is then
    /// applied, with all that follow it.
    pub(super) fn append_and_apply(
        &self,
        walk: &mut Walk,
        position: u64,
        bytes: Vec<u8>,
        deadline: Deadline,
    ) -> Result<bool> {
        let placed = self.access.append(position, &bytes, deadline);
        let other = match Self::noting_fork(walk, placed)? {
            Placed::Own { begun } => {
                let micros = walk.turns.note_own(begun, self.access.clock.monotonic_nanos());
                self.append_micros.store(micros, Ordering::Relaxed);
                None
            }
            Placed::Other(Some(other)) => Some(other),
            // The batch there may be this one: the order may have tried to append it twice, and
            // answered for the second try.
            Placed::Other(None) => match self.access.read(position, deadline)? {
                Some(found) if bytes.ends_with(&found.hash) => None,
                Some(found) => Some(found),
                None => return Ok(false),
            },
        };
        if let Some(other) = other {
            walk.turns.note_loss();
            let applied = self.apply_other(walk, &other, deadline);
            Self::noting_fork(walk, applied)?;
            return self.catch_up_by(walk, deadline).map(|()| false);
        }
        let batch = Batch::decode(bytes).map_err(|refusal| refusal.at(position))?;
        let applied = match self.apply(&batch, Blobs::Here) {
            // The memory may have been taken by others for a moment.
            Err(Error::OutOfBudget(_)) => self.apply(&batch, Blobs::Here),
            applied => applied,
        };
        applied.map(|()| true).map_err(|error| {
            let cause = format!(
                "the commit was made, as batch {position} of the order, but this replica could \
                 not apply it: {error}"
            );
            walk.stopped.get_or_insert_with(|| Error::Poisoned {
                cause: format!(
                    "the commit was not made, because this replica could not apply an earlier \
                     commit of its own, which is batch {position} of the order: {error}"
                ),
            });
            Error::Poisoned { cause }
        })
    }

    /// Makes sure that memory is there to apply a batch of `bytes`, before it is appended.
    ///
    /// # Errors
    /// As for [`Memtables::reserve`](crate::index::memtables::Memtables::reserve).
    pub(super) fn reserve_room(&self, bytes: usize) -> Result<()> {
        let _held = self.applier.sequencer.lock()?;
        let applied = self.applier.sequencer.applied();
        // Only this thread applies batches, so the room stays.
        self.applier.index.memtables.reserve(bytes, applied).map(drop)
    }

    /// Pauses before an append, if other replicas may be waiting to append, at the latest until the
    /// deadline. Returns false if one of them has appended meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`]: the store was closed meanwhile.
    pub(super) fn yield_to_others(
        &self,
        walk: &mut Walk,
        position: u64,
        deadline: Deadline,
    ) -> Result<bool> {
        let clock = &self.access.clock;
        let Some(Pause { until, step }) = walk.turns.pause(clock.monotonic_nanos(), position)
        else {
            return Ok(true);
        };
        loop {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            let left = until.saturating_sub(clock.monotonic_nanos());
            if left == 0 || self.access.has_passed(deadline) {
                return Ok(true);
            }
            clock.sleep(Duration::from_nanos(left.min(step)));
            // An error is ignored here: the append will get it, too.
            if left > step && matches!(self.access.order.read(position), Ok(Some(_))) {
                return Ok(false);
            }
        }
    }

    /// Applies the batch that follows the place.
    pub(super) fn apply(&self, batch: &Batch, blobs: Blobs) -> Result<()> {
        let (place, position) = (*lock(&self.place), batch.head.position);
        let (next, end_chain) = (self.applier.log.bounds().next, self.applier.log.end_chain());
        follows(&place, &batch.head, next, end_chain)
            .map_err(|refusal| refusal.at(place.position + 1))?;
        let mut last = place.glsn;
        for record in batch.records() {
            let record = record.map_err(|refusal| refusal.at(position))?;
            if let Blobs::Elsewhere(deadline) = blobs
                && record.first >= self.applier.log.bounds().next
            {
                record.blobs.iter().try_for_each(|it| self.fetch_blob(position, it, deadline))?;
            }
            last = record.last();
        }
        let held = self.applier.sequencer.lock()?;
        for record in batch.records() {
            let record = record.map_err(|refusal| refusal.at(position))?;
            self.write_record(position, &record)?;
        }
        self.applier.apply(&held, self.applier.log.bounds().next, When::Live)?;
        let Place { order_id, replica, .. } = place;
        let (hash, replicas) = (batch.hash, batch.head.replicas);
        *lock(&self.place) =
            Place { order_id, position, hash, glsn: last, chain: 0, replica, replicas };
        Ok(())
    }

    /// Appends a record to the local log. If the log has a record there, compares the two.
    fn write_record(&self, position: u64, record: &Record<'_>) -> Result<()> {
        let forked = |what: &str| Refusal::Forked(what.to_owned()).at(position);
        let next = self.applier.log.bounds().next;
        if record.last() < next {
            return match self.has_equal(record).lift()? {
                true => Ok(()),
                false => Err(forked(&format!(
                    "the record at GLSN {} differs from that of this store",
                    record.first
                ))),
            };
        }
        if record.first != next {
            return Err(forked("a record of this store ends within one of the batch"));
        }
        let parts: Vec<[&[u8]; 1]> = record.entries.iter().map(|(_, bytes)| [*bytes]).collect();
        let entries: Vec<DraftEntry<'_>> = record
            .entries
            .iter()
            .zip(&parts)
            .map(|((stream, _), parts)| DraftEntry { stream: *stream, parts })
            .collect();
        let blobs: Vec<BlobRef> = record.blobs.iter().map(|named| named.blob).collect();
        let (read_at, times) = (record.read_at, CommitTimes::ANY);
        let draft = Draft { entries: &entries, read_at, blobs: &blobs, times };
        match self.applier.log.submit_ordered(&draft, record.first, record.timestamp_micros) {
            Err(LogError::InvalidDraft { what }) => Err(forked(&what)),
            submitted => submitted.lift().map(drop),
        }
    }

    /// Whether the local log has this record; true if it is trimmed there.
    fn has_equal(&self, record: &Record<'_>) -> Result<bool, LogError> {
        let log = &self.applier.log;
        let meta = match log.meta(record.first) {
            Err(LogError::Trimmed { .. }) => return Ok(true),
            meta => meta?,
        };
        let count = record.entries.len() as u32;
        let is_equal = meta.timestamp_micros == record.timestamp_micros
            && meta.read_at == record.read_at
            && (meta.record_first, meta.record_count) == (record.first, count)
            && log.blobs_of(record.first)?.iter().eq(record.blobs.iter().map(|it| &it.blob));
        for (number, (stream, payload)) in record.entries.iter().enumerate() {
            let entry = log.read(Glsn(record.first.0 + number as u64))?;
            if entry.meta.stream != *stream || entry[..] != **payload {
                return Ok(false);
            }
        }
        Ok(is_equal)
    }

    /// Gets a number for this replica, which no other replica has. The ids of its blob files begin
    /// with this number.
    pub(super) fn claim_number(&self) -> Result<()> {
        let walk = &mut *lock(&self.walk);
        let (begun_micros, mut losses) = (self.access.clock.wall_micros(), 0);
        let mut deadline = None;
        loop {
            self.catch_up_by(walk, self.access.walk_deadline())?;
            // The time of the first catch-up does not count.
            let deadline = *deadline.get_or_insert_with(|| self.access.deadline());
            if losses > 0 && self.access.has_passed(deadline) {
                return Err(self.access.outrun(begun_micros, losses));
            }
            let place = *lock(&self.place);
            let Some(number) = place.replicas.checked_add(1) else {
                return Err(Error::format(
                    "no replica can join this order, because all of its 65,535 replica numbers are \
                     used; begin a new order with one of the stores",
                ));
            };
            let head = Head { replica: number, replicas: number, ..self.head_after(&place) };
            let bytes = BatchBuilder::new(&head).finish();
            if self.append_and_apply(walk, head.position, bytes, deadline)? {
                lock(&self.place).replica = number;
                self.applier.log.set_node(number);
                return Ok(());
            }
            losses += 1;
        }
    }

    /// Applies the batches that follow the place, unless another thread does so. Does not wait for
    /// the order. `saves`: also records the place. Returns whether it applied something.
    pub(crate) fn step(&self, saves: bool) -> Result<bool> {
        let Some(mut walk) = try_lock(&self.walk) else { return Ok(false) };
        // After the store is closed, another process may own the folder.
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let before = lock(&self.place).position;
        let done = self.catch_up_by(&mut walk, Deadline::PASSED);
        let saved = if saves { self.save_place(false) } else { Ok(()) };
        drop(walk);
        self.free_log();
        done.and(saved)?;
        Ok(lock(&self.place).position != before)
    }

    /// Frees old segments of the log after about a segment's worth of records of others.
    pub(super) fn free_log(&self) {
        if self.unfreed_bytes.load(Ordering::Relaxed) >= self.segment_bytes {
            self.unfreed_bytes.store(0, Ordering::Relaxed);
            self.applier.index.env.free_log(true);
        }
    }
}
