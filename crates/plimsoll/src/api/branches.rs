//! Branches: lines of history that leave another branch at a moment.

use std::fmt;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::branch_commits;
use crate::read::lens::Lens;
use crate::types::branches::{BranchInfo, MAIN, MAIN_CHAIN, check_users_name};
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

/// A branch of a store: main, or one that was created by [`Db::create_branch`]. Cheap to clone.
///
/// While this handle exists, the moments at which the branch and its ancestors were forked stay
/// readable. Once the branch is deleted, reads and commits through the handle fail with
/// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
#[derive(Clone)]
pub struct Branch {
    pub(crate) db: Db,
    name: Arc<str>,
    /// `None`: main.
    pub(crate) lens: Option<Arc<Lens>>,
}

impl Db {
    /// The branch main: the keys of the store itself.
    pub fn main(&self) -> Branch {
        Branch { db: self.clone(), name: MAIN.into(), lens: None }
    }

    /// The branch with this name.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch);
    /// [`Error::Behind`](crate::Error::Behind) if the commits of other processes cannot be applied.
    pub fn branch(&self, name: &str) -> Result<Branch> {
        let lens = branch_commits::find(&self.store, name)?;
        Ok(Branch { db: self.clone(), name: name.into(), lens })
    }

    /// All branches but main, sorted by name.
    ///
    /// # Errors
    /// [`Error::Behind`](crate::Error::Behind) if the commits of other processes cannot be applied.
    pub fn branches(&self) -> Result<Vec<BranchInfo>> {
        branch_commits::all(&self.store)
    }

    /// Creates a branch, which begins with the newest state of `parent`. This is one small commit;
    /// no data is copied.
    ///
    /// The name has 1 to 255 bytes and no control characters. It must not be `main`, `newest`,
    /// `now`, `yesterday` or a number, begin like a date or with `-`, count back from now
    /// (`2 hours ago`), contain `:`, `..` or `@{`, or begin or end with a space: commands would
    /// take it for something else. Names that begin with `incoming/` are reserved.
    ///
    /// The versions that the branch sees stay readable in every keyspace until it is deleted. Up to
    /// 32 forks, tags and open snapshots retain only the versions that they see; if there are more,
    /// all versions from the 33rd oldest moment on are retained.
    ///
    /// # Errors
    /// [`InvalidInput::BranchName`](crate::InvalidInput::BranchName),
    /// [`InvalidInput::TemporaryBranch`](crate::InvalidInput::TemporaryBranch),
    /// [`InvalidInput::BranchExists`](crate::InvalidInput::BranchExists),
    /// [`InvalidInput::TooManyBranches`](crate::InvalidInput::TooManyBranches);
    /// [`InvalidInput::BranchDeleted`](crate::InvalidInput::BranchDeleted) if the parent was
    /// deleted; errors of a commit.
    pub fn create_branch(&self, name: &str, parent: &Branch) -> Result<Branch> {
        self.create_branch_at(name, parent, Moment::Newest)
    }

    /// Creates a branch that begins with a past state of `parent`.
    ///
    /// # Errors
    /// As for [`Db::create_branch`] and [`Db::snapshot_at`].
    pub fn create_branch_at(&self, name: &str, parent: &Branch, moment: Moment) -> Result<Branch> {
        parent.check_store(self)?;
        check_users_name(name)?;
        // The snapshot keeps the moment readable until the branch is known.
        let snapshot = Snapshot::of(&self.store, moment)?;
        let chain = parent.lens.as_ref().map_or(MAIN_CHAIN, |lens| lens.ancestry().chain);
        branch_commits::create(&self.store, name, chain, snapshot.read_at()?.glsn)?;
        self.branch(name)
    }

    /// Gives a branch another name. Handles and open transactions of the branch remain valid.
    ///
    /// # Errors
    /// As for [`Db::create_branch`], and [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn rename_branch(&self, from: &str, to: &str) -> Result<()> {
        check_users_name(to)?;
        branch_commits::rename(&self.store, from, to)
    }

    /// Deletes a branch. Branches that descend from it stay as they are. Its space is freed once
    /// its whole group is deleted: the branch that left main, and all branches that descend from
    /// that one.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch),
    /// [`InvalidInput::MainBranch`](crate::InvalidInput::MainBranch); the store is read-only, or
    /// the commit fails.
    pub fn delete_branch(&self, name: &str) -> Result<()> {
        branch_commits::delete(&self.store, name)
    }
}

impl Branch {
    /// The branch's name at the time when this handle was created.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number that identifies the branch, even after a rename; no later branch of the store
    /// gets it. 0 for main. Once the branch is deleted, [`Commit::branch`](crate::Commit::branch)
    /// and [`Change::branch`](crate::Change::branch) return this number instead of a name.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// db.rename_branch("draft", "proposal")?;
    /// assert_eq!(db.branch("proposal")?.id(), draft.id());
    /// db.delete_branch("proposal")?;
    /// assert_ne!(db.create_branch("draft", &db.main())?.id(), draft.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> u32 {
        self.lens.as_ref().map_or(MAIN_CHAIN, |lens| lens.ancestry().chain)
    }

    /// Fails if the branch belongs to another store, or to another opening of this one.
    pub(crate) fn check_store(&self, db: &Db) -> Result<()> {
        match Arc::ptr_eq(&self.db.store, &db.store) {
            true => Ok(()),
            false => Err(InvalidInput::ForeignBranch { name: self.name.to_string() }.into()),
        }
    }

    /// Whether both handles are of the same branch, even if it was renamed in between.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let chain = |branch: &Self| branch.lens.as_ref().map(|lens| lens.ancestry().chain);
        chain(self) == chain(other)
    }

    /// Whether the branch sees the commits of a chain up to `at`: the chain is its own, or that of
    /// an ancestor which its lineage left at `at` or later.
    pub(crate) fn sees(&self, chain: u32, at: Glsn) -> bool {
        match &self.lens {
            None => chain == MAIN_CHAIN,
            Some(lens) if chain == MAIN_CHAIN => at <= lens.ancestry().main,
            Some(lens) => {
                lens.place_of(chain).is_some_and(|place| at <= lens.ancestry().chains[place].1)
            }
        }
    }

    /// The branch's present name, its parent, and its fork; `None` for main.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// db.rename_branch("draft", "proposal")?;
    /// let info = draft.info()?.unwrap();
    /// assert_eq!((&*info.name, info.parent.as_deref()), ("proposal", Some("main")));
    /// assert_eq!(db.main().info()?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch);
    /// [`Error::Behind`](crate::Error::Behind) if the commits of other processes cannot be applied.
    pub fn info(&self) -> Result<Option<BranchInfo>> {
        let Some(lens) = &self.lens else { return Ok(None) };
        branch_commits::info(&self.db.store, &self.name, lens.ancestry().chain).map(Some)
    }
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Branch({:?})", self.name)
    }
}
