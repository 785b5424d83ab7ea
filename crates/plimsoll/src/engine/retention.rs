//! The garbage-collection watermark: versions that retention promises or open snapshots read must
//! be kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::clock::Clock;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_log::members::Members;

use crate::index::compaction::is_lasting;
use crate::index::env::Horizon;
use crate::read::moments::Snapshots;
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::Error;
use crate::types::keyspaces::{CURSORS, Keyspaces, SYSTEM};
use crate::types::retention::Retention;

/// The horizon of an open store.
pub(crate) struct RetentionHorizon {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    /// The other processes that read the store, if there may be any.
    pub(crate) members: Option<Arc<Members>>,
    /// Whether commits of other processes were applied that may have changed the retention of a
    /// keyspace, and this is not known yet.
    pub(crate) is_to_learn: Arc<AtomicBool>,
    /// Somebody asked to free the log below this GLSN.
    pub(crate) trim_wanted: AtomicU64,
    /// Values below this GLSN hold much of the log back: they are to be moved.
    pub(crate) move_wanted: AtomicU64,
    /// Why such values are moved no more until the next opening: a move would fail again.
    pub(crate) moves_stopped: OnceLock<String>,
    /// Until it is set nothing is dropped: the keyspaces are not loaded yet.
    pub(crate) ready: OnceLock<()>,
}

impl RetentionHorizon {
    fn oldest_read(&self) -> Glsn {
        let oldest = self.snapshots.oldest(|| self.sequencer.visible());
        self.members.as_ref().map_or(oldest, |members| oldest.min(members.oldest_floor()))
    }
}

impl Horizon for RetentionHorizon {
    fn of(&self, keyspace: u32) -> Glsn {
        if keyspace == SYSTEM || self.ready.get().is_none() {
            return Glsn::NONE;
        }
        if keyspace == CURSORS {
            return self.oldest_read();
        }
        let (oldest, visible) = (self.oldest_read(), self.sequencer.visible());
        // In this order: a retention that was changed up to what was visible is known below, or to
        // be learned. Acquire: the partner of the store that clears it.
        if self.is_to_learn.load(Ordering::Acquire) {
            return Glsn::NONE;
        }
        let Some(record) = self.keyspaces.record(keyspace) else { return Glsn::NONE };
        match record.retention {
            Retention::Forever => Glsn::NONE,
            Retention::Latest => oldest,
            Retention::Glsns(glsns) => oldest.min(Glsn(visible.0.saturating_sub(glsns))),
            Retention::Time(age) => {
                let then = self
                    .clock
                    .wall_micros()
                    .saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
                // If the log cannot tell (it is trimmed there), no version is dropped because of
                // its age.
                oldest.min(self.log.glsn_at(then).unwrap_or(Glsn::NONE))
            }
        }
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
                "a value below GLSN {below} holds the log back and cannot be moved, so the log is \
                 freed up to there only: {error}"
            ));
        }
    }
}
