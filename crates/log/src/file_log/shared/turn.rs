//! The right to order the next record, in a log that several processes have open.

use std::sync::MutexGuard;

use plimsoll_disk::borders::{Border, hit};
use plimsoll_disk::vfs::File;

use crate::draft::{Draft, Ticket};
use crate::error::LogError;
use crate::file_log::append;
use crate::file_log::durability::shared_sync::sync_file;
use crate::file_log::files::names::FileName;
use crate::file_log::files::zeros::write_zeros;
use crate::file_log::open_log::OpenLog;
use crate::file_log::options::FileLogOptions;
use crate::file_log::shared::catch_up::catch_up;
use crate::file_log::tail::order::Order;
use crate::glsn::Glsn;
use crate::members::Members;
use crate::members::lock::Got;
use crate::members::words::End;

/// The right to order the next record: while it is held, no other member orders one.
/// Call [`Turn::begin`] first.
pub struct Turn<'a> {
    log: &'a OpenLog,
    members: &'a Members,
    got: Got,
    order: Option<MutexGuard<'a, Order>>,
    /// The part of the right that orders the threads of this process.
    _own: MutexGuard<'a, ()>,
}

impl<'a> Turn<'a> {
    /// Waits for the turn. No other lock of the log is held meanwhile, so readers continue.
    pub(crate) fn take(log: &'a OpenLog, members: &'a Members) -> Result<Self, LogError> {
        let before = members.turns.tries.count();
        let own = members.turns.own_turn();
        check(log, members)?;
        if members.turns.tries.timed_out_since(before) {
            return Err(members.turns.turn.stalled());
        }
        let got = members.turns.take()?;
        Ok(Self { log, members, got, order: None, _own: own })
    }

    /// Loads the records that other members have ordered; returns the GLSN of the last entry. From
    /// here on no other record is ordered until one is submitted here.
    ///
    /// # Errors
    /// `Corrupt`, the disk, the budget.
    pub fn begin(&mut self) -> Result<Glsn, LogError> {
        let mut order = self.log.tail.order()?;
        // Check under the lock, so that no record is ordered by means of shared words whose file
        // was removed or replaced.
        check(self.log, self.members)?;
        if self.got == Got::Abandoned {
            hit(Border::TurnAbandoned);
            discard_unpublished(self.log, self.members, &mut order)?;
            self.got = Got::Clean;
        }
        catch_up(self.log, self.members, &mut order)?;
        order.entries_max = order.entries_max.min(self.members.marks.entries_max().max(1));
        let tip = Glsn(order.end.next.0 - 1);
        self.order = Some(order);
        Ok(tip)
    }

    /// Orders a record right after the last one. When this returns, the record is published to all
    /// members; it is not durable yet.
    ///
    /// # Errors
    /// As for [`crate::file_log::FileLog::submit`].
    pub fn submit(&mut self, draft: &Draft<'_>) -> Result<Ticket, LogError> {
        self.submit_expecting(draft, None)
    }

    /// As [`Turn::submit`], if the record's first GLSN is `expected`.
    pub(crate) fn submit_expecting(
        &mut self,
        draft: &Draft<'_>,
        expected: Option<Glsn>,
    ) -> Result<Ticket, LogError> {
        let log = self.log;
        append::submit_in_order(log, self.order_mut()?, draft, expected)
    }

    /// From here on this member may post (see [`crate::members::posts`]).
    pub fn begin_to_post(&self) {
        self.members.posts.begin_to_post();
    }

    /// Takes back the GLSNs that a member assigned to posts if it ended in its turn. A turn that
    /// was not begun stays abandoned.
    pub(super) fn discard_if_abandoned(&self) {
        if self.got == Got::Abandoned {
            self.members.posts.discard_unpublished();
        }
    }

    /// The state of appending. Begins the turn if that was not done yet.
    pub(super) fn order_mut(&mut self) -> Result<&mut Order, LogError> {
        if self.order.is_none() {
            self.begin()?;
        }
        Ok(self.order.as_mut().expect("it was begun"))
    }
}

/// Durably removes the leftovers of a member that ended in its turn. An unpublished record must
/// never reappear, because the blob files that it names may be swept from now on.
fn discard_unpublished(
    log: &OpenLog,
    members: &Members,
    order: &mut Order,
) -> Result<(), LogError> {
    members.posts.discard_unpublished();
    let end = members.marks.end();
    remove_unpublished(&log.env.options, &end)?;
    catch_up(log, members, order)?;
    let _syncing = log.durability.hold_sync();
    overwrite_unpublished(&log.env.options, members, &*order.file, &end)
}

/// Removes the segment that was begun after the published end, if there is one.
pub(crate) fn remove_unpublished(options: &FileLogOptions, end: &End) -> Result<(), LogError> {
    let (disk, dir) = (&options.disk, &options.dir);
    if end.next > end.segment {
        let unpublished = FileName::Segment(end.next).path(dir);
        if disk.entry(&unpublished)?.is_some() {
            disk.remove(&unpublished)?;
            disk.sync_dir(dir)?;
        }
    }
    Ok(())
}

/// Writes zeros over everything in the active segment after the published end, durably. The caller
/// must hold the process's own right to sync.
///
/// All of it is written, even where a read returns zeros, because these zeros may be in the page
/// cache only, if the sync of an earlier process failed and the process was killed before it could
/// report that. For the same reason the sync runs under the lock of syncs, so that the next process
/// can detect that it did not finish.
pub(crate) fn overwrite_unpublished(
    options: &FileLogOptions,
    members: &Members,
    file: &dyn File,
    end: &End,
) -> Result<(), LogError> {
    let got = members.syncs.take_sync(&|| false)?;
    let overwritten = file
        .len()
        .and_then(|len| write_zeros(file, u64::from(end.offset), len))
        .map_err(LogError::from)
        .and_then(|()| sync_file(members, &options.budget, file, end, got));
    match &overwritten {
        Ok(()) => members.syncs.sync.release(),
        Err(_) => members.syncs.sync.release_abandoned(),
    }
    overwritten
}

/// Runs `change` with the right to append: with the turn, if several processes may have the log
/// open.
pub(crate) fn with_order<T>(
    log: &OpenLog,
    change: impl FnOnce(&mut Order) -> Result<T, LogError>,
) -> Result<T, LogError> {
    let Some(members) = log.env.members() else { return change(&mut *log.tail.order()?) };
    let mut turn = Turn::take(log, members)?;
    turn.begin()?;
    change(turn.order.as_mut().expect("it was begun"))
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Bytes that were written and not published are left to the next holder of the turn. A
        // failure that poisons the log may have left a part of a record, or a segment, after the
        // end.
        let left_all_right = match &self.order {
            Some(order) => {
                order.published_end() == self.members.marks.end()
                    && self.log.durability.group.check().is_ok()
            }
            None => self.got == Got::Clean,
        };
        if left_all_right {
            self.members.turns.turn.release();
        } else {
            self.members.turns.turn.release_abandoned();
        }
    }
}

/// Fails if this process must not order any more records.
pub(crate) fn check(log: &OpenLog, members: &Members) -> Result<(), LogError> {
    log.durability.group.check()?;
    members.health.check().map_err(|error| log.durability.group.poison(&error))
}
