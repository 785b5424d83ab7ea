//! The damaged store: the readable parts of its log and its index, and the plan for the index of
//! the new store.
//!
//! Invariant: nothing here changes a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::file_log::repair::recover::{DamagedBlob, blob_pages};
use plimsoll_log::file_log::repair::survey::{Scope as LogScope, Survey, survey as survey_log};
use plimsoll_log::file_log::repair::verify::{BlobDamage, Finding, VerifyScope, verify};
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_PAYLOAD_BYTES, page_kind};

use crate::api::admin::diagnose::{Found, LostPart, Part, Scene, look_at, survey_part};
use crate::api::admin::recover::unusable::Unusable;
use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_number;
use crate::index::run::ends::HEADER_PAGE;
use crate::index::run::file::{FoundRun, log_id_in, newest_in_folder, run_id_of};
use crate::index::run::packed::{Access, Decoders};
use crate::index::run::survey::survey;
use crate::index::run::table::{TableId, TableInfo, run_file_name};
use crate::types::error::{Error, Lift, Result};
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::options::Options;
use crate::types::version::Stored;

/// How the index of the new store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The files of the old index are sound and match the log.
    Keep,
    /// From the log, which has every commit.
    Replay,
    /// From the readable parts of both.
    Merge,
}

/// A store that is not open.
pub(crate) struct Source {
    pub(crate) log_options: FileLogOptions,
    pub(crate) budget: Budget,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) survey: Survey,
    /// Findings of the log's files.
    pub(crate) findings: Vec<Finding>,
    /// The manifest that describes `parts`. `None` if it is unknown which versions compaction has
    /// dropped.
    pub(crate) manifest: Option<Manifest>,
    /// The tables of the index.
    pub(crate) parts: Vec<Part>,
    /// Whether `parts` are exactly the tables of that manifest.
    pub(crate) is_described: bool,
    /// Whether the index has commits that differ from those of the log.
    pub(crate) is_forked: bool,
    pub(crate) plan: Plan,
    /// Files whose contents are not in the new store, one sentence each.
    pub(crate) unresolved: Vec<String>,
    /// An id above those of all run files.
    pub(crate) next_run: u64,
    /// The number of the first manifest of the new store.
    pub(crate) next_manifest: u64,
}

/// The unusable parts of blob files.
#[derive(Default)]
pub(crate) struct BlobLosses {
    pub(crate) damaged: Vec<DamagedBlob>,
    /// Commits whose runs are in damaged blob files.
    pub(crate) commits: BTreeSet<Glsn>,
}

impl Source {
    /// Reads all of the store at `path`.
    pub(crate) fn read(
        path: &Path,
        options: &Options,
        unusable: &Unusable,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let (log_options, budget) = look_at(&path.join("log"), options)?;
        let decoders = Arc::new(Decoders::new(&budget));
        let (manifests, newest) = (Vec::new(), None);
        let mut reader = Reader { path, options, log_options, budget, decoders, manifests, newest };
        reader.find_manifests()?;
        let log_id = reader.log_id()?;
        let run_commits =
            newest_in_folder(reader.disk(), &path.join("index"), log_id, &reader.budget)?;
        let survey = reader.survey(log_id, run_commits, unusable)?;
        let mut source = reader.choose(survey, run_commits, unusable)?;
        source.findings = source.verify_log(path, progress)?;
        source.note_unknown_blobs(path)?;
        Ok(source)
    }

    /// The damaged files of the log, and missing blob files that tables need.
    fn verify_log(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Finding>> {
        let infos = || self.parts.iter().map(|part| &part.info);
        let mut needed: Vec<BlobId> = infos().flat_map(|info| info.blobs.iter().copied()).collect();
        needed.sort_unstable();
        needed.dedup();
        let kept = |blob: BlobId| {
            needed.binary_search(&blob).is_ok()
                || infos().any(|info| info.id == TableId::Blob(blob))
        };
        let scope = VerifyScope {
            disk: &*self.log_options.disk,
            dir: &path.join("log"),
            budget: &self.budget,
            durable: Some(self.survey.end().glsn),
            unfinished: &|_| false,
            kept: &kept,
            needed: &needed,
        };
        if scope.disk.entry(scope.dir)?.is_none() {
            return Ok(Vec::new());
        }
        verify(&scope, &mut |so_far| progress(so_far.done_bytes, so_far.total_bytes)).lift()
    }

    /// The damaged blob files: those with values, and the commits that name those with runs.
    pub(crate) fn blob_losses(&self, found: &[Found], unusable: &Unusable) -> Result<BlobLosses> {
        let mut losses = BlobLosses::default();
        let mut blobs: BTreeMap<BlobId, DamagedBlob> = BTreeMap::new();
        let new = |id| DamagedBlob { id, named: None, pages: 0, wrong: Vec::new() };
        let wrong = unusable.wrong_pages.iter().map(|(blob, pages)| (*blob, pages.clone()));
        let found_wrong = found.iter().filter_map(|found| match &found.lost {
            LostPart::Value(blob, pages) => Some((*blob, pages.clone())),
            _ => None,
        });
        for (blob, pages) in wrong.chain(found_wrong) {
            blobs.entry(blob).or_insert_with(|| new(blob)).wrong.push(pages);
        }
        for found in found {
            match &found.lost {
                LostPart::Blob(blob, named_by) if self.is_run(blob) => {
                    losses.commits.extend(*named_by)
                }
                LostPart::Blob(blob, _) => {
                    let damaged = blobs.entry(blob.id).or_insert_with(|| new(blob.id));
                    damaged.named = damaged.named.or(blob.named);
                    damaged.wrong.extend(blob.pages.iter().cloned());
                }
                _ => {}
            }
        }
        self.count_pages(&mut blobs)?;
        losses.damaged.extend(blobs.into_values());
        Ok(losses)
    }

    /// Whether a blob file holds pages of a run.
    fn is_run(&self, blob: &BlobDamage) -> bool {
        let is_part = self.parts.iter().any(|part| part.info.id == TableId::Blob(blob.id));
        let has_values =
            self.parts.iter().any(|part| part.info.blobs.binary_search(&blob.id).is_ok());
        match blob.is_plain {
            Some(is_plain) => !is_plain,
            None => is_part || !has_values,
        }
    }

    /// Counts the pages of the damaged blob files that hold values of the index.
    fn count_pages(&self, damaged: &mut BTreeMap<BlobId, DamagedBlob>) -> Result<()> {
        for part in &self.parts {
            if !part.info.blobs.iter().any(|blob| damaged.contains_key(blob)) {
                continue;
            }
            survey(part.source.as_deref(), &part.info, &self.budget, &mut |version| {
                if let Stored::InBlob { blob, offset, len, .. } = version.stored.value()
                    && let Some(damaged) = damaged.get_mut(&blob)
                {
                    let end = offset.saturating_add(len).div_ceil(PAGE_PAYLOAD_BYTES as u64);
                    damaged.pages = damaged.pages.max(u32::try_from(end).unwrap_or(u32::MAX));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Notes runs in blob files that no manifest names, if the log lacks some commits: the commit
    /// of such a run, and so the age of its versions, was recorded only in the manifest.
    fn note_unknown_blobs(&mut self, path: &Path) -> Result<()> {
        if self.plan != Plan::Merge || self.is_described {
            return Ok(());
        }
        let (disk, dir) = (&*self.log_options.disk, path.join("log"));
        let names = if disk.entry(&dir)?.is_some() { disk.names(&dir)? } else { Vec::new() };
        let ids =
            names.iter().filter_map(|name| name.strip_suffix(".blob")?.parse().ok()).map(BlobId);
        let mut page = self.budget.take(Kind::Staging)?;
        let page = &mut page[..PAGE_BYTES];
        for blob in
            ids.filter(|blob| !self.parts.iter().any(|part| part.info.id == TableId::Blob(*blob)))
        {
            let pages = blob_pages(disk, &dir, self.survey.log_id, blob).lift()?;
            if pages.load(0, page).is_ok() && page_kind(page) == HEADER_PAGE {
                self.unresolved.push(format!(
                    "log/{} is a run that no readable manifest names: its rows are in the new \
                     store only if the log has their commit",
                    blob.file_name()
                ));
            }
        }
        Ok(())
    }

    /// The newest commit between `min` and `max` that the log lacks.
    pub(crate) fn newest_gap(&self, min: Glsn, max: Glsn) -> Option<Glsn> {
        if self.is_forked {
            let last = Glsn(self.survey.bounds().start.0 - 1).min(max);
            return (last >= min).then_some(last);
        }
        self.survey.newest_gap(min, max)
    }

    /// The newest commit of the index.
    pub(crate) fn index_end(&self) -> Glsn {
        let newest = self.parts.iter().filter(|part| part.described).map(|part| part.info.max_glsn);
        let checkpoint =
            self.manifest.as_ref().map_or(Glsn::NONE, |manifest| manifest.head.checkpoint.glsn);
        newest.fold(checkpoint, Glsn::max)
    }

    /// The last commit up to which the index is known to be complete. It may also hold later
    /// commits whose runs it has adopted.
    pub(crate) fn complete_to(&self) -> Glsn {
        let manifest = self.manifest.as_ref().filter(|_| self.is_described);
        manifest.map_or(Glsn::NONE, |manifest| manifest.head.checkpoint.glsn)
    }

    /// The newest commit after `glsn` that the log has lost and that the index is known to hold.
    pub(crate) fn lost_after(&self, glsn: Glsn) -> Option<Glsn> {
        let to = self.complete_to();
        (glsn < to).then(|| self.newest_gap(glsn.next(), to)).flatten()
    }

    /// A scene for the diagnosis.
    pub(crate) fn scene<'a>(&'a self, path: &'a Path) -> Result<Scene<'a>> {
        let mut scene = Scene { path, budget: &self.budget, names: BTreeMap::new() };
        scene.read_names(&self.parts)?;
        Ok(scene)
    }
}

/// Removes tables whose files are missing, if runs from `next_run` on may be merges of these
/// tables, because the runs cover their keys and commits. The remaining missing tables are lost.
fn retain_unmerged(parts: &mut Vec<Part>, next_run: u64) {
    let is_newer = |part: &&Part| matches!(part.info.id, TableId::Run(id) if id >= next_run);
    let newer =
        || parts.iter().filter(|part| part.described && part.source.is_some()).filter(is_newer);
    let first = newer().map(|part| part.info.first_key.clone()).min();
    let last = newer().map(|part| part.info.last_key.clone()).max();
    let commits = newer().map(|part| part.info.max_glsn).max();
    let is_merged = |info: &TableInfo| {
        first.as_ref().is_some_and(|first| *first <= info.first_key)
            && last.as_ref().is_some_and(|last| *last >= info.last_key)
            && commits >= Some(info.max_glsn)
    };
    parts.retain(|part| part.source.is_some() || !is_merged(&part.info));
}

/// Finds the parts of a source.
struct Reader<'a> {
    path: &'a Path,
    options: &'a Options,
    log_options: FileLogOptions,
    budget: Budget,
    decoders: Arc<Decoders>,
    /// The readable manifests, newest first.
    manifests: Vec<Manifest>,
    /// The highest manifest number, readable or not.
    newest: Option<u64>,
}

impl Reader<'_> {
    fn disk(&self) -> &dyn Disk {
        &*self.options.disk
    }

    fn index_names(&self) -> Result<Vec<String>> {
        let index = self.path.join("index");
        if self.disk().entry(&index)?.is_some() {
            Ok(self.disk().names(&index)?)
        } else {
            Ok(Vec::new())
        }
    }

    fn runs_in_folder(&self) -> Result<Vec<u64>> {
        let mut ids: Vec<u64> =
            self.index_names()?.iter().filter_map(|name| run_id_of(name)).collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    fn find_manifests(&mut self) -> Result<()> {
        let index = self.path.join("index");
        let mut numbers: Vec<u64> =
            self.index_names()?.iter().filter_map(|name| manifest_number(name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        self.newest = numbers.first().copied();
        for number in numbers {
            match Manifest::read_numbered(self.disk(), &index, number) {
                Ok(manifest) => self.manifests.push(manifest),
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The id of the log according to the index: in a manifest, or in the header of a run; 0 if
    /// neither can be read.
    fn log_id(&self) -> Result<u128> {
        if let Some(manifest) = self.manifests.first() {
            return Ok(manifest.head.log_id);
        }
        let index = self.path.join("index");
        let mut page = self.budget.take(Kind::Staging)?;
        let page = &mut page[..PAGE_BYTES];
        for id in self.runs_in_folder()? {
            let file =
                self.disk().open(&index.join(run_file_name(id)), Open::Read, Caching::Buffered)?;
            let n = file.read_at(page, 0)?;
            if let Some(log_id) = log_id_in(&page[..n], id) {
                return Ok(log_id);
            }
        }
        Ok(0)
    }

    fn survey(&self, log_id: u128, run_commits: Glsn, unusable: &Unusable) -> Result<Survey> {
        let of_log = self.manifests.iter().filter(|manifest| manifest.head.log_id == log_id);
        let positions: Vec<Position> =
            of_log.flat_map(|manifest| [manifest.head.checkpoint, manifest.head.durable]).collect();
        let asked: Vec<Glsn> = positions.iter().map(|position| position.glsn).collect();
        let runs = Position { glsn: run_commits, chain: 0 };
        // A manifest contains the chain hash, a run does not.
        let known = positions
            .into_iter()
            .fold(runs, |known, it| if it.glsn >= known.glsn { it } else { known });
        // Only the newest manifest knows of all trims.
        let newest =
            self.manifests.first().filter(|newest| self.newest == Some(newest.head.number));
        let begins = newest
            .filter(|newest| newest.head.log_id == log_id)
            .and_then(|newest| newest.head.log_begins);
        let read = |known: Position, begins| {
            let scope = LogScope {
                options: &self.log_options,
                log_id: Some(log_id).filter(|id| *id != 0),
                known,
                begins,
                unusable: &|first| unusable.unusable.contains(&first),
                asked: &asked,
            };
            survey_log(&scope).lift()
        };
        let survey = read(known, begins)?;
        // Commits of the index of another log are not missing in this log.
        if survey.log_id == log_id || log_id == 0 {
            Ok(survey)
        } else {
            read(Position::default(), None)
        }
    }

    /// Decides which parts of the index are used.
    fn choose(self, survey: Survey, run_commits: Glsn, unusable: &Unusable) -> Result<Source> {
        let runs = self.runs_in_folder()?;
        let named = self.manifests.iter().map(|manifest| manifest.head.next_run).max().unwrap_or(1);
        let foreign =
            survey.foreign.iter().map(|name| format!("log/{name} is a segment of another log"));
        let mut source = Source {
            next_run: runs.first().map_or(named, |id| named.max(id.saturating_add(1))),
            // The new store has a folder of its own, so its numbers may begin again.
            next_manifest: self
                .newest
                .filter(|newest| *newest < u64::MAX >> 1)
                .map_or(1, |newest| newest + 1),
            unresolved: foreign.collect(),
            findings: Vec::new(),
            decoders: Arc::clone(&self.decoders),
            manifest: None,
            parts: Vec::new(),
            is_described: false,
            is_forked: false,
            plan: if survey.is_whole() { Plan::Replay } else { Plan::Merge },
            log_options: self.log_options.clone(),
            budget: self.budget.clone(),
            survey,
        };
        let bounds = source.survey.bounds();
        let is_log_damaged = !source.survey.lost.is_empty()
            || (source.survey.records == 0 && bounds.end > Glsn::FIRST);
        let is_newest = |manifest: &Manifest| self.newest == Some(manifest.head.number);
        if is_log_damaged && !self.manifests.first().is_some_and(is_newest) {
            source.unresolved.push(format!(
                "no readable manifest records how far the log extended: commits after GLSN {} may \
                 be lost",
                bounds.end.0 - 1
            ));
        }
        for manifest in self.manifests.iter() {
            if manifest.head.log_id != source.survey.log_id {
                source.unresolved.push(format!(
                    "the index belongs to another log according to its manifest {}: the new store \
                     contains none of its data",
                    manifest.head.number
                ));
                return Ok(source);
            }
            let is_forked =
                [manifest.head.checkpoint, manifest.head.durable].iter().any(|position| {
                    let chain = source.survey.chains.get(&position.glsn);
                    position.glsn > Glsn::NONE
                        && chain.is_some_and(|chain| *chain != position.chain)
                });
            let parts = self.parts_of(manifest)?;
            let is_sound = !is_forked
                && !unusable.index
                && manifest.head.checkpoint.glsn.next() >= bounds.start
                && parts.iter().all(|part| {
                    part.problems.is_empty()
                        && part.info.min_pointer.is_none_or(|oldest| oldest >= bounds.start)
                });
            let is_newest = is_newest(manifest);
            // An older manifest is as good if the log has every commit after it. A newer one
            // may have dropped blob files that the older one needs.
            let is_complete = (is_newest && run_commits <= manifest.head.checkpoint.glsn)
                || (run_commits < bounds.end
                    && source
                        .survey
                        .newest_gap(manifest.head.checkpoint.glsn.next(), Glsn(bounds.end.0 - 1))
                        .is_none()
                    && self.has_blobs(&parts)?);
            if is_sound && is_complete {
                (source.plan, source.manifest, source.parts) =
                    (Plan::Keep, Some(manifest.clone()), parts);
                source.is_described = true;
                return Ok(source);
            }
            // If a file is missing while there are files that the manifest does not know, it was
            // merged into these; so a newer manifest is missing.
            source.is_forked |= is_forked;
            let is_merged = parts.iter().any(|part| part.source.is_none())
                && runs.iter().any(|id| *id >= manifest.head.next_run);
            let has_newer = is_merged || run_commits > manifest.head.checkpoint.glsn;
            if is_newest && !has_newer {
                (source.manifest, source.parts) = (Some(manifest.clone()), parts);
                source.is_described = true;
                return Ok(source);
            }
        }
        source.parts = self.parts_in_folder(source.survey.log_id, &runs, &mut source.unresolved)?;
        // The manifest's limits are valid if no newer manifest was written.
        let first = self.manifests.first().filter(|manifest| is_newest(manifest));
        source.manifest =
            first.filter(|manifest| run_commits <= manifest.head.checkpoint.glsn).cloned();
        if source.plan == Plan::Merge && bounds.start > Glsn::FIRST {
            source.unresolved.push(
                "no readable manifest lists the runs: if a run file is missing, older values \
                 replace those in it, and keys of ranges that were deleted before the log begins \
                 may reappear"
                    .to_owned(),
            );
        }
        Ok(source)
    }

    fn parts_of(&self, manifest: &Manifest) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for (number, run) in manifest.runs.iter().enumerate() {
            for info in &run.tables {
                let of = (manifest.head.log_id, info);
                let pools = (&self.log_options.pool, &self.decoders);
                let part = survey_part(self.disk(), self.path, pools, &self.budget, of, number)?;
                parts.push(Part { history: run.history, ..part });
            }
        }
        Ok(parts)
    }

    fn has_blobs(&self, parts: &[Part]) -> Result<bool> {
        for blob in parts.iter().flat_map(|part| &part.info.blobs) {
            if self.disk().entry(&self.path.join("log").join(blob.file_name()))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The run files that the newest manifest may have named, and the tables that an older one
    /// names.
    fn parts_in_folder(
        &self,
        log_id: u128,
        runs: &[u64],
        unresolved: &mut Vec<String>,
    ) -> Result<Vec<Part>> {
        let (index, before) = (self.path.join("index"), self.manifests.first());
        let mut parts = match before {
            Some(manifest) => self.parts_of(manifest)?,
            None => Vec::new(),
        };
        let is_known =
            |id: u64, parts: &[Part]| parts.iter().any(|part| part.info.id == TableId::Run(id));
        for id in runs
            .iter()
            .copied()
            .filter(|id| before.is_none_or(|manifest| *id >= manifest.head.next_run))
        {
            if is_known(id, &parts) {
                continue;
            }
            let access = Access::Pool(Arc::clone(&self.log_options.pool));
            let found = FoundRun::open(self.disk(), &index, log_id, id, (access, &self.decoders))?;
            let (source, pages) = (Arc::clone(&found.source), found.pages);
            let (info, described) = match found.read_info(TableId::Run(id), &self.budget) {
                Ok(info) => (info, true),
                Err(Error::Corrupt { .. }) => {
                    (self.describe(TableId::Run(id), pages, &*source)?, false)
                }
                Err(error) => return Err(error),
            };
            if !described {
                unresolved.push(format!(
                    "{} has no readable header or footer: its readable rows are kept, and it is \
                     unknown whether there were others",
                    info.id.file()
                ));
            }
            let surveyed = survey(Some(&*source), &info, &self.budget, &mut |_| Ok(()))?;
            let problems = if surveyed.bad.is_some() {
                vec!["some pages are damaged".to_owned()]
            } else {
                Vec::new()
            };
            let (info, run) =
                (Arc::new(info), parts.len() + before.map_or(0, |manifest| manifest.runs.len()));
            parts.push(Part {
                info,
                run,
                history: false,
                described,
                source: Some(source),
                problems,
            });
        }
        retain_unmerged(&mut parts, before.map_or(0, |manifest| manifest.head.next_run));
        Ok(parts)
    }

    /// The metadata of a table without a footer, computed from the versions in its leaves.
    fn describe(
        &self,
        id: TableId,
        pages: u32,
        source: &dyn plimsoll_memory::pool::PageSource,
    ) -> Result<TableInfo> {
        let mut info = TableInfo {
            id,
            pages,
            root: pages.saturating_sub(1).max(1),
            versions: 1,
            deletions: 0,
            first_key: Vec::new(),
            last_key: vec![0xff; MAX_INDEX_KEY_BYTES],
            min_glsn: Glsn::MAX,
            max_glsn: Glsn::NONE,
            min_pointer: None,
            log_bytes: None,
            expiries: None,
            blobs: Vec::new(),
            fixed_glsn: None,
            absorbed: Glsn::NONE,
            packed: None,
        };
        let (mut glsns, mut keys) = ((info.min_glsn, info.max_glsn), None::<(Vec<u8>, Vec<u8>)>);
        survey(Some(source), &info, &self.budget, &mut |version| {
            glsns = (glsns.0.min(version.glsn), glsns.1.max(version.glsn));
            let (_, last) = keys.get_or_insert_with(|| (version.key.to_vec(), Vec::new()));
            version.key.clone_into(last);
            Ok(())
        })?;
        (info.min_glsn, info.max_glsn) = glsns;
        (info.first_key, info.last_key) = keys.unwrap_or_default();
        Ok(info)
    }
}
