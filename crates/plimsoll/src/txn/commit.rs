//! The path of a commit: validate, order, apply, sync.
//!
//! 1. The write set is encoded and blob files are finished (only this committer waits for that;
//!    where commits are buffered, the log syncs them later). A set that is too large for a record
//!    is written as sorted runs into blob files, which the record names.
//! 2. Under the commit lock, one commit at a time (`txn::sequencer`): everything the transaction
//!    read is checked against the commits submitted since its snapshot; room is made in the
//!    memtable; the record is ordered in the log; its versions go into the memtable.
//! 3. Without the lock, the committer waits until the record is durable; one sync serves all
//!    waiting committers.
//!
//! Law: versions are applied in GLSN order, and a version is visible only when its whole record is
//! applied and readable.

use std::iter;
use std::ops::Bound;
use std::time::Duration;

use plimsoll_log::draft::{Draft, DraftEntry};
use plimsoll_log::file_log::shared::posting::Posted;
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::sorted::SortedMap;

use crate::borders::{Border, hit};
use crate::index::gaps::list::Gap;
use crate::index::memtables::reservation::{Link, Reservation};
use crate::index::sources::view::View;
use crate::read::moments::OpenMoment;
use crate::txn::committer::Committer;
use crate::txn::payload::{
    Operations, encode_delete, encode_head, encode_put, encode_put_blob, encode_runs,
};
use crate::txn::read_set::ReadSet;
use crate::txn::sequencer::CommitLock;
use crate::txn::ticket::CommitTicket;
use crate::txn::write_set::{Write, WriteSet};
use crate::types::error::{Error, Lift, Result};
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::{CURSORS, SYSTEM};
use crate::types::version::MAX_POINTER_BYTES;

/// A commit that is too large for one record is inserted into the memtable if it takes at most this
/// part of one (a divisor). A larger one becomes runs of the index as it was written.
const MEMTABLE_PART: u64 = 2;

/// How long the members' turn is kept while another thread of this process has the commit lock:
/// longer than most commits take to be applied.
const LOCK_PATIENCE: Duration = Duration::from_millis(2);

/// What a commit is made with, beside what was read and written.
pub(crate) struct CommitOptions<'a> {
    /// The keyspaces that it writes to.
    pub(crate) spaces: &'a [u32],
    pub(crate) metadata: &'a [u8],
    /// Whether the caller waits until it is durable: then it may be made so before there is a
    /// ticket.
    pub(crate) waits: bool,
}

impl Committer {
    /// Commits a transaction's writes. `gaps` are the intervals that it has read and emptied.
    pub(crate) fn commit(
        &self,
        moment: &OpenMoment,
        reads: ReadSet,
        mut writes: WriteSet,
        gaps: Vec<Gap>,
        options: CommitOptions<'_>,
    ) -> Result<CommitTicket> {
        let CommitOptions { spaces, metadata, waits } = options;
        self.check_writable()?;
        let memtable_bytes = self.reader.index.memtables.limit_bytes() / MEMTABLE_PART;
        self.patience.in_commit(|| writes.prepare(metadata.len(), memtable_bytes))?;
        let body = self.patience.in_commit(|| Body::new(&self.reader.budget, &writes, metadata))?;
        self.wait_ahead(&body, &writes)?;
        let mut gaps = gaps;
        if waits
            && is_plain(&writes, spaces)
            && reads.ranges().is_empty()
            && gaps.is_empty()
            && let Some(glsn) = self.patience.in_commit(|| self.post(&body, moment.at(), spaces))?
        {
            self.committed(body.bytes());
            self.reader.index.throttle.pay(body.room_bytes as u64);
            return Ok(CommitTicket::of_durable(self, glsn));
        }
        let glsn = loop {
            let order = || self.order(moment, &reads, &body, &writes, &mut gaps, spaces);
            if let Some(glsn) = self.patience.in_commit(order)? {
                break glsn;
            }
        };
        self.committed(body.bytes() + writes.blob_bytes());
        let paid_bytes =
            if writes.is_in_memory() { body.room_bytes as u64 } else { writes.spilled().bytes() };
        // Releases their memory before the wait.
        drop((body, writes));
        self.reader.index.throttle.pay(paid_bytes);
        Ok(CommitTicket::of_record(self, glsn))
    }

    /// Under the commit lock: validates the transaction, orders it, and applies it. Does nothing if
    /// the budget refuses. `None` if it has given the members' turn back to wait for a flush: to be
    /// tried again.
    fn order(
        &self,
        moment: &OpenMoment,
        reads: &ReadSet,
        body: &Body,
        writes: &WriteSet,
        gaps: &mut Vec<Gap>,
        spaces: &[u32],
    ) -> Result<Option<Glsn>> {
        if is_plain(writes, spaces)
            && reads.ranges().is_empty()
            && gaps.is_empty()
            && let Some(glsn) = self.order_blind(body, writes, moment.at(), spaces)?
        {
            return Ok(Some(glsn));
        }
        let (mut turn, lock) = self.begin_to_order()?;
        self.reader.keyspaces.check_take_more(spaces.iter().copied())?;
        if let Err(error) = self.reader.read(|view| validate(view, reads, moment.at())) {
            drop((lock, turn));
            return Err(self.settle_conflict(error));
        }
        let room = match turn.is_some() {
            false => self.make_room(body, writes)?,
            true => match self.make_room_now(body, writes)? {
                Some(room) => room,
                None => {
                    drop(turn);
                    drop(self.make_room(body, writes)?);
                    return Ok(None);
                }
            },
        };
        if let Some(follower) = self.follower.as_ref().filter(|_| spaces.contains(&SYSTEM)) {
            follower.members.set_to_be_known(follower.members.next());
        }
        let submit = || {
            let glsn = self.submit(turn.as_mut(), body, writes, moment.at())?;
            // From here on other members may order their commits.
            drop(turn);
            writes.named();
            Ok(glsn)
        };
        let glsn = self
            .sequencer
            .submit_and_apply(&lock, submit, |&glsn| self.apply(room, body, writes, glsn))?;
        // While no other commit can put anything into them.
        self.reader.index.gaps.publish_committed(std::mem::take(gaps), glsn);
        drop(lock);
        Ok(Some(glsn))
    }

    /// Orders a commit that has read nothing, and leaves it in the log; `None` if it is to be
    /// applied.
    fn order_blind(
        &self,
        body: &Body,
        writes: &WriteSet,
        read_at: Glsn,
        spaces: &[u32],
    ) -> Result<Option<Glsn>> {
        let Some(follower) = &self.follower else { return Ok(None) };
        let Some(mut turn) = follower.turn_for_blind()? else { return Ok(None) };
        // A drop by this process is ordered in a turn, too, and its record is to be known.
        self.reader.keyspaces.check_take_more(spaces.iter().copied())?;
        let glsn = self.submit(Some(&mut turn), body, writes, read_at)?;
        hit(Border::LeftInLog);
        Ok(Some(glsn))
    }

    /// Commits what has read nothing together with what other threads and processes commit now, and
    /// waits until it is durable. `None` if it is to be ordered by itself.
    fn post(&self, body: &Body, read_at: Glsn, spaces: &[u32]) -> Result<Option<Glsn>> {
        let Some(follower) = self.follower.as_ref().filter(|follower| !follower.is_buffered) else {
            return Ok(None);
        };
        let [Part::Small { start, end }] = body.parts[..] else { return Ok(None) };
        let Some(known) = follower.may_post()? else { return Ok(None) };
        // After it is known what is known: a drop that is ordered from here on refuses the post.
        self.reader.keyspaces.check_take_more(spaces.iter().copied())?;
        let parts: [&[u8]; 2] = [&body.head, &body.small[start..end]];
        let glsn =
            follower.file_log.commit_posted(&Posted { parts: &parts, read_at, known }).lift()?;
        if glsn.is_some() {
            hit(Border::LeftInLog);
        }
        Ok(glsn)
    }

    /// The members' turn, if there may be several, and the commit lock; all that was ordered before
    /// is applied. The turn is not held while a memtable is flushed, here or by another thread
    /// under the commit lock.
    fn begin_to_order(&self) -> Result<(Option<Turn<'_>>, CommitLock<'_>)> {
        loop {
            let Some(follower) = &self.follower else { return Ok((None, self.sequencer.lock()?)) };
            let mut turn = follower.wait_for_turn()?;
            let Some(lock) = self.sequencer.lock_within(LOCK_PATIENCE)? else {
                drop(turn);
                drop(self.sequencer.lock()?);
                continue;
            };
            if follower.begin(&mut turn, &lock)? {
                return Ok((Some(turn), lock));
            }
            drop(turn);
            follower.apply_rest(&lock)?;
        }
    }

    /// Waits for flushes and merges that lag behind, while others may commit.
    fn wait_ahead(&self, body: &Body, writes: &WriteSet) -> Result<()> {
        let index = &self.reader.index;
        index.throttle.hold_back()?;
        if writes.is_in_memory() { index.memtables.wait_for_room(body.room_bytes) } else { Ok(()) }
    }

    /// Room for what the commit adds to the index; `None` for a commit whose runs the index adopts.
    fn make_room(&self, body: &Body, writes: &WriteSet) -> Result<Option<Reservation<'_>>> {
        let index = &self.reader.index;
        if writes.is_in_memory() {
            match index.memtables.make_room(body.room_bytes, self.sequencer.applied()) {
                // Its runs need less memory.
                Err(Error::OutOfBudget(_)) if !writes.spilled().is_empty() => {}
                room => return room.map(Some),
            }
        }
        index.memtables.make_room_for_runs(writes.spilled().infos())?;
        Ok(None)
    }

    /// As [`Committer::make_room`], where that waits for nothing: `None` if a memtable has to be
    /// flushed before.
    fn make_room_now(
        &self,
        body: &Body,
        writes: &WriteSet,
    ) -> Result<Option<Option<Reservation<'_>>>> {
        let index = &self.reader.index;
        if writes.is_in_memory() {
            let room = index.memtables.make_room_now(body.room_bytes, self.sequencer.applied());
            // Runs need less memory.
            if room.is_some() || writes.spilled().is_empty() {
                return Ok(room.map(Some));
            }
        }
        index.memtables.make_room_for_runs(writes.spilled().infos())?;
        Ok(Some(None))
    }

    /// Waits until the conflicting commit is visible, so that a retry does not conflict with it a
    /// second time. If the store is poisoned, so that the commit never becomes visible, returns
    /// that error instead.
    fn settle_conflict(&self, error: Error) -> Error {
        match error {
            Error::Conflict { by, .. } if by > self.sequencer.visible() => {
                match self.reader.log.wait_durable(by) {
                    Ok(()) => error,
                    Err(poisoned) => Error::of_log(poisoned),
                }
            }
            _ => error,
        }
    }

    /// Appends entries that are not transactions.
    pub(crate) fn append(&self, stream: StreamId, payloads: &[&[u8]]) -> Result<(Glsn, Glsn)> {
        self.check_writable()?;
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [*payload]).collect();
        let entries: Vec<_> = parts.iter().map(|parts| DraftEntry { stream, parts }).collect();
        let draft = Draft { entries: &entries, read_at: Glsn::NONE, blobs: &[] };
        let (turn, lock) = self.begin_to_order()?;
        let submit = || match turn {
            Some(mut turn) => turn.submit(&draft).lift(),
            None => self.reader.log.submit(&draft, None).lift(),
        };
        let ticket = self.sequencer.submit_and_apply(&lock, submit, |ticket| Ok(ticket.last))?;
        Ok((ticket.first, ticket.last))
    }

    fn submit(
        &self,
        turn: Option<&mut Turn<'_>>,
        body: &Body,
        writes: &WriteSet,
        read_at: Glsn,
    ) -> Result<Glsn> {
        let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + body.parts.len());
        parts.push(&body.head);
        for part in &body.parts {
            match part {
                Part::Small { start, end } => parts.push(&body.small[*start..*end]),
                Part::Buffered { offset, len } => parts.extend(writes.buffered(*offset, *len)),
            }
        }
        let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
        let blobs = writes.blobs();
        let draft = Draft { entries: &entries, read_at, blobs: &blobs };
        let ticket = match turn {
            Some(turn) => turn.submit(&draft),
            None => self.reader.log.submit(&draft, None),
        };
        Ok(ticket.lift()?.last)
    }

    fn apply(
        &self,
        room: Option<Reservation<'_>>,
        body: &Body,
        writes: &WriteSet,
        glsn: Glsn,
    ) -> Result<Glsn> {
        match room {
            Some(mut room) if writes.spilled().is_empty() => {
                let mut operations =
                    Operations::without_values(body.head.len(), body.count, &body.small);
                let versions = iter::from_fn(move || operations.next().transpose());
                let versions = versions
                    .map(|operation| operation.map(|operation| (operation.key, operation.stored)));
                room.apply(glsn, body.bytes(), Link::Now, versions)?;
            }
            Some(mut room) => {
                hit(Border::RunsInserted);
                room.apply(glsn, body.bytes(), Link::Now, writes.in_memory().map(Ok))?;
            }
            None => {
                hit(Border::SpilledCommit);
                // It closes the memtable.
                self.reader.index.memtables.adopt(writes.spilled().adopted(glsn), glsn);
            }
        }
        Ok(glsn)
    }
}

/// Whether a commit consists of records only, and of none of the store itself.
fn is_plain(writes: &WriteSet, spaces: &[u32]) -> bool {
    writes.spilled().is_empty() && writes.blob_bytes() == 0 && !spaces.iter().any(is_own_keyspace)
}

/// Whether it holds records of the store itself.
fn is_own_keyspace(id: &u32) -> bool {
    [SYSTEM, CURSORS].contains(id)
}

/// Rejects a transaction if an ordered commit after `at` changed anything in `reads`.
fn validate(view: &View, reads: &ReadSet, at: Glsn) -> Result<()> {
    for range in reads.ranges() {
        let changed = match range.last {
            None => view.changed(&range.first, at)?.map(|by| (range.first.clone(), by)),
            Some(_) => view.changed_in(Bound::Included(&range.first), range.upper(), at)?,
        };
        if let Some((key, by)) = changed {
            let key = IndexKey::new(&key).split().map_or(Vec::new(), |(_, key)| key.to_vec());
            return Err(Error::Conflict { key, at, by });
        }
    }
    Ok(())
}

/// A transaction's log entry, ready to be written.
struct Body {
    /// The bytes before the operations.
    head: Vec<u8>,
    /// The number of operations.
    count: u64,
    /// Everything after the head except the values that remain in the write buffer.
    small: Buffer,
    /// The parts that follow the head, in order.
    parts: Vec<Part>,
    /// Bytes that the versions need in the memtable.
    room_bytes: usize,
}

enum Part {
    Small { start: usize, end: usize },
    Buffered { offset: u64, len: u64 },
}

impl Body {
    /// Length of the entry in bytes.
    fn bytes(&self) -> u64 {
        let part = |part: &Part| match part {
            Part::Small { start, end } => (end - start) as u64,
            Part::Buffered { len, .. } => *len,
        };
        self.head.len() as u64 + self.parts.iter().map(part).sum::<u64>()
    }

    fn new(budget: &Budget, writes: &WriteSet, metadata: &[u8]) -> Result<Self> {
        let (small, parts) = (Buffer::default(), Vec::new());
        let mut body = Self { head: Vec::new(), count: 0, small, parts, room_bytes: 0 };
        if writes.spilled().is_empty() {
            body.encode_operations(budget, writes, metadata)?;
        } else {
            let mut encoded = Vec::new();
            encode_runs(metadata, &writes.spilled().layout(), &mut encoded);
            if writes.is_in_memory() {
                body.room_bytes = writes
                    .in_memory()
                    .map(|(key, stored)| SortedMap::entry_bytes(key.len(), stored.max_bytes()))
                    .sum();
            }
            body.small = encoded.into();
            body.parts.push(Part::Small { start: 0, end: body.small.len() });
        }
        Ok(body)
    }

    fn encode_operations(
        &mut self,
        budget: &Budget,
        writes: &WriteSet,
        metadata: &[u8],
    ) -> Result<()> {
        self.small =
            Buffer::with_capacity(budget, Kind::Staging, writes.operation_bytes() as usize)?;
        let mut encoded = Vec::new();
        let mut start = 0;
        let mut at = writes.map().first();
        while let Some(position) = at {
            let (key, write) = writes.at(position);
            encoded.clear();
            let mut inline: &[u8] = &[];
            match write {
                Write::Deleted => encode_delete(key, &mut encoded),
                Write::Inline(value) => {
                    encode_put(key, value.len() as u64, &mut encoded);
                    inline = value;
                }
                Write::InBlob { blob, offset, len, sum } => {
                    encode_put_blob(key, blob, (offset, len, sum), &mut encoded);
                }
                Write::Buffered { len, .. } => encode_put(key, len, &mut encoded),
            }
            self.small.extend_from_slice(&encoded);
            self.small.extend_from_slice(inline);
            if let Write::Buffered { offset, len, sum } = write {
                self.parts.push(Part::Small { start, end: self.small.len() });
                self.parts.push(Part::Buffered { offset, len });
                start = self.small.len();
                self.small.extend_from_slice(&sum.to_le_bytes());
            }
            let stored_bytes =
                if let Write::Inline(value) = write { 1 + value.len() } else { MAX_POINTER_BYTES };
            self.room_bytes += SortedMap::entry_bytes(key.len(), stored_bytes);
            self.count += 1;
            at = writes.after_key(position);
        }
        self.parts.push(Part::Small { start, end: self.small.len() });
        encode_head(metadata, self.count, &mut self.head);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::engine::Engine;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::keyspaces::Keyspace;
    use crate::types::options::Options;

    use super::*;

    fn options() -> Options {
        Options::new().memory_bytes(16 << 20).background(false)
    }

    fn default(store: &Engine) -> Keyspace {
        store.reader.keyspaces.find("default").unwrap().0
    }

    fn put(store: &Arc<Engine>, key: u32, bytes: usize) -> Result<Glsn> {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&default(store), &key.to_be_bytes(), &vec![7; bytes])?;
        tx.commit()
    }

    fn get(store: &Arc<Engine>, key: u32) -> Option<usize> {
        let tx = Transaction::new(&store.committer);
        tx.get(&default(store), &key.to_be_bytes()).unwrap().map(|value| value.len())
    }

    fn blob_files(store: &Engine) -> usize {
        let names = store.options.disk.list(&store.path.join("log")).unwrap();
        names.iter().filter(|entry| entry.name.ends_with(".blob")).count()
    }

    #[test]
    fn after_a_commit_that_could_not_be_applied_nothing_is_until_the_next_opening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = open(&path, options()).unwrap();
        put(&store, 1, 10).unwrap();
        let mut payload = Vec::new();
        encode_head(b"", 1, &mut payload);
        encode_put(b"\0\0\0\x01\0\0\0\x02", 0, &mut payload);
        let parts = [&payload[..]];
        let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
        let order = || {
            store
                .reader
                .log
                .submit(&Draft { entries: &entries, read_at: Glsn::NONE, blobs: &[] }, None)
                .lift()
        };
        let lock = store.committer.sequencer.lock().unwrap();
        let failed = store
            .committer
            .sequencer
            .submit_and_apply(&lock, order, |_| Err(Error::corrupt("a page")));
        drop(lock);
        assert!(matches!(failed, Err(Error::Poisoned { cause }) if cause.contains("a page")));
        let poisoned = |result: Result<()>| {
            assert!(matches!(result, Err(Error::Poisoned { .. })), "{result:?}")
        };
        poisoned(put(&store, 3, 10).map(drop));
        poisoned(store.committer.append(StreamId(1), &[b"x"]).map(drop));
        poisoned(store.flush());
        poisoned(crate::engine::requests::trim(&store, Glsn(2)).map(drop));
        assert_eq!((store.visible(), get(&store, 1), get(&store, 2)), (Glsn(1), Some(10), None));
        poisoned(store.close());
        let store = open(&path, options()).unwrap();
        assert_eq!((store.visible(), get(&store, 1), get(&store, 2)), (Glsn(2), Some(10), Some(0)));
        put(&store, 3, 10).unwrap();
    }

    /// More blob files were opened since those of its runs were written than are kept open.
    #[test]
    fn a_commit_that_is_ordered_needs_no_memory_to_have_its_runs_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("store"), options()).unwrap();
        let others: Vec<_> =
            (0..260).map(|_| store.reader.log.create_blob().unwrap().finish().unwrap()).collect();
        let mut outcomes = [0; 2];
        for n in 0..12 {
            let mut tx = Transaction::new(&store.committer);
            for key in 0..30_000u32 {
                tx.put(&default(&store), key.to_be_bytes(), [n; 100]).unwrap();
            }
            tx.writes.prepare(0, 0).unwrap();
            assert!(!tx.writes.is_in_memory());
            others.iter().for_each(|blob| drop(store.reader.log.open_blob(blob.id).unwrap()));
            store.reader.budget.fail_after(n.into());
            let committed = tx.commit();
            store.reader.budget.fail_after(u64::MAX);
            assert!(matches!(committed, Ok(_) | Err(Error::OutOfBudget(_))), "{n}: {committed:?}");
            outcomes[usize::from(committed.is_ok())] += 1;
        }
        assert!(outcomes[1] > 0, "{outcomes:?}");
        put(&store, 1, 10).unwrap();
    }

    /// Puts this many keys with values of 100 bytes, and deletes each hundredth again.
    fn put_many(store: &Arc<Engine>, keys: u32) {
        let mut tx = Transaction::new(&store.committer);
        for key in (0..keys).rev() {
            tx.put(&default(store), &key.to_be_bytes(), &[key as u8; 100]).unwrap();
        }
        (0..keys)
            .step_by(100)
            .for_each(|key| tx.delete(&default(store), &key.to_be_bytes()).unwrap());
        tx.commit().unwrap();
    }

    fn has_many(store: &Arc<Engine>, keys: u32) {
        for key in 0..keys {
            let wanted = (key % 100 != 0).then_some(100);
            assert_eq!(get(store, key), wanted, "{key}");
        }
    }

    /// Bytes in the active memtable; `None` if the index holds anything else that is not flushed.
    fn memtable_bytes(store: &Engine) -> Option<u64> {
        store.reader.index.memtables.unflushed().map(|unflushed| unflushed.bytes)
    }

    #[test]
    fn a_commit_that_is_too_large_for_a_record_goes_into_the_memtable_where_it_is_small_beside_that()
     {
        let options = || Options::new().memory_bytes(64 << 20).background(false);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = open(&path, options()).unwrap();
        put(&store, u32::MAX, 10).unwrap();
        put_many(&store, 15_000);
        assert_eq!(blob_files(&store), 1);
        assert!(memtable_bytes(&store).unwrap() > 15_000 * 100);
        has_many(&store, 15_000);
        // A larger one becomes a run of the index.
        put_many(&store, 60_000);
        assert_eq!(memtable_bytes(&store), None);
        has_many(&store, 60_000);
        put_many(&store, 15_001);
        drop(store);
        let store = open(&path, options()).unwrap();
        has_many(&store, 60_000);
        store.flush().unwrap();
        crate::engine::requests::compact(&store).unwrap();
        has_many(&store, 60_000);
        store.close().unwrap();
        let store = open(&path, options()).unwrap();
        has_many(&store, 60_000);
        assert_eq!(get(&store, u32::MAX), Some(10));
    }

    #[test]
    fn whatever_the_budget_refuses_a_transaction_is_whole_or_nothing_and_leaves_no_files() {
        // Under 16 MiB its runs are adopted, under 64 MiB they are inserted into the memtable. A
        // refusal is harmless where it only keeps a written blob file from staying open, or its
        // pages from staying in memory.
        for (mebibytes, least) in [(16, 2), (64, 1)] {
            let refused = refuse(options().memory_bytes(mebibytes << 20));
            assert!(refused >= least, "{refused}");
        }
    }

    /// The number of commits that were refused.
    fn refuse(options: Options) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut refused = 0;
        let store = open(&path, options).unwrap();
        for n in (0..60).step_by(3) {
            let (before, files) = (get(&store, 0), blob_files(&store));
            let held = store.reader.budget.usage();
            let result = (|| {
                let mut tx = Transaction::new(&store.committer);
                store.reader.budget.fail_after(n);
                for key in 0..9000u32 {
                    let bytes = if key % 100 == 0 { 3000 } else { 300 };
                    tx.put(
                        &default(&store),
                        &key.to_be_bytes(),
                        &vec![n as u8; bytes + n as usize],
                    )?;
                }
                tx.commit()
            })();
            store.reader.budget.fail_after(u64::MAX);
            match &result {
                Ok(_) => {
                    assert_eq!(
                        (get(&store, 0), get(&store, 8999)),
                        (Some(3000 + n as usize), Some(300 + n as usize))
                    )
                }
                Err(Error::OutOfBudget(_)) => {
                    refused += 1;
                    assert_eq!((get(&store, 0), blob_files(&store)), (before, files), "{n}");
                    let now = store.reader.budget.usage();
                    assert_eq!((now.of(Kind::WriteSet), now.of(Kind::ReadSet)), (0, 0));
                    assert_eq!(
                        (now.of(Kind::Sort), now.of(Kind::Staging)),
                        (held.of(Kind::Sort), held.of(Kind::Staging))
                    );
                }
                Err(error) => panic!("{n}: {error}"),
            }
            put(&store, 10_000, 100).unwrap();
        }
        refused
    }
}
