//! Reverts a commit: a merge of the state before the commit into the newest state, with the state
//! after the commit as base; all three are states of one branch.

use std::fmt;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::Moment;
use crate::merge::choices::{Choices, choose};
use crate::merge::driver::{Base, Merge, MergeOutcome};
use crate::merge::keys::Scope;
use crate::merge::partial::check_changes;
use crate::merge::steps::MergeSteps;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// A revert that has not run yet; see [`Db::revert`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let wrong = db.put(&notes, "a", "one")?;
/// let revert: Revert = db.revert(wrong).rule(&notes, MergeRule::Ours);
/// assert_eq!(revert.preview()?.count(), 1);
/// assert!(matches!(revert.run()?, MergeOutcome::Merged(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a revert does nothing until `run` is called"]
pub struct Revert {
    branch: Branch,
    glsn: Glsn,
    choices: Choices,
}

impl Db {
    /// Undoes the changes of a commit by a new commit; the history stays. Each key that the commit
    /// changed gets the value that it had before. A key that was changed again since is a conflict,
    /// unless the keyspace has a rule ([`MergeRule`](crate::MergeRule)) that decides, or the key
    /// has its earlier value already. Reverting the revert restores the state.
    ///
    /// The metadata of the new commit is `revert of GLSN n`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// db.put(&notes, "a", "one")?;
    /// db.transact(|tx| {
    ///     tx.put(&notes, "a", "two")?;
    ///     tx.put(&notes, "b", "new")
    /// })?;
    /// let wrong = db.newest();
    /// db.put(&notes, "c", "three")?;
    /// let MergeOutcome::Merged(glsn) = db.revert(wrong).run()? else { panic!("a conflict") };
    /// assert_eq!(db.get(&notes, "a")?.unwrap(), b"one");
    /// assert_eq!((db.get(&notes, "b")?, db.get(&notes, "c")?.unwrap().len()), (None, 5));
    /// let commit = db.log().commit(glsn)?.expect("it is a commit");
    /// assert_eq!(commit.metadata()?, format!("revert of GLSN {wrong}").as_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Keyspaces are found by their names, at each of the moments. A revert puts and deletes keys;
    /// it does not create, drop or change keyspaces. To undo [`Db::drop_keyspace`], create the
    /// keyspace again and revert the commit that dropped it, which puts its keys back.
    ///
    /// This method undoes commits on main. [`Branch::revert`] undoes those of another branch.
    pub fn revert(&self, glsn: Glsn) -> Revert {
        self.main().revert(glsn)
    }
}

impl Branch {
    /// Undoes the changes of a commit by a commit on this branch: see [`Db::revert`]. The commit
    /// was made on this branch, or on an ancestor before the fork. If it merged another branch into
    /// this one, this branch becomes what it was before; merging the same state again changes
    /// nothing, and reverting the revert brings the merged changes back.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let inherited = db.put(&notes, "a", "one")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let wrong = draft.put(&notes, "b", "two")?;
    /// draft.revert(wrong).run()?;
    /// draft.revert(inherited).run()?;
    /// assert!(draft.is_empty(&notes)?);
    /// assert_eq!(db.get(&notes, "a")?.unwrap(), b"one");
    /// # Ok(())
    /// # }
    /// ```
    pub fn revert(&self, glsn: Glsn) -> Revert {
        Revert { branch: self.clone(), glsn, choices: Choices::default() }
    }
}

choose!(Revert: rule keyspace except metadata);

impl Revert {
    /// The steps that the revert would take now, key by key; writes nothing. Works in a store open
    /// read-only.
    ///
    /// # Errors
    /// As for [`Revert::run`].
    pub fn preview(&self) -> Result<MergeSteps> {
        self.plan()?.preview(&self.branch.db.store)
    }

    /// Runs the revert.
    ///
    /// If the log no longer has the commit, its changes are found in the index, and every keyspace
    /// must retain both states, unless [`Revert::keyspace`] names the keyspaces in which to undo
    /// them. A GLSN that is not a commit then has nothing to undo.
    ///
    /// # Errors
    /// [`Error::InvalidInput`]: there is no such commit ([`InvalidInput::NotACommit`]); it changed
    /// no keys ([`InvalidInput::NothingToRevert`]); it was made on another branch
    /// ([`InvalidInput::CommitOnOtherBranch`]); there is no such branch
    /// ([`InvalidInput::NoBranch`]); a keyspace into which keys would be put does not exist now
    /// ([`InvalidInput::KeyspaceGone`]); a function panicked
    /// ([`InvalidInput::MergeFunctionPanicked`]); a key is too long for a branch
    /// ([`InvalidInput::KeyTooLongForBranch`]). [`Error::Trimmed`] if the states before and after
    /// the commit are no longer retained; [`Error::Future`]; the errors of
    /// [`Transaction::commit`](crate::Transaction::commit), [`Error::Conflict`] only after 32
    /// attempts in a row. Nothing is written then.
    pub fn run(&self) -> Result<MergeOutcome> {
        self.plan()?.run(&self.branch.db.store)
    }

    fn plan(&self) -> Result<Merge> {
        let (store, glsn) = (&self.branch.db.store, self.glsn);
        store.check_open()?;
        if glsn == Glsn::NONE {
            return Err(InvalidInput::NotACommit { glsn }.into());
        }
        check_changes(store, glsn)?;
        // The moments are opened first, so that their versions are kept.
        let base = self.branch.snapshot_at(Moment::Glsn(glsn))?;
        let theirs = self.branch.snapshot_at(Moment::Glsn(Glsn(glsn.0 - 1)))?;
        self.choices.check_keyspaces(store)?;
        let scopes = match self.changed() {
            // Find the keys of the commit in the index, as long as that retains them.
            Err(Error::Trimmed { .. }) => self.choices.scopes(store),
            changed => Some(self.choices.choose(changed?)),
        };
        let metadata = self.choices.metadata_or(format!("revert of GLSN {glsn}"));
        let (base, rules) = (Base::State(base), self.choices.rules.clone().into());
        let into = self.branch.lens.clone();
        Ok(Merge { base, theirs, into, scopes, rules, metadata })
    }

    /// The keys that the commit changed, according to the log.
    fn changed(&self) -> Result<Vec<Scope>> {
        let glsn = self.glsn;
        let db = &self.branch.db;
        let commit = db.log().commit(glsn)?.ok_or(InvalidInput::NotACommit { glsn })?;
        let changed = Scope::of_commit(&db.store, &commit)?;
        let (chain, scopes) = changed.ok_or(InvalidInput::NothingToRevert { glsn })?;
        if !self.branch.sees(chain, glsn) {
            let branch = self.branch.name().to_owned();
            let made_on = db.store.reader.snapshots.branches.present_name(chain);
            return Err(InvalidInput::CommitOnOtherBranch { glsn, branch, made_on }.into());
        }
        Ok(scopes)
    }
}

impl fmt::Debug for Revert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revert({} on {:?})", self.glsn, self.branch.name())
    }
}
