//! One sync makes everything durable that the members of a log ([`crate::members`]) have ordered.
//!
//! Invariant: after an unfinished sync, everything that is not known to be durable is written again
//! before the next sync, because the system may have reported a failure to the process that ended,
//! and now regards the bytes as written. It may also have dropped them: if the bytes that are read
//! do not match the records that were ordered, the log is poisoned. A read that fails once is
//! repeated, because a failed sync poisons the log.

use std::io;
use std::sync::Arc;

use plimsoll_disk::vfs::File;
use plimsoll_memory::budget::{Budget, Kind};

use crate::error::LogError;
use crate::file_log::env::Env;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::write_again;
use crate::file_log::segments::header_file::read_header;
use crate::file_log::segments::walk::{NoVisitor, Start, walk_on, walk_segment};
use crate::format::BLOCK_BYTES;
use crate::glsn::Glsn;
use crate::members::Members;
use crate::members::lock::Got;
use crate::members::words::{Durable, End};

/// The segment that this process writes to, and the end of the log that it knows.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) file: Arc<dyn File>,
    pub(crate) segment: Glsn,
    pub(crate) next: Glsn,
}

/// Makes everything below `wanted.next` durable, unless another member does. `may_sync` returns an
/// error if this process must not sync; it is called only when a sync is needed. The caller must
/// hold the process's own right to sync.
pub(crate) fn sync(
    members: &Members,
    env: &Env,
    wanted: &Wanted,
    may_sync: &dyn Fn() -> Result<(), LogError>,
) -> Result<(), LogError> {
    let is_there = || members.marks.durable().next >= wanted.next || members.health.is_poisoned();
    if !is_there() {
        members.syncs.gathering.arrive();
        let got = members.syncs.take_sync(&is_there)?;
        if got == Got::Needless {
            return members.health.check();
        }
        let ended = may_sync().and_then(|()| end_sync(members, env, wanted, got, is_there()));
        match &ended {
            Ok(true) => members.syncs.sync.release(),
            // The next holder writes everything again that is not known to be durable.
            Ok(false) | Err(_) => members.syncs.sync.release_abandoned(),
        }
        ended?;
    }
    members.health.check()
}

/// Syncs under the lock of syncs. Returns whether an earlier unfinished sync is completed as well.
fn end_sync(
    members: &Members,
    env: &Env,
    wanted: &Wanted,
    got: Got,
    is_there: bool,
) -> Result<bool, LogError> {
    let group =
        if is_there { None } else { Some(members.syncs.gathering.gather(&*env.options.clock)) };
    let end = members.marks.end();
    if end.segment != wanted.segment {
        // A member has begun the next segment, and before that made all of this one durable. If a
        // sync was left unfinished in the next segment, this process cannot complete it, because it
        // has another file open.
        return Ok(got == Got::Clean);
    }
    if !is_there || got == Got::Abandoned {
        sync_file(members, &env.options.budget, &*wanted.file, &end, got)?;
    }
    if let Some(group) = group {
        members.syncs.gathering.expect(group);
    }
    Ok(true)
}

/// Repeats each failed read once.
#[derive(Debug)]
struct Rereading<'a>(&'a dyn File);

impl File for Rereading<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset).or_else(|_| self.0.read_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.0.will_read(offset, bytes);
    }
}

/// Reads the bytes that are not known to be durable, and writes them again if they match the
/// records that were ordered.
fn write_unsynced_again(
    members: &Members,
    file: &dyn File,
    end: &End,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let durable = members.marks.durable();
    let header = read_header(file, end.segment)?;
    let limit = u64::from(end.offset);
    let known = if durable.segment == end.segment { u64::from(durable.offset) } else { 0 };
    if known == limit {
        return Ok(());
    }
    let walked = if known > 0 {
        let Durable { offset, next, chain, .. } = durable;
        walk_on(
            file,
            &header,
            Start { offset, next, chain, timestamp: 0, epoch: 0 },
            limit,
            staging,
            &mut NoVisitor,
        )?
    } else {
        walk_segment(file, &header, limit, staging, &mut NoVisitor)?
    };
    if (walked.end, walked.next, walked.chain) != (end.offset, end.next, end.chain) {
        return Err(LogError::Corrupt {
            glsn: walked.next,
            file: FileName::Segment(end.segment).name(),
            offset: u64::from(walked.end),
            what: "ordered records are missing from the file after an unfinished sync".to_owned(),
        });
    }
    write_again(file, known / BLOCK_BYTES as u64 * BLOCK_BYTES as u64, limit, staging)
}

/// Makes the active segment, whose file is `file`, durable up to `end`. The caller holds the lock
/// of syncs.
pub(crate) fn sync_file(
    members: &Members,
    budget: &Budget,
    file: &dyn File,
    end: &End,
    got: Got,
) -> Result<(), LogError> {
    if got == Got::Abandoned {
        let reread = Rereading(file);
        let written = match budget.take(Kind::Staging) {
            Ok(mut staging) => write_unsynced_again(members, &reread, end, &mut staging),
            // This buffer is not charged to the budget, because the commits of all members wait for
            // it.
            Err(_) => write_unsynced_again(members, &reread, end, &mut vec![0; 2 * BLOCK_BYTES]),
        };
        if let Err(LogError::Corrupt { .. }) = &written {
            members.health.poison();
        }
        written?;
    }
    if let Err(error) = file.sync() {
        members.health.poison();
        return Err(error.into());
    }
    members.syncs.set_durable(&end.as_durable());
    Ok(())
}
