//! The bookmark of a keyspace: which commit was imported last. It is a key of the store, written with that commit.

use plimsoll::{Db, Keyspace, Transaction};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::moments::{KEYSPACE, bookmark_key};
use crate::object_id::ObjectId;
use crate::repository::Repository;

/// The position of an import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bookmark {
    /// The last imported commit.
    pub(crate) commit: ObjectId,
    /// The first imported commit. It tells one repository from another.
    pub(crate) root: ObjectId,
}

/// Reads the bookmark of a keyspace.
pub(crate) fn read(db: &Db, keyspace: &str) -> Result<Option<Bookmark>> {
    if !db.keyspaces().iter().any(|known| known.name == KEYSPACE) {
        return Ok(None);
    }
    let Some(value) = db.snapshot().get(&db.keyspace(KEYSPACE)?, &bookmark_key(keyspace))? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&value).unwrap_or_default();
    let id = |name: &str| value[name].as_str().and_then(|id| ObjectId::parse(id.as_bytes()));
    match (id("commit"), id("root")) {
        (Some(commit), Some(root)) => Ok(Some(Bookmark { commit, root })),
        _ => Err(Error::Bookmark { keyspace: KEYSPACE }),
    }
}

/// Writes the bookmark, in the transaction of its commit.
pub(crate) fn write(
    transaction: &mut Transaction,
    bookmarks: &Keyspace,
    keyspace: &str,
    branch: &str,
    bookmark: Bookmark,
) -> Result<()> {
    let value = json!({ "commit": bookmark.commit.as_str(), "branch": branch, "root": bookmark.root.as_str() });
    Ok(transaction.put(bookmarks, &bookmark_key(keyspace), value.to_string().as_bytes())?)
}

/// Rejects a repository whose branch does not continue the imported history, so that a keyspace never mixes two.
pub(crate) fn check(bookmark: &Bookmark, repository: &Repository) -> Result<()> {
    let (path, commit) = (repository.path().to_owned(), bookmark.commit);
    if !repository.has_commit(&bookmark.root)? && !repository.has_commit(&commit)? {
        return Err(Error::OtherRepository { path, commit });
    }
    if !repository.has_commit(&commit)? || !repository.is_behind_tip(&commit)? {
        return Err(Error::Rewritten { path, commit, branch: repository.branch().to_owned() });
    }
    Ok(())
}
