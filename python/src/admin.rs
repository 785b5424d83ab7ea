//! Looking after the bytes: verification and backups.

use plimsoll::{Db, Options, VerifyProgress};
use pyo3::prelude::*;

use crate::calls::interruptible_with;
use crate::errors::OrRaise;
use crate::options::{Folder, Size};

/// Bytes between two reports of progress.
const STEP_BYTES: u64 = 1 << 20;

fn verified(
    py: Python<'_>,
    progress: Option<Bound<'_, PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(VerifyProgress)) -> plimsoll::Result<plimsoll::VerifyReport> + Send + 'static,
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

pub(crate) fn verify_open(py: Python<'_>, db: &Db, progress: Option<Bound<'_, PyAny>>) -> PyResult<VerifyReport> {
    let db = db.clone();
    verified(py, progress, move |report| db.verify(report))
}

/// Checks all of a store that is not open in this process, even one too damaged to open. `progress(done_bytes, total_bytes)` is called now and
/// then. Damage is no exception: it is in the report.
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
    let options = memory.map_or_else(Options::new, |Size(bytes)| Options::new().memory_bytes(bytes));
    verified(py, progress, move |report| plimsoll::verify(path.0, options, report))
}

/// The result of a verification.
///
/// >>> report = plimsoll.in_memory().verify()
/// >>> report.ok, report.problems, report.opens
/// (True, [], True)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct VerifyReport {
    /// The problems, one line each, with file and place.
    problems: Vec<String>,
    /// What differs from a cleanly closed store and needs no action.
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
        Self { glsn, files: report.files, bytes_copied: report.bytes_copied, bytes_linked: report.bytes_linked }
    }
}

#[pymethods]
impl BackupReport {
    fn __repr__(&self) -> String {
        format!("<plimsoll backup up to GLSN {}, {} files>", self.glsn, self.files)
    }
}
