//! Merges a branch into another one: a merge of its state into ours, with the newest state that
//! both contain as base.

use std::fmt;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::merge::choices::{Choices, choose};
use crate::merge::driver::{Base, Merge, MergeOutcome};
use crate::merge::steps::MergeSteps;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

/// A merge of a branch that has not run yet; see [`Db::merge`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let draft = db.create_branch("draft", &db.main())?;
/// draft.put(&notes, "a", "one")?;
/// let merge: BranchMerge = db.merge(&draft).rule(&notes, MergeRule::Theirs);
/// assert_eq!(merge.preview()?.count(), 1);
/// assert!(matches!(merge.run()?, MergeOutcome::Merged(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a merge does nothing until `run` is called"]
pub struct BranchMerge {
    db: Db,
    from: Branch,
    into: Branch,
    choices: Choices,
}

impl Db {
    /// Merges a branch into main, or into the branch set by [`BranchMerge::into`]: one commit
    /// applies the changes on `from` since the newest state that both contain. A key that both
    /// changed in different ways is a conflict, unless its keyspace has a rule
    /// ([`MergeRule`](crate::MergeRule)) that decides. Nothing is written as long as there are
    /// conflicts.
    ///
    /// The merge is recorded: the next merge of the two branches begins where this one ended. Both
    /// branches continue as before. The metadata of the new commit is `merge of branch <name>`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.keyspace("prices")?;
    /// db.put(&prices, "tea", "3.00")?;
    /// db.put(&prices, "milk", "1.00")?;
    /// let sale = db.create_branch("sale", &db.main())?;
    /// sale.put(&prices, "tea", "2.50")?;
    /// db.put(&prices, "milk", "1.10")?;
    /// let MergeOutcome::Merged(_) = db.merge(&sale).run()? else { panic!("a conflict") };
    /// assert_eq!(db.get(&prices, "tea")?.unwrap(), b"2.50");
    /// assert_eq!(db.get(&prices, "milk")?.unwrap(), b"1.10");
    /// assert!(matches!(db.merge(&sale).run()?, MergeOutcome::UpToDate));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Keyspaces belong to the store, not to a branch. Those that exist now are merged.
    pub fn merge(&self, from: &Branch) -> BranchMerge {
        let (db, from, into) = (self.clone(), from.clone(), self.main());
        BranchMerge { db, from, into, choices: Choices::default() }
    }
}

choose!(BranchMerge: rule metadata);

impl BranchMerge {
    /// Sets the branch that is changed.
    pub fn into(mut self, branch: &Branch) -> Self {
        self.into = branch.clone();
        self
    }

    /// The steps that the merge would take now, key by key; writes nothing. Works in a store open
    /// read-only.
    ///
    /// # Errors
    /// As for [`BranchMerge::run`].
    pub fn preview(&self) -> Result<MergeSteps> {
        self.plan()?.preview(&self.db.store)
    }

    /// Runs the merge.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`]; [`InvalidInput::MergeWithItself`];
    /// [`InvalidInput::ForeignBranch`]; [`InvalidInput::MergeFunctionPanicked`];
    /// [`InvalidInput::KeyTooLongForBranch`]; [`Error::Trimmed`](crate::Error::Trimmed) if a state
    /// that both contain is no longer retained; the errors of
    /// [`Transaction::commit`](crate::Transaction::commit),
    /// [`Error::Conflict`](crate::Error::Conflict) only after 32 attempts in a row. Nothing is
    /// written then.
    pub fn run(&self) -> Result<MergeOutcome> {
        self.plan()?.run(&self.db.store)
    }

    fn plan(&self) -> Result<Merge> {
        let store = &self.db.store;
        store.check_open()?;
        self.from.check_store(&self.db)?;
        self.into.check_store(&self.db)?;
        if self.from.is_same(&self.into) {
            return Err(InvalidInput::MergeWithItself { name: self.from.name().to_owned() }.into());
        }
        let theirs = self.from.snapshot_at(Moment::Newest)?;
        // Fails early if the branch was deleted.
        drop::<Snapshot>(self.into.snapshot_at(Moment::Newest)?);
        let metadata = format!("merge of branch {}", self.from.name());
        let metadata = self.choices.metadata_or(metadata);
        let rules = self.choices.rules.clone().into();
        let into = self.into.lens.clone();
        Ok(Merge { base: Base::CommonAncestors, theirs, into, scopes: None, rules, metadata })
    }
}

impl fmt::Debug for BranchMerge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BranchMerge({:?} into {:?})", self.from.name(), self.into.name())
    }
}
