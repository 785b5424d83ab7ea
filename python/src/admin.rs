//! Maintenance: verification, backups and recovery.

use plimsoll::{Db, Options, VerifyProgress};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::calls::{interruptible, interruptible_with};
use crate::errors::OrRaise;
use crate::options::{Folder, Size};

/// Bytes between two progress reports.
const STEP_BYTES: u64 = 1 << 20;

fn verified(
    py: Python<'_>,
    progress: Option<Bound<'_, PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(VerifyProgress)) -> plimsoll::Result<plimsoll::VerifyReport>
    + Send
    + 'static,
) -> PyResult<VerifyReport> {
    let sparse = move |report: &mut dyn FnMut(VerifyProgress)| {
        let mut reported = None;
        work(&mut |progress: VerifyProgress| {
            if reported.is_none_or(|bytes| progress.done_bytes >= bytes + STEP_BYTES) {
                reported = Some(progress.done_bytes);
                report(progress);
            }
        })
    };
    let see = |seen: VerifyProgress| match &progress {
        Some(callback) => callback.call1((seen.done_bytes, seen.total_bytes)).map(drop),
        None => Ok(()),
    };
    let report = interruptible_with(py, sparse, see)?.or_raise()?;
    Ok(VerifyReport {
        problems: report.problems,
        notes: report.notes,
        bytes: report.bytes,
        files: report.files,
        opens: report.opens,
    })
}

pub(crate) fn verify_open(
    py: Python<'_>,
    db: &Db,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<VerifyReport> {
    let db = db.clone();
    verified(py, progress, move |report| db.verify(report))
}

/// Checks a whole store that is not open in this process, even one too damaged to open.
/// `progress(done_bytes, total_bytes)` is called occasionally. Damage does not raise an exception;
/// it is listed in the report.
///
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> plimsoll.verify(path, memory="16MiB").problems
/// []
#[pyfunction]
#[pyo3(signature = (path, *, memory = None, progress = None))]
pub(crate) fn verify(
    py: Python<'_>,
    path: Folder,
    memory: Option<Size>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<VerifyReport> {
    let options =
        memory.map_or_else(Options::new, |Size(bytes)| Options::new().memory_bytes(bytes));
    verified(py, progress, move |report| plimsoll::verify(path.0, options, report))
}

/// The result of a verification.
///
/// >>> report = plimsoll.in_memory().verify()
/// >>> report.ok, report.problems, report.opens
/// (True, [], True)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct VerifyReport {
    /// The problems, one line each, with file and offset.
    problems: Vec<String>,
    /// Differences from a cleanly closed store that need no action.
    notes: Vec<String>,
    /// Bytes read.
    bytes: u64,
    /// Files read.
    files: u64,
    /// Whether the store opens.
    opens: bool,
}

#[pymethods]
impl VerifyReport {
    /// Whether the store is intact.
    #[getter]
    fn ok(&self) -> bool {
        self.problems.is_empty() && self.opens
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll verification: {} problems in {} bytes>", self.problems.len(), self.bytes)
    }
}

/// The result of a backup.
///
/// >>> db = plimsoll.open(path, memory="16MiB")
/// >>> glsn = db.put(b"a", b"1")
/// >>> report = db.backup(path + ".backup", copy=True)
/// >>> report.glsn == glsn, report.bytes_copied > 0, report.bytes_linked
/// (True, True, 0)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct BackupReport {
    /// The newest GLSN in the backup.
    glsn: u64,
    /// Files in it.
    files: u64,
    /// Bytes copied.
    bytes_copied: u64,
    /// Bytes in hard-linked files, shared with the store on disk.
    bytes_linked: u64,
}

impl BackupReport {
    pub(crate) fn new(report: &plimsoll::BackupReport) -> Self {
        let glsn = report.glsn.0;
        Self {
            glsn,
            files: report.files,
            bytes_copied: report.bytes_copied,
            bytes_linked: report.bytes_linked,
        }
    }
}

#[pymethods]
impl BackupReport {
    fn __repr__(&self) -> String {
        format!("<plimsoll backup up to GLSN {}, {} files>", self.glsn, self.files)
    }
}

/// Recovers a damaged store: builds a new store at `dest` from everything readable at `path`, and
/// reports the losses. The store at `path` is not changed. `dest` must not exist or must be an
/// empty folder. With `dry_run`, nothing is written and `dest` is not needed.
///
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> plimsoll.recover(path, path + ".recovered", memory="16MiB").whole
/// True
/// >>> plimsoll.recover(path, dry_run=True, memory="16MiB").lost_commits
/// []
#[pyfunction]
#[pyo3(signature = (path, dest = None, *, dry_run = false, memory = None))]
pub(crate) fn recover(
    py: Python<'_>,
    path: Folder,
    dest: Option<Folder>,
    dry_run: bool,
    memory: Option<Size>,
) -> PyResult<RecoverReport> {
    let options =
        memory.map_or_else(Options::new, |Size(bytes)| Options::new().memory_bytes(bytes));
    let report = match (dest, dry_run) {
        (_, true) => interruptible(py, move || Db::recover_dry_run(path.0, options))?,
        (Some(dest), false) => {
            interruptible(py, move || Db::recover(path.0, dest.0, options, &mut |_, _| {}))?
        }
        (None, false) => return Err(PyTypeError::new_err("recover() needs dest, or dry_run=True")),
    };
    Ok(RecoverReport::new(&report.or_raise()?))
}

/// The result of a recovery.
///
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> report = plimsoll.recover(path, dry_run=True, memory="16MiB")
/// >>> report.whole, report.index, report.values
/// (True, 'log', [])
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct RecoverReport {
    /// The newest GLSN of the new store.
    glsn: u64,
    /// The source of its index: "index", "log", or "log and runs".
    index: &'static str,
    /// Whether nothing is lost.
    whole: bool,
    /// The damaged places, one line each.
    damage: Vec<String>,
    /// Lost entries of the log: the first and the last GLSN of each range.
    lost_entries: Vec<(u64, u64)>,
    /// The lost entries whose changes are missing from the index, too.
    lost_commits: Vec<(u64, u64)>,
    /// Versions whose values are lost, at most a thousand: keyspace, key, and GLSN.
    values: Vec<(String, Vec<u8>, u64)>,
    /// The total number of such versions.
    value_count: u64,
    /// Ranges of keys that were on damaged pages, one line each.
    lost_ranges: Vec<String>,
    /// Keys that were deleted because their newest value is lost.
    deleted: u64,
    /// The oldest GLSN at which every keyspace can be read; 0 if the recovery did not raise it.
    readable_from: u64,
    /// The new names of keyspaces whose records are lost.
    renamed: Vec<String>,
    /// Files whose contents are not in the new store, one line each.
    unresolved: Vec<String>,
    /// Bytes of files shared by both stores.
    bytes_linked: u64,
    /// Bytes copied.
    bytes_copied: u64,
}

impl RecoverReport {
    fn new(report: &plimsoll::RecoverReport) -> Self {
        let pairs = |ranges: &[std::ops::RangeInclusive<plimsoll::Glsn>]| -> Vec<(u64, u64)> {
            ranges.iter().map(|lost| (lost.start().0, lost.end().0)).collect()
        };
        let value = |value: &plimsoll::DamagedKey| {
            (value.keyspace.clone(), value.key.clone(), value.glsn.0)
        };
        Self {
            glsn: report.glsn.0,
            index: match report.index {
                plimsoll::IndexSource::Index => "index",
                plimsoll::IndexSource::Log => "log",
                _ => "log and runs",
            },
            whole: report.is_whole(),
            damage: report.damage.iter().map(ToString::to_string).collect(),
            lost_entries: pairs(&report.lost_entries),
            lost_commits: pairs(&report.lost_commits),
            values: report.values.iter().map(value).collect(),
            value_count: report.value_count,
            lost_ranges: report.lost_ranges.iter().map(ToString::to_string).collect(),
            deleted: report.deleted,
            readable_from: report.readable_from.0,
            renamed: report.renamed.clone(),
            unresolved: report.unresolved.clone(),
            bytes_linked: report.bytes_linked,
            bytes_copied: report.bytes_copied,
        }
    }
}

#[pymethods]
impl RecoverReport {
    fn __repr__(&self) -> String {
        let lost = if self.whole { "nothing is lost" } else { "something is lost" };
        format!("<plimsoll recovery up to GLSN {}: {lost}>", self.glsn)
    }
}
