//! `plimsoll log --follow`: new entries as they come, oldest first.
//!
//! A reader beside a writer sees what the log's files held when it opened the store, so following means to open it again whenever the
//! log's folder changes. The system tells of that at once; where it cannot (the writer is on another machine), the folder is looked at
//! once a second.
//!
//! A cursor is moved after what was printed is flushed, by opening the store for writing for a moment. While another process has it open, the cursor
//! stays where it is, and is moved as soon as that is possible.
//!
//! Law: what is printed survives a power cut. A record is in its file before its writer has synced it, so the follower syncs it, too.

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_disk::watch::Watch;

use crate::args::Globals;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;

use super::Walk;
use super::cursor::Cursor;
use super::fingerprint::Fingerprint;
use super::glsns::Order;

const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// Where these come of a sync there is nothing to be synced: the segment is gone, or the file system cannot be written.
const TRIMMED_OR_READ_ONLY: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput, io::ErrorKind::ReadOnlyFilesystem];
/// How long a Ctrl-C waits at most.
const NAP: Duration = Duration::from_millis(50);

pub(super) fn run(globals: &Globals, walk: &mut Walk, output: &mut Output) -> Outcome {
    let clock = SystemClock::new();
    let interrupt = Interrupt::listen()?;
    let path = walk.args.store.clone();
    let mut cursor = match walk.args.cursor.clone() {
        Some(name) => Some(Cursor::find_or_make(globals, &path, name, walk.args.from)?),
        None => None,
    };
    let mut from = cursor.as_ref().map(Cursor::next).or(walk.args.from);
    loop {
        // Before the store is opened: a change from now on is not missed.
        let changes = Changes::watch(&path);
        let begun = clock.monotonic_nanos();
        let db = store::open_to_read(globals, &path)?;
        sync_newest_segment(&path.join("log"))?;
        let next = db.newest() + 1;
        let start = from.unwrap_or(next.0);
        walk.print(&db, start, Order::OldestFirst, output)?;
        from = Some(start.max(next.0));
        if let Some(cursor) = &mut cursor {
            cursor.printed(&db, walk)?;
        }
        drop(db);
        output.flush()?;
        let is_last = walk.left == 0;
        if let Some(cursor) = &mut cursor {
            // The last time it is worth waiting for the lock.
            if is_last { cursor.settle(globals)? } else { cursor.settle_if_free(globals)? }
        }
        if is_last {
            return Ok(Exit::Done);
        }
        let ended = clock.monotonic_nanos();
        let is_behind = cursor.as_ref().is_some_and(Cursor::is_behind);
        if changes.wait(&interrupt, is_behind) == Waited::Interrupted {
            if let Some(mut cursor) = cursor {
                cursor.settle(globals)?;
            }
            return Ok(Exit::Interrupted);
        }
        // Beside a writer that never rests, half of the time is left to it.
        let idle = clock.monotonic_nanos().saturating_sub(ended);
        clock.sleep(Duration::from_nanos((ended - begun).saturating_sub(idle)));
    }
}

/// Makes durable what was read of the log. Only its newest segment can hold what is not: the others were synced when it was made.
fn sync_newest_segment(log: &Path) -> Result<(), Failure> {
    let disk = OsDisk::new();
    let failed = |error: io::Error| Failure::system(format!("cannot make durable what was read: {error}"));
    let names = disk.names(log).map_err(failed)?;
    let Some(newest) = names.iter().filter(|name| name.ends_with(".seg")).max() else { return Ok(()) };
    let synced = disk.open(&log.join(newest), Open::Read, Caching::Buffered).and_then(|file| file.sync());
    match synced {
        Err(error) if TRIMMED_OR_READ_ONLY.contains(&error.kind()) => Ok(()),
        synced => synced.map_err(failed),
    }
}

#[derive(PartialEq, Eq)]
enum Waited {
    Changed,
    Interrupted,
}

/// Tells when the files of a store have changed since a moment.
struct Changes<'a> {
    store: &'a Path,
    /// `None` where the system has no more of them.
    watch: Option<Watch>,
    seen: Fingerprint,
}

impl<'a> Changes<'a> {
    fn watch(store: &'a Path) -> Self {
        Self { store, watch: Watch::new(&store.join("log")).ok(), seen: Fingerprint::of(store) }
    }

    /// Waits for a change; a second at most if `briefly`.
    fn wait(&self, interrupt: &Interrupt, briefly: bool) -> Waited {
        loop {
            for _ in 0..LOOK_EVERY.as_millis() / NAP.as_millis() {
                if interrupt.came() {
                    return Waited::Interrupted;
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
