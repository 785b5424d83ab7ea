//! Following a store that another process may be writing to: `plimsoll log --follow` and `plimsoll
//! watch`.
//!
//! While another process writes, a reader sees the log files as of its opening. A follower
//! therefore reopens the store whenever the log's folder changes. The system reports changes at
//! once; if it cannot (the writer is on another machine), the follower checks the folder once a
//! second.
//!
//! Invariant: printed output survives a power cut. A writer publishes a record to its file before
//! it syncs the file, so the follower syncs the file too.

mod fingerprint;

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_disk::watch::Watch;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;

use self::fingerprint::Fingerprint;

const POLL_INTERVAL: Duration = Duration::from_millis(1000);
/// Errors of a sync that show that nothing needs a sync: the segment was removed, or the file
/// system is read-only.
const TRIMMED_OR_READ_ONLY: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput, io::ErrorKind::ReadOnlyFilesystem];
/// The longest delay before the follower notices Ctrl-C or a closed output.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Makes the part of the log that was read durable. Only the newest segment can hold unsynced
/// records, because creating a segment syncs the one before it.
pub(crate) fn sync_newest_segment(store: &Path) -> Result<(), Failure> {
    let log = store.join("log");
    let disk = OsDisk::new();
    let failed = |error: io::Error| {
        Failure::system(format!("cannot sync the part of the log that was read: {error}"))
    };
    let names = disk.names(&log).map_err(failed)?;
    let Some(newest) = names.iter().filter(|name| name.ends_with(".seg")).max() else {
        return Ok(());
    };
    let synced =
        disk.open(&log.join(newest), Open::Read, Caching::Buffered).and_then(|file| file.sync());
    match synced {
        Err(error) if TRIMMED_OR_READ_ONLY.contains(&error.kind()) => Ok(()),
        synced => synced.map_err(failed),
    }
}

/// The outcome of a wait.
#[derive(PartialEq, Eq)]
pub(crate) enum Waited {
    Changed,
    Interrupted,
    ReaderLeft,
}

/// Detects changes of a store's files.
pub(crate) struct Changes<'a> {
    store: &'a Path,
    /// `None` if the system has no inotify watch left.
    watch: Option<Watch>,
    seen: Fingerprint,
}

impl<'a> Changes<'a> {
    /// Reports changes from now on.
    pub(crate) fn watch(store: &'a Path) -> Self {
        Self { store, watch: Watch::new(&store.join("log")).ok(), seen: Fingerprint::of(store) }
    }

    /// Waits for a change; for at most a second if `briefly`.
    pub(crate) fn wait(&self, interrupt: &Interrupt, output: &Output, briefly: bool) -> Waited {
        loop {
            for _ in 0..POLL_INTERVAL.as_millis() / SIGNAL_INTERVAL.as_millis() {
                if interrupt.was_received() {
                    return Waited::Interrupted;
                }
                if output.reader_has_left() {
                    return Waited::ReaderLeft;
                }
                if self.changed_within(SIGNAL_INTERVAL) {
                    return Waited::Changed;
                }
            }
            if briefly || Fingerprint::of(self.store) != self.seen {
                return Waited::Changed;
            }
        }
    }

    fn changed_within(&self, timeout: Duration) -> bool {
        match &self.watch {
            // A signal ends the wait too.
            Some(watch) => watch.wait(timeout).unwrap_or(false),
            None => {
                SystemClock::new().sleep(timeout);
                false
            }
        }
    }
}
