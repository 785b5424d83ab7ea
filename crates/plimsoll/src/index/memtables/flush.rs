//! Flushes closed sources, oldest first: a memtable is written as a run, an adopted run is only
//! named in the manifest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::index::env::Progress;
use crate::index::env::counters::Counters;
use crate::index::manifest::files::Reserve;
use crate::index::manifest::limits::Limits;
use crate::index::plan::superseding::Sample;
use crate::index::run::warmth::Warmth;
use crate::index::runs::{Change, Core, SetAside};
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content};
use crate::index::write::output::Output;
use crate::index::write::split::{Disposition, Inputs, Nowhere, Splitter};
use crate::types::error::{Error, Lift, Result};
use crate::types::events;
use crate::types::lock::lock;

/// The result of flushing a source.
#[derive(Default)]
struct Flushed {
    /// Newest first.
    runs: Vec<Arc<Run>>,
    history: Option<Arc<Run>>,
    limits: Limits,
    written_bytes: u64,
}

impl Flushed {
    fn tables(&self) -> u64 {
        self.runs.iter().chain(&self.history).map(|run| run.infos().count() as u64).sum()
    }
}

impl Core {
    /// Makes the oldest closed source durable in the log and flushes it, if there is one.
    pub(crate) fn flush_step(&self) -> Result<Progress> {
        if self.context.duty.is_read_only() {
            return Ok(Progress::Idle);
        }
        if let Some(members) = self.context.duty.followed() {
            return self.follow_step(members);
        }
        if self.context.duty.members().is_some() && self.release_held() {
            // Another keeper has flushed it before this one took its place.
            return Ok(Progress::Worked);
        }
        let set_aside = lock(&self.flush);
        let term = self.context.duty.term();
        let Some(closed) = self.view().closed.last().cloned() else { return Ok(Progress::Idle) };
        let start = self.context.clock.monotonic_nanos();
        let done =
            self.flush_source(&set_aside, &closed, term).map_err(|error| self.of_job(term, error));
        drop(set_aside);
        if let Ok(flushed) = &done {
            let nanos = self.context.clock.monotonic_nanos() - start;
            Counters::add(&self.counters.flushes, 1);
            Counters::add(&self.counters.flush_nanos, nanos);
            events::flushed(closed.boundary, || flushed.tables(), flushed.written_bytes, nanos);
        }
        if matches!(done, Err(Error::NotKeeper { .. })) {
            // Another one has become the keeper, and flushes.
            return Ok(Progress::Worked);
        }
        self.signals.flush_ended(done.as_ref().err());
        done.map(|_| Progress::Worked)
    }

    fn flush_source(
        &self,
        set_aside: &SetAside,
        closed: &Closed,
        term: Option<u64>,
    ) -> Result<Flushed> {
        if closed.boundary > Glsn::NONE {
            // Law 1: a run must not hold versions that a crash could take back.
            self.context.log.wait_durable(closed.boundary).lift()?;
        }
        // A keeper that followed another one: its sources may reach back behind the checkpoint, and
        // the checkpoint beyond them.
        let in_runs = self.context.duty.members().map(|_| self.head().checkpoint.glsn);
        let is_held = in_runs.is_some_and(|in_runs| closed.boundary <= in_runs);
        let mut flushed = match &closed.content {
            _ if is_held => Flushed::default(),
            Content::Memtable(memtable) => {
                self.write_memtable(set_aside, memtable, in_runs.unwrap_or(Glsn::NONE))?
            }
            Content::Adopted(runs) => Flushed { runs: runs.clone(), ..Flushed::default() },
        };
        let checkpoint = if is_held { None } else { self.place_of(closed.boundary)? };
        let limits = std::mem::take(&mut flushed.limits);
        self.install(term, |view| Change {
            removed: Vec::new(),
            added: flushed.runs.iter().chain(&flushed.history).cloned().collect(),
            runs: flushed.runs.iter().chain(&view.runs).cloned().collect(),
            history: flushed.history.iter().chain(&view.history).cloned().collect(),
            limits,
            checkpoint,
            takes_closed: Some(closed.content.clone()),
        })
        .map_err(|(_, error)| error)?;
        Counters::add(&self.counters.bytes_flushed, flushed.written_bytes);
        self.flushed.fetch_max(closed.boundary.0, Ordering::AcqRel);
        Ok(flushed)
    }

    /// Writes the versions that are younger than `in_runs`.
    fn write_memtable(
        &self,
        set_aside: &SetAside,
        memtable: &Memtable,
        in_runs: Glsn,
    ) -> Result<Flushed> {
        let output = || {
            Output::new(&self.files, &set_aside.budget, self.context.table_bytes, Reserve::Whole)
        };
        let (bytes, view) = (memtable.map().used_bytes(), self.view());
        let superseding = superseding_bytes(memtable, &view.runs);
        self.space.note_flush(bytes, superseding);
        let cuts = match self.space.is_written_over() {
            true => self.alignment.cuts(&view.runs, bytes, self.context.table_bytes),
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
            match splitter.disposition(&version, &*self.horizon, &mut Nowhere)? {
                Disposition::Current => current.add(&version, true, warmth)?,
                // A version that was superseded while in memory is unlikely to be among those that
                // were read.
                Disposition::History { first } => history.add(&version, first, Warmth::Unread)?,
                Disposition::Dropped => {}
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
            limits: splitter.limits,
            written_bytes: current_bytes + history_bytes,
        })
    }
}

/// Bytes of a memtable that supersede what older runs hold, about.
fn superseding_bytes(memtable: &Memtable, older: &[Arc<Run>]) -> u64 {
    let mut sample = Sample::default();
    memtable.map().estimate((b"", u64::MAX), None, |entry| {
        sample.add(entry.key);
        0.0
    });
    sample.superseding_bytes(memtable.map().used_bytes(), older)
}
