//! An import: finds the commit to continue after, then applies one commit at a time.

pub(crate) mod apply;
pub(crate) mod bookmark;
pub(crate) mod changes;
pub(crate) mod commit_list;
pub(crate) mod commit_stream;
pub(crate) mod cut;
pub(crate) mod feed;
pub(crate) mod whole;

use plimsoll::Db;

use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::import::apply::Applier;
use crate::import::cut::Cut;
use crate::import::feed::Feed;
use crate::moments;
use crate::object_id::ObjectId;
use crate::records;
use crate::repository::Repository;

/// An import in progress. Dropping it between two commits loses nothing, because the next import
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
    /// Prepares to import the repository's branch into a keyspace, which is created if it does not
    /// exist. Continues after the last imported commit, unless the keyspace was dropped since.
    /// Returns `None` if that commit is the tip of the branch, so that there is nothing to import.
    ///
    /// # Errors
    ///
    /// [`Error::OtherRepository`](crate::Error::OtherRepository) and
    /// [`Error::Rewritten`](crate::Error::Rewritten) if the branch does not continue the history in
    /// the keyspace; [`Error::NotEmpty`](crate::Error::NotEmpty) if the store has the history of a
    /// whole repository.
    pub fn open(db: &'a Db, repository: &'a Repository, keyspace: &str) -> Result<Option<Self>> {
        if records::begun(db)?.is_some() {
            return Err(Error::NotEmpty { what: "the history of a whole repository" });
        }
        let is_there = || db.keyspaces().iter().any(|known| known.name == keyspace);
        let bookmark = match bookmark::read(db, keyspace)? {
            Some(old) if !is_there() => {
                // Remove the bookmark before the keyspace is created again. If this import ended in
                // between, the next one would otherwise continue in an empty keyspace.
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

    /// The start of the history, if earlier commits are missing from the repository.
    pub fn cut(&self) -> Option<Cut> {
        self.feed.cut()
    }

    /// The number of commits to import; `None` if git cannot count them. Git reads the whole
    /// history to count.
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

    /// Ends the import and returns its counts.
    pub fn into_counts(self) -> Counts {
        self.counts
    }
}
