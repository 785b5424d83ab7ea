//! Reads every byte of a store and checks it: the log's chain and checksums, and every page, key and fence of the index.

use crate::error::Result;
use crate::store::Store;

/// How far a verification has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Bytes there are, about.
    pub total_bytes: u64,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// What is wrong, one line each, with file and place. Empty: all is well.
    pub problems: Vec<String>,
    /// What is not as a clean close leaves it, and needs nothing done: what a killed process or a power cut left, tables that are made again.
    pub notes: Vec<String>,
    /// Bytes read.
    pub bytes: u64,
    /// Files read.
    pub files: u64,
}

/// The most problems that are listed; a store with more is as broken as one with these.
const MAX_PROBLEMS: usize = 1000;

/// Checks everything.
pub(crate) fn verify(store: &Store, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
    let _no_trim = store.trim_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    store.check_open()?;
    if let Some(checkpoints) = &store.checkpoints {
        // What a killed writer left is no damage.
        checkpoints.sweep()?;
    }
    // What is on the device is in question, not the system's copy of it.
    let _device = store.io.read_device();
    let total_bytes = crate::collect_stats::disk_bytes(store)?;
    let mut report = VerifyReport::default();
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let mut log_bytes = 0;
    let findings = store.file_log.verify(&|side| store.index.uses_side(side), &mut |so_far| {
        log_bytes = so_far.done_bytes;
        progress(VerifyProgress { done_bytes: so_far.done_bytes, total_bytes });
    })?;
    for finding in &findings {
        let glsn = finding.glsn.map_or_else(String::new, |glsn| format!(" (GLSN {glsn})"));
        let told = format!("log/{}, offset {}{glsn}: {}", finding.file, finding.offset, finding.what);
        if finding.harmless { notes.push(told) } else { problems.push(told) }
    }
    report.bytes = log_bytes;
    report.files =
        store.options.disk.list(&store.path.join("log"))?.iter().filter(|entry| entry.name != "LOCK").count() as u64;
    let mut each_file = |bytes| {
        report.files += 1;
        report.bytes += bytes;
        progress(VerifyProgress { done_bytes: report.bytes, total_bytes });
    };
    store.index.verify(&mut each_file, &mut |problem| problems.push(problem))?;
    problems.truncate(MAX_PROBLEMS);
    notes.truncate(MAX_PROBLEMS);
    (report.problems, report.notes) = (problems, notes);
    Ok(report)
}
