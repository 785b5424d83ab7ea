//! Frees the old end of the log.
//!
//! These entries stay: those that the runs do not hold yet, those that a cursor or another process
//! still has to read, those that a caller holds, and those that contain a value to which a run
//! points. Compaction first moves such values into blob files
//! ([`crate::index::env::Horizon::relocate_below`]).

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;

use crate::borders::{Border, hit};
use crate::engine::Catalog;
use crate::index::memtables::flush_policy::HeldBack;
use crate::index::runs::blobs::Left;
use crate::read::reader::Reader;
use crate::txn::committer::Committer;
use crate::txn::other_processes::Peers;
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Error, Lift, Result};
use crate::types::events;
use crate::types::lock::lock;

/// How often a compaction tries to free the log while another thread does so or copies its files.
/// All pauses together are longer than freeing takes, and shorter than a backup of a large store.
const FREEING_TRIES: u32 = 200;

/// The pause after each try.
const FREEING_PAUSE: Duration = Duration::from_millis(10);

/// Frees whole segments below `until`; returns the first remaining GLSN. This process must be the
/// one that writes the index.
pub(crate) fn trim(space: &LogSpace, committer: &Committer, until: Glsn) -> Result<Glsn> {
    committer.check_writable()?;
    committer.fresh()?;
    let newest = committer.sequencer.visible();
    if until > newest.next() {
        return Err(Error::Future { asked: until, newest });
    }
    let until = until.min(space.kept_from());
    space.catalog.horizon.trim_requested.fetch_max(until.0, Ordering::AcqRel);
    committer.flush()?;
    if space.reader.index.sources.view().min_pointer().is_some_and(|oldest| oldest < until) {
        space.reader.index.compaction.relocate()?;
    }
    let _turn = space.trim_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The store may have been closed meanwhile and belong to another process.
    committer.check_writable()?;
    free(space, until, Active::EndsFrom(0))
}

/// How to treat the segment that commits are appended to. Only whole segments are freed, and this
/// segment may take many more commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Active {
    /// The segment stays open for further commits.
    Stays,
    /// The segment is ended and freed if none of its entries is needed and freeing it returns at
    /// least this many bytes, including blob files. For callers that were asked to free space.
    EndsFrom(u64),
}

/// The state that is needed to free the old end of the log.
pub(crate) struct LogSpace {
    pub(crate) reader: Arc<Reader>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Size of a segment in bytes.
    pub(crate) segment_bytes: u64,
    /// Held while the log is trimmed, or its files are being copied.
    pub(crate) trim_lock: Mutex<()>,
    /// The part of the log that floors retain.
    pub(crate) held_back: Mutex<HeldBack>,
    /// The GLSNs from which callers hold the log.
    pub(crate) holds: Mutex<Vec<Glsn>>,
}

impl LogSpace {
    /// Keeps the log from `from` on until [`LogSpace::release`].
    pub(crate) fn hold(&self, from: Glsn) {
        // Wait for a thread that is freeing the log, because it has not seen this hold.
        let _no_trim = lock(&self.trim_lock);
        let mut holds = lock(&self.holds);
        holds.push(from);
        self.peers.hold_log(oldest_of(&holds));
    }

    pub(crate) fn release(&self, from: Glsn) {
        let mut holds = lock(&self.holds);
        let at = holds.iter().position(|held| *held == from);
        at.map(|at| holds.swap_remove(at));
        self.peers.hold_log(oldest_of(&holds));
    }

    /// The beginning of the part of the log that cursors and holds keep; [`Glsn::MAX`] if there
    /// are none.
    pub(super) fn kept_from(&self) -> Glsn {
        self.catalog.records.cursors.oldest().min(oldest_of(&lock(&self.holds)))
    }
}

/// The oldest of these GLSNs; [`Glsn::MAX`] if there is none.
fn oldest_of(holds: &[Glsn]) -> Glsn {
    holds.iter().copied().min().unwrap_or(Glsn::MAX)
}

/// Frees unneeded segments below `until`. A compaction waits for another thread that frees the log,
/// and up to two seconds for a backup or a verification; after that the segments are left for a
/// later call.
pub(crate) fn free_soon(space: &LogSpace, until: Glsn, active: Active) -> Result<()> {
    let tries = if active == Active::Stays { 1 } else { FREEING_TRIES };
    for _ in 0..tries {
        match space.trim_lock.try_lock() {
            Ok(_turn) => return free(space, until, active).map(|_| ()),
            Err(_) if tries > 1 => space.clock.sleep(FREEING_PAUSE),
            Err(_) => {}
        }
    }
    Ok(())
}

fn free(space: &LogSpace, until: Glsn, active: Active) -> Result<Glsn> {
    let mut freed = None;
    space.peers.remove_files(&mut |may_free_below| {
        // Apply the commits of other processes, to know their cursors. None is missed, because a
        // process that creates a cursor holds the files until the cursor is committed.
        let caught_up = space.peers.catch_up_durably();
        // While `trim_lock` is held, this process creates no cursor and no hold.
        let until = || until.min(space.kept_from());
        freed = Some(caught_up.and_then(|()| free_up_to(space, until(), active, may_free_below)));
    });
    // If another process is reading the files, a later call removes them.
    freed.unwrap_or_else(|| Ok(space.reader.log.bounds().first))
}

fn free_up_to(
    space: &LogSpace,
    until: Glsn,
    active: Active,
    may_free_below: &dyn Fn(Glsn) -> bool,
) -> Result<Glsn> {
    // Read this first: a flush in between may add runs that point to later entries, never to
    // earlier ones.
    let flushed = space.reader.index.runs.log_needed_from().next();
    // Other processes read entries from the log that their runs do not hold yet.
    let others = space.peers.oldest_needed();
    hit(Border::TrimAsked);
    let needed = space.reader.index.sources.view().min_pointer().unwrap_or(Glsn::MAX);
    let until = until.min(flushed).min(needed).min(others);
    let (log, clock) = (&space.reader.log, &space.clock);
    // Read again after `until` is published: another process may have held the log since. A process
    // that holds the log later sees `until`.
    if !may_free_below(until) || space.peers.oldest_needed() < until {
        return Ok(log.bounds().first);
    }
    let keep = |blob| space.reader.index.runs.must_keep_blob(blob);
    let (start, before) = (clock.monotonic_nanos(), log.bounds().first);
    if let Active::EndsFrom(bytes) = active {
        log.end_segment_below(until, bytes, &keep).lift()?;
    }
    if others == until {
        hit(Border::TrimHeldBack);
    }
    // The log still has the time of the last entry that was trimmed.
    let time_of = |at: Glsn| match log.meta(at) {
        Ok(meta) => Some(meta.timestamp_micros),
        Err(_) if at.next() == before && at > Glsn::NONE => log.time_or_later(at).ok(),
        Err(_) => None,
    };
    space.reader.snapshots.keep_times(until, time_of);
    hit(Border::TrimChosen);
    let mut failure = None;
    let trimmed = log.trim_after(until, &keep, &mut || {
        space.reader.index.runs.note_trim(until).map_err(|error| {
            let message = error.to_string();
            failure = Some(error);
            LogError::Io { kind: io::ErrorKind::Other, message, source: None }
        })
    });
    let first = match (failure, trimmed) {
        (Some(error), _) => return Err(error),
        // Another process has freed the segments that this one was about to free.
        (None, Err(LogError::Trimmed { first, .. })) if !space.peers.is_alone() => first,
        (None, trimmed) => trimmed.lift()?,
    };
    // Swept even if no segment was freed: runs may have released blob files since their segment was
    // freed.
    sweep_blobs(space);
    if first > before {
        events::trimmed(first, first.0 - before.0, clock.monotonic_nanos() - start);
    }
    Ok(first)
}

/// Removes blob files of moved values that no run uses any more. These files belong to no record,
/// so no trim removes them. A file that cannot be removed now is retried at the next trim or at the
/// next opening.
fn sweep_blobs(space: &LogSpace) {
    let (index, log) = (&space.reader.index, &space.reader.log);
    let keep = |blob| index.runs.must_keep_blob(blob);
    let left = index.runs.blobs.take_left();
    if matches!(&left, Left::These(blobs) if blobs.is_empty()) {
        return;
    }
    let swept = match &left {
        Left::Many => log.sweep_blobs(&keep),
        Left::These(blobs) => log.sweep_listed_blobs(&Vec::from_iter(blobs.iter().copied()), &keep),
    };
    if swept.is_err() {
        index.runs.blobs.put_back(left);
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::compact_and_free;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;
    use crate::types::retention::Retention;

    use super::*;

    #[test]
    fn a_compaction_waits_for_another_thread_that_frees_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            Options::new().memory_bytes(16 << 20).retention(Retention::Latest).background(false);
        let store = open(&dir.path().join("store"), options).unwrap();
        for _ in 0..3 {
            let mut tx = Transaction::new(&store.committer);
            tx.put(&store.reader.keyspaces.find("default").unwrap().0, "large", vec![1; 1 << 20])
                .unwrap();
            tx.commit().unwrap();
        }
        let freeing = store.space.trim_lock.lock().unwrap();
        std::thread::scope(|scope| {
            let compaction =
                scope.spawn(|| compact_and_free::compact(&store.space, &store.committer).unwrap());
            // By then a compaction that does not wait would have ended.
            let clock = &store.space.clock;
            let begun = clock.monotonic_nanos();
            while !compaction.is_finished() && clock.monotonic_nanos() - begun < 1_000_000_000 {
                clock.sleep(Duration::from_millis(1));
            }
            drop(freeing);
        });
        assert!(store.reader.log.bounds().first > Glsn::FIRST, "nothing was freed");
    }
}
