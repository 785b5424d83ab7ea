//! `plimsoll log --cursor`: resumes where the last command with this cursor ended.
//!
//! Invariant: a cursor advances past an entry only after the entry was written to standard output.
//! If the command is killed before that, the cursor stays and the next run prints the entry again.
//!
//! Advancing a cursor is a commit, and thus an entry of the log. These commits are not printed, and
//! no cursor advances because of them; otherwise two followers would wake each other endlessly.

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

/// Prints the existing entries, for a command without `--follow`.
pub(super) fn run(globals: &Globals, name: &str, walk: &mut Walk, output: &mut Output) -> Outcome {
    let db = store::open_to_write(globals, &walk.args.store, false, Durability::Sync)?;
    let place = db.log().cursor(name, Glsn(walk.args.from.unwrap_or(db.log().bounds().first.0)))?;
    // Other processes may commit meanwhile; the next command prints those entries.
    let newest = db.newest();
    walk.print(&db, place.0, newest, Order::OldestFirst, output)?;
    output.flush()?;
    let next = position_after_printed(&db, place.0, newest, walk)?;
    if next > place.0 {
        advance(&db, name, next)?;
    }
    store::close_after_commits(db);
    Ok(walk.exit())
}

/// The new position of a cursor that was at `place`, after `walk` has printed up to `newest`.
fn position_after_printed(db: &Db, place: u64, newest: Glsn, walk: &Walk) -> Result<u64, Failure> {
    if walk.left == 0 {
        return Ok(place.max(walk.last + 1));
    }
    for glsn in (place..=newest.0).rev() {
        let commit = db.log().commit(Glsn(glsn));
        let moves_cursor = match commit
            .and_then(|commit| commit.map_or(Ok(false), |commit| commit.moves_cursor()))
        {
            // This entry was printed, reported as damaged, or not requested.
            Err(Error::Dropped { .. } | Error::Corrupt { .. }) => false,
            moves_cursor => moves_cursor?,
        };
        if !moves_cursor {
            return Ok(glsn + 1);
        }
    }
    Ok(place)
}

/// A follower's cursor, which takes the lock only briefly.
pub(super) struct Cursor {
    store: PathBuf,
    name: String,
    /// Its position in the store.
    place: u64,
    /// Its target position.
    next: u64,
    /// Whether a failure to advance was already reported.
    told: bool,
}

impl Cursor {
    pub(super) fn find_or_create(
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

    /// Whether the stored position lags behind the target.
    pub(super) fn is_behind(&self) -> bool {
        self.place < self.next
    }

    /// Notes that the entries of `db` up to `newest` are printed.
    pub(super) fn printed(&mut self, db: &Db, newest: Glsn, walk: &Walk) -> Result<(), Failure> {
        self.next = position_after_printed(db, self.next, newest, walk)?;
        Ok(())
    }

    /// Advances the cursor, unless another process has exclusive use of the store.
    pub(super) fn advance_if_free(&mut self, globals: &Globals) -> Result<(), Failure> {
        if !self.is_behind() {
            return Ok(());
        }
        match self.open(globals) {
            Ok(db) => {
                if !self.advance(db)? {
                    self.warn_once(
                        "until another process, which may be stopped, publishes the last printed \
                         entry",
                    );
                }
                Ok(())
            }
            Err(Error::Locked { .. }) => {
                self.warn_once("while another process has the store for itself");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn warn_once(&mut self, why: &str) {
        if !std::mem::replace(&mut self.told, true) {
            say(format_args!("cursor {} stays at GLSN {} {why}", self.name, self.place));
        }
    }

    /// Advances the cursor; waits for the lock as long as `--wait` allows. `interrupt` ends the
    /// wait. It is `None` after a first signal, because a second signal ends the process.
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
                "Cursor {} stays at GLSN {}: the entries from there on will be printed again the \
                 next time.",
                self.name, self.place
            ))
        })?;
        if self.advance(db)? {
            return Ok(());
        }
        Err(Failure::system(format!(
            "cursor {} stays at GLSN {}: the process that wrote the last printed entry has not \
             published it yet, and may be stopped; the entries from there on will be printed \
             again the next time",
            self.name, self.place
        )))
    }

    fn open(&self, globals: &Globals) -> plimsoll::Result<Db> {
        store::open_shared(&self.store, store::options(globals).warm(false))
    }

    /// Advances the cursor in the store. Returns false if a stopped process has not yet published
    /// entries that were read from its segment and printed.
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

/// Advances a cursor, unless another user of the cursor has advanced it further. Returns false if
/// the entries before `next` are not published yet.
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
    fn cursor_waits_for_unpublished_entries() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let open =
            || store::open_shared(&store, plimsoll::Options::new().memory_bytes(16 << 20)).unwrap();
        let db = open();
        let next = db.put(&keyspace_of(&db), b"a", b"1").unwrap().0 + 1;
        db.log().cursor("c", Glsn(next)).unwrap();
        drop(db);
        // Beyond the published position, as after printing an entry of another process's segment.
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
