//! Resets a branch to an earlier moment: a merge in which their state replaces ours.

use std::fmt;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::Moment;
use crate::merge::choices::{Choices, choose};
use crate::merge::driver::{Base, Merge, MergeOutcome};
use crate::merge::steps::MergeSteps;
use crate::types::error::Result;

/// A reset that has not run yet; see [`Db::reset_to`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let (notes, drafts) = (db.keyspace("notes")?, db.keyspace("drafts")?);
/// let before = db.put(&notes, "a", "one")?;
/// db.put(&notes, "a", "two")?;
/// db.put(&drafts, "b", "three")?;
/// let reset: Reset = db.reset_to(before).keyspace(&notes);
/// assert!(reset.run()?.is_some());
/// assert_eq!(db.get(&notes, "a")?.unwrap(), b"one");
/// assert!(db.get(&drafts, "b")?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a reset does nothing until `run` is called"]
pub struct Reset {
    branch: Branch,
    to: Moment,
    choices: Choices,
}

impl Db {
    /// Makes main equal to its state at an earlier moment, by one commit. The history stays, and a
    /// reset to the moment before that commit undoes it. Other branches stay as they are:
    /// [`Branch::reset_to`] resets them. Keys that have the same value at both moments are not
    /// written. Commits of other transactions during the reset are either undone by it or come
    /// after it.
    ///
    /// The metadata of the new commit is `reset to GLSN n`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let before = db.put(&notes, "a", "one")?;
    /// db.put(&notes, "b", "two")?;
    /// db.delete(&notes, "a")?;
    /// db.reset_to(before).run()?;
    /// assert_eq!(db.get(&notes, "a")?.unwrap(), b"one");
    /// assert_eq!(db.get(&notes, "b")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Keyspaces are found by their names. A keyspace that did not exist at that moment is emptied
    /// but not dropped; one that had keys then and was dropped since is an error, until it is
    /// created again or left out by naming the others ([`Reset::keyspace`]).
    pub fn reset_to(&self, moment: impl Into<Moment>) -> Reset {
        self.main().reset_to(moment)
    }
}

impl Branch {
    /// Makes the branch equal to its state at an earlier moment, by one commit on it: see
    /// [`Db::reset_to`]. Before its fork, a branch has the states of its parent. A keyspace that
    /// was dropped and created again since gets back the keys that the branch had in it.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let before = db.put(&notes, "a", "one")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// draft.put(&notes, "a", "two")?;
    /// draft.put(&notes, "b", "three")?;
    /// draft.reset_to(before).run()?;
    /// assert_eq!(draft.get(&notes, "a")?.unwrap(), b"one");
    /// assert_eq!(draft.len(&notes)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reset_to(&self, moment: impl Into<Moment>) -> Reset {
        Reset { branch: self.clone(), to: moment.into(), choices: Choices::default() }
    }
}

choose!(Reset: keyspace metadata);

impl Reset {
    /// Returns the steps that the reset would take now, key by key; writes nothing. There are no
    /// conflicts. Works in a store that is open read-only.
    ///
    /// # Errors
    /// As for [`Reset::run`].
    pub fn preview(&self) -> Result<MergeSteps> {
        self.plan()?.preview(&self.branch.db.store)
    }

    /// Runs the reset; returns the GLSN of its commit, or `None` if there was nothing to change.
    ///
    /// # Errors
    /// The errors of [`Branch::snapshot_at`]; [`crate::Error::Trimmed`] if a keyspace no longer
    /// retains the moment; [`crate::InvalidInput::KeyspaceGone`];
    /// [`crate::InvalidInput::KeyTooLongForBranch`]; the errors of
    /// [`Transaction::commit`](crate::Transaction::commit), [`crate::Error::Conflict`] only after
    /// 32 attempts in a row. Nothing is written then.
    pub fn run(&self) -> Result<Option<Glsn>> {
        match self.plan()?.run(&self.branch.db.store)? {
            MergeOutcome::Merged(glsn) => Ok(Some(glsn)),
            MergeOutcome::UpToDate => Ok(None),
            MergeOutcome::Conflicts(_) => unreachable!("base and ours are the same"),
        }
    }

    fn plan(&self) -> Result<Merge> {
        let store = &self.branch.db.store;
        store.check_open()?;
        let theirs = self.branch.snapshot_at(self.to)?;
        self.choices.check_keyspaces(store)?;
        let scopes = self.choices.scopes(store);
        let metadata = self.choices.metadata_or(format!("reset to GLSN {}", theirs.at()));
        let rules = Arc::new([]);
        let into = self.branch.lens.clone();
        Ok(Merge { base: Base::Ours, theirs, into, scopes, rules, metadata })
    }
}

impl fmt::Debug for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reset({:?} to {:?})", self.branch.name(), self.to)
    }
}
