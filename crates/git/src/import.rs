//! An import from its beginning to its end: finds where to continue, then applies one commit at a
//! time.

use plimsoll::Db;

use crate::apply::Applier;
use crate::bookmark;
use crate::counts::Counts;
use crate::cut::Cut;
use crate::error::Result;
use crate::feed::Feed;
use crate::moments;
use crate::object_id::ObjectId;
use crate::repository::Repository;

/// An import that is under way. Dropping it between two commits loses nothing: the next import
/// continues there.
#[derive(Debug)]
pub struct Import<'a> {
    repository: &'a Repository,
    after: Option<ObjectId>,
    feed: Feed<'a>,
    applier: Applier<'a>,
    counts: Counts,
}

impl<'a> Import<'a> {
    /// Prepares to import the repository's branch into a keyspace, which is created if there is
    /// none. Continues after the last commit that an earlier import brought, unless the keyspace
    /// was dropped since; `None` if that is the tip of the branch, so that there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`Error::OtherRepository`](crate::Error::OtherRepository) and
    /// [`Error::Rewritten`](crate::Error::Rewritten) if the branch does not continue the history
    /// that the keyspace holds.
    pub fn open(db: &'a Db, repository: &'a Repository, keyspace: &str) -> Result<Option<Self>> {
        let is_there = || db.keyspaces().iter().any(|known| known.name == keyspace);
        let bookmark = match bookmark::read(db, keyspace)? {
            Some(old) if !is_there() => {
                // Before the keyspace is created again: the import after one that ends here would
                // continue in an empty one.
                bookmark::remove(db, keyspace, old)?;
                None
            }
            bookmark => bookmark,
        };
        if let Some(bookmark) = bookmark {
            bookmark::check(&bookmark, repository)?;
            if bookmark.commit == *repository.tip() {
                return Ok(None);
            }
        }
        let after = bookmark.map(|bookmark| bookmark.commit);
        let feed = Feed::open(repository, after)?;
        let keyspace = db.keyspace(keyspace)?;
        let notes = db.keyspace(moments::KEYSPACE)?;
        let applier = Applier::new(db, keyspace, notes, repository.branch(), bookmark)?;
        Ok(Some(Self { repository, after, feed, applier, counts: Counts::default() }))
    }

    /// The beginning of the history, if the repository does not hold earlier commits.
    pub fn cut(&self) -> Option<Cut> {
        self.feed.cut()
    }

    /// How many commits this import brings in all; `None` if git cannot count them. Git reads the
    /// whole history for it.
    pub fn count_commits(&self) -> Result<Option<u64>> {
        self.repository.count(self.after.as_ref())
    }

    /// Imports the next commit; `false` at the end of the history.
    ///
    /// # Errors
    ///
    /// [`Error::AnotherImport`](crate::Error::AnotherImport) if another import has continued the
    /// history in this keyspace.
    pub fn next_commit(&mut self) -> Result<bool> {
        self.applier.next(&mut self.feed, &mut self.counts)
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Ends the import, and returns what was imported.
    pub fn into_counts(self) -> Counts {
        self.counts
    }
}
