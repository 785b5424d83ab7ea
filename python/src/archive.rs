//! Archives: passes, restores and verification.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll::{Moment, Options};
use plimsoll_archive::{Archive, Damage, Error};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::calls::{interruptible, interruptible_with};
use crate::db::{Db, store};
use crate::errors::{invalid, raised_by_archive};
use crate::moments::When;
use crate::options::{Folder, Size};

/// The archive at a path or a URL.
fn open(url: &Folder) -> PyResult<Archive> {
    match url.0.to_str() {
        Some(url) => Archive::open(url).map_err(raised_by_archive),
        None => Err(invalid("the path of an archive must be valid Unicode")),
    }
}

/// An archive whose call ends soon after the flag is set.
fn cancellable(archive: Archive) -> (Archive, Arc<AtomicBool>) {
    let cancel = Arc::new(AtomicBool::new(false));
    (archive.cancel_on(Arc::clone(&cancel)), cancel)
}

/// The damaged objects: the name of each, and what is wrong.
fn pairs(damage: Vec<Damage>) -> Vec<(String, String)> {
    damage.into_iter().map(|Damage { object, what }| (object, what)).collect()
}

/// Brings everything durable of a store into an archive: a folder, or its URL `file:///path`. The
/// archive is created if there is none; each call sends what is new. With `keep`, a `timedelta`,
/// moments that are older than this before the newest commit are dropped. To archive a store all
/// the time, run `plimsoll archive --follow` beside the program.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     glsn = db.put(b"a", b"1")
/// ...     report = plimsoll.archive(db, path + ".archive")
/// >>> report.glsn == glsn, report.objects > 0
/// (True, True)
#[pyfunction]
#[pyo3(signature = (db, url, *, keep = None))]
pub(crate) fn archive(
    db: PyRef<'_, Db>,
    url: Folder,
    keep: Option<Duration>,
) -> PyResult<ArchiveReport> {
    let (py, of) = (db.py(), store(&db).db()?.clone());
    if store(&db).path.as_os_str().is_empty() {
        return Err(invalid("cannot archive a store in memory, because it has no files"));
    }
    let mut archive = open(&url)?;
    if let Some(time) = keep {
        archive = archive.keep(time);
    }
    // Otherwise the pass would keep the archive locked until it ends.
    let (mut archive, cancel) = cancellable(archive);
    let report = interruptible(py, move || archive.push(&of))
        .inspect_err(|_| cancel.store(true, Ordering::Relaxed))?
        .map_err(raised_by_archive)?;
    Ok(ArchiveReport {
        glsn: report.glsn.0,
        objects: report.objects,
        bytes: report.bytes,
        with_index: report.is_base,
        damage: pairs(report.damage),
    })
}

/// The result of a pass of an archiver.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     glsn = db.put(b"a", b"1")
/// ...     first, second = [plimsoll.archive(db, path + ".archive") for _ in range(2)]
/// >>> first.with_index, second.objects, second.damage
/// (True, 0, [])
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct ArchiveReport {
    /// The newest GLSN in the archive.
    glsn: u64,
    /// Objects that were sent.
    objects: u64,
    /// Bytes that were sent.
    bytes: u64,
    /// Whether the index was sent, too.
    with_index: bool,
    /// Damaged manifests from which the pass could not continue: their names, and what is wrong
    /// with them.
    damage: Vec<(String, String)>,
}

#[pymethods]
impl ArchiveReport {
    fn __repr__(&self) -> String {
        format!("<plimsoll archive up to GLSN {}, {} objects sent>", self.glsn, self.objects)
    }
}

/// Creates a store at `path` from an archive (`plimsoll.archive`), as of any moment in it: a GLSN
/// or a `datetime`; by default the newest. `path` must not exist or must be an empty folder. Every
/// byte is verified. If objects are damaged, the store ends with the newest moment before the
/// requested one that can be restored, and the report names the damaged objects.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     glsn = db.put(b"a", b"1")
/// ...     db[b"a"] = b"2"
/// ...     report = plimsoll.archive(db, path + ".archive")
/// >>> plimsoll.restore_archive(path + ".then", path + ".archive", at=glsn, memory="16MiB").whole
/// True
/// >>> with plimsoll.open(path + ".then", memory="16MiB") as db:
/// ...     db[b"a"]
/// b'1'
#[pyfunction]
#[pyo3(signature = (path, url, *, at = None, memory = None))]
pub(crate) fn restore_archive(
    py: Python<'_>,
    path: Folder,
    url: Folder,
    at: Option<When>,
    memory: Option<Size>,
) -> PyResult<ArchiveRestoreReport> {
    let options =
        memory.map_or_else(Options::new, |Size(bytes)| Options::new().memory_bytes(bytes));
    let at = match at {
        None => Moment::Newest,
        Some(When::Moment(moment)) => moment,
        Some(When::Tag(_)) => {
            return Err(PyTypeError::new_err(
                "an archive is not searched for tags; give a GLSN or a datetime",
            ));
        }
    };
    let (archive, cancel) = cancellable(open(&url)?);
    let report = interruptible(py, move || archive.restore(path.0, options, at))
        .inspect_err(|_| cancel.store(true, Ordering::Relaxed))?
        .map_err(raised_by_archive)?;
    Ok(ArchiveRestoreReport {
        glsn: report.glsn.0,
        whole: report.is_whole,
        damage: pairs(report.damage),
        problems: report.problems,
        objects: report.objects,
        bytes: report.bytes,
    })
}

/// The result of a restore of an archive.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     report = plimsoll.archive(db, path + ".archive")
/// >>> report = plimsoll.restore_archive(path + ".new", path + ".archive", memory="16MiB")
/// >>> report.glsn, report.whole, report.damage, report.problems
/// (0, True, [], [])
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct ArchiveRestoreReport {
    /// The newest GLSN of the new store.
    glsn: u64,
    /// Whether the store ends at the requested moment. Otherwise damage is in the way.
    whole: bool,
    /// Damaged objects: their names, and what is wrong.
    damage: Vec<(String, String)>,
    /// Problems of the store itself, which it had when it was archived.
    problems: Vec<String>,
    /// Objects that were read.
    objects: u64,
    /// Bytes of the restored files.
    bytes: u64,
}

#[pymethods]
impl ArchiveRestoreReport {
    fn __repr__(&self) -> String {
        format!("<plimsoll restore up to GLSN {}, {} bytes>", self.glsn, self.bytes)
    }
}

/// Reads and checks a whole archive. `progress(done, total)` is called occasionally, with numbers
/// of objects. Damage does not raise an exception; it is listed in the report.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     glsn = db.put(b"a", b"1")
/// ...     report = plimsoll.archive(db, path + ".archive")
/// >>> report = plimsoll.verify_archive(path + ".archive")
/// >>> report.ok, report.restorable == [(0, glsn)]
/// (True, True)
#[pyfunction]
#[pyo3(signature = (url, *, progress = None))]
pub(crate) fn verify_archive(
    py: Python<'_>,
    url: Folder,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<ArchiveVerifyReport> {
    let (archive, cancel) = cancellable(open(&url)?);
    let work = move |report: &mut dyn FnMut((u64, u64))| {
        archive.verify(&mut |seen| report((seen.done, seen.total)))
    };
    let see = |seen: (u64, u64)| match &progress {
        Some(callback) => callback.call1(seen).map(drop),
        None => Ok(()),
    };
    let report = interruptible_with(py, work, see)
        .inspect_err(|_| cancel.store(true, Ordering::Relaxed))?
        .map_err(raised_by_archive)?;
    let ranges = report.restorable.iter();
    Ok(ArchiveVerifyReport {
        glsn: report.glsn.0,
        restorable: ranges.map(|range| (range.start().0, range.end().0)).collect(),
        damage: pairs(report.damage),
        notes: pairs(report.notes),
        objects: report.objects,
        bytes: report.bytes,
    })
}

/// The result of a verification of an archive.
///
/// >>> with plimsoll.open(path, memory="16MiB") as db:
/// ...     report = plimsoll.archive(db, path + ".archive")
/// >>> report = plimsoll.verify_archive(path + ".archive")
/// >>> report.ok, report.damage, report.notes
/// (True, [], [])
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct ArchiveVerifyReport {
    /// The newest GLSN in the archive.
    glsn: u64,
    /// The moments that can be restored: the first and the last GLSN of each range.
    restorable: Vec<(u64, u64)>,
    /// Objects that are damaged or missing: their names, and what is wrong.
    damage: Vec<(String, String)>,
    /// Leftovers of a pass that was stopped, which need no action.
    notes: Vec<(String, String)>,
    /// Objects that were read.
    objects: u64,
    /// Bytes of their contents.
    bytes: u64,
}

#[pymethods]
impl ArchiveVerifyReport {
    /// Whether the archive is intact.
    #[getter]
    fn ok(&self) -> bool {
        self.damage.is_empty()
    }

    fn __repr__(&self) -> String {
        let (problems, bytes) = (self.damage.len(), self.bytes);
        format!("<plimsoll verification of an archive: {problems} problems in {bytes} bytes>")
    }
}

/// The class of the exception for an error of an archive.
pub(crate) fn class_of(error: &Error) -> &'static str {
    match error {
        Error::OtherArchiver { .. } => "Locked",
        Error::Damaged { .. } => "Corrupt",
        Error::Format { .. } => "FormatError",
        Error::Url { .. }
        | Error::NotAnArchive { .. }
        | Error::NotEmpty { .. }
        | Error::NotApart { .. }
        | Error::OtherStore { .. }
        | Error::OtherHistory { .. }
        | Error::NotArchived { .. }
        | Error::DestinationExists { .. } => "InvalidInput",
        _ => "Error",
    }
}
