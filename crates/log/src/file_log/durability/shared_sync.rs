//! One sync makes durable what all members of a log ([`crate::members`]) have ordered.
//!
//! Law: after a sync that was begun and not ended, everything that is not known to be durable is written again before the next sync: the system
//! may have told of a failure to the process that ended, and takes the bytes for written since.

use std::sync::Arc;

use plimsoll_disk::vfs::File;
use plimsoll_memory::budget::{Budget, Kind};

use crate::error::LogError;
use crate::file_log::env::Env;
use crate::file_log::files::rewrite::write_again;
use crate::format::BLOCK_BYTES;
use crate::glsn::Glsn;
use crate::members::Members;
use crate::members::lock::Got;
use crate::members::words::End;

/// The segment that this process writes to, and how far it knows the log.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) file: Arc<dyn File>,
    pub(crate) segment: Glsn,
    pub(crate) next: Glsn,
}

/// Makes everything below `wanted.next` durable, unless another member does. Law: the caller holds the process's own right to sync.
pub(crate) fn sync(members: &Members, env: &Env, wanted: &Wanted) -> Result<(), LogError> {
    let is_there = || members.durable().next >= wanted.next || members.is_poisoned();
    if !is_there() {
        members.arrive();
        let got = members.take_sync(&is_there)?;
        if got == Got::Needless {
            return check(members);
        }
        let ended = end_sync(members, env, wanted, got, is_there());
        match &ended {
            Ok(true) => members.sync.release(),
            // The next one writes again what is not known to be durable.
            Ok(false) | Err(_) => members.sync.release_abandoned(),
        }
        ended?;
    }
    check(members)
}

/// Under the lock of syncs; returns whether a sync that was begun before has been ended, too.
fn end_sync(members: &Members, env: &Env, wanted: &Wanted, got: Got, is_there: bool) -> Result<bool, LogError> {
    let group = if is_there { None } else { Some(members.gather(&*env.options.clock)) };
    let end = members.end();
    if end.segment != wanted.segment {
        // The next segment was begun, and before that all of this one was made durable. Whether one was begun in the next, this process
        // cannot end it: it has another file.
        return Ok(got == Got::Clean);
    }
    if !is_there || got == Got::Abandoned {
        sync_file(members, &env.options.budget, &*wanted.file, &end, got)?;
    }
    if let Some(group) = group {
        members.expect(group);
    }
    Ok(true)
}

fn check(members: &Members) -> Result<(), LogError> {
    if members.is_poisoned() {
        let message = "a sync failed in a process that has the log open".to_owned();
        return Err(LogError::Format { message });
    }
    Ok(())
}

/// Under the lock of syncs: makes the active segment, whose `file` this is, durable up to `end`.
pub(crate) fn sync_file(
    members: &Members,
    budget: &Budget,
    file: &dyn File,
    end: &End,
    got: Got,
) -> Result<(), LogError> {
    if got == Got::Abandoned {
        let durable = members.durable();
        let mut staging = budget.take(Kind::Staging)?;
        let known = if durable.segment == end.segment { u64::from(durable.offset) } else { 0 };
        write_again(file, known / BLOCK_BYTES as u64 * BLOCK_BYTES as u64, u64::from(end.offset), &mut staging)?;
    }
    if let Err(error) = file.sync() {
        members.poison();
        return Err(error.into());
    }
    members.set_durable(&end.as_durable());
    Ok(())
}
