//! Cherry-picks a commit: a merge of the state after the commit into the newest state of a branch,
//! with the state before the commit as base. Both are states of the branch of the commit.

use std::fmt;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::branch_commits;
use crate::merge::choices::{Choices, choose};
use crate::merge::driver::{Base, Merge, MergeOutcome};
use crate::merge::json;
use crate::merge::keys::Scope;
use crate::merge::partial::check_changes;
use crate::merge::steps::MergeSteps;
use crate::txn::payload::MAX_METADATA_BYTES;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

/// The field of metadata that is a JSON object.
const ORIGIN_FIELD: &str = "cherry_pick_of";

/// A cherry-pick that has not run yet; see [`Db::cherry_pick`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let wanted = db.put(&notes, "a", "one")?;
/// let old = db.create_branch_at("old", &db.main(), Moment::Glsn(Glsn(wanted.0 - 1)))?;
/// let pick: CherryPick = db.cherry_pick(wanted).into(&old).rule(&notes, MergeRule::Theirs);
/// assert_eq!(pick.preview()?.count(), 1);
/// assert!(matches!(pick.run()?, MergeOutcome::Merged(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a cherry-pick does nothing until `run` is called"]
pub struct CherryPick {
    db: Db,
    glsn: Glsn,
    into: Branch,
    choices: Choices,
}

impl Db {
    /// Applies the changes of one commit of any branch, by a new commit, to main or to the branch
    /// set by [`CherryPick::into`]. Each key that the commit changed gets the value that the commit
    /// gave it. A key that has another value there than it had before the commit is a conflict,
    /// unless the keyspace has a rule ([`MergeRule`](crate::MergeRule)) that decides, or the key
    /// has its new value already.
    ///
    /// The changes of a merge commit are those that the merge made on its branch.
    ///
    /// The new commit has the metadata of the old one, with the old GLSN added: a JSON object has
    /// it in the field `cherry_pick_of`; other text ends with the line `(cherry-pick of GLSN n)`;
    /// metadata that is not text, or has no room for the addition, is left unchanged. If the commit
    /// has no metadata, the new one has `cherry-pick of GLSN n`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.keyspace("prices")?;
    /// db.put(&prices, "tea", "3.00")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// draft.put(&prices, "cocoa", "4.00")?;
    /// let wanted = draft.put(&prices, "tea", "2.50")?;
    /// let MergeOutcome::Merged(glsn) = db.cherry_pick(wanted).run()? else { panic!() };
    /// assert_eq!(db.get(&prices, "tea")?.unwrap(), b"2.50");
    /// assert_eq!(db.get(&prices, "cocoa")?, None);
    /// let commit = db.log().commit(glsn)?.expect("it is a commit");
    /// assert_eq!(commit.metadata()?, format!("cherry-pick of GLSN {wanted}").as_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Nothing is recorded for later merges: if the branch of the commit is merged later, both
    /// sides have made the same change, which is not a conflict.
    /// [`MergeRule::Counter`](crate::MergeRule::Counter) then adds the change a second time.
    /// Keyspaces are found by their names, as in a revert.
    pub fn cherry_pick(&self, glsn: Glsn) -> CherryPick {
        CherryPick { db: self.clone(), glsn, into: self.main(), choices: Choices::default() }
    }
}

choose!(CherryPick: rule keyspace except metadata);

impl CherryPick {
    /// Sets the branch that is changed.
    pub fn into(mut self, branch: &Branch) -> Self {
        self.into = branch.clone();
        self
    }

    /// The steps that the cherry-pick would take now, key by key; writes nothing. Works in a store
    /// open read-only.
    ///
    /// # Errors
    /// As for [`CherryPick::run`].
    pub fn preview(&self) -> Result<MergeSteps> {
        self.plan()?.preview(&self.db.store)
    }

    /// Runs the cherry-pick.
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput): there is no such commit
    /// ([`InvalidInput::NotACommit`]); it changed no keys ([`InvalidInput::NothingToPick`]); its
    /// branch was deleted ([`InvalidInput::BranchOfCommitDeleted`]); there is no branch into which
    /// to pick it ([`InvalidInput::NoBranch`], [`InvalidInput::ForeignBranch`]); a keyspace does
    /// not exist now ([`InvalidInput::KeyspaceGone`]); a function panicked
    /// ([`InvalidInput::MergeFunctionPanicked`]). [`Error::Trimmed`](crate::Error::Trimmed) if the
    /// log no longer has the commit, or the states before and after it are no longer retained;
    /// [`Error::Future`](crate::Error::Future); the errors of
    /// [`Transaction::commit`](crate::Transaction::commit),
    /// [`Error::Conflict`](crate::Error::Conflict) only after 32 attempts in a row. Nothing is
    /// written then.
    pub fn run(&self) -> Result<MergeOutcome> {
        self.plan()?.run(&self.db.store)
    }

    fn plan(&self) -> Result<Merge> {
        let (store, glsn) = (&self.db.store, self.glsn);
        store.check_open()?;
        self.into.check_store(&self.db)?;
        if glsn == Glsn::NONE {
            return Err(InvalidInput::NotACommit { glsn }.into());
        }
        check_changes(store, glsn)?;
        // The moments are opened first, so that their versions are kept.
        let theirs = Snapshot::of(store, Moment::Glsn(glsn))?;
        let base = Snapshot::of(store, Moment::Glsn(Glsn(glsn.0 - 1)))?;
        // Fails early if the branch was deleted.
        drop::<Snapshot>(self.into.snapshot_at(Moment::Newest)?);
        self.choices.check_keyspaces(store)?;
        let commit = self.db.log().commit(glsn)?.ok_or(InvalidInput::NotACommit { glsn })?;
        let changed = Scope::of_commit(store, &commit)?;
        let (chain, scopes) = changed.ok_or(InvalidInput::NothingToPick { glsn })?;
        let lens = branch_commits::find_chain(store, chain)?;
        let lens = lens.ok_or(InvalidInput::BranchOfCommitDeleted { glsn })?;
        let [base, theirs] = [base, theirs].map(|state| match &lens {
            None => state,
            Some(lens) => state.on_branch(lens),
        });
        let metadata = self.choices.metadata_or(with_origin(commit.metadata()?, glsn));
        let (base, rules) = (Base::State(base), self.choices.rules.clone().into());
        let (into, scopes) = (self.into.lens.clone(), Some(self.choices.choose(scopes)));
        Ok(Merge { base, theirs, into, scopes, rules, metadata })
    }
}

/// The metadata of a commit with a note of its GLSN.
fn with_origin(metadata: &[u8], glsn: Glsn) -> Vec<u8> {
    if metadata.is_empty() {
        return format!("cherry-pick of GLSN {glsn}").into_bytes();
    }
    let noted = json::with_number(metadata, ORIGIN_FIELD, glsn.0).or_else(|| {
        let text = std::str::from_utf8(metadata).ok()?.trim_end();
        Some(format!("{text}\n\n(cherry-pick of GLSN {glsn})").into_bytes())
    });
    noted.filter(|noted| noted.len() <= MAX_METADATA_BYTES).unwrap_or_else(|| metadata.to_vec())
}

impl fmt::Debug for CherryPick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CherryPick({} into {:?})", self.glsn, self.into.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_says_where_it_comes_from() {
        let noted = |metadata: &[u8]| with_origin(metadata, Glsn(7));
        assert_eq!(noted(b""), b"cherry-pick of GLSN 7");
        assert_eq!(noted(b"why\n"), b"why\n\n(cherry-pick of GLSN 7)");
        assert_eq!(noted(b"{\"author\":\"Ada\"}"), b"{\"author\":\"Ada\",\"cherry_pick_of\":7}");
        assert_eq!(noted(b"{\"cherry_pick_of\":5}"), b"{\"cherry_pick_of\":7}");
        assert_eq!(noted(&[0xff, 1]), [0xff, 1]);
        let long = vec![b'x'; MAX_METADATA_BYTES];
        assert_eq!(noted(&long), long);
    }
}
