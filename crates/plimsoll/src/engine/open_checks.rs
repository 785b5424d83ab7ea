//! Checks, while a store is being opened, that its log and its index belong together.

use std::path::Path;

use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::index::OpenIndex;
use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_name;
use crate::index::run::file::newest_in_folder;
use crate::types::damage::recover_command;
use crate::types::error::{Error, Lift, Result};
use crate::types::options::Options;

/// The advice for a log and an index that do not belong together.
fn forked_advice(path: &Path) -> String {
    format!(
        "restore the whole folder from one point in time; or run `{}`, which makes a new store of \
         all readable data and leaves this one unchanged",
        recover_command(path)
    )
}

/// Adds advice to the error about a log that lacks entries that the index knows.
pub(super) fn explain(path: &Path, error: LogError) -> Error {
    match error {
        LogError::Forked { glsn, what } => Error::Forked {
            glsn: Some(glsn),
            message: format!(
                "{}: the log was forked, truncated or replaced: at GLSN {glsn} {what}; {}",
                path.display(),
                forked_advice(path)
            ),
        },
        error => Error::of_log(error),
    }
}

/// Rejects an index with values in the trimmed part of the log. A trim waits until the manifest
/// needs nothing there, so this never happens in a sound store.
pub(super) fn check_pointers(path: &Path, index: &OpenIndex, log: &FileLog) -> Result<()> {
    let first = log.bounds().first;
    match index.sources.view().min_pointer().filter(|oldest| *oldest < first) {
        None => Ok(()),
        Some(oldest) => Err(Error::corrupt(format!(
            "{}: the index needs log entry {oldest}, but the log begins with {first}, so the \
             index is older than the log; restore the whole folder from one point in time",
            path.display()
        ))),
    }
}

/// Rejects an index without a manifest whose runs hold data that the log lacks, because these runs
/// would be swept.
pub(super) fn refuse_to_forget(
    path: &Path,
    options: &Options,
    log: &FileLog,
    budget: &Budget,
) -> Result<()> {
    let bounds = log.bounds();
    if bounds.first > Glsn::FIRST {
        return Err(Error::damaged(format_args!(
            "{}: the index has no manifest, and the log begins only with GLSN {}",
            path.display(),
            bounds.first
        ))
        .in_file(|| "index".to_owned()));
    }
    let newest = newest_in_folder(&*options.disk, &path.join("index"), log.id(), budget)?;
    if newest >= bounds.next {
        return Err(Error::Forked {
            glsn: Some(bounds.next),
            message: format!(
                "{}: the index has no manifest, and its runs hold commits up to GLSN {newest}, \
                 but the log ends at GLSN {}; {}",
                path.display(),
                bounds.next.0 - 1,
                forked_advice(path)
            ),
        });
    }
    Ok(())
}

fn forked<T>(path: &Path, glsn: Option<Glsn>, what: &str) -> Result<T> {
    Err(Error::Forked {
        glsn,
        message: format!("{}: {what}; {}", path.display(), forked_advice(path)),
    })
}

pub(super) fn check_log_id(path: &Path, manifest: &Manifest, log_id: u128) -> Result<()> {
    if manifest.head.log_id == log_id {
        return Ok(());
    }
    forked(
        path,
        None,
        &format!("index/{} was made from another log", manifest_name(manifest.head.number)),
    )
}

/// Rejects a manifest that was not made from this log.
pub(super) fn check_manifest(path: &Path, manifest: Manifest, log: &FileLog) -> Result<Manifest> {
    check_log_id(path, &manifest, log.id())?;
    let checkpoint = manifest.head.checkpoint;
    if checkpoint.glsn > Glsn::NONE
        && checkpoint.glsn >= log.bounds().first
        && log.chain_at(checkpoint.glsn).lift()?.is_some_and(|chain| chain != checkpoint.chain)
    {
        return forked(
            path,
            Some(checkpoint.glsn),
            "the index was made from a log that was forked or truncated since",
        );
    }
    if let Some(begins) = manifest.head.log_begins.filter(|begins| log.bounds().first > *begins) {
        return Err(Error::damaged(format_args!(
            "{}: the log begins with GLSN {}, but according to manifest {} of the index it was \
             trimmed only below {begins}: segments are missing",
            path.display(),
            log.bounds().first,
            manifest.head.number
        ))
        .in_file(|| "log".to_owned()));
    }
    if log.bounds().first > checkpoint.glsn.next() {
        return Err(Error::damaged(format_args!(
            "{}: the log begins with GLSN {}, but manifest {} of the index holds commits only up \
             to {}: a newer manifest is missing",
            path.display(),
            log.bounds().first,
            manifest.head.number,
            checkpoint.glsn
        )));
    }
    Ok(manifest)
}
