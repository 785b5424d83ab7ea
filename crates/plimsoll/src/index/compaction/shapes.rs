//! The data by which the policy chooses runs to merge: the size of each run, and the part that a
//! merge would remove from it.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::compaction::FAN_IN;
use crate::index::compaction::expired::{Lookups, expired_in};
use crate::index::env::Horizon;
use crate::index::plan::overlap::{Segment, Sweep};
use crate::index::plan::policy::{Clearance, RunShape};
use crate::index::run::table::TableInfo;
use crate::index::sources::source::Run;
use crate::index::sources::view::{View, tables_in};

/// The shapes of the runs of current versions, youngest first: with the deletions, expired values
/// and superseded versions that a merge would remove.
pub(super) fn current_shapes(
    view: &View,
    horizon: &dyn Horizon,
    is_busy: &dyn Fn(&Arc<Run>) -> bool,
) -> Vec<RunShape> {
    let mut shapes = shapes_by_size(&view.runs, is_busy);
    let lookups = Lookups::new(horizon);
    let expired = |info: &TableInfo| -> u64 {
        expired_in(&lookups, view, info).map_or(0, |expired| expired.values)
    };
    let expires = |run: &Arc<Run>| run.infos().any(|info| info.expiries.is_some());
    if view.runs.iter().any(|run| run.deletions() > 0 || expires(run)) {
        for (at, shape) in shapes.iter_mut().enumerate() {
            let row_bytes = row_bytes(&view.runs[at + 1..]);
            shape.bytes += view.runs[at].deletions() * row_bytes;
            // A merge that does not reach the oldest run drops no deletion.
            if at + FAN_IN >= view.runs.len() {
                shape.clearance = clearance(&view.runs[at..], row_bytes, &expired);
            }
        }
    }
    for (shape, run) in shapes.iter_mut().zip(&view.runs).rev().skip(1) {
        shape.superseding_bytes = run.superseding_bytes();
    }
    let mut youngest_behind = Glsn::NONE;
    for (shape, run) in shapes.iter_mut().zip(&view.runs).rev() {
        shape.fused = run.min_glsn() <= youngest_behind;
        youngest_behind = youngest_behind.max(run.max_glsn());
    }
    shapes
}

/// The shapes of runs by their sizes alone.
pub(super) fn shapes_by_size(
    runs: &[Arc<Run>],
    is_busy: &dyn Fn(&Arc<Run>) -> bool,
) -> Vec<RunShape> {
    let clearance = Clearance::default();
    let shape = |run: &Arc<Run>| RunShape {
        bytes: run.bytes(),
        kept_bytes: 0,
        superseding_bytes: 0,
        clearance,
        busy: is_busy(run),
        fused: false,
    };
    runs.iter().map(shape).collect()
}

/// Bytes of the tables that are adopted blob files named by log entries from `log_keeps_from` on.
pub(super) fn kept_bytes(run: &Run, log_keeps_from: Glsn) -> u64 {
    let is_kept = |info: &&TableInfo| info.fixed_glsn.is_some_and(|glsn| glsn >= log_keeps_from);
    run.infos().filter(is_kept).map(TableInfo::bytes).sum()
}

/// Bytes of an average row in these runs.
pub(super) fn row_bytes(runs: &[Arc<Run>]) -> u64 {
    let (bytes, versions) = runs
        .iter()
        .fold((0, 0), |(bytes, versions), run| (bytes + run.bytes(), versions + run.versions()));
    bytes / versions.max(1)
}

/// The gain of merging the first of these runs with all others, down to the oldest, if a deletion
/// hides a row of `row_bytes`, and `expired` values of a table may be dropped.
fn clearance(runs: &[Arc<Run>], row_bytes: u64, expired: &dyn Fn(&TableInfo) -> u64) -> Clearance {
    let is_worth_it = |info: &&TableInfo| info.is_worth_rewriting(expired(info));
    let cleared = |info: &TableInfo| info.bytes() + info.deletions * row_bytes;
    let cleared_bytes = runs[0].infos().filter(is_worth_it).map(cleared).sum();
    if cleared_bytes == 0 {
        return Clearance::default();
    }
    let tables = |input: usize, at: usize| runs[input].tables().get(at).map(|table| &*table.info);
    let (mut sweep, mut rewritten_bytes) = (Sweep::new(runs.len()), 0);
    while let Some(segment) = sweep.next(tables) {
        rewritten_bytes += match segment {
            Segment::Alone { input, table } => {
                // A table that has expired as a whole is dropped unread.
                let is_rewritten = |info: &&TableInfo| {
                    let expired = expired(info);
                    let is_expired = 2 * expired >= info.versions || info.frees_blobs(expired);
                    expired < info.versions && (info.deletions > 0 || is_expired)
                };
                tables(input, table).filter(is_rewritten).map_or(0, TableInfo::bytes)
            }
            Segment::Cluster { first_key, last_key } => {
                let range = (Bound::Included(&first_key[..]), Bound::Included(&last_key[..]));
                runs.iter()
                    .flat_map(|run| tables_in(run, range))
                    .map(|table| table.info.bytes())
                    .sum()
            }
        };
    }
    Clearance { cleared_bytes, rewritten_bytes }
}
