//! The index of a member that is not the keeper: its memtables are never written, they are released
//! once the keeper's runs hold what is in them.
//!
//! Laws:
//! 1. A memtable is released when the checkpoint of the manifest that is read reaches its boundary.
//!    One that reaches beyond stays whole: a version that is in it and in a run counts once.
//! 2. Whoever waits for room asks the keeper to flush, and takes its place if that is free, or if
//!    the keeper does not answer.
//! 3. A new keeper removes and reuses nothing before it has installed a manifest: see
//!    [`plimsoll_log::members::keeping`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::members::Members;

use crate::borders::{Border, hit};
use crate::index::env::Progress;
use crate::index::manifest::files::run_of;
use crate::index::runs::Core;
use crate::index::sources::view::{Content, View};
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;
use crate::types::version::MAX_INDEX_KEY_BYTES;

/// The longest wait for the keeper until a look at what it has done.
const LOOK: Duration = Duration::from_millis(100);

/// How long the keeper may do nothing until whoever waits for it gives up.
const PATIENCE_NANOS: u64 = 10_000_000_000;

/// How long the keeper may leave nudges unanswered until another one takes its place. It costs work
/// and no data if it only was slow.
const ANSWERS_WITHIN_NANOS: u64 = 2_000_000_000;

/// Watches whether the keeper answers, while it is waited for.
#[derive(Debug)]
pub(crate) struct KeeperWatch {
    pulse: (u64, u64),
    since: u64,
}

impl KeeperWatch {
    /// Begins to watch.
    pub(crate) fn new(members: &Members, clock: &dyn Clock) -> Self {
        Self { pulse: members.keeper_pulse(), since: clock.monotonic_nanos() }
    }

    /// The keeper's pulse, if it has not answered for too long. To be called again and again.
    pub(crate) fn stopped(&mut self, members: &Members, clock: &dyn Clock) -> Option<(u64, u64)> {
        let (pulse, now) = (members.keeper_pulse(), clock.monotonic_nanos());
        if pulse != self.pulse {
            (self.pulse, self.since) = (pulse, now);
        }
        members.nudge();
        (now.saturating_sub(self.since) > ANSWERS_WITHIN_NANOS).then_some(pulse)
    }
}

impl Core {
    /// Takes in what the keeper has installed, and releases what its runs hold. While memtables
    /// wait to be released, waits for the keeper.
    pub(crate) fn follow_step(&self, members: &Arc<Members>) -> Result<Progress> {
        let clock = &self.context.clock;
        let begun = clock.monotonic_nanos();
        let mut watch = KeeperWatch::new(members, &**clock);
        let mut told = begun;
        loop {
            if let Some(oldest) = self.view().closed.last().map(|closed| closed.boundary) {
                members.want_flush(oldest);
            }
            let now = clock.monotonic_nanos();
            if now.saturating_sub(told) >= LOOK.as_nanos() as u64 {
                // Another keeper may not have been told.
                told = now;
                members.tell();
            }
            // Read after what this one tells above, which is not to wake it. What it tells when it
            // takes in a manifest may: one look more.
            let seen = members.state();
            if self.take_in(members)? {
                return Ok(Progress::Worked);
            }
            if self.view().closed.is_empty() {
                return Ok(Progress::Idle);
            }
            if self.keep_if_free(members)? {
                return Ok(Progress::Worked);
            }
            let is_nobody_there = || members.is_reader() && members.keeper_pid().is_none();
            if self.signals.is_closing() || is_nobody_there() {
                return Ok(Progress::Idle);
            }
            if let Some(stopped) = watch.stopped(members, &**clock)
                && self.replace(members, stopped)?
            {
                return Ok(Progress::Worked);
            }
            if clock.monotonic_nanos().saturating_sub(begun) > PATIENCE_NANOS {
                return Err(Error::Stalled { pid: members.keeper_pid() });
            }
            members.wait_for_change(seen, LOOK);
        }
    }

    /// Takes in the newest manifest, if it is not known yet. Returns whether memtables were
    /// released.
    pub(crate) fn take_in(&self, members: &Members) -> Result<bool> {
        if members.manifest() > self.head().number {
            self.refresh()?;
        }
        let releases = self.release_held();
        self.tell_needs(members);
        Ok(releases)
    }

    /// Tells the other members which part of the log is needed here.
    pub(crate) fn tell_needs(&self, members: &Members) {
        // What was found earlier is not told later: it may be too little by then.
        let _alone = lock(&self.telling);
        members.set_checkpoint(self.needed_from(self.head().checkpoint.glsn));
    }

    /// Releases the memtables that the runs hold. Returns whether there were any.
    pub(crate) fn release_held(&self) -> bool {
        let checkpoint = self.head().checkpoint.glsn;
        let is_held =
            |view: &View| view.closed.last().is_some_and(|closed| closed.boundary <= checkpoint);
        let releases = is_held(&self.view());
        if releases {
            let record = lock(&self.record);
            let held: Vec<_> = self
                .view()
                .closed
                .iter()
                .filter(|closed| closed.boundary <= checkpoint)
                .cloned()
                .collect();
            // Older rows of their keys must not be found any more once the memtables are gone.
            let row_cache = &self.context.row_cache;
            let set = self.view().set + 1;
            if row_cache.begin_runs(set) {
                // The oldest first: the row of a key is the last one that is told.
                for closed in held.iter().rev() {
                    match &closed.content {
                        Content::Memtable(memtable) => memtable.for_each_newest(|version| {
                            row_cache.supersede(version.key, version.glsn, version.stored);
                        }),
                        Content::Adopted(_) => row_cache.clear(),
                    }
                }
            }
            self.swap_view(|view| {
                view.closed.retain(|closed| closed.boundary > checkpoint);
                view.set = set;
            });
            drop((record, held));
            self.flushed.fetch_max(checkpoint.0, Ordering::AcqRel);
            self.seats.exchanged();
        }
        releases
    }

    /// See [`crate::index::Index::leap`].
    pub(crate) fn leap(&self, members: &Members, applied: Glsn) -> Result<Glsn> {
        self.close_up_to(applied);
        self.take_in(members)?;
        Ok(self.go_on_behind_runs(|_| true).expect("any checkpoint will do"))
    }

    /// See [`crate::index::Index::pass_over`].
    pub(crate) fn pass_over(&self, members: &Members, applied: Glsn, next: Glsn) -> Option<Glsn> {
        let may_pass = |checkpoint: Glsn| applied < checkpoint && checkpoint < next;
        if !may_pass(self.head().checkpoint.glsn) {
            return None;
        }
        self.close_up_to(applied);
        self.release_held();
        let passed = self.go_on_behind_runs(may_pass);
        self.tell_needs(members);
        passed
    }

    /// What is before the checkpoint, if that may be passed, is read in the runs from now on;
    /// returns the checkpoint.
    fn go_on_behind_runs(&self, may_pass: impl FnOnce(Glsn) -> bool) -> Option<Glsn> {
        let record = lock(&self.record);
        let checkpoint = record.checkpoint.glsn;
        if !may_pass(checkpoint) {
            return None;
        }
        // What was left out is in no memtable that could say so: rows and gaps of any key may be
        // older.
        self.gaps.adopt(checkpoint, &[], &[u8::MAX; MAX_INDEX_KEY_BYTES]);
        let set = self.view().set + 1;
        if self.context.row_cache.begin_runs(set) {
            self.context.row_cache.clear();
        }
        self.swap_view(|view| view.set = set);
        drop(record);
        self.seats.exchanged();
        Some(checkpoint)
    }

    /// The log behind this GLSN is needed here: by the checkpoint that is known, and by what
    /// memtables point to.
    pub(crate) fn needed_from(&self, checkpoint: Glsn) -> Glsn {
        let view = self.view();
        let closed = view.closed.iter().map(|closed| match &closed.content {
            Content::Memtable(memtable) => memtable.min_glsn(),
            // Its record names the files of the runs.
            Content::Adopted(_) => closed.boundary,
        });
        let oldest =
            closed.chain([view.active.min_glsn()]).filter(|oldest| *oldest > Glsn::NONE).min();
        oldest.map_or(checkpoint, |oldest| checkpoint.min(Glsn(oldest.0 - 1)))
    }

    /// See [`crate::index::Index::told_to_rows`].
    pub(crate) fn told_to_rows(&self, applied: Glsn) -> Result<Option<Position>> {
        // In this order: a memtable that is released or flushed in between has told the row cache
        // of its versions before.
        let checkpoint = self.head().checkpoint;
        let glsn = self.needed_from(checkpoint.glsn).min(applied);
        if glsn == checkpoint.glsn {
            return Ok(Some(checkpoint));
        }
        let chain = if glsn < self.context.log.bounds().first {
            None
        } else {
            self.context.log.chain_at(glsn).lift()?
        };
        Ok(chain.map(|chain| Position { glsn, chain }))
    }

    /// Becomes the keeper, if there is none.
    pub(crate) fn keep_if_free(&self, members: &Members) -> Result<bool> {
        self.keep_by(members, || members.try_to_keep().lift())
    }

    /// Becomes the keeper in place of one that does not answer.
    pub(crate) fn replace(&self, members: &Members, stopped: (u64, u64)) -> Result<bool> {
        let replaced = self.keep_by(members, || members.try_to_replace(stopped).lift())?;
        if replaced {
            hit(Border::KeeperReplaced);
        }
        Ok(replaced)
    }

    fn keep_by(&self, members: &Members, get: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let _alone = lock(&self.keeping);
        if members.is_keeper() {
            return Ok(true);
        }
        members.give_back_if_replaced();
        if self.signals.is_closing() || !get()? {
            return Ok(false);
        }
        match self.prepare_to_keep(members) {
            Ok(()) if members.keep() => {}
            Ok(()) | Err(Error::NotKeeper { .. }) => {
                members.give_keeping_back();
                return Ok(false);
            }
            Err(error) => {
                members.give_keeping_back();
                return Err(error);
            }
        }
        members.set_manifest(self.head().number);
        self.signals.call_flush();
        self.signals.call_compaction();
        Ok(true)
    }

    /// The files are as the newest manifest says: what an earlier keeper left behind is removed,
    /// and its ids are not used again. It may be there still, in the middle of its work.
    fn prepare_to_keep(&self, members: &Members) -> Result<()> {
        self.files.skip_those_in_folder(self.context.clock.wall_micros())?;
        // Listed before the manifest is installed. Of these files, no later manifest names one that
        // this does not name: so it does not matter if this process is stopped now, and others
        // write files meanwhile.
        let names = self.files.names()?;
        self.fence()?;
        let named: BTreeSet<u64> = self.view().infos().filter_map(run_of).collect();
        let copied = self.leave_to_copies(&named);
        let is_named = |run: u64| named.contains(&run) || copied.contains(&run);
        if members.are_files_held() {
            self.files.leave(&names, is_named);
            return Ok(());
        }
        self.files.sweep(&names, self.head().number, is_named)
    }

    /// Runs beside those that the manifest has `named` whose files are being copied here: they are
    /// removed when that is done.
    fn leave_to_copies(&self, named: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut copied = BTreeSet::new();
        for view in self.blobs.views_of_jobs() {
            for (guard, info) in
                view.all_runs().flat_map(|run| run.guards().iter().zip(run.infos()))
            {
                if let Some(id) = run_of(info).filter(|id| !named.contains(id)) {
                    guard.set_obsolete(true);
                    copied.insert(id);
                }
            }
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use plimsoll_disk::lying::LyingDisk;

    use crate::api::snapshot::Snapshot;
    use crate::engine::open::open;
    use crate::engine::{Engine, steps};
    use crate::txn::transaction::Transaction;
    use crate::types::keyspaces::Keyspace;
    use crate::types::options::Options;

    use super::*;

    fn join(path: &std::path::Path) -> Arc<Engine> {
        open(path, Options::new().memory_bytes(16 << 20).background(false).shared(true)).unwrap()
    }

    fn members(store: &Engine) -> Arc<Members> {
        Arc::clone(&store.membership.as_ref().unwrap().members)
    }

    fn default(store: &Engine) -> Keyspace {
        store.reader.keyspaces.find("default").unwrap().0
    }

    fn put(store: &Arc<Engine>, key: u32) {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&default(store), key.to_be_bytes(), b"x").unwrap();
        tx.commit().unwrap();
    }

    fn put_value(store: &Arc<Engine>, key: u32, value: &[u8]) {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&default(store), key.to_be_bytes(), value).unwrap();
        tx.commit().unwrap();
    }

    fn value_of(store: &Arc<Engine>, key: u32) -> Vec<u8> {
        Snapshot::newest(store).get(&default(store), key.to_be_bytes()).unwrap().unwrap().to_vec()
    }

    /// Two members, of which the other one has a row of key 1, and no memtable.
    fn with_a_row(path: &std::path::Path) -> (Arc<Engine>, Arc<Engine>) {
        let (keeper, other) = (join(path), join(path));
        put_value(&keeper, 1, b"1");
        assert_eq!(value_of(&other, 1), b"1");
        other.reader.index.close_up_to(other.committer.sequencer.applied());
        keeper.flush().unwrap();
        other.reader.index.follow(&members(&other)).unwrap();
        assert!(other.reader.index.view().closed.is_empty());
        other.maintenance.pool.clear();
        assert_eq!(value_of(&other, 1), b"1");
        assert_eq!(other.reader.row_cache.stats().unwrap().0.entries, 1);
        (keeper, other)
    }

    #[test]
    fn of_several_memtables_that_are_released_at_once_the_newest_versions_become_rows() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, other) = with_a_row(&dir.path().join("store"));
        for value in [b"2", b"3"] {
            put_value(&keeper, 1, value);
            assert_eq!(value_of(&other, 1), value);
            other.reader.index.close_up_to(other.committer.sequencer.applied());
        }
        keeper.flush().unwrap();
        other.reader.index.follow(&members(&other)).unwrap();
        assert!(other.reader.index.view().closed.is_empty());
        assert_eq!(value_of(&other, 1), b"3");
    }

    /// A commit that becomes runs, of which another member reads in a manifest before it takes in
    /// the commit.
    #[test]
    fn runs_that_a_manifest_names_before_their_commit_is_taken_in_supersede_rows_and_memtables() {
        for has_row in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let (keeper, other) =
                if has_row { with_a_row(&path) } else { (join(&path), join(&path)) };
            if !has_row {
                put_value(&keeper, 1, b"1");
                assert_eq!(value_of(&other, 1), b"1");
            }
            let mut late = Transaction::new(&other.committer);
            let space = default(&other);
            assert_eq!(late.get(&space, 1u32.to_be_bytes()).unwrap().unwrap(), b"1"[..]);
            late.put(&space, 2u32.to_be_bytes(), b"as it was").unwrap();
            let mut large = Transaction::new(&keeper.committer);
            for key in 1..20_000u32 {
                large.put(&default(&keeper), key.to_be_bytes(), [2; 700]).unwrap();
            }
            large.commit().unwrap();
            keeper.flush().unwrap();
            other.reader.index.follow(&members(&other)).unwrap();
            assert!(matches!(late.commit(), Err(Error::Conflict { .. })), "has a row: {has_row}");
            assert_eq!(value_of(&other, 1), [2; 700], "has a row: {has_row}");
            other.reader.index.follow(&members(&other)).unwrap();
            assert!(other.reader.index.view().closed.is_empty());
            for key in [1, 2, 19_999] {
                assert_eq!(value_of(&other, key), [2; 700]);
            }
            // It names no table twice once it is the keeper.
            drop(keeper);
            put_value(&other, 20_000, b"new");
            other.flush().unwrap();
            let view = other.reader.index.view();
            let ids: BTreeSet<_> = view.infos().map(|info| info.id).collect();
            assert_eq!(ids.len(), view.infos().count());
        }
    }

    /// The pages that another member has in its pool are of runs that are gone after a merge; it
    /// finds those of the new run in the page cache.
    #[test]
    fn what_is_written_is_fetched_into_the_page_cache_for_other_members_only() {
        for has_other in [false, true] {
            let disk = LyingDisk::new(1);
            let options = || {
                let shared = Options::new().memory_bytes(16 << 20).background(false).shared(true);
                Options { disk: Arc::new(disk.clone()), ..shared }
            };
            let path = std::path::Path::new("/store");
            let keeper = open(path, options()).unwrap();
            let _other = has_other.then(|| open(path, options()).unwrap());
            for key in 0..300 {
                put_value(&keeper, key, &[1; 1000]);
            }
            let before = disk.announced_bytes();
            keeper.flush().unwrap();
            let flushed = disk.announced_bytes() - before;
            put_value(&keeper, 0, b"new");
            keeper.flush().unwrap();
            let before = disk.announced_bytes();
            keeper.reader.index.compact_all().unwrap();
            let merged = disk.announced_bytes() - before;
            for bytes in [flushed, merged] {
                let is_right = if has_other { bytes >= 300_000 } else { bytes == 0 };
                assert!(
                    is_right,
                    "{flushed} and {merged} bytes announced, another member: {has_other}"
                );
            }
        }
    }

    #[test]
    fn one_that_was_replaced_while_it_took_over_installs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (first, slow, keeper) = (join(&path), join(&path), join(&path));
        put(&first, 1);
        first.close().unwrap();
        assert!(members(&slow).try_to_keep().unwrap());
        assert!(
            keeper
                .reader
                .index
                .core
                .replace(&members(&keeper), members(&keeper).keeper_pulse())
                .unwrap()
        );
        let went_on = slow.reader.index.core.prepare_to_keep(&members(&slow));
        assert!(matches!(went_on, Err(Error::NotKeeper { .. })), "{went_on:?}");
        put(&keeper, 2);
        keeper.flush().unwrap();
        assert_eq!(members(&keeper).term(), Some(1));
    }

    #[test]
    fn a_new_keeper_that_lags_behind_the_manifest_does_not_set_the_checkpoint_back() {
        for is_closed_before in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let (before, next) = (join(&path), join(&path));
            put(&before, 1);
            drop(Snapshot::newest(&next));
            let index = &next.reader.index;
            let close = || index.close_up_to(next.committer.sequencer.applied());
            if is_closed_before {
                close();
            }
            put(&before, 2);
            before.flush().unwrap();
            let checkpoint = before.reader.index.checkpoint().glsn;
            assert!(index.core.replace(&members(&next), members(&next).keeper_pulse()).unwrap());
            if !is_closed_before {
                close();
            }
            while index.core.flush_step().unwrap() == Progress::Worked {}
            assert_eq!(index.checkpoint().glsn, checkpoint);
            for key in 1..3u32 {
                let space = next.reader.keyspaces.find("default").unwrap().0;
                assert!(Snapshot::newest(&next).get(&space, key.to_be_bytes()).unwrap().is_some());
            }
        }
    }

    #[test]
    fn a_new_keeper_keeps_the_files_that_its_own_backup_reads_until_that_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (before, next) = (join(&path), join(&path));
        for key in 0..3 {
            put(&before, key);
            before.flush().unwrap();
        }
        let held = next.hold_files().unwrap();
        let (_, files, read) = next.reader.index.files();
        steps::compact(&before.space, &before.committer).unwrap();
        before.close().unwrap();
        next.reader.index.follow(&members(&next)).unwrap();
        assert!(members(&next).is_keeper());
        let are_there =
            || files.iter().filter(|file| next.options.disk.entry(file).unwrap().is_some()).count();
        assert_eq!((files.len(), are_there()), (3, 3));
        drop((held, read));
        assert_eq!(are_there(), 0);
    }

    #[test]
    fn what_a_new_keeper_may_not_remove_yet_it_removes_when_nobody_reads_all_files_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (before, next, reads) = (join(&path), join(&path), join(&path));
        for key in 0..3 {
            put(&before, key);
            before.flush().unwrap();
        }
        let held = reads.hold_files().unwrap();
        let (_, files, read) = reads.reader.index.files();
        steps::compact(&before.space, &before.committer).unwrap();
        before.close().unwrap();
        next.reader.index.follow(&members(&next)).unwrap();
        assert!(members(&next).is_keeper());
        let are_there =
            || files.iter().filter(|file| next.options.disk.entry(file).unwrap().is_some()).count();
        next.reader.index.remove_left();
        assert_eq!((files.len(), are_there()), (3, 3));
        drop((held, read));
        next.reader.index.remove_left();
        assert_eq!(are_there(), 0);
        assert!(
            Snapshot::newest(&next).get(&default(&next), 1u32.to_be_bytes()).unwrap().is_some()
        );
    }

    #[test]
    fn a_member_that_takes_in_a_manifest_knows_the_newest_version_in_its_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        drop(Snapshot::newest(&other));
        keeper.flush().unwrap();
        other.reader.index.core.take_in(&members(&other)).unwrap();
        let view = other.reader.index.core.view();
        assert_eq!((view.runs.len(), view.newest_in_runs), (1, Glsn(1)));
    }

    #[test]
    fn a_commit_that_needs_a_flush_fails_where_the_store_is_being_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (_keeper, other) = (join(&path), join(&path));
        put(&other, 1);
        let (index, applied) = (&other.reader.index, other.committer.sequencer.applied());
        index.close_up_to(applied);
        put(&other, 2);
        index.core.signals.close();
        let refused = index.make_room(index.memtable_limit_bytes() as usize, applied.next());
        assert!(matches!(refused, Err(Error::Closed)));
    }

    /// A flush holds the commit lock.
    #[test]
    fn others_commit_while_a_thread_waits_for_the_commit_lock_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        let mut waits = Transaction::new(&other.committer);
        assert!(waits.get(&default(&other), 1u32.to_be_bytes()).unwrap().is_some());
        waits.put(&default(&other), 3u32.to_be_bytes(), b"x").unwrap();
        std::thread::scope(|scope| {
            let held = other.committer.sequencer.lock().unwrap();
            let waiting = scope.spawn(|| waits.commit());
            while other.committer.sequencer.waiting() == 0 {
                std::thread::yield_now();
            }
            let mut reads = Transaction::new(&keeper.committer);
            assert!(reads.get(&default(&keeper), 1u32.to_be_bytes()).unwrap().is_some());
            reads.put(&default(&keeper), 2u32.to_be_bytes(), b"x").unwrap();
            let done = reads.commit();
            drop(held);
            waiting.join().unwrap().unwrap();
            done.unwrap();
        });
    }

    /// A commit finds room before it has the turn, and none after it has taken in what others have
    /// ordered.
    #[test]
    fn others_commit_while_one_waits_for_its_memtable_to_be_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        let put_rows = |store: &Arc<Engine>, rows: u32| {
            let mut tx = Transaction::new(&store.committer);
            let space = store.reader.keyspaces.find("default").unwrap().0;
            // A commit that has read nothing would be left in the log.
            tx.get(&space, b"none").unwrap();
            (0..rows).for_each(|row| tx.put(&space, row.to_be_bytes(), [7; 900]).unwrap());
            tx
        };
        put(&other, 1);
        let index = &other.reader.index;
        index.close_up_to(other.committer.sequencer.applied());
        // Room for a hundred rows, not for three hundred.
        while index.core.view().active.map().used_bytes() + 300 * 1000
            < index.memtable_limit_bytes()
        {
            put_rows(&other, 100).commit().unwrap();
        }
        drop(Snapshot::newest(&keeper));
        let waits = put_rows(&other, 1);
        for _ in 0..4 {
            put_rows(&keeper, 100).commit().unwrap();
        }
        let (has_ended, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (done, ended) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let done = waits.commit();
                has_ended.store(true, Ordering::SeqCst);
                done
            });
            // The keeper is not stopped, but takes its time.
            scope.spawn(|| {
                let mut nudges = 0;
                while !is_over.load(Ordering::SeqCst) {
                    nudges = members(&keeper).answer_nudge(nudges, Duration::from_millis(100));
                }
            });
            keeper.options.clock.sleep(Duration::from_millis(500));
            let has_waited = !has_ended.load(Ordering::SeqCst);
            put(&keeper, 2);
            let ended = (has_waited, has_ended.load(Ordering::SeqCst));
            keeper.flush().unwrap();
            let done = waiting.join().unwrap();
            is_over.store(true, Ordering::SeqCst);
            (done, ended)
        });
        done.unwrap();
        assert_eq!(
            ended,
            (true, false),
            "it has waited, and still did when the other one's commit was done"
        );
    }
}
