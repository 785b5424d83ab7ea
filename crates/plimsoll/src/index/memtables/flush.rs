//! Flushes a closed source. A memtable is written as a run; an adopted run is only named in the
//! manifest.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::env::counters::Counters;
use crate::index::manifest::files::Reserve;
use crate::index::manifest::limits::Limits;
use crate::index::plan::superseding::Sample;
use crate::index::ranges::Absorber;
use crate::index::run::warmth::Warmth;
use crate::index::runs::Runs;
use crate::index::runs::change::Change;
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content};
use crate::index::write::SetAside;
use crate::index::write::disposition::{Disposition, Inputs, NoFacts, Splitter};
use crate::index::write::output::Output;
use crate::types::error::{Lift, Result};
use crate::types::version::{Stored, Version};

/// The result of flushing a source.
#[derive(Default)]
pub(super) struct Flushed {
    /// The new runs, newest first.
    runs: Vec<Arc<Run>>,
    history: Option<Arc<Run>>,
    limits: Limits,
    pub(super) written_bytes: u64,
}

impl Flushed {
    pub(super) fn tables(&self) -> u64 {
        self.runs.iter().chain(&self.history).map(|run| run.infos().count() as u64).sum()
    }
}

/// Flushes a source. `term`: the term in which the flush began.
pub(super) fn flush(
    runs: &Runs,
    set_aside: &SetAside,
    closed: &Closed,
    term: Option<u64>,
) -> Result<Flushed> {
    if closed.boundary > Glsn::NONE {
        // Invariant 1 of the index: a run must not hold versions that a crash could take back.
        runs.env.context.log.wait_durable(closed.boundary).lift()?;
    }
    // After a change of keeper, a source may begin before the checkpoint or end before it.
    let in_runs = runs.env.role().members().map(|_| runs.checkpoint().glsn);
    let is_held = in_runs.is_some_and(|in_runs| closed.boundary <= in_runs);
    let mut flushed = match &closed.content {
        _ if is_held => Flushed::default(),
        Content::Memtable(memtable) => write_memtable(
            runs,
            set_aside,
            memtable,
            in_runs.unwrap_or(Glsn::NONE),
            closed.boundary,
        )?,
        Content::Adopted(adopted) => Flushed { runs: adopted.clone(), ..Flushed::default() },
    };
    let checkpoint = if is_held { None } else { runs.place_of(closed.boundary)? };
    let limits = std::mem::take(&mut flushed.limits);
    runs.install(term, |view| Change {
        removed: Vec::new(),
        added: flushed.runs.iter().chain(&flushed.history).cloned().collect(),
        runs: flushed.runs.iter().chain(&view.runs).cloned().collect(),
        history: flushed.history.iter().chain(&view.history).cloned().collect(),
        limits,
        checkpoint,
        takes_closed: Some(closed.clone()),
        log_begins: None,
    })
    .map_err(|(_, error)| error)?;
    Counters::add(&runs.env.counters.bytes_flushed, flushed.written_bytes);
    Ok(flushed)
}

/// Writes the versions of a memtable, closed at `boundary`, that are younger than `in_runs`.
fn write_memtable(
    runs: &Runs,
    set_aside: &SetAside,
    memtable: &Memtable,
    in_runs: Glsn,
    boundary: Glsn,
) -> Result<Flushed> {
    let (bytes, view) = (memtable.map().used_bytes(), runs.sources.view());
    // Invariant 1 again: later range deletions may not be durable yet.
    let mut absorber = Absorber::new(&view.ranges, boundary);
    let output = || {
        Output::new(&runs.files, &set_aside.budget, runs.env.context.table_bytes, Reserve::Whole)
            .absorbing(boundary)
    };
    let superseding = superseding_bytes(memtable, &view.runs);
    runs.space.note_flush(bytes, superseding);
    let cuts = match runs.space.has_been_overwritten() {
        true => runs.alignment.cuts(&view.runs, bytes, runs.env.context.table_bytes),
        false => Vec::new(),
    };
    let (mut current, mut history) = (output().cut_before(cuts), output());
    let mut splitter = Splitter::new(Inputs::Current { oldest: false }, false);
    let warmth = if memtable.is_read() { Warmth::Read } else { Warmth::Unread };
    let mut at = memtable.map().first();
    while let Some(position) = at {
        let version = memtable.version(position);
        if version.glsn <= in_runs {
            at = memtable.map().next(position);
            continue;
        }
        let is_deletion = version.stored == Stored::Deleted;
        let deletion = absorber
            .deletion_of(version.key, version.glsn, is_deletion)
            .map(|glsn| Version { glsn, stored: Stored::Deleted, ..version });
        for version in deletion.into_iter().chain([version]) {
            match splitter.disposition(&version, &*runs.env.horizon, &mut NoFacts)? {
                Disposition::Current => current.add(&version, true, warmth)?,
                // A version that was superseded in memory is unlikely to have been read.
                Disposition::History { first } => history.add(&version, first, Warmth::Unread)?,
                Disposition::Dropped => {}
            }
        }
        at = memtable.map().next(position);
    }
    let ((current, current_bytes), (history, history_bytes)) =
        (current.finish()?, history.finish()?);
    let run = |members: Vec<_>| (!members.is_empty()).then(|| Arc::new(Run::new(members)));
    let current = run(current);
    if let Some(run) = &current {
        let superseding =
            u128::from(superseding) * u128::from(run.bytes()) / u128::from(bytes.max(1));
        run.supersedes(superseding as u64);
    }
    Ok(Flushed {
        runs: current.into_iter().collect(),
        history: run(history),
        limits: std::mem::take(splitter.limits()),
        written_bytes: current_bytes + history_bytes,
    })
}

/// An estimate of the memtable's bytes that supersede versions in older runs.
fn superseding_bytes(memtable: &Memtable, older: &[Arc<Run>]) -> u64 {
    let mut sample = Sample::default();
    memtable.map().estimate((b"", u64::MAX), None, |entry| {
        sample.add(entry.key);
        0.0
    });
    sample.superseding_bytes(memtable.map().used_bytes(), older)
}
