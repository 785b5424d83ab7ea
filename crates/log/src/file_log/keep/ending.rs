//! Ends segments, seals them in the background, and closes the log.

use std::sync::Arc;

use plimsoll_disk::job_pool::{Job, JobPriority};
use plimsoll_disk::worker::Next;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::PAGE_BYTES;

use crate::blob::BlobId;
use crate::error::LogError;
use crate::file_log::append;
use crate::file_log::durability::DurabilityState;
use crate::file_log::env::Env;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::list::Segments;
use crate::file_log::shared::catch_up::catch_up;
use crate::file_log::shared::turn::with_order;
use crate::glsn::Glsn;

/// Closing seals the active segment if it has at least this size, because the next process to open
/// the log would have to read all of it.
pub const LONG_SEGMENT_BYTES: u64 = 4 << 20;

impl OpenLog {
    /// Seals the active segment if it has at least `bytes`.
    pub(crate) fn seal_from(&self, bytes: u64) -> Result<(), LogError> {
        if with_order(self, |order| append::end_segment_from(self, order, bytes))? {
            // Appends need not wait for the sync.
            self.durability.sync_to_end()?;
            append::seal(self)?;
        }
        Ok(())
    }

    /// Ends the active segment if all its entries are below `until` and a trim then frees at least
    /// `bytes`.
    pub(crate) fn end_segment_below(
        &self,
        until: Glsn,
        bytes: u64,
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<(), LogError> {
        self.env.check_writable()?;
        with_order(self, |order| {
            if order.end.next > until {
                return Ok(());
            }
            let freed = {
                let tail = self.tail.read();
                let blobs = tail.blobs.list().iter().filter(|named| !keep(named.blob.id));
                blobs.map(|named| u64::from(named.blob.pages)).sum::<u64>() * PAGE_BYTES as u64
            };
            if freed + u64::from(order.end.offset) >= bytes {
                append::end_segment_from(self, order, 0)?;
            }
            Ok(())
        })
    }

    /// Syncs what was ordered, marks the end if `is_last`, and unlocks the folder.
    pub(crate) fn close(&self, is_last: bool) -> Result<(), LogError> {
        // Also syncs a record that another thread is ordering now. Threads that come later find the
        // log closed.
        let members = self.env.members().filter(|_| !is_last);
        let own_turn = members.map(|members| members.turns.own_turn_if_free_soon());
        let ended = if is_last { self.end_in_order() } else { self.sync_published() };
        self.durability.group.close();
        drop(own_turn);
        if is_last {
            // The turn keeps other members from writing, but not the next process that opens the
            // log.
            self.wait_for_writes();
        }
        self.durability.unlock_folder();
        ended
    }

    /// Leaves the end of the log in a state in which the next opening has little to read.
    fn end_in_order(&self) -> Result<(), LogError> {
        if let Some(members) = self.env.members() {
            catch_up(self, members, &mut *self.tail.order()?)?;
        }
        self.seal_from(LONG_SEGMENT_BYTES)?;
        append::seal(self)?;
        append::write_mark(self)?;
        append::cut_zeros(self);
        Ok(())
    }

    /// Waits for the threads that found the log open and may still be writing, because a later
    /// write of theirs could overwrite records of the next process. The log is already closed, so
    /// that no further thread writes.
    fn wait_for_writes(&self) {
        drop(self.tail.order());
        self.durability.wait_for_sync();
    }

    /// Syncs the published records, because the members that stay open may never sync them. An
    /// unpublished record is left to them to remove.
    fn sync_published(&self) -> Result<(), LogError> {
        let Some(members) = self.env.members() else { return Ok(()) };
        let published = Glsn(members.marks.next().0.saturating_sub(1));
        self.durability.wait(published.min(self.tail.last()))
    }

    /// Starts the job that seals segments.
    pub(crate) fn start_sealer(&self) -> Result<Job, LogError> {
        let (segments, durability, env) =
            (Arc::clone(&self.segments), Arc::clone(&self.durability), Arc::clone(&self.env));
        Ok(self.env.options.job_pool.start(
            "seal",
            JobPriority::High,
            &self.segments.bell,
            || {},
            move |_| {
                if seal_step(&segments, &durability, &env) { Next::Again } else { Next::Rung }
            },
        )?)
    }

    /// Seals the segment that is waiting for it, if there is one; returns whether there was.
    pub(crate) fn seal_behind(&self) -> bool {
        seal_step(&self.segments, &self.durability, &self.env)
    }
}

/// Seals the segment that is waiting for it. If memory is short, it is sealed when the segment
/// after it ends. Once the log is closed or its lock is lost, another process may own the folder,
/// so nothing is changed.
fn seal_step(segments: &Segments, durability: &DurabilityState, env: &Env) -> bool {
    let may_seal =
        segments.is_sealing() && durability.group.check().is_ok() && durability.check_own().is_ok();
    may_seal
        && env
            .options
            .budget
            .take(Kind::Staging)
            .is_ok_and(|mut staging| segments.seal(&mut staging).is_some())
}
