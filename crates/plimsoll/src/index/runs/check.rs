//! Checks the index: every page of every table, and the invariants that the manifest shows.

use std::ops::Bound;
use std::sync::Arc;

use crate::index::manifest::Manifest;
use crate::index::run::check::check_table;
use crate::index::run::table::{Table, TableId};
use crate::index::runs::Runs;
use crate::index::sources::source::Run;
use crate::index::sources::view::tables_in;
use crate::types::error::Result;
use crate::types::version::Version;

/// Reads every table. `each` receives every version, `checked` each table with its faults, `report`
/// faults between tables.
pub(crate) fn verify(
    runs: &Runs,
    each: &mut dyn FnMut(&Version<'_>),
    checked: &mut dyn FnMut(&Table, Vec<String>),
    report: &mut dyn FnMut(String),
) -> Result<()> {
    let (manifest, view) = runs.manifest();
    for run in view.all_runs() {
        check_order(run, report);
        for table in run.tables().iter() {
            let problems = check_table(table, &runs.env.context.budget, each)?;
            let is_there = problems.is_empty() || is_named(runs, table.info.id)?;
            checked(table, if is_there { problems } else { Vec::new() });
        }
    }
    check_ages(&view.runs, report);
    let youngest = view.runs.iter().chain(&view.history).map(|run| run.max_glsn()).max();
    // While another process writes, the manifest may be younger than the log bounds known here.
    let durable = runs.env.context.log.bounds().durable.max(manifest.head.durable.glsn);
    if let Some(youngest) = youngest.filter(|&youngest| youngest > durable) {
        report(format!(
            "a run holds GLSN {youngest}, which is younger than the durable GLSN {durable}"
        ));
    }
    if manifest.head.checkpoint.glsn > durable {
        let checkpoint = manifest.head.checkpoint.glsn;
        report(format!(
            "the index's checkpoint {checkpoint} is younger than the durable GLSN {durable}"
        ));
    }
    Ok(())
}

/// Whether the manifest on disk names this table. Another writing process may have merged the table
/// away and removed its file.
fn is_named(runs: &Runs, id: TableId) -> Result<bool> {
    if runs.env.role().may_write() {
        return Ok(true);
    }
    let (disk, dir) = (runs.files.disk(), runs.files.dir());
    let manifest = Manifest::read_beyond(disk, dir, Some(runs.env.context.log.id()), None)?;
    Ok(manifest
        .is_none_or(|now| now.runs.iter().flat_map(|run| &run.tables).any(|info| info.id == id)))
}

fn check_order(run: &Run, report: &mut dyn FnMut(String)) {
    for pair in run.tables().windows(2) {
        if pair[0].info.last_key >= pair[1].info.first_key {
            report(format!("{} and {} of one run overlap", pair[0].info.id, pair[1].info.id));
        }
    }
}

/// Checks invariant 2 by the oldest and newest commits of tables. After a merge that ended early,
/// tables that do not overlap may be in reverse order.
fn check_ages(runs: &[Arc<Run>], report: &mut dyn FnMut(String)) {
    for pair in runs.windows(2) {
        for newer in pair[0].infos() {
            let range =
                (Bound::Included(&newer.first_key[..]), Bound::Included(&newer.last_key[..]));
            let youngest = tables_in(&pair[1], range).iter().map(|table| table.info.max_glsn).max();
            if let Some(older) = youngest.filter(|older| newer.min_glsn < *older) {
                let newer = newer.min_glsn;
                report(format!(
                    "a newer run holds GLSN {newer}, older than GLSN {older} of the run after it"
                ));
            }
        }
    }
}
