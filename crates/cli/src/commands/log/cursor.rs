//! `plimsoll log --cursor`: goes on where the last command with this cursor ended.
//!
//! Law: a cursor is moved behind an entry only after the entry was written to standard output. A
//! command that is killed before that leaves the cursor where it was, and the next one prints the
//! entry again.
//!
//! Moving a cursor is a commit, which is an entry of the log. Such commits are not printed, and a
//! cursor is not moved because of them: two followers would wake each other for ever.

use std::path::{Path, PathBuf};

use plimsoll::{Db, Durability, Error, Glsn, InvalidInput};

use crate::args::Globals;
use crate::exit::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::stderr::say;
use crate::{store, wait};

use super::Walk;
use super::glsns::Order;

/// Without `--follow`: what there is now.
pub(super) fn run(globals: &Globals, name: &str, walk: &mut Walk, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &walk.args.store, false, Durability::Sync)?;
    let place = db.log().cursor(name, Glsn(walk.args.from.unwrap_or(db.log().bounds().first.0)))?;
    // Others may commit meanwhile: what comes behind this entry is for the next command.
    let newest = db.newest();
    walk.print(&db, place.0, newest, Order::OldestFirst, output)?;
    output.flush()?;
    let next = behind_printed(&db, place.0, newest, walk)?;
    if next > place.0 {
        advance(&db, name, next)?;
    }
    store::close_after_commits(db);
    Ok(walk.exit())
}

/// Where a cursor belongs that was at `place`, now that `walk` has printed what there was up to
/// `newest`.
fn behind_printed(db: &Db, place: u64, newest: Glsn, walk: &Walk) -> Result<u64, Failure> {
    if walk.left == 0 {
        return Ok(place.max(walk.last + 1));
    }
    for glsn in (place..=newest.0).rev() {
        let commit = db.log().commit(Glsn(glsn));
        let moves_cursor = match commit
            .and_then(|commit| commit.map_or(Ok(false), |commit| commit.moves_cursor()))
        {
            // This was printed, told, or not asked for.
            Err(Error::Dropped { .. } | Error::Corrupt { .. }) => false,
            moves_cursor => moves_cursor?,
        };
        if !moves_cursor {
            return Ok(glsn + 1);
        }
    }
    Ok(place)
}

/// The cursor of a follower, which has the lock for moments only.
pub(super) struct Cursor {
    store: PathBuf,
    name: String,
    /// Where it is in the store.
    place: u64,
    /// Where it belongs.
    next: u64,
    /// Whether it was said that it cannot be moved now.
    told: bool,
}

impl Cursor {
    pub(super) fn find_or_make(
        globals: &Globals,
        path: &Path,
        name: String,
        from: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let found = place_of(&store::open_to_read(globals, path)?, &name);
        let place = match found {
            Some(place) => place,
            None => {
                let db = store::open_to_write_unless(
                    Some(interrupt),
                    globals,
                    path,
                    false,
                    Durability::Sync,
                )?;
                let place = db.log().cursor(&name, Glsn(from.unwrap_or(db.newest().0 + 1)))?;
                store::close_after_commits(db);
                place.0
            }
        };
        Ok(Self { store: path.to_owned(), name, place, next: place, told: false })
    }

    /// The GLSN to print next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether it is not yet where it belongs.
    pub(super) fn is_behind(&self) -> bool {
        self.place < self.next
    }

    /// What there is in `db` up to `newest` is printed now.
    pub(super) fn printed(&mut self, db: &Db, newest: Glsn, walk: &Walk) -> Result<(), Failure> {
        self.next = behind_printed(db, self.next, newest, walk)?;
        Ok(())
    }

    /// Moves it, unless another process has the store for itself.
    pub(super) fn settle_if_free(&mut self, globals: &Globals) -> Result<(), Failure> {
        if !self.is_behind() {
            return Ok(());
        }
        match self.open(globals) {
            Ok(db) => {
                if !self.advance(db)? {
                    self.tell_once(
                        "until another process, which may be stopped, has published what was \
                         printed last",
                    );
                }
                Ok(())
            }
            Err(Error::Locked { .. }) => {
                self.tell_once("while another process has the store for itself");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn tell_once(&mut self, why: &str) {
        if !std::mem::replace(&mut self.told, true) {
            say(format_args!("cursor {} stays at GLSN {} {why}", self.name, self.place));
        }
    }

    /// Moves it; waits for the lock as long as `--wait` says. `interrupt` ends the wait; `None`
    /// after one that came before: a second one ends the process.
    pub(super) fn settle(
        &mut self,
        globals: &Globals,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), Failure> {
        if !self.is_behind() {
            return Ok(());
        }
        let db = wait::to_share(globals, interrupt, || self.open(globals)).map_err(|failure| {
            failure.advise(&format!(
                "Cursor {} stays at GLSN {}: what was printed from there on is printed again the \
                 next time.",
                self.name, self.place
            ))
        })?;
        if self.advance(db)? {
            return Ok(());
        }
        Err(Failure::system(format!(
            "cursor {} stays at GLSN {}: the process that wrote what was printed last has not \
             published it yet, and may be stopped; what was printed from there on is printed \
             again the next time",
            self.name, self.place
        )))
    }

    fn open(&self, globals: &Globals) -> plimsoll::Result<Db> {
        store::open_shared(&self.store, store::options(globals).warm(false))
    }

    /// False if a process that was stopped has not published yet what was read, and printed, from
    /// its segment.
    fn advance(&mut self, db: Db) -> Result<bool, Failure> {
        let is_published = advance(&db, &self.name, self.next)?;
        store::close_after_commits(db);
        if is_published {
            self.place = self.next;
            self.told = false;
        }
        Ok(is_published)
    }
}

/// Moves a cursor, unless another one who uses it has moved it further. False if what is before
/// `next` is not published yet.
fn advance(db: &Db, name: &str, next: u64) -> Result<bool, Failure> {
    match db.log().advance_cursor(name, Glsn(next)) {
        Ok(()) | Err(Error::InvalidInput(InvalidInput::CursorGoesBack { .. })) => Ok(true),
        Err(Error::Future { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn place_of(db: &Db, name: &str) -> Option<u64> {
    db.log().cursors().into_iter().find(|cursor| cursor.name == name).map(|cursor| cursor.next.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_waits_for_what_a_stopped_process_has_not_published() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let open =
            || store::open_shared(&store, plimsoll::Options::new().memory_bytes(16 << 20)).unwrap();
        let db = open();
        let next = db.put(&keyspace_of(&db), b"a", b"1").unwrap().0 + 1;
        db.log().cursor("c", Glsn(next)).unwrap();
        drop(db);
        // Behind what is published, as after an entry that was printed from a segment of another
        // process.
        let mut cursor = Cursor {
            store: store.clone(),
            name: "c".to_owned(),
            place: next,
            next: next + 9,
            told: false,
        };
        assert!(!cursor.advance(open()).ok().unwrap() && cursor.is_behind());
        let db = open();
        for key in 0..9_u8 {
            db.put(&keyspace_of(&db), [key], b"2").unwrap();
        }
        assert!(cursor.advance(db).ok().unwrap() && !cursor.is_behind());
        assert_eq!(place_of(&open(), "c"), Some(next + 9));
    }

    fn keyspace_of(db: &Db) -> plimsoll::Keyspace {
        db.keyspace("default").unwrap()
    }
}
