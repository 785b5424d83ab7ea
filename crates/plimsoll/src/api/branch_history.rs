//! The history of a branch: the versions of a key, and the differences between states.

use std::sync::Arc;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::diff::Diff;
use crate::api::history::History;
use crate::api::snapshot::{Moment, Snapshot};
use crate::types::branches::MAIN;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;

impl Branch {
    /// The retained versions of a key that belong to the branch, newest first: those written on the
    /// branch, then those of each ancestor up to the moment at which the next younger branch left
    /// it, then those of main up to the fork. See [`Db::history`](crate::Db::history).
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.keyspace("prices")?;
    /// let first = db.put(&prices, "tea", "3.00")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// db.put(&prices, "tea", "3.10")?;
    /// let second = draft.put(&prices, "tea", "2.50")?;
    /// let gone = draft.delete(&prices, "tea")?;
    /// let versions = draft.history(&prices, "tea")?.collect::<Result<Vec<_>>>()?;
    /// assert_eq!(versions.iter().map(|it| it.glsn).collect::<Vec<_>>(), [gone, second, first]);
    /// assert_eq!((versions[0].bytes, versions[1].bytes), (None, Some(4)));
    /// assert_eq!(versions[1].value()?.unwrap(), b"2.50");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// In a long lineage, only the branches that wrote the key are visited.
    ///
    /// # Errors
    /// As for [`Db::history`](crate::Db::history);
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn history(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<History> {
        History::new(&self.db.store, self.lens.as_ref(), keyspace, key.as_ref())
    }

    /// The keys beginning with `prefix` whose values differ between two moments of the branch, in
    /// key order. Before its fork, a branch has the states of its parent. See
    /// [`Db::diff`](crate::Db::diff), and [`Db::diff_between`] for what it costs.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.keyspace("prices")?;
    /// let before = db.put(&prices, "tea", "3.00")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let by = draft.put(&prices, "tea", "2.50")?;
    /// db.put(&prices, "milk", "1.00")?;
    /// let changes = draft.diff(&prices, before, Moment::Newest, "")?;
    /// let changes = changes.collect::<Result<Vec<_>>>()?;
    /// assert_eq!((changes.len(), &changes[0].key[..], changes[0].by), (1, &b"tea"[..], by));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Branch::snapshot_at`]; [`Error::Trimmed`](crate::Error::Trimmed), disk errors, or
    /// the budget.
    pub fn diff(
        &self,
        keyspace: &Keyspace,
        a: impl Into<Moment>,
        b: impl Into<Moment>,
        prefix: impl AsRef<[u8]>,
    ) -> Result<Diff> {
        if self.lens.is_none() {
            return self.db.diff(keyspace, a, b, prefix);
        }
        let (a, b) = (self.snapshot_at(a.into())?, self.snapshot_at(b.into())?);
        self.db.diff_between(keyspace, &a, &b, prefix)
    }
}

impl Db {
    /// The keys beginning with `prefix` whose values differ between two states, in key order. The
    /// snapshots may be of any branches and moments. In each state, the compared keyspace is the
    /// one that had the name of `keyspace` then.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.keyspace("prices")?;
    /// db.put(&prices, "tea", "3.00")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// draft.put(&prices, "tea", "2.50")?;
    /// let by = db.put(&prices, "tea", "3.10")?;
    /// let (ours, theirs) = (db.snapshot(), draft.snapshot());
    /// let change = db.diff_between(&prices, &ours, &theirs, "")?.next().expect("there is one")?;
    /// assert_eq!(change.before.expect("it has one").value()?.unwrap(), b"3.10");
    /// assert_eq!(change.after.expect("it has one").value()?.unwrap(), b"2.50");
    /// assert_eq!(change.by, by, "the newest commit that only one of them contains");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Compares the keys that have a version in only one of the states: those committed on main
    /// between the two moments or forks, and those that the branches wrote after they left their
    /// newest common ancestor. To find these versions, the call reads each table and memtable that
    /// has versions of that time under the prefix completely, and skips most others. If the
    /// keyspace was dropped between the two states, all keys of both are read.
    ///
    /// # Errors
    /// [`InvalidInput::ForeignBranch`] if a snapshot is one of another store or opening;
    /// [`Error::Trimmed`](crate::Error::Trimmed) if a state is no longer retained; disk errors, or
    /// the budget.
    pub fn diff_between(
        &self,
        keyspace: &Keyspace,
        before: &Snapshot,
        after: &Snapshot,
        prefix: impl AsRef<[u8]>,
    ) -> Result<Diff> {
        let states = [before, after];
        if let Some(foreign) = states.iter().find(|it| !Arc::ptr_eq(it.store(), &self.store)) {
            let name =
                foreign.lens().map_or_else(|| MAIN.to_owned(), |lens| lens.name().to_owned());
            return Err(InvalidInput::ForeignBranch { name }.into());
        }
        Diff::of_states(keyspace, states, prefix.as_ref())
    }
}
