//! Compaction on demand, and freeing the log.

use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::engine::trim::{self, Active, LogSpace};
use crate::index::env::Horizon;
use crate::index::memtables::flush_policy;
use crate::index::run::table::TableInfo;
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::types::error::{Lift, Result};
use crate::types::lock::lock;
use crate::types::retention::Retention;

/// Number of segments that values may pin before they are moved out of the log.
/// [`request_relocation`] states the whole threshold.
const HELD_SEGMENTS: u64 = 8;

/// Minimum bytes that a compaction must free by ending the active segment or by moving values. A
/// small store keeps its log, from which its index can be rebuilt.
const WORTH_FREEING_BYTES: u64 = 1 << 20;

/// The most times that one compaction moves values out of blob files.
const RELOCATION_PASSES_MAX: u32 = 16;

/// Flushes, merges everything, and frees the part of the log that is no longer needed. This process
/// must be the one that writes the index.
pub(crate) fn compact(space: &LogSpace, committer: &Committer) -> Result<()> {
    // Also flush everything that another process had committed when it requested this compaction.
    committer.fresh()?;
    committer.flush()?;
    // Merges come first, because they show which values are still needed. A pending move must not
    // hinder them, in case the move fails.
    space.catalog.horizon.relocation_requested.store(0, Ordering::Release);
    // `None`: all of the log is kept.
    let log_keeps_from =
        may_be_freed(space)?.unwrap_or(Glsn::NONE).max(space.reader.log.bounds().first);
    space.reader.index.compaction.run_all(log_keeps_from)?;
    let moved = match may_be_freed(space)? {
        Some(until) if request_relocation(space, until, Active::EndsFrom(WORTH_FREEING_BYTES))? => {
            space.reader.index.compaction.relocate()
        }
        _ => Ok(()),
    };
    free(space, true, Active::EndsFrom(WORTH_FREEING_BYTES))?;
    moved?;
    if may_be_freed(space)?.is_none() {
        // Do not move values out of blob files: the log keeps its records, and so the blob files
        // that they name.
        return Ok(());
    }
    for _ in 0..RELOCATION_PASSES_MAX {
        if !space.peers.keeps()
            || !space.reader.index.compaction.vacate_blobs(WORTH_FREEING_BYTES)?
        {
            break;
        }
        free(space, true, Active::EndsFrom(WORTH_FREEING_BYTES))?;
    }
    Ok(())
}

/// Trims the log, unless a keyspace keeps everything or a user's stream prevents it. A keyspace
/// that was never written to has nothing to keep.
pub(crate) fn free_log(space: &LogSpace) -> Result<()> {
    free(space, true, Active::Stays)
}

fn free(space: &LogSpace, may_flush: bool, active: Active) -> Result<()> {
    if !space.peers.keeps() {
        return Ok(());
    }
    let Some(until) = may_be_freed(space)? else {
        space.reader.log.end_segments_at(space.segment_bytes);
        return Ok(());
    };
    space.reader.log.end_segments_at(space.reader.index.runs.space.segment_bytes());
    request_relocation(space, until, active)?;
    if may_flush {
        flush_for_blobs(space, until);
    }
    ask_to_close(space, until);
    trim::free_soon(space, until, active)
}

/// Requests a flush of the memtable if only its contents pin large blob files.
fn flush_for_blobs(space: &LogSpace, until: Glsn) {
    let index = &space.reader.index;
    let checkpoint = index.runs.checkpoint().glsn;
    let segment_bytes = space.segment_bytes.min(index.runs.space.segment_bytes());
    let blob_bytes = space.reader.log.active_blob_bytes();
    if flush_policy::frees_blobs(checkpoint, until, blob_bytes, segment_bytes) {
        space.sequencer.try_between_commits(|applied| index.memtables.close_if_none_waits(applied));
    }
}

/// Asks all processes to close their memtables if much of the log was pinned. A process needs the
/// log after the oldest commit in a memtable until the runs hold all of that memtable. A version
/// that only a snapshot reads leaves the runs by a merge, which follows a flush, so this also asks
/// if no memtable reaches back that far.
fn ask_to_close(space: &LogSpace, until: Glsn) {
    let newest = space.sequencer.visible();
    let segment_bytes = space.segment_bytes.min(space.reader.index.runs.space.segment_bytes());
    let least_bytes = flush_policy::much_held_bytes(segment_bytes);
    let is_much = |from, to| space.reader.log.segment_bytes_between(from, to) >= least_bytes;
    space.peers.ask_to_close(newest, &mut || {
        lock(&space.held_back).is_released(space.clock.monotonic_nanos(), until, newest, is_much)
    });
}

/// The beginning of the part of the log that retention, cursors and holds keep; `None` if they keep
/// all of it.
pub(super) fn may_be_freed(space: &LogSpace) -> Result<Option<Glsn>> {
    // Read this first: a stream or keyspace that becomes known later has no commit up to here.
    let newest = space.sequencer.visible();
    if !space.peers.are_own_records_current()
        || space.catalog.records.streams_known.load(Ordering::Acquire)
    {
        return Ok(None);
    }
    let (unlimited, limited): (Vec<_>, Vec<_>) = space
        .reader
        .keyspaces
        .records()
        .into_iter()
        .partition(|record| record.retention == Retention::Forever);
    // The log is kept as far back as a keyspace can be read, because it maps moments to GLSNs. Read
    // this before the next check, so that anything written later is younger.
    let oldest = limited.iter().map(|record| space.catalog.horizon.retained(record.id).floor).min();
    let Some(oldest) = oldest else { return Ok(None) };
    for record in unlimited {
        if was_written_to(space, record.id)? {
            return Ok(None);
        }
    }
    // If nothing older than the newest commit can be read, its entry is not needed either, because
    // its time is known without it.
    let until = if oldest >= newest { newest.next() } else { oldest };
    Ok(Some(until.min(space.kept_from())))
}

/// If values that runs point to pin much of the log, makes compaction move them into blob files.
/// Returns whether compaction does so from now on. A value is moved once, and each move rewrites
/// the index at most once; so the freed bytes of the log must be at least those of the index, in
/// addition to the copied ones.
///
/// A compaction ends the active segment, so that segment counts as well; and the threshold is
/// lower, because the caller asked for the space.
fn request_relocation(space: &LogSpace, until: Glsn, active: Active) -> Result<bool> {
    let (index, horizon) = (&space.reader.index, &space.catalog.horizon);
    let until = until.min(index.runs.checkpoint().glsn.next());
    let view = index.sources.view();
    // Values that are already being moved are not counted again.
    let oldest =
        view.min_pointer().filter(|oldest| (horizon.relocate_below()..until).contains(oldest));
    let (Some(oldest), Some(live_bytes)) = (oldest, view.log_bytes()) else { return Ok(false) };
    let index_bytes: u64 = view.infos().map(TableInfo::file_bytes).sum();
    let (active_bytes, worth_bytes) = match active {
        Active::Stays => (0, u64::MAX),
        Active::EndsFrom(bytes) => (space.reader.log.active_bytes_below(until).lift()?, bytes),
    };
    let worth_bytes = worth_bytes.min(HELD_SEGMENTS * space.segment_bytes);
    let least_bytes = (worth_bytes + index_bytes).saturating_add(live_bytes.saturating_mul(2));
    let is_worth_it =
        space.reader.log.segment_bytes_between(oldest, until) + active_bytes >= least_bytes;
    if is_worth_it {
        horizon.relocation_requested.fetch_max(until.0, Ordering::AcqRel);
    }
    Ok(is_worth_it)
}

fn was_written_to(space: &LogSpace, keyspace: u32) -> Result<bool> {
    let (span, view) = (Span::of_keyspace(keyspace), space.reader.index.sources.view());
    Ok(view.changed_in(span.lower(), span.upper(), Glsn::NONE)?.is_some())
}

/// Frees the part of the log that can be freed. With `may_flush`, requests closing the memtable for
/// that if needed.
pub(super) fn try_to_free_log(space: &LogSpace, may_flush: bool) {
    // A segment that could not be freed now is freed later; the commit itself has succeeded.
    let _ = free(space, may_flush, Active::Stays);
}
