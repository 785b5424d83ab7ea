//! Refreshes an index, read-only or a member's, from the manifest that another process has written.
//!
//! Law: no answer changes. Versions up to the new checkpoint come from the new runs; later versions
//! stay in memory; dropped moments are refused as usual. A version that is in both counts once (see
//! `view`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::index::manifest::Manifest;
use crate::index::manifest::files::Member;
use crate::index::run::table::{TableId, TableInfo};
use crate::index::runs::{Core, Writer};
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content, View, depth, newest_in};
use crate::types::error::Result;
use crate::types::lock::lock;

/// Current runs, and history runs.
type Runs = (Vec<Arc<Run>>, Vec<Arc<Run>>);

impl Core {
    /// Loads the manifest on disk if it is younger than the current one.
    pub(crate) fn refresh(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        let mut record = lock(&self.record);
        let view = self.view();
        let mut before = record.number;
        let (manifest, (runs, history)) = loop {
            let (disk, dir, known) = (self.files.disk(), self.files.dir(), Some(record.number));
            let Some(manifest) = Manifest::read_beyond(disk, dir, Some(record.log_id), known)?
            else {
                return Ok(());
            };
            if manifest.checkpoint.glsn < record.checkpoint.glsn {
                // The current one was in doubt, and the writer went on from the one before:
                // versions between the two are in this view only.
                return Ok(());
            }
            match self.open_runs(&manifest, &view) {
                Ok(opened) => break (manifest, opened),
                Err(error) if manifest.number == before => return Err(error),
                // Its files may be gone as well: then there is a still newer manifest.
                Err(_) => before = manifest.number,
            }
        };
        let checkpoint = manifest.checkpoint.glsn;
        self.files.skip_to(manifest.next_run);
        if self.context.duty.members().is_some() {
            let head = manifest.head();
            let limits = Arc::new(head.limits.clone());
            *record = head;
            // The memtables stay until they are released: what is in them is younger than every row
            // in the cache, or the same.
            self.swap_view(|view| {
                view.depth = depth(runs.iter().map(|run| run.span()));
                view.newest_in_runs = newest_in(&runs);
                (view.runs, view.history, view.limits) = (runs, history, limits);
            });
            drop((writer, record, view));
            self.seats.exchanged();
            return Ok(());
        }
        let active = self.behind(&view.active, checkpoint)?;
        let mut closed = Vec::new();
        for source in view.closed.iter().filter(|source| source.boundary > checkpoint) {
            let content = match &source.content {
                Content::Memtable(memtable) => {
                    Content::Memtable(self.behind(memtable, checkpoint)?)
                }
                adopted @ Content::Adopted(_) => adopted.clone(),
            };
            closed.push(Closed { content, boundary: source.boundary });
        }
        let head = manifest.head();
        let limits = Arc::new(head.limits.clone());
        let set = view.set + 1;
        if self.context.row_cache.begin_runs(set) {
            self.context.row_cache.clear();
        }
        *writer = Writer::new(Arc::clone(&active));
        self.flushed.store(checkpoint.0, Ordering::Release);
        *record = head;
        self.swap_view(|view| {
            view.depth = depth(runs.iter().map(|run| run.span()));
            view.newest_in_runs = newest_in(&runs);
            (view.active, view.closed, view.runs, view.history) = (active, closed, runs, history);
            (view.set, view.limits) = (set, limits);
        });
        // Outside the locks: walks may release files.
        drop((writer, record, view));
        self.seats.exchanged();
        Ok(())
    }

    /// Opens the runs of a manifest; tables that `view` already has are shared.
    fn open_runs(&self, manifest: &Manifest, view: &View) -> Result<Runs> {
        let members =
            view.all_runs().flat_map(|run| (0..run.tables().len()).map(|at| run.member(at)));
        let known: BTreeMap<TableId, Member> =
            members.map(|member| (member.info().id, member)).collect();
        let (mut runs, mut history) = (Vec::new(), Vec::new());
        for run in &manifest.runs {
            let open = |info: &TableInfo| match known.get(&info.id) {
                Some(member) if member.info() == info => Ok(member.clone()),
                _ => self.files.open(info.clone()),
            };
            let members = run.tables.iter().map(open).collect::<Result<_>>()?;
            if run.history { &mut history } else { &mut runs }.push(Arc::new(Run::new(members)));
        }
        Ok((runs, history))
    }

    /// A copy of the part of a memtable that is behind a checkpoint.
    fn behind(&self, memtable: &Arc<Memtable>, checkpoint: Glsn) -> Result<Arc<Memtable>> {
        if memtable.min_glsn() > checkpoint {
            return Ok(Arc::clone(memtable));
        }
        let rest = Memtable::new(&self.context.budget);
        let mut at = memtable.map().first();
        while let Some(position) = at {
            let entry = memtable.map().at(position);
            if entry.order > checkpoint.0 {
                rest.inserter(Glsn(entry.order)).insert(
                    entry.key,
                    entry.order,
                    [entry.value, &[]],
                )?;
            }
            at = memtable.map().next(position);
        }
        Ok(Arc::new(rest))
    }
}
