//! The right to order the next record, in a log that several processes have open.

use std::sync::MutexGuard;

use plimsoll_memory::budget::Kind;

use crate::draft::{Draft, Ticket};
use crate::error::LogError;
use crate::file_log::append;
use crate::file_log::files::names::FileName;
use crate::file_log::files::zeros::write_zeros;
use crate::file_log::open_log::OpenLog;
use crate::file_log::shared::catch_up::catch_up;
use crate::file_log::shared::end_of;
use crate::file_log::tail::order::Order;
use crate::glsn::Glsn;
use crate::members::Members;
use crate::members::lock::Got;

/// The right to order the next record. While it is held, no member orders another one, and this one has taken in all of them.
pub struct Turn<'a> {
    log: &'a OpenLog,
    members: &'a Members,
    order: MutexGuard<'a, Order>,
}

impl<'a> Turn<'a> {
    /// Waits for the turn.
    pub(crate) fn take(log: &'a OpenLog, members: &'a Members) -> Result<Self, LogError> {
        let order = log.tail.order()?;
        check(log, members)?;
        let got = members.take_turn()?;
        let mut turn = Self { log, members, order };
        if got == Got::Abandoned {
            turn.bury()?;
        }
        catch_up(log, members, &mut turn.order)?;
        let least = members.entries_max();
        turn.order.entries_max = turn.order.entries_max.min(least.max(1));
        Ok(turn)
    }

    /// The last entry that was ordered.
    pub fn tip(&self) -> Glsn {
        Glsn(self.order.end.next.0 - 1)
    }

    /// Orders a record right behind the tip. When this returns, all members know it; it is not durable yet.
    ///
    /// # Errors
    /// As for [`crate::log::Log::submit`].
    pub fn submit(&mut self, draft: &Draft<'_>) -> Result<Ticket, LogError> {
        append::submit_in_order(self.log, &mut self.order, draft, None)
    }

    /// As [`Turn::submit`], if the record's first GLSN is `expected`.
    pub(crate) fn submit_expecting(&mut self, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError> {
        append::submit_in_order(self.log, &mut self.order, draft, expected)
    }

    /// Removes what a member left behind that ended in its turn.
    fn bury(&mut self) -> Result<(), LogError> {
        let end = self.members.end();
        let (disk, dir) = (&self.log.env.options.disk, &self.log.env.options.dir);
        if end.next > end.segment {
            let unpublished = FileName::Segment(end.next).path(dir);
            if disk.entry(&unpublished)?.is_some() {
                disk.remove(&unpublished)?;
                disk.sync_dir(dir)?;
            }
        }
        catch_up(self.log, self.members, &mut self.order)?;
        let file = &*self.order.file;
        let mut staging = self.log.env.options.budget.take(Kind::Staging)?;
        let (mut at, len) = (u64::from(end.offset), file.len()?);
        while at < len {
            let piece = (len - at).min(staging.len() as u64) as usize;
            let n = file.read_at(&mut staging[..piece], at)?;
            if staging[..n].iter().any(|byte| *byte != 0) {
                write_zeros(file, at, at + n as u64)?;
            }
            at += piece as u64;
        }
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // What was written and not published is for the next one to bury.
        if end_of(&self.order) == self.members.end() {
            self.members.turn.release();
        } else {
            self.members.turn.release_abandoned();
        }
    }
}

/// Fails if nothing more may be ordered here.
pub(crate) fn check(log: &OpenLog, members: &Members) -> Result<(), LogError> {
    log.durability.group.check()?;
    if members.is_poisoned() {
        let message = "a sync failed in another process that has the log open".to_owned();
        return Err(log.durability.group.poison(&LogError::Format { message }));
    }
    Ok(())
}
