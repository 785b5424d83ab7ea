//! Maps damage in a store to the data lost with it: from findings in the log and in the index's
//! tables to keys.
//!
//! Works on stores that do not open.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::repair::recover::blob_pages;
use plimsoll_log::file_log::repair::verify::{self, BlobDamage, Finding, Remedy, VerifyScope};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_PAYLOAD_BYTES};
use plimsoll_memory::pool::{PageSource, Pool};

use crate::engine::folder::refuse_index_without_log;
use crate::engine::memory::POOL_FLOOR_SHARE;
use crate::index::manifest::Manifest;
use crate::index::run::check::check_table;
use crate::index::run::file::{FoundRun, open_run, run_id_of};
use crate::index::run::packed::{Access, Decoders};
use crate::index::run::survey::survey;
use crate::index::run::table::{Table, TableId, TableInfo};
use crate::types::damage::{Damage, DamagedKey, DamagedKeys};
use crate::types::error::{Error, Lift, Result, strip_advice};
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::{BRANCHES, CURSORS, IDS, Record, SIDE, SYSTEM, TAGS, dropped_name};
use crate::types::options::Options;
use crate::types::version::{Stored, Version};

/// One finding, and the data lost with it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) damage: Damage,
    pub(crate) lost: LostPart,
}

/// The part of the store that is lost.
#[derive(Clone, Debug)]
pub(crate) enum LostPart {
    /// Records in a GLSN range; empty if only a header or a mark is damaged.
    Records(Range<Glsn>),
    /// Pages of a blob file, and the commit that names it.
    Blob(BlobDamage, Option<Glsn>),
    /// Pages of a blob file whose checksums match but which do not hold the value that was written.
    Value(BlobId, Range<u32>),
    /// Pages of a table, or something else.
    Other,
}

/// A table of the index.
pub(crate) struct Part {
    pub(crate) info: Arc<TableInfo>,
    /// Index of its run in the manifest.
    pub(crate) run: usize,
    /// Whether the run is a history run.
    pub(crate) history: bool,
    /// Whether its metadata is known, from a manifest or from its own header and footer.
    pub(crate) described: bool,
    /// `None` if it cannot be opened.
    pub(crate) source: Option<Arc<dyn PageSource>>,
    /// The problems found so far.
    pub(crate) problems: Vec<String>,
}

impl Part {
    pub(crate) fn of(table: &Table, run: usize, problems: Vec<String>) -> Self {
        let source = Some(Arc::clone(table.file.source()));
        Self {
            info: Arc::clone(&table.info),
            run,
            history: false,
            described: true,
            source,
            problems,
        }
    }

    /// Size of its file.
    pub(crate) fn bytes(&self) -> u64 {
        self.info.file_bytes()
    }
}

/// Context of a diagnosis.
pub(crate) struct Scene<'a> {
    pub(crate) path: &'a Path,
    pub(crate) budget: &'a Budget,
    /// Keyspace names by id.
    pub(crate) names: BTreeMap<u32, String>,
}

/// Maps a version to the damaged place that holds its value.
pub(crate) struct LostPlaces {
    /// Damaged GLSN ranges, with the number of the finding.
    records: Vec<(Range<Glsn>, usize)>,
    blobs: Vec<(BlobId, Vec<Range<u32>>, usize)>,
}

impl LostPlaces {
    pub(crate) fn of<'a>(found: impl Iterator<Item = &'a Found>) -> Self {
        let mut places = Self { records: Vec::new(), blobs: Vec::new() };
        for (number, found) in found.enumerate() {
            match &found.lost {
                LostPart::Records(glsns) => places.add_records(glsns.clone(), number),
                LostPart::Blob(blob, _) if !blob.pages.is_empty() => {
                    places.blobs.push((blob.id, blob.pages.clone(), number))
                }
                LostPart::Value(blob, pages) => {
                    places.blobs.push((*blob, vec![pages.clone()], number))
                }
                LostPart::Blob(..) | LostPart::Other => {}
            }
        }
        places
    }

    /// Adds a range of GLSNs.
    pub(crate) fn add_records(&mut self, glsns: Range<Glsn>, number: usize) {
        if !glsns.is_empty() {
            self.records.push((glsns, number));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.blobs.is_empty()
    }

    /// The number of the finding that affects a version's value, if any.
    pub(crate) fn find(&self, glsn: Glsn, stored: &Stored<'_>) -> Option<usize> {
        match stored.value() {
            Stored::InLog { .. } => {
                self.records.iter().find(|(glsns, _)| glsns.contains(&glsn)).map(|(_, at)| *at)
            }
            Stored::InBlob { blob, offset, len, .. } => {
                let page = |offset: u64| offset / PAGE_PAYLOAD_BYTES as u64;
                let (first, last) =
                    (page(offset), page(offset.saturating_add(len).saturating_sub(1)));
                let touches = |range: &Range<u32>| {
                    u64::from(range.start) <= last && first < u64::from(range.end)
                };
                let hit = |(id, pages, _): &&(BlobId, Vec<Range<u32>>, usize)| {
                    *id == blob && pages.iter().any(touches)
                };
                self.blobs.iter().find(hit).map(|(_, _, at)| *at)
            }
            _ => None,
        }
    }
}

impl Scene<'_> {
    /// Describes the log's findings and the tables' problems. The second list has notes on harmless
    /// findings.
    pub(crate) fn describe(
        &mut self,
        findings: &[Finding],
        parts: &[Part],
    ) -> Result<(Vec<Found>, Vec<String>)> {
        let (mut found, mut notes) = (Vec::new(), Vec::new());
        for finding in findings {
            if finding.harmless {
                let glsn = finding.glsn.map_or_else(String::new, |glsn| format!(" (GLSN {glsn})"));
                notes.push(format!(
                    "log/{}, offset {}{glsn}: {}",
                    finding.file, finding.offset, finding.what
                ));
            } else {
                found.push(self.of_log(finding));
            }
        }
        self.name_keys(&mut found, parts)?;
        for part in parts.iter().filter(|part| !part.problems.is_empty()) {
            self.of_part(part, &mut found)?;
        }
        Ok((found, notes))
    }

    fn of_log(&self, finding: &Finding) -> Found {
        let mut damage =
            Damage::new(format!("log/{}", finding.file), finding.offset, finding.what.clone());
        damage.glsns = finding.glsn.map(|first| first..=finding.last.unwrap_or(first));
        let first = finding.glsn.unwrap_or(Glsn::FIRST);
        let lost = match (finding.remedy, &finding.blob) {
            (_, Some(blob)) => LostPart::Blob(blob.clone(), finding.glsn),
            (Remedy::Drop, None) => {
                LostPart::Records(first..finding.last.map_or(first, Glsn::next))
            }
            (Remedy::Cut, None) => {
                LostPart::Records(first..finding.last.map_or(Glsn::MAX, Glsn::next))
            }
            _ => LostPart::Other,
        };
        damage.advise(self.path);
        Found { damage, lost }
    }

    fn of_part(&self, part: &Part, found: &mut Vec<Found>) -> Result<()> {
        let info = &part.info;
        let file = info.id.file();
        let surveyed = survey(part.source.as_deref(), info, self.budget, &mut |_| Ok(()))?;
        let more = match part.problems.len() {
            1 => String::new(),
            problems => format!(" (and {} more problems in this file)", problems - 1),
        };
        let what =
            format!("{}{more}", part.problems.first().map_or("it is damaged", |problem| problem));
        let mut add = |page: u32, key_range: Option<DamagedKeys>| {
            let mut damage =
                Damage::new(file.clone(), u64::from(page) * PAGE_BYTES as u64, what.clone());
            damage.glsns = Some(info.min_glsn..=info.max_glsn);
            damage.key_range = key_range;
            damage.advise(self.path);
            found.push(Found { damage, lost: LostPart::Other });
        };
        if surveyed.lost.is_empty() {
            add(surveyed.bad.map_or(0, |(first, _)| first), None);
        }
        for span in &surveyed.lost {
            add(span.page, Some(self.range(&span.first, &span.last)));
        }
        Ok(())
    }

    /// Adds to each finding in the log the keys of the index whose values are stored there.
    fn name_keys(&self, found: &mut [Found], parts: &[Part]) -> Result<()> {
        let places = LostPlaces::of(found.iter());
        if places.is_empty() {
            return Ok(());
        }
        for part in parts.iter().filter(|part| part.source.is_some()) {
            survey(part.source.as_deref(), &part.info, self.budget, &mut |version| {
                if let Some(at) = places.find(version.glsn, &version.stored) {
                    let damage = &mut found[at].damage;
                    damage.add_key(self.key_of(version));
                    if damage.glsns.is_none() {
                        // No record names this blob file any more, so take the GLSN from the values
                        // in it.
                        damage.glsns = Some(version.glsn..=version.glsn);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(crate) fn key_of(&self, version: &Version<'_>) -> DamagedKey {
        let (keyspace, key) = self.split(version.key);
        DamagedKey { keyspace, key, glsn: version.glsn, bytes: version.stored.value_bytes() }
    }

    /// Splits an index key into the name of its keyspace and the user's key.
    pub(crate) fn split(&self, key: &[u8]) -> (String, Vec<u8>) {
        let Some((id, key)) = IndexKey::new(key).split() else {
            return (String::new(), key.to_vec());
        };
        let name = match self.names.get(&id) {
            Some(name) => name.clone(),
            None if id == SYSTEM => "(the store's own)".to_owned(),
            None if id == CURSORS => "(the cursors)".to_owned(),
            None if id == TAGS => "(the tags)".to_owned(),
            None if id == BRANCHES => "(the branches)".to_owned(),
            None if id == IDS => "(the ids of commits)".to_owned(),
            None if id == SIDE => "(the data of branches)".to_owned(),
            None => format!("(number {id})"),
        };
        (name, key.to_vec())
    }

    /// The range between two index keys.
    pub(crate) fn range(&self, first: &[u8], last: &[u8]) -> DamagedKeys {
        let (from, to) = (IndexKey::new(first).keyspace(), IndexKey::new(last).keyspace());
        let between =
            if from < to { Some((Bound::Excluded(from), Bound::Excluded(to))) } else { None };
        let names = between.into_iter().flat_map(|between| self.names.range(between));
        let between = names.map(|(_, name)| name.clone()).collect();
        let (keyspace, first) = self.split(first);
        let (last_keyspace, last) = self.split(last);
        DamagedKeys { keyspace, first, last, last_keyspace, between }
    }

    /// Reads the names of keyspaces from their records in the index.
    pub(crate) fn read_names(&mut self, parts: &[Part]) -> Result<()> {
        for part in parts.iter().filter(|part| IndexKey::new(&part.info.first_key).is_in(SYSTEM)) {
            let names = &mut self.names;
            survey(part.source.as_deref(), &part.info, self.budget, &mut |version| {
                if let (Some((SYSTEM, name)), Stored::Inline(value)) =
                    (IndexKey::new(version.key).split(), version.stored)
                    && let Ok(record) = Record::decode(value)
                {
                    let name = dropped_name(name).unwrap_or(name);
                    names
                        .entry(record.id)
                        .or_insert_with(|| String::from_utf8_lossy(name).into_owned());
                }
                Ok(())
            })?;
        }
        self.names
            .entry(crate::types::keyspaces::DEFAULT.1)
            .or_insert_with(|| crate::types::keyspaces::DEFAULT.0.to_owned());
        Ok(())
    }
}

/// Contents of a store that is not open, and possibly cannot be opened.
pub(crate) struct Closed {
    pub(crate) manifest: Result<Option<Manifest>>,
    pub(crate) parts: Vec<Part>,
    pub(crate) findings: Vec<Finding>,
}

/// Reads all of a store that is not open. `progress` receives the bytes read of the log.
pub(crate) fn look(
    disk: &dyn Disk,
    path: &Path,
    pool: &Arc<Pool>,
    budget: &Budget,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Closed> {
    let manifest = Manifest::read_of_store(disk, path);
    if let Err(error @ Error::Format { .. }) = manifest {
        return Err(error);
    }
    let known = manifest.as_ref().ok().and_then(Option::as_ref);
    let kept = |blob: BlobId| {
        let infos =
            known.into_iter().flat_map(|manifest| &manifest.runs).flat_map(|run| &run.tables);
        infos
            .into_iter()
            .any(|info| info.id == TableId::Blob(blob) || info.blobs.binary_search(&blob).is_ok())
    };
    let needed = known.map(value_blobs).unwrap_or_default();
    let scope = VerifyScope {
        disk,
        dir: &path.join("log"),
        budget,
        durable: known.map(|manifest| manifest.head.durable.glsn),
        unfinished: &|_| false,
        kept: &kept,
        needed: &needed,
    };
    let findings =
        verify::verify(&scope, &mut |so_far| progress(so_far.done_bytes, so_far.total_bytes))
            .lift()?;
    let (mut parts, decoders) = (Vec::new(), Arc::new(Decoders::new(budget)));
    for (run, info) in known.into_iter().flat_map(|manifest| manifest.runs.iter().enumerate()) {
        for info in &info.tables {
            parts.push(survey_part(
                disk,
                path,
                (pool, &decoders),
                budget,
                (known.expect("its runs").head.log_id, info),
                run,
            )?);
        }
    }
    Ok(Closed { manifest, parts, findings })
}

/// Options for reading the log in the folder `dir`, with a separate budget and pool.
pub(crate) fn look_at(dir: &Path, options: &Options) -> Result<(FileLogOptions, Budget)> {
    let budget = Budget::new(options.memory_bytes, Backing::Mapped)?;
    let pool = Pool::new(&budget, options.memory_bytes / POOL_FLOOR_SHARE).lift()?;
    let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
    let mut log = FileLogOptions::new(disk, clock, dir.to_owned(), pool, budget.clone());
    if let Some(bytes) = options.segment_bytes {
        log.segment_bytes = u32::try_from(bytes).expect("checked: at most 1 GiB");
    }
    Ok((FileLogOptions { mode: Mode::ReadOnly, ..log }, budget))
}

/// Rejects a path that is not the folder of a store.
pub(crate) fn check_is_store(path: &Path, disk: &dyn Disk) -> Result<()> {
    if disk.entry(path)?.is_some_and(|entry| !entry.is_dir) {
        return Err(Error::is_a_file(path));
    }
    refuse_index_without_log(path, disk)?;
    match disk.entry(&path.join("log"))? {
        Some(entry) if entry.is_dir => Ok(()),
        _ => Err(Error::NotAStore {
            path: path.to_owned(),
            what: "there is no store here; check the path".to_owned(),
        }),
    }
}

/// Whether an index has no manifest that matches its log, which begins with `first` ([`Glsn::NONE`]
/// if there is no log).
pub(crate) fn is_lost(
    disk: &dyn Disk,
    index: &Path,
    manifest: &Result<Option<Manifest>>,
    first: Glsn,
) -> Result<bool> {
    Ok(match manifest {
        Ok(Some(manifest)) => first > manifest.head.checkpoint.glsn.next(),
        // Without run files the index is not lost: opening rebuilds it.
        Ok(None) => {
            disk.entry(index)?.is_some()
                && disk.names(index)?.iter().any(|name| run_id_of(name).is_some())
        }
        Err(Error::Corrupt { .. }) => true,
        Err(_) => false,
    })
}

/// The blob files that hold values of the runs.
pub(crate) fn value_blobs(manifest: &Manifest) -> Vec<BlobId> {
    let infos = manifest.runs.iter().flat_map(|run| &run.tables);
    let mut blobs: Vec<BlobId> = infos.flat_map(|info| info.blobs.iter().copied()).collect();
    blobs.sort_unstable();
    blobs.dedup();
    blobs
}

pub(crate) fn survey_part(
    disk: &dyn Disk,
    path: &Path,
    (pool, decoders): (&Arc<Pool>, &Arc<Decoders>),
    budget: &Budget,
    (log_id, info): (u128, &TableInfo),
    run: usize,
) -> Result<Part> {
    let opened = match info.id {
        TableId::Run(_) => {
            open_run(disk, &path.join("index"), (pool, decoders), log_id, info.clone())
        }
        TableId::Blob(blob) => {
            let pages = blob_pages(disk, &path.join("log"), log_id, blob);
            pages
                .lift()
                .map(|source| Table { info: Arc::new(info.clone()), file: pool.attach(source) })
        }
    };
    match opened {
        Ok(table) => {
            let problems = check_table(&table, budget, &mut |_| {})?;
            Ok(Part::of(&table, run, problems))
        }
        Err(Error::Io { kind: ErrorKind::NotFound, .. }) => {
            let problems = vec!["the file is missing".to_owned()];
            let info = Arc::new(info.clone());
            Ok(Part { info, run, history: false, described: true, source: None, problems })
        }
        Err(Error::Corrupt { message, .. }) => {
            // The file has the wrong length, but its pages may be readable.
            let source = match info.id {
                TableId::Run(id) => {
                    let pools = (Access::Pool(Arc::clone(pool)), decoders);
                    match FoundRun::open(disk, &path.join("index"), log_id, id, pools) {
                        Ok(run) => Some(run.source),
                        Err(Error::Corrupt { .. } | Error::Io { .. }) => None,
                        Err(error) => return Err(error),
                    }
                }
                TableId::Blob(_) => None,
            };
            let (info, problems) =
                (Arc::new(info.clone()), vec![strip_advice(&message).to_owned()]);
            Ok(Part { info, run, history: false, described: true, source, problems })
        }
        Err(error) => Err(error),
    }
}

/// The first GLSN of a log, taken from its segments' names.
pub(crate) fn first_of_log(disk: &dyn Disk, path: &Path) -> Result<Glsn> {
    let names = match disk.names(&path.join("log")) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        names => names?,
    };
    let first =
        |name: &String| name.strip_suffix(".seg").and_then(|digits| digits.parse().ok()).map(Glsn);
    Ok(names.iter().filter_map(first).min().unwrap_or(Glsn::NONE))
}

/// Whether an error of the log means damage: wrong or missing bytes.
pub(crate) fn is_damage(error: &Error) -> bool {
    let missing = matches!(error, Error::Io { kind: ErrorKind::NotFound, .. });
    missing || matches!(error, Error::Corrupt { .. } | Error::Forked { .. })
}
