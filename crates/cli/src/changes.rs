//! Following a store that another process may be writing to: `plimsoll log --follow` and `plimsoll
//! watch`.
//!
//! A reader beside a writer sees what the log's files held when it opened the store, so following
//! means to open it again whenever the log's folder changes. The system reports that at once; if it
//! cannot (the writer is on another machine), the folder is checked once a second.
//!
//! Law: what a follower prints survives a power cut. A record is in its file before its writer has
//! synced it, so the follower syncs it, too.

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

const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// Where these come of a sync there is nothing to be synced: the segment is gone, or the file
/// system cannot be written.
const TRIMMED_OR_READ_ONLY: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput, io::ErrorKind::ReadOnlyFilesystem];
/// How long a Ctrl-C, and the end of the reader of the output, waits at most.
const NAP: Duration = Duration::from_millis(50);

/// Makes durable what was read of a store's log. Only its newest segment can hold what is not: the
/// others were synced when it was made.
pub(crate) fn sync_newest_segment(store: &Path) -> Result<(), Failure> {
    let log = store.join("log");
    let disk = OsDisk::new();
    let failed =
        |error: io::Error| Failure::system(format!("cannot make durable what was read: {error}"));
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

/// How a wait ended.
#[derive(PartialEq, Eq)]
pub(crate) enum Waited {
    Changed,
    Interrupted,
    ReaderLeft,
}

/// Tells when the files of a store have changed since a moment.
pub(crate) struct Changes<'a> {
    store: &'a Path,
    /// `None` where the system has no more of them.
    watch: Option<Watch>,
    seen: Fingerprint,
}

impl<'a> Changes<'a> {
    /// Tells of changes from now on.
    pub(crate) fn watch(store: &'a Path) -> Self {
        Self { store, watch: Watch::new(&store.join("log")).ok(), seen: Fingerprint::of(store) }
    }

    /// Waits for a change; a second at most if `briefly`.
    pub(crate) fn wait(&self, interrupt: &Interrupt, output: &Output, briefly: bool) -> Waited {
        loop {
            for _ in 0..LOOK_EVERY.as_millis() / NAP.as_millis() {
                if interrupt.came() {
                    return Waited::Interrupted;
                }
                if output.reader_has_left() {
                    return Waited::ReaderLeft;
                }
                if self.changed_within(NAP) {
                    return Waited::Changed;
                }
            }
            if briefly || Fingerprint::of(self.store) != self.seen {
                return Waited::Changed;
            }
        }
    }

    fn changed_within(&self, patience: Duration) -> bool {
        match &self.watch {
            // A signal ends the wait, too.
            Some(watch) => watch.wait(patience).unwrap_or(false),
            None => {
                SystemClock::new().sleep(patience);
                false
            }
        }
    }
}
