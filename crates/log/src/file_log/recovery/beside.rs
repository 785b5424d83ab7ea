//! Opens a log while other members have it open: reads their records up to the published end, and
//! changes nothing.

use std::io;

use plimsoll_disk::vfs::{Caching, Open};
use plimsoll_memory::budget::Kind;

use crate::error::LogError;
use crate::file_log::durability::shared_sync::sync_file;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::open_report::OpenReport;
use crate::file_log::options::{FileLogOptions, Mode};
use crate::file_log::recovery::active::{
    Active, ActiveVisitor, follow_with_new_segment, most_entries,
};
use crate::file_log::recovery::assemble::assemble;
use crate::file_log::recovery::find::{LogFiles, check_tables, find_files};
use crate::file_log::segments::walk::walk_segment;
use crate::file_log::shared::turn::{overwrite_unpublished, remove_unpublished};
use crate::members::lock::Got;
use crate::members::{Members, words};

/// Retries while other members begin segments and trim.
const ROUNDS: usize = 16;

/// Publishes the end of a log that this process has recovered as the first member.
pub(crate) fn publish(
    log: &OpenLog,
    members: &Members,
    left_as_found: bool,
) -> Result<(), LogError> {
    let order = log.tail.order()?;
    members.blob_ids.set_last_blob_id(log.blobs.registry.last_id());
    members.marks.allow_entries(order.entries_max);
    members.syncs.set_recovered(&order.published_end());
    if left_as_found {
        // The first sync in any process rewrites the last block.
        members.syncs.take_sync(&|| false)?;
        members.syncs.sync.release_abandoned();
    }
    Ok(())
}

/// Opens the log while other members have it open.
pub(crate) fn open_beside(
    options: &FileLogOptions,
    members: &Members,
) -> Result<(OpenLog, OpenReport), LogError> {
    if !members.table.is_reader() {
        members.marks.allow_entries(most_entries(options));
    }
    for _ in 0..ROUNDS {
        match try_to_open(options, members) {
            Ok(Some(opened)) => return Ok(opened),
            // Another member has begun a segment, or trimmed one.
            Ok(None) | Err(LogError::Io { kind: io::ErrorKind::NotFound, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(LogError::Unsettled)
}

/// `None`: a segment was begun meanwhile, so the caller tries again.
fn try_to_open(
    options: &FileLogOptions,
    members: &Members,
) -> Result<Option<(OpenLog, OpenReport)>, LogError> {
    let mut report = OpenReport::default();
    let durable = words::End::of_durable(&members.marks.durable());
    let end = members.marks.end();
    // A reader opens only the durable part. If everything is durable, use the published end,
    // because the segment that was synced last may be trimmed, and the one after it has no record
    // yet. The durable end has no timestamp and no epoch: those of the last record are used then.
    let is_durable = (durable.next, durable.chain) == (end.next, end.chain);
    let end = if members.table.is_reader() && !is_durable { durable } else { end };
    let mut found = find_files(options)?;
    // Leave out a segment that is being created, or was never published.
    found.headers.retain(|header| header.first <= end.segment);
    if found.headers.last().is_none_or(|header| header.first != end.segment) {
        return Ok(None);
    }
    check_tables(options, &found.headers)?;
    let active = read_to(options, &found, &end)?;
    report.replayed = end.next.0 - end.segment.0;
    if active.too_many && !members.table.is_reader() {
        begin_another(options, &mut found, active, members, &end)?;
        return Ok(None);
    }
    let log = assemble(options.clone(), found, active, None, &mut report)?;
    Ok(Some((log, report)))
}

/// Reads the active segment up to the published end.
fn read_to(
    options: &FileLogOptions,
    found: &LogFiles,
    end: &words::End,
) -> Result<Active, LogError> {
    let header = *found.headers.last().expect("the active segment is in it");
    let path = FileName::Segment(header.first).path(&options.dir);
    let is_read = options.mode == Mode::ReadOnly;
    let open = if is_read { Open::Read } else { Open::ReadWrite };
    let file = options.disk.open(&path, open, Caching::Buffered)?;
    let mut staging = options.budget.take(Kind::Staging)?;
    let most = if is_read { u32::MAX } else { most_entries(options) };
    let mut gather = ActiveVisitor::new(&options.budget, most)?;
    let outcome = walk_segment(&*file, &header, u64::from(end.offset), &mut staging, &mut gather)?;
    if (outcome.end, outcome.next, outcome.chain) != (end.offset, end.next, end.chain) {
        let what = outcome.problem.map_or(
            "the segment's end differs from the one that other processes published",
            |problem| problem.what,
        );
        let file = FileName::Segment(header.first).name();
        let offset = u64::from(outcome.end);
        return Err(LogError::Corrupt { glsn: outcome.next, file, offset, what: what.to_owned() });
    }
    let epoch = outcome.epoch.max(end.epoch);
    let ActiveVisitor { entry_offsets, blobs, too_many, .. } = gather;
    Ok(Active {
        file,
        header,
        outcome,
        entry_offsets,
        blobs,
        too_many,
        epoch,
        left_as_found: false,
    })
}

/// Begins a new segment, because the active one has more entries than this process's memory limit
/// allows. Does nothing if the log no longer ends at `end`.
fn begin_another(
    options: &FileLogOptions,
    found: &mut LogFiles,
    full: Active,
    members: &Members,
    end: &words::End,
) -> Result<(), LogError> {
    let got = members.turns.take()?;
    let is_active = members.marks.end() == *end;
    let begun =
        if is_active { begin_in_turn(options, found, full, members, end, got) } else { Ok(()) };
    if begun.is_ok() && (is_active || got == Got::Clean) {
        members.turns.turn.release();
    } else {
        // The next append discards unpublished bytes after the last record.
        members.turns.turn.release_abandoned();
    }
    begun
}

fn begin_in_turn(
    options: &FileLogOptions,
    found: &mut LogFiles,
    full: Active,
    members: &Members,
    end: &words::End,
    got: Got,
) -> Result<(), LogError> {
    if got == Got::Abandoned {
        members.posts.discard_unpublished();
        remove_unpublished(options, end)?;
        overwrite_unpublished(options, members, &*full.file, end)?;
    }
    let got = members.syncs.take_sync(&|| false)?;
    let synced = sync_file(members, &options.budget, &*full.file, end, got);
    match &synced {
        Ok(()) => members.syncs.sync.release(),
        Err(_) => members.syncs.sync.release_abandoned(),
    }
    synced?;
    let next = follow_with_new_segment(
        options,
        found,
        full,
        end.timestamp,
        members.blob_ids.last_blob_id(),
    )?;
    members.marks.set_end(&words::End {
        segment: next.header.first,
        offset: next.outcome.end,
        ..*end
    });
    Ok(())
}
