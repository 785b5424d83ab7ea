//! The index of a member that is not the keeper: its memtables are not flushed but released once
//! the keeper's runs hold their content.
//!
//! Invariants:
//! 1. A memtable is released when the checkpoint of the loaded manifest reaches its boundary. Until
//!    then it stays complete: a version that is both in the memtable and in a run counts once.
//! 2. A process that waits for room asks the keeper to flush, and becomes the keeper if there is
//!    none or if the keeper does not answer.
//! 3. A new keeper removes and reuses nothing before it has installed a manifest: see
//!    [`plimsoll_log::members::keeper`].

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;

use crate::borders::{Border, hit};
use crate::index::env::{Env, Progress};
use crate::index::manifest::files::run_of;
use crate::index::runs::Runs;
use crate::index::sources::Sources;
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;

/// The interval at which the keeper's progress is checked.
const LOOK: Duration = Duration::from_millis(100);

/// A waiter gives up after the keeper made no progress for this long.
const PATIENCE_NANOS: u64 = 10_000_000_000;

/// A keeper that leaves pings unanswered for this long is replaced. If it was only slow, this
/// costs work but no data.
const ANSWERS_WITHIN_NANOS: u64 = 2_000_000_000;

/// Watches whether the keeper answers while a thread waits for it.
#[derive(Debug)]
pub(crate) struct KeeperWatch {
    heartbeat: (u64, u64),
    since: u64,
}

impl KeeperWatch {
    /// Begins to watch.
    pub(crate) fn new(members: &Members, clock: &dyn Clock) -> Self {
        Self { heartbeat: members.keeper.heartbeat(), since: clock.monotonic_nanos() }
    }

    /// The last heartbeat of the keeper, if the keeper has not answered for too long. Call it
    /// repeatedly.
    pub(crate) fn stopped(&mut self, members: &Members, clock: &dyn Clock) -> Option<(u64, u64)> {
        let (heartbeat, now) = (members.keeper.heartbeat(), clock.monotonic_nanos());
        if heartbeat != self.heartbeat {
            (self.heartbeat, self.since) = (heartbeat, now);
        }
        members.keeper.ping();
        (now.saturating_sub(self.since) > ANSWERS_WITHIN_NANOS).then_some(heartbeat)
    }
}

/// The owner of the keeper's role in a store that several processes share: follows the keeper, and
/// replaces it if necessary.
#[derive(Debug)]
pub(crate) struct Following {
    env: Arc<Env>,
    sources: Arc<Sources>,
    runs: Arc<Runs>,
    /// Held while this process tries to become the keeper.
    keeping: Mutex<()>,
    /// Held while the needed part of the log is published.
    publishing: Mutex<()>,
}

impl Following {
    pub(crate) fn new(runs: &Arc<Runs>) -> Self {
        Self {
            env: Arc::clone(&runs.env),
            sources: Arc::clone(&runs.sources),
            runs: Arc::clone(runs),
            keeping: Mutex::new(()),
            publishing: Mutex::new(()),
        }
    }

    /// In a member: loads the keeper's newest manifest, and becomes the keeper if there is none.
    ///
    /// # Errors
    /// As for [`Runs::refresh`].
    pub(crate) fn follow(&self, members: &Members) -> Result<()> {
        if !members.keeper.is_keeper() {
            self.load_newest_manifest(members)?;
            self.keep_if_free(members)?;
        }
        Ok(())
    }

    /// Loads the keeper's newest manifest and releases the memtables that its runs hold. While
    /// memtables wait to be released, waits for the keeper.
    pub(crate) fn step(&self, members: &Arc<Members>) -> Result<Progress> {
        let clock = &self.env.context.clock;
        let begun = clock.monotonic_nanos();
        let mut watch = KeeperWatch::new(members, &**clock);
        let mut told = begun;
        loop {
            if let Some(oldest) = self.sources.view().closed.last().map(|closed| closed.boundary) {
                members.marks.request_flush(oldest);
            }
            let now = clock.monotonic_nanos();
            if now.saturating_sub(told) >= LOOK.as_nanos() as u64 {
                // Notify again, because a new keeper may not have received the request.
                told = now;
                members.table.notify();
            }
            // Read the state after our own notification, so that it cannot wake us. Loading a
            // manifest notifies again, which costs one extra iteration.
            let seen = members.table.state();
            if self.load_newest_manifest(members)? {
                return Ok(Progress::Worked);
            }
            if self.sources.view().closed.is_empty() {
                return Ok(Progress::Idle);
            }
            if self.keep_if_free(members)? {
                return Ok(Progress::Worked);
            }
            let is_nobody_there = || members.table.is_reader() && members.keeper.pid().is_none();
            if self.env.signals.is_closing() || is_nobody_there() {
                return Ok(Progress::Idle);
            }
            if let Some(stopped) = watch.stopped(members, &**clock)
                && self.replace(members, stopped)?
            {
                return Ok(Progress::Worked);
            }
            if clock.monotonic_nanos().saturating_sub(begun) > PATIENCE_NANOS {
                return Err(Error::Stalled { pid: members.keeper.pid() });
            }
            members.table.wait_for_change(seen, LOOK);
        }
    }

    /// Loads the newest manifest, unless it is loaded already. Returns whether memtables were
    /// released.
    pub(crate) fn load_newest_manifest(&self, members: &Members) -> Result<bool> {
        if members.marks.manifest() > self.runs.manifest_number() {
            self.runs.refresh(|_, _| Ok(None))?;
        }
        let releases = self.runs.release_held();
        self.publish_needs(members);
        Ok(releases)
    }

    /// Publishes which part of the log this process needs.
    pub(crate) fn publish_needs(&self, members: &Members) {
        // Read and publish under one lock, so that an outdated value cannot overwrite a newer one.
        let _alone = lock(&self.publishing);
        members.needs.set_checkpoint(self.runs.log_needed_from());
    }

    /// Continues from the newest manifest, and returns the GLSN up to which it holds every commit.
    /// The memtables must be closed ([`crate::index::memtables`]), and the caller must apply
    /// nothing in the meantime.
    ///
    /// # Errors
    /// As for [`Following::follow`].
    pub(crate) fn leap(&self, members: &Members) -> Result<Glsn> {
        self.load_newest_manifest(members)?;
        Ok(self.runs.skip_to_checkpoint(|_| true).expect("every checkpoint is accepted"))
    }

    /// Continues from the checkpoint of the loaded manifest if `may_pass` allows it. Returns that
    /// checkpoint. The caller has the duties that [`Following::leap`] states.
    pub(crate) fn skip_to_checkpoint(
        &self,
        members: &Members,
        may_pass: impl FnOnce(Glsn) -> bool,
    ) -> Option<Glsn> {
        self.runs.release_held();
        let passed = self.runs.skip_to_checkpoint(may_pass);
        self.publish_needs(members);
        passed
    }

    /// Becomes the keeper, if there is none.
    pub(crate) fn keep_if_free(&self, members: &Members) -> Result<bool> {
        self.keep_by(members, || members.keeper.try_acquire().lift())
    }

    /// Becomes the keeper in place of one that does not answer.
    pub(crate) fn replace(&self, members: &Members, stopped: (u64, u64)) -> Result<bool> {
        let replaced = self.keep_by(members, || members.keeper.try_to_replace(stopped).lift())?;
        if replaced {
            hit(Border::KeeperReplaced);
        }
        Ok(replaced)
    }

    fn keep_by(&self, members: &Members, get: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let _alone = lock(&self.keeping);
        if members.keeper.is_keeper() {
            return Ok(true);
        }
        members.keeper.release_if_replaced();
        if self.env.signals.is_closing() || !get()? {
            return Ok(false);
        }
        match self.prepare_to_keep(members) {
            Ok(()) if members.keeper.keep() => {}
            Ok(()) | Err(Error::NotKeeper { .. }) => {
                members.keeper.release();
                return Ok(false);
            }
            Err(error) => {
                members.keeper.release();
                return Err(error);
            }
        }
        members.marks.set_manifest(self.runs.manifest_number());
        self.env.signals.call_flush();
        self.env.signals.call_compaction();
        Ok(true)
    }

    /// Brings the files into the state of the newest manifest: removes leftovers of earlier
    /// keepers, and skips their ids. An earlier keeper may still be running, in the middle of a
    /// job.
    fn prepare_to_keep(&self, members: &Members) -> Result<()> {
        self.runs.files.skip_ids_in_folder(self.env.context.clock.wall_micros())?;
        // List the files before the manifest is installed. Later manifests name none of the listed
        // files that this one does not name, so a sweep of these files stays correct even if this
        // process is delayed while others write files.
        let names = self.runs.files.names()?;
        self.runs.fence()?;
        let named: BTreeSet<u64> = self.sources.view().infos().filter_map(run_of).collect();
        let copied = self.runs_being_copied(&named);
        let is_named = |run: u64| named.contains(&run) || copied.contains(&run);
        if members.holds.are_files_held() {
            self.runs.files.leave(&names, is_named);
            return Ok(());
        }
        self.runs.files.sweep(&names, self.runs.manifest_number(), is_named)
    }

    /// The runs not in `named` whose files this process is copying. They are removed at the end of
    /// the copy.
    fn runs_being_copied(&self, named: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut copied = BTreeSet::new();
        for view in self.runs.blobs.views_of_jobs() {
            for (guard, info) in
                view.all_runs().flat_map(|run| run.guards().iter().zip(run.infos()))
            {
                if let Some(id) = run_of(info).filter(|id| !named.contains(id)) {
                    guard.set_obsolete(true);
                    copied.insert(id);
                }
            }
        }
        copied
    }
}
