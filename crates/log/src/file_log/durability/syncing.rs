//! Syncs what was written to segments, and gives a new segment its name.
//!
//! Invariants:
//! 1. A segment gets its name when all bytes of the previous segment, and its own header, are
//!    durable. A crash before that leaves a file under a temporary name, which the next opening
//!    removes, because none of its records was durable.
//! 2. After a failed sync no thread syncs again, because the system reports lost bytes only once:
//!    the next sync would succeed without them. The error is stored here for threads that wait to
//!    sync and have not seen the failure.

use std::sync::Arc;

use plimsoll_disk::vfs::File;

use crate::error::LogError;
use crate::file_log::env::Env;
use crate::file_log::segments::create::name_segment;
use crate::glsn::Glsn;

/// Files that were written and are not synced yet.
#[derive(Debug)]
pub(crate) struct Unsynced {
    /// The file of the previous segment.
    pub(crate) behind: Option<Arc<dyn File>>,
    /// The file of the active segment.
    pub(crate) file: Option<Arc<dyn File>>,
    /// The active segment, if it has no name yet.
    pub(crate) unnamed: Option<Glsn>,
}

/// The right to sync; held across a sync.
#[derive(Debug, Default)]
pub(crate) struct Syncing {
    /// The error of a failed sync.
    failed: Option<LogError>,
}

impl Syncing {
    /// Makes all written bytes durable. After a failure every later call fails.
    pub(crate) fn sync(&mut self, unsynced: &Unsynced, env: &Env) -> Result<(), LogError> {
        self.run(|| sync_all(unsynced, env))
    }

    /// Runs `sync`, unless an earlier sync failed.
    pub(crate) fn run<T>(
        &mut self,
        sync: impl FnOnce() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        sync().inspect_err(|error| {
            // A sync that another process delays was not attempted, so that error is not final.
            self.failed =
                Some(error.clone()).filter(|error| !matches!(error, LogError::Stalled { .. }));
        })
    }
}

fn sync_all(unsynced: &Unsynced, env: &Env) -> Result<(), LogError> {
    if let Some(behind) = &unsynced.behind {
        behind.sync()?;
    }
    if let Some(file) = &unsynced.file {
        file.sync()?;
    }
    if let Some(first) = unsynced.unnamed {
        name_segment(&*env.options.disk, &env.options.dir, first)?;
        env.files.named(first);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use plimsoll_disk::clock::SystemClock;
    use plimsoll_disk::lying::LyingDisk;
    use plimsoll_disk::vfs::{Caching, Disk, Open};
    use plimsoll_memory::budget::{Backing, Budget};
    use plimsoll_memory::pool::Pool;

    use super::*;
    use crate::file_log::options::FileLogOptions;

    #[test]
    fn after_a_failed_sync_no_other_thread_syncs() {
        let disk = LyingDisk::new(1);
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let clock = Arc::new(SystemClock::new());
        let env = Env::new(FileLogOptions::new(shared, clock, PathBuf::from("/"), pool, budget), 7);
        let write = |path| {
            let file = disk.open(Path::new(path), Open::CreateNew, Caching::Buffered).unwrap();
            file.write_at(b"lost", 0).unwrap();
            Unsynced { behind: None, file: Some(file), unnamed: None }
        };
        let lost = write("/segment");
        let mut syncing = Syncing::default();
        disk.fail_next_sync();
        let failed = syncing.sync(&lost, &env).unwrap_err();
        assert_eq!(
            syncing.sync(&lost, &env),
            Err(failed.clone()),
            "a second sync of the same bytes fails"
        );
        // A sync of the next segment fails as well.
        assert_eq!(syncing.sync(&write("/next"), &env), Err(failed));
    }
}
