//! Named cursors: checks that the log is retained from their positions on.

use plimsoll::{CursorInfo, Error, Glsn};

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::model::Entry;

fn cursor_name(name: u8) -> String {
    format!("cursor{name}")
}

impl Driver {
    pub(super) fn make_cursor(&mut self, name: u8, back: u64) -> Outcome<String> {
        let from = self.back(back).max(1);
        let first = self.db().log().bounds().first;
        if self.in_doubt {
            // After a reopen, the store shows whether the last creation or drop of a cursor
            // succeeded.
            return Ok("in doubt".to_owned());
        }
        let made = self.db().log().cursor(&cursor_name(name), Glsn(from));
        self.absorb_nested()?;
        match self.model.cursors().get(&name) {
            Some(next) => {
                let Some(found) = self.expect("cursor", made)? else {
                    return Ok("failed".to_owned());
                };
                same("position of a cursor", &found.0, next)?;
            }
            None if from < first.0 => match made {
                Err(Error::Trimmed { .. }) => return Ok("trimmed".to_owned()),
                other => self.refused_otherwise("a cursor below the log", other)?,
            },
            None => {
                self.moved(&made, name, Some(from));
                let Some(found) = self.expect("cursor", made)? else {
                    return Ok("failed".to_owned());
                };
                same("position of a new cursor", &found.0, &from)?;
            }
        }
        Ok(String::new())
    }

    pub(super) fn advance_cursor(&mut self, name: u8, back: u64) -> Outcome<String> {
        let next = self.back(back) + 1;
        let moved = self.db().log().advance_cursor(&cursor_name(name), Glsn(next));
        if self.may_differ(&moved) {
            return Ok("in doubt".to_owned());
        }
        match self.model.cursors().get(&name) {
            Some(now) if *now <= next => {
                if *now < next {
                    self.moved(&moved, name, Some(next));
                }
                if self.expect("advance_cursor", moved)?.is_none() {
                    return Ok("failed".to_owned());
                }
            }
            // The outcome of the last move is unknown, so either position is right.
            _ if self.in_doubt => return Ok("in doubt".to_owned()),
            _ => self.refused("a missing cursor, or a move backwards", moved)?,
        }
        Ok(String::new())
    }

    pub(super) fn drop_cursor(&mut self, name: u8) -> Outcome<String> {
        let dropped = self.db().log().drop_cursor(&cursor_name(name));
        if self.may_differ(&dropped) {
            return Ok("in doubt".to_owned());
        }
        if self.model.cursors().contains_key(&name) {
            self.moved(&dropped, name, None);
            self.expect("drop_cursor", dropped)?;
        } else {
            self.refused("a missing cursor", dropped)?;
        }
        Ok(String::new())
    }

    /// A cursor's commit is durable when the call returns, even if other commits are buffered.
    fn moved<T>(&mut self, answer: &plimsoll::Result<T>, name: u8, next: Option<u64>) {
        self.committed_unseen(answer, Entry::Cursor { name, next });
        if answer.is_ok() {
            self.model.acknowledge(self.model.newest());
        }
    }

    fn refused<T>(&self, what: &str, answer: plimsoll::Result<T>) -> Outcome {
        match answer {
            Err(Error::InvalidInput { .. }) => Ok(()),
            other => self.refused_otherwise(what, other),
        }
    }

    /// Whether the store's cursors may differ from the model's: the outcome of a creation, move or
    /// drop is unknown.
    fn may_differ<T>(&self, answer: &plimsoll::Result<T>) -> bool {
        self.in_doubt && matches!(answer, Err(Error::InvalidInput { .. } | Error::Poisoned { .. }))
    }

    fn refused_otherwise<T>(&self, what: &str, answer: plimsoll::Result<T>) -> Outcome {
        match answer {
            Err(error) if self.excused(&error) => Ok(()),
            Err(error) => {
                Err(Failure::new(format!("{what} failed with another error: {error} [{error:?}]")))
            }
            Ok(_) => Err(Failure::new(format!("{what} was not refused"))),
        }
    }

    /// Checks that no cursor is below the trimmed log's start, and that all cursors are at their
    /// positions.
    pub(super) fn check_cursors(&self, first: u64) -> Outcome {
        // The last change may or may not have happened.
        if self.in_doubt {
            return Ok(());
        }
        let cursors = self.model.cursors();
        if let Some((name, next)) = cursors.iter().min_by_key(|(_, next)| **next) {
            ensure(first <= *next, || {
                format!("the log begins at {first}, but cursor {name} reads from {next} on")
            })?;
        }
        let found = self.db().log().cursors();
        let info =
            |(name, next): (u8, u64)| CursorInfo { name: cursor_name(name), next: Glsn(next) };
        same("cursors", &found, &cursors.into_iter().map(info).collect())
    }
}
