//! The commits of a branch, and the changes on it as they are committed.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use plimsoll_log::glsn::{Glsn, StreamId};

use crate::api::branches::Branch;
use crate::api::change_feed::{Commits, check_exists};
use crate::api::commit::Commit;
use crate::engine::Engine;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::types::branches::MAIN_CHAIN;
use crate::types::error::{Lift, Result};
use crate::types::keyspaces::Keyspace;

impl Branch {
    /// The commits that the branch contains, newest first: those that changed keys on it, then
    /// those of its ancestors up to the forks, as far as the log holds them. Commits of the store's
    /// own records of keyspaces, cursors, tags and branches are left out. The drop of a keyspace is
    /// a commit on main: a branch that was created before the drop does not contain this commit,
    /// although it loses its keys of the keyspace as well.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let first = db.put(&notes, "a", "one")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let second = draft.put(&notes, "a", "two")?;
    /// db.put(&notes, "a", "three")?;
    /// let mut glsns = Vec::new();
    /// for commit in draft.log()? {
    ///     glsns.push(commit?.glsn());
    /// }
    /// assert_eq!(glsns, [second, first]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All entries of the log are visited, also those of other branches.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch);
    /// [`Error::Behind`](crate::Error::Behind) if the commits of other processes cannot be applied.
    pub fn log(&self) -> Result<BranchLog> {
        let store = &self.db.store;
        store.check_open()?;
        let newest = store.newest()?;
        let lens = self.lens.clone();
        lens.as_ref().map_or(Ok(()), |lens| check_exists(store, lens))?;
        Ok(BranchLog { store: Arc::clone(store), lens, next: newest })
    }

    /// Whether the branch contains a commit: one that changed keys on the branch itself, or on one
    /// of its ancestors before the branch left it.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let glsn = draft.put(&notes, "a", "one")?;
    /// let commit = db.log().commit(glsn)?.expect("it is a commit");
    /// assert!(draft.contains(&commit)? && !db.main().contains(&commit)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Commit::changes`].
    pub fn contains(&self, commit: &Commit) -> Result<bool> {
        contains(self.lens.as_deref(), commit)
    }

    /// As [`Db::watch`](crate::Db::watch), but for this branch: returns the commits from `from` on
    /// that changed keys with the prefix on the branch itself, and none of its ancestors' commits.
    /// A later watch that starts at this one's position continues it. If the branch is deleted, the
    /// watch returns the commits before that, and then fails.
    ///
    /// The drop of the keyspace is a commit on main, and is not returned, although it removes the
    /// keys on all branches. [`Db::watch`](crate::Db::watch) returns it.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let users = db.keyspace("users")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let mut watch = draft.watch(&users, "admin/", db.newest().next())?;
    /// db.put(&users, "admin/eve", "Eve")?;
    /// draft.put(&users, "admin/ada", "Ada")?;
    /// let commit = watch.next_timeout(std::time::Duration::from_secs(10))?.expect("Ada was put");
    /// let change = commit.changes()?.next().expect("there is one")?;
    /// assert_eq!((change.key(), change.branch()), (&b"admin/ada"[..], Some("draft")));
    /// assert!(watch.next().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::watch`](crate::Db::watch);
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: impl AsRef<[u8]>,
        from: Glsn,
    ) -> Result<Commits> {
        let Some(lens) = &self.lens else { return self.db.watch(keyspace, prefix, from) };
        let store = &self.db.store;
        let span = Span::prefix(store.reader.keyspaces.id_of(keyspace)?, prefix.as_ref());
        Commits::on_branch(store, lens, from, &span)
    }
}

fn contains(lens: Option<&Lens>, commit: &Commit) -> Result<bool> {
    let Some(chain) = commit.chain()? else { return Ok(false) };
    Ok(match lens {
        None => chain == MAIN_CHAIN,
        Some(lens) if chain == MAIN_CHAIN => commit.glsn() <= lens.ancestry().main,
        Some(lens) => {
            let limit = lens.place_of(chain).map(|place| lens.ancestry().chains[place].1);
            limit.is_some_and(|limit| commit.glsn() <= limit)
        }
    })
}

/// The commits of a branch, newest first, from [`Branch::log`]. It ends at the first entry of the
/// log. After an error, the next call continues with the commit before the failed one.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let second = db.put(&notes, "b", "two")?;
/// let mut log: BranchLog = db.main().log()?;
/// assert_eq!(log.next().expect("there are two")?.glsn(), second);
/// # Ok(())
/// # }
/// ```
pub struct BranchLog {
    store: Arc<Engine>,
    lens: Option<Arc<Lens>>,
    /// The entry that is visited next.
    next: Glsn,
}

impl BranchLog {
    /// Skips the commits after `glsn`. Has no effect if the iterator has already passed them.
    #[must_use = "it returns the new iterator"]
    pub fn up_to(mut self, glsn: Glsn) -> Self {
        self.next = self.next.min(glsn);
        self
    }

    /// As [`Iterator::next`], but visits at most `entries` entries of the log. Returns `Continue`
    /// if none of these is a commit of the branch and the log has more entries.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// use std::ops::ControlFlow;
    ///
    /// let notes = db.keyspace("notes")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let first = draft.put(&notes, "a", "one")?;
    /// for number in 0..10_u8 {
    ///     db.put(&notes, [number], "main")?;
    /// }
    /// let mut log = draft.log()?;
    /// assert!(matches!(log.next_within(5)?, ControlFlow::Continue(())));
    /// let ControlFlow::Break(commit) = log.next_within(100)? else { panic!("it is near") };
    /// assert_eq!(commit.expect("there is one").glsn(), first);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Dropped`](crate::Error::Dropped), [`Error::Closed`](crate::Error::Closed), disk
    /// errors, the budget, corruption, or a newer format.
    pub fn next_within(&mut self, entries: u64) -> Result<ControlFlow<Option<Commit>>> {
        self.store.check_open()?;
        let log = &self.store.reader.log;
        let end = Glsn(self.next.0.saturating_sub(entries));
        while self.next > Glsn::NONE && self.next >= log.bounds().first {
            let glsn = self.next;
            if glsn <= end {
                return Ok(ControlFlow::Continue(()));
            }
            self.next = Glsn(glsn.0 - 1);
            let read = || {
                let stream = log.meta(glsn).lift()?.stream;
                if !matches!(stream, StreamId::TRANSACTIONS | StreamId::DROPPED) {
                    return Ok(None);
                }
                let commit = Commit::new(&self.store, log.read(glsn).lift()?, None);
                let is_wanted = contains(self.lens.as_deref(), &commit)?;
                Ok(Some(commit).filter(|_| is_wanted))
            };
            match read() {
                // The entry was trimmed in the meantime.
                Err(_) if glsn < log.bounds().first => return Ok(ControlFlow::Break(None)),
                Ok(None) => {}
                commit => return commit.map(ControlFlow::Break),
            }
        }
        Ok(ControlFlow::Break(None))
    }
}

impl Iterator for BranchLog {
    type Item = Result<Commit>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_within(u64::MAX) {
            Ok(ControlFlow::Break(commit)) => commit.map(Ok),
            Ok(ControlFlow::Continue(())) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl fmt::Debug for BranchLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BranchLog(next {})", self.next)
    }
}
