//! Dropped keyspaces, and handles and writers that belong to another opening of the store.

use plimsoll::{Error, Keyspace};

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::model::{Entry, NAMES, space_name};

/// Keyspaces above this number are not dropped, because the number of the next keyspace of the same
/// name must fit into a byte.
const LAST_DROPPED: u8 = u8::MAX - 2 * NAMES;

impl Driver {
    /// Drops a keyspace, if it exists and is not the default one.
    pub(super) fn drop_space(&mut self, space: u8) -> Outcome<String> {
        if space.is_multiple_of(NAMES) || space > LAST_DROPPED || !self.model.has_space(space) {
            return Ok("no keyspace".to_owned());
        }
        if self.in_doubt {
            // A poisoned store refuses the drop and keeps the keyspace. A reopen shows whether the
            // drop is in the log.
            return Ok("in doubt".to_owned());
        }
        let Some(keyspace) = self.keyspace(space)? else { return Ok("failed".to_owned()) };
        let entry = self.model.drop_of(space);
        let wanted = if let Entry::Dropped { keys, .. } = &entry { keys.len() as u64 } else { 0 };
        let dropped = self.db().drop_keyspace(&keyspace);
        self.committed_unseen(&dropped, entry);
        let Some(report) = self.expect("drop_keyspace", dropped)? else {
            return Ok("failed".to_owned());
        };
        same("GLSN of a drop", &report.glsn.0, &self.model.newest())?;
        same("number of dropped keys", &report.keys, &wanted)?;
        self.spaces.remove(&space);
        let put = self.db().begin().put(&keyspace, b"late", b"late");
        self.is_refused("a put into a dropped keyspace", put)?;
        Ok(format!("{wanted} keys"))
    }

    /// Checks that every call refuses a handle of an earlier opening, whose ids may refer to other
    /// keyspaces now.
    pub(super) fn refuse_stale_handle(&mut self) -> Outcome {
        let Some(stale) = self.stale.take() else { return Ok(()) };
        let db = self.db();
        let what =
            |call: &str| format!("{call} with a handle of {} of an earlier opening", stale.name());
        self.is_refused(&what("get"), db.snapshot().get(&stale, b"a"))?;
        self.is_refused(&what("range"), db.snapshot().range(&stale, ..).map(|_| ()))?;
        self.is_refused(&what("put"), db.begin().put(&stale, b"a", b"a"))?;
        self.is_refused(&what("delete"), db.begin().delete(&stale, b"a"))?;
        self.is_refused(&what("drop_keyspace"), db.drop_keyspace(&stale))
    }

    fn is_refused<T>(&self, what: &str, answer: plimsoll::Result<T>) -> Outcome {
        match answer {
            Err(Error::InvalidInput { .. }) => Ok(()),
            Err(error) if self.excused(&error) => Ok(()),
            Err(error) => Err(Failure::new(format!(
                "{what} was refused with another error: {error} [{error:?}]"
            ))),
            Ok(_) => Err(Failure::new(format!("{what} was not refused"))),
        }
    }

    /// Checks that no second process can open the store for writing while it is open.
    pub(super) fn refuse_second_writer(&self) -> Outcome {
        if self.db.is_none() {
            return Ok(());
        }
        match self.world.open() {
            Err(Error::Locked { .. }) => Ok(()),
            Err(error) if self.excused(&error) => Ok(()),
            Err(error) => Err(Failure::new(format!(
                "a second writer failed with another error: {error} [{error:?}]"
            ))),
            Ok(second) => {
                drop(second);
                let what = "a second writer opened the store although the first one has it open";
                Err(Failure::new(what))
            }
        }
    }

    /// Checks the name of a keyspace's handle.
    pub(super) fn is_named(&self, space: u8, keyspace: &Keyspace) -> Outcome {
        let name = space_name(space);
        ensure(keyspace.name() == name, || {
            format!("the keyspace {name} has the name {:?}", keyspace.name())
        })
    }
}
