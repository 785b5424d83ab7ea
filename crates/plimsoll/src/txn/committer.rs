//! The part of an open store that transactions use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_log::draft::{Draft, DraftEntry};
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::borders::{Border, hit};
use crate::index::gaps::list::Gap;
use crate::read::lens::Lens;
use crate::read::open_moments::OpenMoment;
use crate::read::point::ValueReader;
use crate::read::reader::Reader;
use crate::txn::commit::{Commit, CommitOptions, Ordered};
use crate::txn::durable_wakers::DurableWakers;
use crate::txn::other_processes::Peers;
use crate::txn::pending::Updates;
use crate::txn::read_set::ReadSet;
use crate::txn::resolution::{Resolution, Updated, check_computes_nothing};
use crate::txn::sequencer::CommitSequencer;
use crate::txn::write_set::WriteSet;
use crate::txn::writer_memory::WriterMemory;
use crate::types::as_of::AsOf;
use crate::types::as_of::Expiries;
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;
use crate::types::options::Options;

/// Begins and commits the transactions of an open store.
pub(crate) struct Committer {
    pub(crate) reader: Arc<Reader>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) writer_memory: Arc<WriterMemory>,
    pub(crate) options: Options,
    pub(crate) peers: Arc<dyn Peers>,
    /// Copy of [`Peers::is_alone`], so that reads of a store with one process test nothing else.
    is_alone: bool,
    /// Tasks that await durable commits.
    pub(crate) wakers: Arc<DurableWakers>,
    /// Held while a floor is computed and published.
    floor: Mutex<()>,
    /// Bytes committed since the last attempt to free log segments.
    bytes_since_free: AtomicU64,
}

impl Committer {
    pub(crate) fn new(
        reader: Arc<Reader>,
        sequencer: Arc<CommitSequencer>,
        writer_memory: Arc<WriterMemory>,
        options: Options,
        peers: Arc<dyn Peers>,
    ) -> Self {
        let wakers = Arc::new(DurableWakers::new(&reader.log, options.background));
        let is_alone = peers.is_alone();
        let (floor, bytes_since_free) = (Mutex::new(()), AtomicU64::new(0));
        Self {
            reader,
            sequencer,
            writer_memory,
            options,
            peers,
            is_alone,
            wakers,
            floor,
            bytes_since_free,
        }
    }

    /// An error if the store cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.reader.check_open()?;
        check_computes_nothing(&self.reader)?;
        self.sequencer.check()?;
        if self.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Commits the writes of a transaction. `gaps` are intervals that it read and that have no live
    /// keys.
    pub(crate) fn commit(
        &self,
        moment: &OpenMoment,
        reads: ReadSet,
        writes: WriteSet,
        gaps: Vec<Gap>,
        options: CommitOptions<'_>,
    ) -> Result<Ordered> {
        let (updates, reads) = (std::iter::empty(), (reads, Expiries::default()));
        Ok(self.commit_updates(moment, reads, writes, gaps, updates, options)?.0)
    }

    /// Like [`Committer::commit`], with updates of keys that are not in `writes`, in key order.
    /// Returns the outcome of each updated key.
    pub(crate) fn commit_updates<'f>(
        &self,
        moment: &OpenMoment,
        reads: (ReadSet, Expiries),
        writes: WriteSet,
        gaps: Vec<Gap>,
        updates: impl Iterator<Item = (Vec<u8>, Updates<'f>)>,
        options: CommitOptions<'_>,
    ) -> Result<(Ordered, Vec<Updated>)> {
        self.check_writable()?;
        let parts = (&*self.reader, &*self.sequencer, &*self.writer_memory);
        let mut updates = Resolution::new(updates, || self.open_base(moment.at()))?;
        let resolved = self.writer_memory.in_commit(|| updates.resolve(&self.reader, &reads.1));
        resolved.inspect_err(|_| updates.resume_panic())?;
        let mut commit = Commit::encode(parts, moment.at(), reads, writes, gaps, updates, options)?;
        hit(Border::CommitEncoded);
        commit.throttle()?;
        let ordered = self.writer_memory.in_commit(|| self.peers.order(&mut commit));
        let ordered = ordered.map_err(|error| commit.settle(error))?;
        self.committed(commit.log_bytes());
        let index_bytes = commit.index_bytes();
        // Release the memory of the commit before the wait.
        let updated = commit.into_updated();
        self.reader.index.throttle.delay(index_bytes);
        Ok((ordered, updated))
    }

    /// Appends entries that are not transactions. Returns the GLSN of the first one, and the last.
    pub(crate) fn append(&self, stream: StreamId, payloads: &[&[u8]]) -> Result<(Glsn, Ordered)> {
        self.check_writable()?;
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [*payload]).collect();
        let entries: Vec<_> = parts.iter().map(|parts| DraftEntry { stream, parts }).collect();
        let draft = Draft::of(&entries);
        let ticket = self.peers.append(&draft)?;
        Ok((ticket.first, Ordered { glsn: ticket.last, is_durable: false }))
    }

    /// Flushes the memtables into runs.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_writable()?;
        // Check even if there is nothing to flush.
        self.reader.log.check_own().lift()?;
        // Apply the commits that this process left in the log, so that they are flushed as well. If
        // they cannot be applied now, the flush may make room.
        let taken_in = self.fresh_and_ordered();
        self.sequencer.at_durable(|applied| self.reader.index.memtables.flush_up_to(applied))?;
        taken_in
    }

    /// Opens a snapshot at the newest readable GLSN.
    pub(crate) fn open_newest(&self) -> OpenMoment {
        let moment = self.open_now(|| self.newest_to_open());
        // Apply after the open, so that a floor that is promised in the meantime is not above the
        // snapshot.
        self.show_now(&moment);
        moment
    }

    /// As [`Committer::open_newest`], and every later moment is retained as well.
    pub(crate) fn open_newest_floor(&self) -> OpenMoment {
        let moment = self.open_floor_now(|| self.newest_to_open());
        self.show_now(&moment);
        moment
    }

    /// Opens the base snapshot of updates for a transaction at `at`: the newest, or `at` if that is
    /// ordered but not visible yet.
    ///
    /// It retains every later moment as well. If the base of an update changes, the update is
    /// computed again from a later moment, and a deletion since must not be missed then.
    fn open_base(&self, at: Glsn) -> OpenMoment {
        let newest = self.open_newest_floor();
        if newest.at() < at { self.open_floor_now(|| at) } else { newest }
    }

    /// Like [`Committer::open_newest`], for a transaction. Only its first read applies the commits
    /// of others ([`Committer::show`]), because it may never read.
    pub(crate) fn open_unread(&self) -> OpenMoment {
        let moment = self.open_now(|| self.newest_to_open());
        if !self.is_applied_already(&moment) {
            moment.defer_apply();
        }
        moment
    }

    /// Applies the commits that an unread snapshot shows, before its first read.
    pub(crate) fn show(&self, moment: &OpenMoment) -> Result<AsOf<'static>> {
        if !moment.is_applied() {
            self.show_now(moment);
        }
        moment.readable()
    }

    /// Whether an unread snapshot can be read without applying anything.
    pub(crate) fn is_shown_in_memory(&self, moment: &OpenMoment) -> bool {
        if !moment.is_applied()
            && self.is_applied_already(moment)
            && !self.may_be_before_commit(moment)
        {
            moment.shows(Ok(()));
        }
        moment.is_applied()
    }

    fn is_applied_already(&self, moment: &OpenMoment) -> bool {
        let is_known = self.is_alone || self.peers.are_own_records_current();
        is_known && self.sequencer.visible() >= moment.at() && !self.reader.owner.is_foreign()
    }

    fn show_now(&self, moment: &OpenMoment) {
        let fresh = self.fresh();
        // Check the result: a read-only process may have outlived the processes that it followed.
        let taken_in = fresh.and_then(|()| reaches(self.sequencer.visible(), moment.at()));
        moment.shows(taken_in.and_then(|()| self.raise_time(moment)));
    }

    /// Whether the time of a moment may be before the time of its commit. This happens if the clock
    /// of another process was ahead, and this process had not read the commits of that process when
    /// it opened the moment.
    fn may_be_before_commit(&self, moment: &OpenMoment) -> bool {
        !self.is_alone && self.reader.log.last_micros() > moment.as_of().micros()
    }

    /// Raises a moment's time to that of its commit, which is applied.
    fn raise_time(&self, moment: &OpenMoment) -> Result<()> {
        if self.may_be_before_commit(moment) {
            moment.raise_time(self.as_of_past(moment.at())?.micros());
        }
        Ok(())
    }

    /// Opens a snapshot at the last commit ordered by any member, which may not be durable yet.
    pub(crate) fn open_ordered(&self) -> OpenMoment {
        self.note_read();
        let moment = self.open_now(|| self.peers.newest_ordered().max(self.sequencer.applied()));
        let fresh = self.fresh_and_ordered();
        let taken_in = fresh.and_then(|()| reaches(self.sequencer.applied(), moment.at()));
        moment.shows(taken_in.and_then(|()| self.raise_time(&moment)));
        moment
    }

    /// The last entry that any process has ordered ([`Peers::ordered_between_commits`]).
    ///
    /// # Errors
    /// As for [`Peers::ordered_between_commits`].
    pub(crate) fn ordered_between_commits(&self) -> Result<Glsn> {
        self.peers.ordered_between_commits()
    }

    /// If the branch is deleted as of `moment`, makes every read at it fail. The moment was just
    /// opened, so nothing has been read at it yet.
    pub(crate) fn check_branch(&self, lens: &Lens, moment: &OpenMoment) {
        let exists = |at: AsOf<'_>| lens.check_exists(&self.reader, at.glsn);
        if let Err(error) = moment.readable().and_then(exists) {
            moment.shows(Err(error));
        }
    }

    /// Records a read.
    pub(crate) fn note_read(&self) {
        if !self.is_alone {
            self.peers.note_read();
        }
    }

    /// The newest GLSN that is readable in any process. From now on no snapshot below it is opened,
    /// unless a caller requests that moment.
    fn newest_to_open(&self) -> Glsn {
        let visible = self.sequencer.visible();
        if self.is_alone { visible } else { self.peers.newest_readable().max(visible) }
    }

    fn open_now(&self, at: impl Fn() -> Glsn) -> OpenMoment {
        // Read the time last, so that it is not before the commit.
        let log = &self.reader.log;
        let at = || {
            let glsn = at();
            AsOf::new(glsn, log.now_micros())
        };
        if self.reader.owner.is_foreign() {
            // Nothing is read at this snapshot.
            return OpenMoment::unopened(at());
        }
        match self.reader.snapshots.open(&self.reader.budget, at) {
            Ok(moment) => moment,
            // A snapshot takes about a hundred bytes. Leave it uncharged rather than fail.
            Err(_) => self.reader.snapshots.open_unleased(at),
        }
    }

    /// As [`Committer::open_now`], and every later moment is retained as well.
    fn open_floor_now(&self, at: impl Fn() -> Glsn) -> OpenMoment {
        let at = || AsOf::new(at(), self.reader.log.now_micros());
        if self.reader.owner.is_foreign() {
            return OpenMoment::unopened(at());
        }
        match self.reader.snapshots.open_floor(&self.reader.budget, at) {
            Ok(moment) => moment,
            Err(_) => self.reader.snapshots.open_floor_unleased(at),
        }
    }

    /// The moment of a visible commit. Its time is that of the clock if the commit is the newest,
    /// otherwise the commit's own.
    ///
    /// # Errors
    /// The disk, the budget, or corruption of the log.
    pub(crate) fn as_of(&self, at: Glsn) -> Result<AsOf<'static>> {
        match at >= self.newest_to_open() {
            true => Ok(AsOf::new(at, self.reader.log.now_micros())),
            false => self.as_of_past(at),
        }
    }

    /// The moment of a visible commit, with the commit's own time: values that expire later are
    /// visible at it.
    ///
    /// # Errors
    /// As for [`Committer::as_of`].
    pub(crate) fn as_of_past(&self, at: Glsn) -> Result<AsOf<'static>> {
        let time = || match self.reader.snapshots.expiry_time(at) {
            Some(time) => Ok(time),
            None => self.reader.log.time_or_later(at).lift(),
        };
        Ok(AsOf::new(at, if at == Glsn::NONE { 0 } else { time()? }))
    }

    /// Opens a snapshot in the past. Waits for memory like writers.
    pub(crate) fn open_at(&self, at: AsOf<'static>) -> Result<OpenMoment> {
        let open = || self.reader.snapshots.open(&self.reader.budget, || at);
        let opened = self.writer_memory.in_transaction(false, open);
        self.publish_floor();
        opened
    }

    /// As [`Committer::open_at`], and every later moment is retained as well.
    pub(crate) fn open_floor(&self, at: AsOf<'static>) -> Result<OpenMoment> {
        let open = || self.reader.snapshots.open_floor(&self.reader.budget, || at);
        let opened = self.writer_memory.in_transaction(false, open);
        self.publish_floor();
        opened
    }

    /// Applies the commits of other members, so that the next read sees everything durable in any
    /// process.
    ///
    /// # Errors
    /// [`Error::Behind`]: the next read would not see the newest commits. A snapshot opened
    /// nevertheless keeps this error ([`OpenMoment::shows`]).
    pub(crate) fn fresh(&self) -> Result<()> {
        self.caught_up(|| self.peers.catch_up())
    }

    /// Applies the commits that other members have ordered, durable or not.
    ///
    /// # Errors
    /// As for [`Committer::fresh`].
    pub(crate) fn fresh_and_ordered(&self) -> Result<()> {
        self.caught_up(|| self.peers.catch_up_with_ordered())
    }

    /// Runs `catch_up`, which applies commits of other processes.
    ///
    /// # Errors
    /// As for [`Committer::fresh`].
    pub(crate) fn caught_up(&self, catch_up: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_alone {
            return Ok(());
        }
        self.reader.owner.check()?;
        check_computes_nothing(&self.reader)?;
        catch_up().map_err(|error| match self.reader.check_open() {
            Err(closed) => closed,
            Ok(()) if matches!(error, Error::Behind { .. }) => error,
            Ok(()) => Error::Behind {
                cause: format!(
                    "{error}; once that is corrected, read again in a new snapshot or transaction"
                ),
            },
        })
    }

    /// The newest readable GLSN; `None` if the log would have to be read first to apply the commits
    /// of other members.
    pub(crate) fn visible_if_fresh(&self) -> Option<Glsn> {
        let is_fresh =
            !self.reader.owner.is_foreign() && (self.is_alone || self.peers.is_caught_up());
        is_fresh.then(|| self.sequencer.visible())
    }

    /// Publishes the floor of this process: the oldest open snapshot, or the newest readable GLSN
    /// if none is open. This promises the other members that this process opens no snapshot below
    /// the floor. Returns whether a snapshot older than the newest readable GLSN is open.
    pub(crate) fn publish_floor(&self) -> bool {
        // Compute and publish under one lock, because an earlier floor must not overwrite a later
        // one.
        let _alone = lock(&self.floor);
        let oldest = self.reader.snapshots.oldest(|| self.newest_to_open());
        self.peers.publish_floor(oldest);
        oldest < self.newest_to_open()
    }

    /// A reader of an index key's value as of an open snapshot. Waits for memory like writers.
    pub(crate) fn value_reader(&self, key: &[u8], at: AsOf<'_>) -> Result<Option<ValueReader>> {
        self.writer_memory.in_transaction(false, || self.reader.reader(key, at))
    }

    /// Counts the bytes of a commit. Frees old log segments about once per segment's worth of
    /// bytes.
    pub(crate) fn committed(&self, bytes: u64) {
        let segment = self.options.segment_limit_bytes();
        if self.bytes_since_free.fetch_add(bytes, Ordering::Relaxed) + bytes >= segment {
            self.bytes_since_free.store(0, Ordering::Relaxed);
            self.reader.index.env.free_log(true);
        }
    }
}

/// Fails if `taken_in`, the last GLSN applied, does not reach the snapshot.
fn reaches(taken_in: Glsn, at: Glsn) -> Result<()> {
    let cause = || {
        format!(
            "the log after GLSN {taken_in} is missing, so a read as of GLSN {at} is impossible; \
             read again in a new snapshot or transaction"
        )
    };
    if taken_in >= at { Ok(()) } else { Err(Error::Behind { cause: cause() }) }
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Committer({:?})", self.sequencer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use crate::api::snapshot::Snapshot;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::index_key::KeyBuffer;
    use crate::types::keyspaces::DEFAULT;
    use crate::types::retention::Retention;

    use super::*;

    #[test]
    fn a_snapshot_opened_behind_other_members_is_never_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = || Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let (one, two) = (open(&path, options()).unwrap(), open(&path, options()).unwrap());
        let [theirs, space] =
            [&one, &two].map(|store| store.reader.keyspaces.find("default").unwrap().0);
        let mut tx = Transaction::new(&one.committer);
        tx.put(&theirs, b"a", b"1").unwrap();
        tx.commit().unwrap();
        let is_behind = |error| assert!(matches!(error, Error::Behind { .. }), "{error}");
        // The first reservation is for the snapshot itself, which is opened anyway.
        two.reader.budget.fail_after(1);
        let snapshot = Snapshot::newest(&two);
        is_behind(snapshot.get(&space, b"a").unwrap_err());
        // A transaction applies the commits of others at its first read.
        let tx = Transaction::new(&two.committer);
        two.reader.budget.fail_after(0);
        is_behind(tx.first(&space).unwrap_err());
        // The commits that could not be applied before are applied now.
        assert!(Snapshot::newest(&two).get(&space, b"a").unwrap().is_some());
        is_behind(snapshot.get(&space, b"a").unwrap_err());
        is_behind(snapshot.first(&space).unwrap_err());
        is_behind(snapshot.time().unwrap_err());
        is_behind(tx.get(&space, b"a").unwrap_err());
        is_behind(tx.first(&space).unwrap_err());
    }

    #[test]
    fn a_deletion_after_the_base_of_updates_is_found_after_a_merge() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let options = options.retention(Retention::Latest);
        let store = open(&dir.path().join("store"), options).unwrap();
        let space = store.reader.keyspaces.find("default").unwrap().0;
        let commit = |change: &dyn Fn(&mut Transaction) -> Result<()>| {
            let mut tx = Transaction::new(&store.committer);
            change(&mut tx).unwrap();
            tx.commit().unwrap()
        };
        commit(&|tx| tx.put(&space, b"b", b"1"));
        let base = store.committer.open_base(Glsn::NONE);
        let put_at = commit(&|tx| tx.put(&space, b"a", b"1"));
        let deleted_at = commit(&|tx| tx.delete(&space, b"a"));
        crate::engine::shared::requests::compact(&store).unwrap();
        let key = KeyBuffer::new(DEFAULT.1, b"a").unwrap();
        let changed = || store.reader.read(|view| view.changed(&key, put_at)).unwrap();
        assert_eq!(changed(), Some(deleted_at));
        drop(base);
        crate::engine::shared::requests::compact(&store).unwrap();
        assert_eq!(changed(), None, "the merge would have dropped it");
    }

    #[test]
    fn the_cause_of_being_behind_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let store = open(&dir.path().join("store"), options).unwrap();
        let of = |error: Error| store.committer.caught_up(|| Err(error)).unwrap_err().to_string();
        let once = of(Error::corrupt("a page"));
        assert!(once.contains("could not be applied"), "{once}");
        let (_, cause) = once.split_once(": ").unwrap();
        assert_eq!(of(Error::Behind { cause: cause.to_owned() }), once);
    }

    #[test]
    fn no_open_snapshot_is_below_the_published_floor() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let store = open(&dir.path().join("store"), options).unwrap();
        let space = store.reader.keyspaces.find("default").unwrap().0;
        for key in [b"a", b"b"] {
            let mut tx = Transaction::new(&store.committer);
            tx.put(&space, key, b"1").unwrap();
            tx.commit().unwrap();
        }
        let (committer, members) = (&store.committer, store.membership.members().unwrap());
        let is_over = AtomicBool::new(false);
        let is_below = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    committer.publish_floor();
                }
            });
            // Competing threads, so that a thread may be stopped anywhere.
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let (clock, mut is_below) = (&store.options.clock, false);
            let begun = clock.monotonic_nanos();
            while !is_below && clock.monotonic_nanos() - begun < 1_000_000_000 {
                let moment = committer.open_at(AsOf::unexpiring(Glsn(1))).unwrap();
                is_below = (0..2000).any(|_| members.needs.own_needs().0 > moment.at());
            }
            is_over.store(true, Ordering::Relaxed);
            is_below
        });
        assert!(!is_below);
    }
}
