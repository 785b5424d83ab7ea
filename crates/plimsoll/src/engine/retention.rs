//! The moments that stay readable: versions that retention promises, or that open snapshots or tags
//! read, are kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::clock::Clock;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::index::compaction::is_lasting;
use crate::index::env::Horizon;
use crate::index::env::moment_set::MomentSet;
use crate::read::moments::Snapshots;
use crate::txn::sequencer::CommitSequencer;
use crate::txn::shared::floors::Floors;
use crate::types::error::Error;
use crate::types::keyspaces::{CURSORS, Keyspaces, SYSTEM, TAGS};
use crate::types::retention::Retention;

/// The retained moments of the keyspaces of an open store.
pub(crate) struct RetentionHorizon {
    pub(crate) log: Arc<FileLog>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    /// The floors of other processes, and whether the retention settings of keyspaces are known.
    pub(crate) floors: Floors,
    /// A caller asked to free the log below this GLSN.
    pub(crate) trim_wanted: AtomicU64,
    /// Values below this GLSN pin much of the log, so compaction must move them.
    pub(crate) move_wanted: AtomicU64,
    /// Why such values are no longer moved until the next opening: a move would fail again.
    pub(crate) moves_stopped: OnceLock<String>,
    /// Until this is set nothing is dropped, because the keyspaces are not loaded yet.
    pub(crate) ready: OnceLock<()>,
}

impl RetentionHorizon {
    /// A horizon that keeps everything until it is `ready`.
    pub(crate) fn new(
        clock: &Arc<dyn Clock>,
        (log, sequencer): (&Arc<FileLog>, &Arc<CommitSequencer>),
        (snapshots, keyspaces): (&Arc<Snapshots>, &Arc<Keyspaces>),
        floors: Floors,
    ) -> Self {
        Self {
            log: Arc::clone(log),
            sequencer: Arc::clone(sequencer),
            clock: Arc::clone(clock),
            snapshots: Arc::clone(snapshots),
            keyspaces: Arc::clone(keyspaces),
            floors,
            trim_wanted: AtomicU64::new(0),
            move_wanted: AtomicU64::new(0),
            moves_stopped: OnceLock::new(),
            ready: OnceLock::new(),
        }
    }

    /// The moments that open snapshots and other processes read now or later.
    fn read(&self) -> MomentSet {
        let read = self.snapshots.retained(|| self.sequencer.visible());
        read.and_since(self.floors.oldest())
    }
}

impl Horizon for RetentionHorizon {
    fn retained(&self, keyspace: u32) -> MomentSet {
        if keyspace == SYSTEM || self.ready.get().is_none() {
            return MomentSet::all();
        }
        if [CURSORS, TAGS].contains(&keyspace) {
            return self.read();
        }
        let (read, visible) = (self.read(), self.sequencer.visible());
        // In this order: a retention setting that was changed up to the visible moment is then
        // either known below or detected as unknown. So is a tag whose moment is not in `read` any
        // more: the process that creates it has the moment open, and lowers its floor for that,
        // until its commit is ordered.
        if !self.floors.is_retention_known(|| self.sequencer.applied()) {
            return MomentSet::all();
        }
        let tagged = self.snapshots.tags.moments(self.log.bounds().durable);
        let Some(tagged) = tagged else { return MomentSet::all() };
        let read = read.and_pins(&tagged);
        let Some(record) = self.keyspaces.record(keyspace) else { return MomentSet::all() };
        match record.retention {
            Retention::Forever => MomentSet::all(),
            Retention::Latest => read,
            Retention::Glsns(glsns) => read.and_since(Glsn(visible.0.saturating_sub(glsns))),
            Retention::Time(age) => {
                let then = self
                    .clock
                    .wall_micros()
                    .saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
                // If the log cannot map the time to a GLSN (it is trimmed there), no version is
                // dropped because of its age.
                read.and_since(self.log.glsn_at(then).unwrap_or(Glsn::NONE))
            }
        }
    }

    fn may_give_up(&self, keyspace: u32) -> bool {
        let is_known = self.ready.get().is_some()
            && self.floors.is_retention_known(|| self.sequencer.applied());
        if !is_known {
            return true;
        }
        self.keyspaces.record(keyspace).is_some_and(|record| record.retention != Retention::Forever)
    }

    fn expired(&self, oldest: Glsn) -> (Glsn, u64) {
        // Durable, because older moments may be given up: the newest one must not be older after a
        // power cut.
        let oldest = oldest.min(self.log.bounds().durable);
        if oldest == Glsn::NONE {
            return (Glsn::NONE, 0);
        }
        // Not the clock, also if that moment is the newest commit: the clock may be wrong for a
        // while, and the moment is judged by its own time once there is a younger commit.
        // Not the later time of a tag that was made when the log no longer had the commit: an open
        // snapshot of that moment may judge by the commit's own.
        let micros = self.snapshots.kept_time(oldest).or_else(|| {
            // Of the trimmed commits only the last one's time is known. If it is unknown, nothing
            // counts as expired.
            let is_known = self.log.bounds().first.0 <= oldest.0 + 1;
            self.log.time_or_later(oldest).ok().filter(|_| is_known)
        });
        // Not later than the clock either: if the log's time was restarted, later moments are
        // earlier than this one.
        (oldest, micros.unwrap_or(0).min(self.clock.wall_micros()))
    }

    fn relocate_below(&self) -> Glsn {
        let asked = self.must_relocate_below();
        let wanted = Glsn(self.move_wanted.load(Ordering::Acquire));
        if self.moves_stopped.get().is_some() { asked } else { asked.max(wanted) }
    }

    fn must_relocate_below(&self) -> Glsn {
        Glsn(self.trim_wanted.load(Ordering::Acquire))
    }

    fn stop_relocating(&self, below: Glsn, error: &Error) {
        self.move_wanted.store(0, Ordering::Release);
        if is_lasting(error) {
            let _ = self.moves_stopped.set(format!(
                "a value below GLSN {below} pins the log and cannot be moved, so the log is \
                 freed up to there only: {error}"
            ));
        }
    }
}
