//! Runs an operation within another one, at a point where another thread could run it.
//!
//! The inner operation runs on the same thread, within the store's call. The model records a commit
//! made there as soon as the call returns, before it checks any answer that may show the commit.

use std::cell::RefCell;
use std::rc::Rc;

use plimsoll::borders::{Border, at_next, run_pending};
use plimsoll::{Db, Error, Keyspace, Result};

use crate::content::Content;
use crate::driver::Driver;
use crate::failure::Outcome;
use crate::judge::View;
use crate::model::{Entry, Writes};
use crate::op::{Get, Key, NestedOp, Op, Reader, Within};

/// A commit within an operation.
pub(super) struct NestedCommit {
    writes: Writes,
    done: Rc<RefCell<Option<NestedResult>>>,
}

/// The result: the moment it read at, and its GLSN.
struct NestedResult {
    at: u64,
    glsn: Result<u64>,
    compacted: Result<()>,
}

impl Driver {
    /// Runs an operation with another one within it.
    pub(super) fn run_nested(&mut self, at: Within, nested: &NestedOp, op: &Op) -> Outcome<String> {
        let mut nested = nested.clone();
        if let NestedOp::Commit { space, .. } | NestedOp::Put { space, .. } = &mut nested {
            *space = self.model.current_space(*space);
        }
        let nested = &nested;
        // Creating a missing keyspace is a commit, so create it before arming a point within
        // another commit.
        if let Some(space) = space_of(op)
            && self.keyspace(space)?.is_none()
        {
            return Ok("failed".to_owned());
        }
        if !self.arm(at, nested)? {
            return Ok("failed".to_owned());
        }
        let answer = self.step(op);
        if nested.is_an_end() && self.db.is_none() {
            // The operation has ended the store itself.
            return answer;
        }
        // If the point was not reached, run the nested operation afterwards, so that every setting
        // of the store runs the same operations.
        run_pending();
        self.absorb_nested()?;
        let answer = answer?;
        // A snapshot opened while versions were dropped must still see everything visible at its
        // moment.
        if let NestedOp::Commit { space, key, .. } = nested {
            match op {
                Op::Snapshot { slot, .. } => {
                    _ = self.get(Reader::Snapshot(*slot), *space, key, Get::Value)?
                }
                Op::Begin { tx } => self.look_without_reading(*tx, *space, key)?,
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Schedules the nested operation for its point; false if its prerequisites are missing.
    fn arm(&mut self, at: Within, nested: &NestedOp) -> Outcome<bool> {
        let border = match at {
            Within::MomentAsked => Border::MomentAsked,
            Within::SourcesTaken => Border::SourcesTaken,
            Within::ValueLoaded => Border::ValueLoaded,
            Within::IteratorAttached => Border::IteratorAttached,
            Within::CursorHeld => Border::CursorHeld,
            Within::LargeWritten => Border::LargeWritten,
            Within::TrimAsked => Border::TrimAsked,
            Within::TrimChosen => Border::TrimChosen,
            Within::ImageMade => Border::ImageMade,
            Within::RowsRead => Border::RowsRead,
            Within::RunsWritten => Border::RunsWritten,
            Within::CommitEncoded => Border::CommitEncoded,
        };
        if at == Within::MomentAsked && !matches!(nested, NestedOp::DropCaches) {
            // A submitted commit may become readable before the snapshot of the preceding moment is
            // open.
            self.raise_floors_at(self.model.newest());
        }
        let db = self.db().clone();
        match nested {
            NestedOp::Commit { space, key, value } | NestedOp::Put { space, key, value } => {
                let Some(keyspace) = self.keyspace(*space)? else { return Ok(false) };
                let done = Rc::new(RefCell::new(None));
                let writes = Writes::from([((*space, key.clone()), Some(*value))]);
                self.nested_commit = Some(NestedCommit { writes, done: Rc::clone(&done) });
                let (key, value) = (key.clone(), *value);
                let compacts = matches!(nested, NestedOp::Commit { .. });
                let commit = move || commit(&db, &keyspace, &key, value, compacts);
                at_next(border, move || *done.borrow_mut() = Some(commit()));
            }
            // The results of these do not count as answers. Later operations show whether the store
            // still works.
            NestedOp::Compact => at_next(border, move || _ = db.compact()),
            NestedOp::Flush => at_next(border, move || _ = db.flush()),
            NestedOp::Trim => {
                let until = self.db().newest();
                self.trim_asked = self.trim_asked.max(until.0);
                at_next(border, move || _ = db.compact().and_then(|()| db.log().trim(until)));
            }
            NestedOp::DropCaches => at_next(border, move || db.drop_caches()),
            NestedOp::Cut | NestedOp::Kill => {
                self.ends_process = matches!(nested, NestedOp::Kill);
                let disk = self.world.disk.clone();
                at_next(border, move || disk.cut_power());
            }
        }
        Ok(true)
    }

    /// Records a commit made within the last call in the model.
    pub(super) fn absorb_nested(&mut self) -> Outcome {
        let Some(NestedCommit { writes, done }) = self.nested_commit.take() else { return Ok(()) };
        let Some(done) = done.take() else {
            // This operation may still reach the point.
            self.nested_commit = Some(NestedCommit { writes, done });
            return Ok(());
        };
        let entry = Entry::Commit { writes, metadata: Content::default(), read_at: done.at };
        self.submitted("commit within another operation", vec![entry], done.glsn, true)?;
        if let Err(Error::Poisoned { .. }) = &done.compacted {
            self.in_doubt = true;
        }
        if !self.is_stopped(&done.compacted) {
            self.expect("compact within another operation", done.compacted)?;
        }
        Ok(())
    }

    /// Reads a key at a transaction's moment.
    fn look_without_reading(&mut self, tx: u8, space: u8, key: &Key) -> Outcome {
        let Some(keyspace) = self.keyspace(space)? else { return Ok(()) };
        let Some(open) = self.txs.get(&tx) else { return Ok(()) };
        let opened = self.db().snapshot_at(plimsoll::Moment::Glsn(open.handle.at()));
        let Some(snapshot) = self.expect("snapshot", opened)? else { return Ok(()) };
        let place = self.place(space, &keyspace);
        self.judge(&|error| self.excused(error)).get(
            View::Snapshot(&snapshot),
            place,
            key,
            Get::Value,
        )?;
        Ok(())
    }
}

/// Commits one key. `compacts` also drops superseded versions.
fn commit(
    db: &Db,
    keyspace: &Keyspace,
    key: &[u8],
    value: Content,
    compacts: bool,
) -> NestedResult {
    let mut tx = db.begin();
    let at = tx.at();
    let glsn = tx.put(keyspace, key, &value.make()).and_then(|()| Ok(tx.commit()?.0));
    NestedResult { at: at.0, glsn, compacted: if compacts { db.compact() } else { Ok(()) } }
}

fn space_of(op: &Op) -> Option<u8> {
    match op {
        Op::Get { space, .. } | Op::Walk { space, .. } | Op::Put { space, .. } => Some(*space),
        _ => None,
    }
}
