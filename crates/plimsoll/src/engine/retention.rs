//! The moments that stay readable: versions that retention promises, or that open snapshots or tags
//! read, are kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::clock::Clock;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::index::compaction::is_lasting;
use crate::index::env::Horizon;
use crate::index::env::moment_set::{MomentSet, PINS_MAX};
use crate::read::open_moments::Snapshots;
use crate::txn::sequencer::CommitSequencer;
use crate::txn::shared::floors::Floors;
use crate::types::error::Error;
use crate::types::keyspaces::{BRANCHES, CURSORS, IDS, Keyspaces, SIDE, SYSTEM, TAGS};
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
    pub(crate) trim_requested: AtomicU64,
    /// Values below this GLSN pin much of the log, so compaction must move them.
    pub(crate) relocation_requested: AtomicU64,
    /// The error of a move that failed. Once it is set, such values are not moved until the next
    /// opening, because the move would fail again.
    pub(crate) relocation_stopped: OnceLock<String>,
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
            trim_requested: AtomicU64::new(0),
            relocation_requested: AtomicU64::new(0),
            relocation_stopped: OnceLock::new(),
            ready: OnceLock::new(),
        }
    }

    /// The oldest moment that a retention covers now.
    fn since(&self, retention: Retention, visible: Glsn) -> Glsn {
        match retention {
            Retention::Forever => Glsn::NONE,
            Retention::Latest => Glsn::MAX,
            // A power cut may undo commits that are not durable; the window then ends before them.
            Retention::Glsns(glsns) => {
                let newest = visible.min(self.log.bounds().durable);
                Glsn(newest.0.saturating_sub(glsns))
            }
            Retention::Time(age) => {
                let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
                let then = self.clock.wall_micros().saturating_sub(age);
                // If the log cannot map the time to a GLSN (it is trimmed there), no version is
                // dropped because of its age.
                self.log.glsn_at(then).unwrap_or(Glsn::NONE)
            }
        }
    }

    /// The moments that open snapshots and other processes read now or later.
    fn read(&self) -> MomentSet {
        let read = self.snapshots.retained(|| self.sequencer.visible());
        read.and_since(self.floors.oldest().min(self.floors.oldest_named(&self.log)))
    }
}

impl Horizon for RetentionHorizon {
    fn retained(&self, keyspace: u32) -> MomentSet {
        if keyspace == SYSTEM || self.ready.get().is_none() {
            return MomentSet::all();
        }
        if [CURSORS, TAGS, BRANCHES, IDS].contains(&keyspace) {
            return self.read();
        }
        let (read, visible) = (self.read(), self.sequencer.visible());
        // Read in this order, so that a retention setting that was changed up to the visible moment
        // is either known below or detected as unknown. The same holds for a tag whose moment has
        // left `read`, because the process that creates the tag has the moment open, and keeps its
        // floor at it, until its commit is ordered.
        if !self.floors.is_retention_known(|| self.sequencer.applied()) {
            return MomentSet::all();
        }
        let durable = self.log.bounds().durable;
        let tagged = self.snapshots.tags.moments(durable);
        let forks = self.snapshots.branches.moments(keyspace != SIDE, durable, PINS_MAX + 1);
        let (Some(tagged), Some(forks)) = (tagged, forks) else { return MomentSet::all() };
        let read = read.and_pins(&tagged).and_pins(&forks);
        let since = match keyspace {
            // This keyspace holds the versions of all keyspaces on branches, so the longest
            // retention applies.
            SIDE => {
                let all = self.keyspaces.records();
                all.iter().map(|record| self.since(record.retention, visible)).min()
            }
            keyspace => self.keyspaces.record(keyspace).map(|it| self.since(it.retention, visible)),
        };
        read.and_since(since.unwrap_or(Glsn::NONE))
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
        // Use a durable moment, because older ones may be given up: after a power cut, the newest
        // moment must not be older than this one.
        let oldest = oldest.min(self.log.bounds().durable);
        if oldest == Glsn::NONE {
            return (Glsn::NONE, 0);
        }
        // Do not use the clock, not even for the newest commit: the clock may be wrong for a while,
        // and once there is a younger commit, the moment is judged by its own time. Do not use the
        // later time of a tag that was made after the log had dropped the commit: an open snapshot
        // of the moment may judge by the commit's own time.
        let micros = self.snapshots.kept_time(oldest).or_else(|| {
            // Only the time of the last trimmed commit is known. If the time is unknown, nothing
            // counts as expired.
            let is_known = self.log.bounds().first.0 <= oldest.0 + 1;
            self.log.time_or_later(oldest).ok().filter(|_| is_known)
        });
        // Limit the time to the clock: if the log's time was restarted, later moments have earlier
        // times than this one.
        (oldest, micros.unwrap_or(0).min(self.clock.wall_micros()))
    }

    fn relocate_below(&self) -> Glsn {
        let asked = self.must_relocate_below();
        let wanted = Glsn(self.relocation_requested.load(Ordering::Acquire));
        if self.relocation_stopped.get().is_some() { asked } else { asked.max(wanted) }
    }

    fn must_relocate_below(&self) -> Glsn {
        Glsn(self.trim_requested.load(Ordering::Acquire))
    }

    fn stop_relocating(&self, below: Glsn, error: &Error) {
        self.relocation_requested.store(0, Ordering::Release);
        if is_lasting(error) {
            let _ = self.relocation_stopped.set(format!(
                "a value below GLSN {below} pins the log and cannot be moved, so the log is freed \
                 only up to there: {error}"
            ));
        }
    }
}
