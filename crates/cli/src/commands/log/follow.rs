//! `plimsoll log --follow`: new entries as they become durable, oldest first.
//!
//! A reader beside a writer sees what was durable when it opened the store, so following means to open it again whenever the log's
//! folder changes. The system tells of that at once; where it cannot (the writer is on another machine), the folder is looked at once
//! a second.

use std::path::Path;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::watch::Watch;

use crate::args::Globals;
use crate::exit::{Exit, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;

use super::Walk;
use super::fingerprint::Fingerprint;
use super::glsns::Order;

const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// How long a Ctrl-C waits at most.
const NAP: Duration = Duration::from_millis(50);

pub(super) fn run(globals: &Globals, walk: &mut Walk, output: &mut Output) -> Outcome {
    let clock = SystemClock::new();
    let interrupt = Interrupt::listen()?;
    let path = walk.args.store.clone();
    let mut from = walk.args.from;
    loop {
        // Before the store is opened: a change from now on is not missed.
        let changes = Changes::watch(&path);
        let begun = clock.monotonic_nanos();
        let db = store::open_to_read(globals, &path)?;
        let next = db.newest() + 1;
        let start = from.unwrap_or(next);
        walk.print(&db, start, Order::OldestFirst, output)?;
        from = Some(start.max(next));
        drop(db);
        output.flush()?;
        if walk.left == 0 {
            return Ok(Exit::Done);
        }
        let ended = clock.monotonic_nanos();
        if changes.wait(&interrupt) == Waited::Interrupted {
            return Ok(Exit::Interrupted);
        }
        // Beside a writer that never rests, half of the time is left to it.
        let idle = clock.monotonic_nanos().saturating_sub(ended);
        clock.sleep(Duration::from_nanos((ended - begun).saturating_sub(idle)));
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

    fn wait(&self, interrupt: &Interrupt) -> Waited {
        loop {
            for _ in 0..LOOK_EVERY.as_millis() / NAP.as_millis() {
                if interrupt.came() {
                    return Waited::Interrupted;
                }
                if self.changed_within(NAP) {
                    return Waited::Changed;
                }
            }
            if Fingerprint::of(self.store) != self.seen {
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
