//! Opening the runs that a manifest names.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::index::manifest::Manifest;
use crate::index::manifest::files::{FileGuard, Files, Member};
use crate::index::run::table::{TableId, TableInfo};
use crate::index::sources::source::Run;
use crate::index::sources::view::View;
use crate::types::error::Result;

/// Current runs, and history runs.
pub(super) type RunSets = (Vec<Arc<Run>>, Vec<Arc<Run>>);

pub(super) fn guards(runs: &[Arc<Run>]) -> impl Iterator<Item = &Arc<FileGuard>> {
    runs.iter().flat_map(|run| run.guards())
}

/// Opens the runs of a manifest. Tables that `known` already has are shared.
pub(super) fn open_runs(
    files: &Arc<Files>,
    manifest: &Manifest,
    known: Option<&View>,
) -> Result<RunSets> {
    let members = known
        .into_iter()
        .flat_map(View::all_runs)
        .flat_map(|run| (0..run.tables().len()).map(|at| run.member(at)));
    let known: BTreeMap<TableId, Member> =
        members.map(|member| (member.info().id, member)).collect();
    let (mut runs, mut history) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let open = |info: &TableInfo| match known.get(&info.id) {
            Some(member) if member.info() == info => Ok(member.clone()),
            _ => files.open(info.clone()),
        };
        let members = run.tables.iter().map(open).collect::<Result<_>>()?;
        if run.history { &mut history } else { &mut runs }.push(Arc::new(Run::new(members)));
    }
    Ok((runs, history))
}
