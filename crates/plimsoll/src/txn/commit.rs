//! A commit: encode, order, apply.
//!
//! 1. [`Commit::encode`]: the write set is encoded and blob files are finished (only this committer
//!    waits for that; if commits are buffered, the log syncs the files later). A set that is too
//!    large for a record is written as sorted runs into blob files, which the record names.
//! 2. [`Commit::throttle`]: the committer is delayed while flushes and merges lag behind; other
//!    commits proceed.
//! 3. Under the commit lock, one commit at a time: [`Commit::validate`] checks everything that the
//!    transaction read against the commits ordered since its snapshot; [`Commit::reserve`]
//!    reserves room in the memtable; [`Commit::order`] orders the record in the log and applies its
//!    versions to the memtable. [`crate::txn::other_processes::Peers::order`] calls these.
//! 4. Without the lock, the [ticket](crate::txn::ticket) waits until the record is durable. One
//!    sync serves all waiting committers.
//!
//! Invariant: versions are applied in GLSN order, and a version is visible only when its whole
//! record is applied and readable.

mod body;
mod validation;

use std::iter;
use std::ops::Bound;

use plimsoll_log::blob::BlobRef;
use plimsoll_log::draft::{Draft, DraftEntry, Ticket};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::borders::{Border, hit};
use crate::index::gaps::list::Gap;
use crate::index::memtables::reservation::{Link, Reservation};
use crate::index::runs::RangeRoom;
use crate::read::lens::Lens;
use crate::read::reader::Reader;
use crate::txn::commit::body::{Body, Part};
use crate::txn::commit::validation::{validate, validate_on_branch};
use crate::txn::payload::Operations;
use crate::txn::read_set::ReadSet;
use crate::txn::resolution::{Resolution, Updated};
use crate::txn::sequencer::{CommitLock, CommitSequencer};
use crate::txn::write_set::WriteSet;
use crate::txn::writer_memory::WriterMemory;
use crate::types::as_of::Expiries;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{BRANCHES, CURSORS, SYSTEM, TAGS};

/// Divisor: a commit that is too large for a record is inserted into the memtable if it takes at
/// most this part of it. The index adopts the runs of a larger one.
const MEMTABLE_PART: u64 = 2;

/// Whether a key between two bounds is written.
type WrittenIn<'a> = dyn Fn(Bound<&[u8]>, Bound<&[u8]>) -> bool + 'a;

/// The inputs of a commit besides its reads and writes.
pub(crate) struct CommitOptions<'a> {
    /// The keyspaces that the commit writes to.
    pub(crate) spaces: &'a [u32],
    pub(crate) metadata: &'a [u8],
    /// Whether the caller waits for durability. If so, the commit may become durable before it has
    /// a ticket.
    pub(crate) waits: bool,
    /// The branch that it writes to; `None`: main.
    pub(crate) lens: Option<&'a Lens>,
}

/// Whether a keyspace holds the store's own records.
fn is_own(id: &u32) -> bool {
    [SYSTEM, CURSORS, TAGS, BRANCHES].contains(id)
}

/// A commit that is encoded but not ordered yet.
pub(crate) struct Commit<'a> {
    reader: &'a Reader,
    sequencer: &'a CommitSequencer,
    /// The snapshot that the transaction read.
    at: Glsn,
    reads: ReadSet,
    /// The expiries that its reads and updates depend on.
    expiries: Expiries,
    writes: WriteSet,
    /// Intervals that the transaction read and that have no live keys.
    gaps: Vec<Gap>,
    updates: Resolution<'a>,
    spaces: &'a [u32],
    metadata: &'a [u8],
    waits: bool,
    lens: Option<&'a Lens>,
    body: Body,
}

/// A commit that has its position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    pub(crate) glsn: Glsn,
    /// Whether it is known to be durable.
    pub(crate) is_durable: bool,
}

/// Room for the commit's ranges and versions.
pub(crate) struct Room<'a> {
    /// `None` if it deletes no range.
    ranges: Option<RangeRoom<'a>>,
    /// `None` if the index adopts its runs.
    versions: Option<Reservation<'a>>,
}

impl<'a> Commit<'a> {
    /// Encodes the writes of a transaction that read `reads` as of `at`. `gaps` are intervals that
    /// it read and that have no live keys; `updates` are of keys not in `writes`.
    pub(crate) fn encode(
        (reader, sequencer, writer_memory): (&'a Reader, &'a CommitSequencer, &WriterMemory),
        at: Glsn,
        (reads, expiries): (ReadSet, Expiries),
        mut writes: WriteSet,
        gaps: Vec<Gap>,
        mut updates: Resolution<'a>,
        options: CommitOptions<'a>,
    ) -> Result<Self> {
        let CommitOptions { spaces, metadata, waits, lens } = options;
        let memtable_bytes = reader.index.memtables.limit_bytes() / MEMTABLE_PART;
        let head_bytes = metadata.len() + writes.range_bytes();
        let reserve_bytes = updates.place(&mut writes, head_bytes)?;
        writer_memory.in_commit(|| writes.prepare(reserve_bytes, memtable_bytes))?;
        let body =
            writer_memory.in_commit(|| Body::new(&reader.budget, &writes, &updates, metadata))?;
        Ok(Self {
            reader,
            sequencer,
            at,
            reads,
            expiries,
            writes,
            gaps,
            updates,
            spaces,
            metadata,
            waits,
            lens,
            body,
        })
    }

    /// Waits while flushes and merges lag behind. Other commits proceed. Commits of the store's own
    /// records do not wait for merges, because the merge job makes such commits itself.
    pub(crate) fn throttle(&self) -> Result<()> {
        let index = &self.reader.index;
        if !self.spaces.iter().all(is_own) {
            index.throttle.wait_for_merges()?;
        }
        if self.is_in_memory() {
            index.memtables.wait_for_room(self.body.room_bytes)
        } else {
            Ok(())
        }
    }

    /// Checks that the keyspaces that the commit writes to exist. Detects a drop only if its commit
    /// was ordered and applied before this call.
    pub(crate) fn check_keyspaces(&self) -> Result<()> {
        self.reader.keyspaces.check_take_more(self.spaces.iter().copied())
    }

    /// Checks that no commit applied since its snapshot conflicts with it, and computes its updates
    /// from the newest values. The caller must hold the commit lock, and everything ordered before
    /// must be applied.
    pub(crate) fn validate(&mut self) -> Result<()> {
        self.check_keyspaces()?;
        if let Some(lens) = self.lens {
            lens.check_exists(self.reader, self.sequencer.applied())?;
        }
        self.reader.read(|view| match self.lens {
            None => validate(view, &self.reads, self.at),
            Some(lens) => validate_on_branch(view, &self.reads, self.at, lens),
        })?;
        if self.updates.settle(self.reader, self.sequencer.applied(), &self.expiries)? {
            let budget = &self.reader.budget;
            self.body = Body::new(budget, &self.writes, &self.updates, self.metadata)?;
            self.updates.encoded();
        }
        Ok(())
    }

    /// Whether its versions go into the memtable.
    fn is_in_memory(&self) -> bool {
        self.writes.is_in_memory() || self.writes.spilled().is_empty()
    }

    /// Makes room for the commit's versions. Flushes a memtable if necessary.
    pub(crate) fn reserve(&self) -> Result<Room<'a>> {
        let index = &self.reader.index;
        let ranges = index.runs.reserve_for_ranges(self.ranges())?;
        if self.is_in_memory() {
            match index.memtables.reserve(self.body.room_bytes, self.sequencer.applied()) {
                // Adopting its runs needs less memory.
                Err(Error::OutOfBudget(_)) if !self.writes.spilled().is_empty() => {}
                room => return Ok(Room { ranges, versions: Some(room?) }),
            }
        }
        index.memtables.reserve_for_runs(self.writes.spilled().infos())?;
        Ok(Room { ranges, versions: None })
    }

    /// Like [`Commit::reserve`], without waiting: `None` if a memtable has to be flushed first.
    pub(crate) fn try_reserve(&self) -> Result<Option<Room<'a>>> {
        let index = &self.reader.index;
        let ranges = index.runs.reserve_for_ranges(self.ranges())?;
        if self.is_in_memory() {
            let versions =
                index.memtables.try_reserve(self.body.room_bytes, self.sequencer.applied());
            // Adopting its runs needs less memory.
            if versions.is_some() || self.writes.spilled().is_empty() {
                return Ok(versions.map(|versions| Room { ranges, versions: Some(versions) }));
            }
        }
        index.memtables.reserve_for_runs(self.writes.spilled().infos())?;
        Ok(Some(Room { ranges, versions: None }))
    }

    /// The ranges that the commit deletes.
    fn ranges(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.writes.ranges().iter().map(|range| (&range.first[..], &range.end[..]))
    }

    /// Orders the record with `append` and applies its versions. The caller must have held `lock`
    /// since everything ordered before was applied.
    pub(crate) fn order(
        &mut self,
        lock: CommitLock<'_>,
        room: Room<'a>,
        append: impl FnOnce(&Draft<'_>) -> Result<Ticket, LogError>,
    ) -> Result<Ordered> {
        if self.changes_nothing() {
            // Order nothing. The updates were computed from everything applied.
            return Ok(Ordered { glsn: self.sequencer.applied(), is_durable: false });
        }
        let glsn = self.sequencer.submit_and_apply(
            &lock,
            || self.append(append),
            |&glsn| self.apply(room, glsn).map(|()| glsn),
        )?;
        // Publish the gaps while no other commit can put anything into them.
        self.reader.index.gaps.publish_committed(std::mem::take(&mut self.gaps), glsn);
        Ok(Ordered { glsn, is_durable: false })
    }

    /// Orders the record with `append` without applying it.
    pub(crate) fn append(
        &self,
        append: impl FnOnce(&Draft<'_>) -> Result<Ticket, LogError>,
    ) -> Result<Glsn> {
        let ticket = self.with_draft(append)?;
        self.note_named();
        Ok(ticket.last)
    }

    /// Calls `take` with the record of the commit. Its blob files are removed with the commit,
    /// unless [`Commit::note_named`] is called.
    pub(crate) fn with_draft<T>(
        &self,
        take: impl FnOnce(&Draft<'_>) -> Result<T, LogError>,
    ) -> Result<T> {
        let (body, writes) = (&self.body, &self.writes);
        let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + body.parts.len());
        parts.push(&body.head);
        for part in &body.parts {
            match part {
                Part::Small { start, end } => parts.push(&body.small[*start..*end]),
                Part::Buffered { offset, len } => parts.extend(writes.buffered(*offset, *len)),
                Part::Updated { number, .. } => parts.push(self.updates.value(*number)),
            }
        }
        let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
        let blobs = writes.blobs();
        let times = self.expiries.times();
        let draft = Draft { entries: &entries, read_at: self.at, blobs: &blobs, times };
        take(&draft).map_err(|error| match error {
            LogError::Late { .. } => self.conflict_of_expiry(),
            error => Error::of_log(error),
        })
    }

    /// Notes that a record names its blob files, or may name them.
    pub(crate) fn note_named(&self) {
        self.writes.named();
    }

    /// The blob files that its record names.
    pub(crate) fn blobs(&self) -> Vec<BlobRef> {
        self.writes.blobs()
    }

    /// The conflict if the commit's own time contradicts its reads: a value that the transaction
    /// saw has expired by then, or one that it took for expired has not.
    fn conflict_of_expiry(&self) -> Error {
        let key = branch_key::user_key(&self.expiries.first_key()).into_owned();
        Error::Conflict { key, at: self.at, by: self.at }
    }

    fn apply(&self, room: Room<'a>, glsn: Glsn) -> Result<()> {
        let (body, writes) = (&self.body, &self.writes);
        // Delete the ranges before applying the versions, because the commit's own puts in a range
        // survive its deletion.
        self.reader.index.runs.delete_ranges(glsn, self.ranges());
        drop(room.ranges);
        match room.versions {
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
                // Adopting runs closes the memtable.
                self.reader.index.memtables.adopt(writes.spilled().adopted(glsn), glsn);
            }
        }
        Ok(())
    }

    /// Whether its updates leave every value unchanged, and it has no other writes.
    pub(crate) fn changes_nothing(&self) -> bool {
        let writes = &self.writes;
        self.body.count == 0 && writes.ranges().is_empty() && writes.spilled().is_empty()
    }

    /// The outcome of each of its updates.
    pub(crate) fn into_updated(self) -> Vec<Updated> {
        self.updates.into_updated()
    }

    /// After a conflict, waits until the conflicting commit is visible, so that a retry does not
    /// conflict with it again. After a refused update, waits until the refusing value is visible.
    /// If the store is poisoned, so that they never become visible, returns that error instead.
    pub(crate) fn settle(&mut self, error: Error) -> Error {
        self.updates.resume_panic();
        let met = match &error {
            Error::Conflict { by, .. } => *by,
            Error::InvalidInput(_) if !self.updates.is_empty() => self.sequencer.applied(),
            _ => return error,
        };
        if met <= self.sequencer.visible() {
            return error;
        }
        match self.reader.log.wait_durable(met) {
            Ok(()) => error,
            Err(poisoned) => Error::of_log(poisoned),
        }
    }

    /// The snapshot that the transaction read.
    pub(crate) fn at(&self) -> Glsn {
        self.at
    }

    /// Whether the caller waits for durability.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether it writes records of keyspaces, tags or branches, which decide what is retained.
    /// Every process must know them before it drops versions.
    pub(crate) fn changes_retention(&self) -> bool {
        [SYSTEM, TAGS, BRANCHES].iter().any(|own| self.spaces.contains(own))
    }

    /// Whether the commit must be the last of its batch, because commits after it could not be
    /// checked against it key by key before it is applied: it deletes ranges, has runs, or writes
    /// the store's own records.
    pub(crate) fn ends_batch(&self) -> bool {
        !self.writes.ranges().is_empty()
            || !self.writes.spilled().is_empty()
            || self.spaces.iter().any(is_own)
    }

    /// Calls `each` with the index keys that it writes, in order. Not for a commit that
    /// [ends its batch](Commit::ends_batch).
    pub(crate) fn for_each_written(&self, each: &mut dyn FnMut(&[u8])) {
        let writes = &self.writes;
        let mut at = writes.map().first();
        while let Some(position) = at {
            each(writes.at(position).0);
            at = writes.after_key(position);
        }
        self.updates.in_record().for_each(|updated| each(updated.key));
    }

    /// Whether it has read or updates a key for which `is_written_in` returns true. That is called
    /// with the bounds of ranges of index keys.
    pub(crate) fn depends_on(&self, is_written_in: &WrittenIn<'_>) -> bool {
        let mut reads = self.reads.ranges().iter();
        reads.any(|range| is_written_in(Bound::Included(&range.first), range.upper()))
            || self
                .updates
                .keys()
                .any(|key| is_written_in(Bound::Included(key), Bound::Included(key)))
    }

    /// Whether the commit may be ordered after any other commit and applied at any time, because it
    /// has read nothing, consists of operations only, and writes none of the store's own records.
    pub(crate) fn is_independent(&self) -> bool {
        let is_plain = self.writes.spilled().is_empty()
            && self.writes.blob_bytes() == 0
            && !self.spaces.iter().any(is_own);
        let reads_nothing = self.reads.ranges().is_empty() && self.updates.is_empty();
        let is_on_main = self.lens.is_none();
        is_plain
            && is_on_main
            && self.writes.ranges().is_empty()
            && reads_nothing
            && self.gaps.is_empty()
    }

    /// The payload as its head and the rest; `None` if the rest is in several pieces.
    pub(crate) fn payload(&self) -> Option<[&[u8]; 2]> {
        let [Part::Small { start, end }] = self.body.parts[..] else { return None };
        Some([&self.body.head, &self.body.small[start..end]])
    }

    /// Size of the commit in the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.body.bytes() + self.writes.blob_bytes()
    }

    /// Size of its versions in the index.
    pub(crate) fn index_bytes(&self) -> u64 {
        if self.is_in_memory() {
            self.body.room_bytes as u64
        } else {
            self.writes.spilled().bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plimsoll_memory::budget::Kind;

    use crate::engine::Engine;
    use crate::engine::open::open;
    use crate::txn::payload::{encode_head, encode_put};
    use crate::txn::transaction::Transaction;
    use crate::types::error::Lift;
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
    fn a_commit_that_cannot_be_applied_poisons_the_store_until_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = open(&path, options()).unwrap();
        put(&store, 1, 10).unwrap();
        let mut payload = Vec::new();
        encode_head(b"", &[], 1, &mut payload);
        encode_put(b"\0\0\0\x01\0\0\0\x02", 0, None, &mut payload);
        let parts = [&payload[..]];
        let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
        let order = || store.reader.log.submit(&Draft::of(&entries), None).lift();
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
        poisoned(crate::engine::shared::requests::trim(&store, Glsn(2)).map(drop));
        assert_eq!((store.visible(), get(&store, 1), get(&store, 2)), (Glsn(1), Some(10), None));
        poisoned(store.close());
        let store = open(&path, options()).unwrap();
        assert_eq!((store.visible(), get(&store, 1), get(&store, 2)), (Glsn(2), Some(10), Some(0)));
        put(&store, 3, 10).unwrap();
    }

    /// Between the preparation and the commit, so many other blob files are opened that those of
    /// the runs do not stay open.
    #[test]
    fn adopting_the_runs_of_an_ordered_commit_needs_no_memory() {
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

    /// Puts this many keys with values of 100 bytes, and deletes every hundredth again.
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

    /// Bytes in the active memtable; `None` if the index has anything else unflushed.
    fn memtable_bytes(store: &Engine) -> Option<u64> {
        store.reader.index.memtables.unflushed().map(|unflushed| unflushed.bytes)
    }

    #[test]
    fn a_commit_too_large_for_a_record_goes_into_a_much_larger_memtable() {
        let options = || Options::new().memory_bytes(64 << 20).background(false);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = open(&path, options()).unwrap();
        put(&store, u32::MAX, 10).unwrap();
        put_many(&store, 15_000);
        assert_eq!(blob_files(&store), 1);
        assert!(memtable_bytes(&store).unwrap() > 15_000 * 100);
        has_many(&store, 15_000);
        // A larger commit becomes a run of the index.
        put_many(&store, 60_000);
        assert_eq!(memtable_bytes(&store), None);
        has_many(&store, 60_000);
        put_many(&store, 15_001);
        drop(store);
        let store = open(&path, options()).unwrap();
        has_many(&store, 60_000);
        store.flush().unwrap();
        crate::engine::shared::requests::compact(&store).unwrap();
        has_many(&store, 60_000);
        store.close().unwrap();
        let store = open(&path, options()).unwrap();
        has_many(&store, 60_000);
        assert_eq!(get(&store, u32::MAX), Some(10));
    }

    #[test]
    fn a_transaction_refused_at_any_reservation_is_whole_or_nothing() {
        // With 16 MiB its runs are adopted; with 64 MiB they are inserted into the memtable. A
        // refusal has no effect if it only keeps a written blob file from staying open, or its
        // pages from staying in memory.
        for (mebibytes, least) in [(16, 2), (64, 1)] {
            let refused = refuse(options().memory_bytes(mebibytes << 20));
            assert!(refused >= least, "{refused}");
        }
    }

    /// Returns the number of refused commits.
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
