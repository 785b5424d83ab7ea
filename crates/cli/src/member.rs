//! Stores that are members of a cluster, whose commits a bucket orders.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{Db, Error, Options};

use crate::stderr::say;

/// Whether the store at a path is a member of a cluster.
pub(crate) fn is_member(path: &Path) -> plimsoll::Result<bool> {
    Ok(plimsoll_replica::membership(path).map_err(store_error)?.is_some())
}

/// Opens a member for writing.
pub(crate) fn open(path: &Path, options: Options) -> plimsoll::Result<Db> {
    plimsoll_replica::open_member(path, options).map_err(store_error)
}

/// If the store at a path is a member, applies what other members have committed, so that a command
/// that reads sees it. A process that has the member open does so itself. If the bucket cannot be
/// reached, the command reads what is here, and a warning says so.
///
/// Does this once in a process: a command that follows a store waits for changes of its files, and
/// opening a member changes them.
pub(crate) fn refresh(path: &Path, options: Options) -> plimsoll::Result<()> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag passes nothing but itself.
    if !is_member(path)? || IS_DONE.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let options = options.create(false).read_only(false).warm(false);
    let refreshed = open(path, options).and_then(|db| {
        let synced = db.sync();
        db.close()?;
        synced
    });
    match refreshed {
        Ok(_) | Err(Error::Locked { .. }) => Ok(()),
        // This user may only read.
        Err(Error::Io {
            kind: ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem,
            ..
        }) => Ok(()),
        // Reads continue without the bucket.
        Err(error) => {
            say(format_args!("{error}\nReading what this member has applied so far."));
            Ok(())
        }
    }
}

/// Converts an error of a cluster to the store's error with the same meaning for a command.
fn store_error(error: plimsoll_replica::Error) -> Error {
    use plimsoll_replica::Error as Replica;
    let message = error.to_string();
    match error {
        Replica::Store(error) => error,
        Replica::Format { .. } => Error::Format { path: None, message },
        Replica::Damaged { .. } => Error::Corrupt { file: None, glsn: None, message },
        _ => Error::Remote { message },
    }
}
