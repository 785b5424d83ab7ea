//! `plimsoll log --follow`: prints new entries as they are committed, oldest first (see
//! [`crate::changes`]).
//!
//! A cursor advances after the printed entries are flushed, by opening the store for writing for a
//! moment. While another process has exclusive use of the store, the cursor stays and advances as
//! soon as possible.

use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

use crate::args::Globals;
use crate::changes::{Changes, Waited, sync_newest_segment};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;

use super::Walk;
use super::cursor::Cursor;
use super::glsns::Order;

pub(super) fn run(globals: &Globals, walk: &mut Walk, output: &mut Output) -> Outcome {
    let clock = SystemClock::new();
    let interrupt = Interrupt::listen()?;
    let path = walk.args.store.clone();
    let mut cursor = match walk.args.cursor.clone() {
        Some(name) => {
            Some(Cursor::find_or_create(globals, &path, name, walk.args.from, &interrupt)?)
        }
        None => None,
    };
    let mut from = cursor.as_ref().map(Cursor::next).or(walk.args.from);
    loop {
        // Watch before the store is opened, so that no change is missed.
        let changes = Changes::watch(&path);
        let begun = clock.monotonic_nanos();
        let db = store::open_to_read(globals, &path)?;
        sync_newest_segment(&path)?;
        let newest = db.newest();
        let next = newest + 1;
        let start = from.unwrap_or(next.0);
        walk.print(&db, start, newest, Order::OldestFirst, output)?;
        from = Some(start.max(next.0));
        if let Some(cursor) = &mut cursor {
            cursor.printed(&db, newest, walk)?;
        }
        drop(db);
        output.flush()?;
        let is_last = walk.left == 0 || walk.is_deleted;
        if let Some(cursor) = &mut cursor {
            // The last chance to advance the cursor, so wait for the lock.
            if is_last {
                cursor.settle(globals, Some(&interrupt))?
            } else {
                cursor.advance_if_free(globals)?
            }
        }
        if walk.left == 0 {
            return Ok(Exit::Done);
        }
        if walk.is_deleted {
            return Err(walk.deleted());
        }
        let ended = clock.monotonic_nanos();
        let is_behind = cursor.as_ref().is_some_and(Cursor::is_behind);
        let waited = changes.wait(&interrupt, output, is_behind);
        if waited != Waited::Changed {
            if let Some(mut cursor) = cursor {
                cursor.settle(globals, (waited == Waited::ReaderLeft).then_some(&interrupt))?;
            }
            return if waited == Waited::ReaderLeft {
                Err(Failure::ReaderLeft)
            } else {
                Ok(Exit::Interrupted)
            };
        }
        // If another process commits continuously, pause as long as the last pass took.
        let idle = clock.monotonic_nanos().saturating_sub(ended);
        clock.sleep(Duration::from_nanos((ended - begun).saturating_sub(idle)));
    }
}
