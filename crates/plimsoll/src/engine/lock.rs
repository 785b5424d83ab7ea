//! The lock of a store that one process has open alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use plimsoll_disk::io_cause::IoCause;
use plimsoll_disk::vfs::{DirLock, LockError};
use plimsoll_log::members::following::notify_readers_of_lone_process;
use plimsoll_log::members::members_of;

use crate::types::error::{Error, Lift, Result};
use crate::types::options::Options;

/// How often the lock of a store is tried again.
const LOCK_TRIES: usize = 5;

/// The pause before each further try.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Locks the store for writing.
pub(crate) fn take_lock_alone(path: &Path, options: &Options) -> Result<Option<Box<dyn DirLock>>> {
    if options.read_only {
        return Ok(None);
    }
    let lock = lock_alone(path, options)?;
    notify_readers_of_lone_process(&*options.disk, path).lift()?;
    Ok(Some(lock))
}

/// Excludes all other processes from writing to the store. Changes no file except the lock's.
pub(crate) fn lock_alone(path: &Path, options: &Options) -> Result<Box<dyn DirLock>> {
    let mut locked = options.disk.lock(path);
    for _ in 0..LOCK_TRIES {
        // Retry, because a read-only process may hold the lock briefly while it checks for the
        // holder.
        if !matches!(locked, Err(LockError::Held { .. })) {
            break;
        }
        options.clock.sleep(LOCK_PAUSE);
        locked = options.disk.lock(path);
    }
    match locked {
        Ok(lock) => Ok(lock),
        Err(LockError::Held { pid, who }) => {
            let (pid, who) = sharers(path, options).unwrap_or((pid, who));
            Err(Error::Locked { path: path.to_owned(), pid, who })
        }
        Err(LockError::Io(error)) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            Err(Error::Io {
                kind: error.kind(),
                source: Some(IoCause::new(error)),
                message: format!(
                    "{}: the file system is read-only; open the store read-only",
                    path.display()
                ),
            })
        }
        Err(LockError::Io(error)) => Err(error.into()),
    }
}

/// The processes that share the store, which the lock's file does not name; `None` if there are
/// none.
fn sharers(path: &Path, options: &Options) -> Option<(Option<u32>, String)> {
    let members = members_of(&options.disk, path).ok().filter(|members| !members.is_empty())?;
    // A process may have opened it several times.
    let pids: BTreeSet<u32> = members.iter().map(|member| member.pid).collect();
    let of = if pids.len() == 1 { "a process that shares it" } else { "processes that share it" };
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    Some((
        Some(members[0].pid),
        format!("by {of} (pid {pids}); close it there, or open it shared, too"),
    ))
}
