//! The bookmark of a keyspace: its last imported commit. The bookmark is a key of the store,
//! written in that commit's transaction.
//!
//! Invariant: a transaction that writes the bookmark has read it, so that only one of two
//! concurrent imports into a keyspace continues.

use plimsoll::{Db, Keyspace, Transaction};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::moments::{KEYSPACE, bookmark_key};
use crate::object_id::ObjectId;
use crate::repository::Repository;

/// The position of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bookmark {
    /// The last imported commit.
    pub(crate) commit: ObjectId,
    /// The first imported commit, which identifies the repository.
    pub(crate) root: ObjectId,
}

/// Reads the bookmark of a keyspace.
pub(crate) fn read(db: &Db, keyspace: &str) -> Result<Option<Bookmark>> {
    if !db.keyspaces().iter().any(|known| known.name == KEYSPACE) {
        return Ok(None);
    }
    let value = db.snapshot().get(&db.keyspace(KEYSPACE)?, &bookmark_key(keyspace))?;
    value.map(|value| decode(&value)).transpose()
}

fn decode(value: &[u8]) -> Result<Bookmark> {
    let value: Value = serde_json::from_slice(value).unwrap_or_default();
    let id = |name: &str| value[name].as_str().and_then(|id| ObjectId::parse(id.as_bytes()));
    match (id("commit"), id("root")) {
        (Some(commit), Some(root)) => Ok(Bookmark { commit, root }),
        _ => Err(Error::Bookmark { keyspace: KEYSPACE }),
    }
}

/// Reads the bookmark in the transaction of the next commit, and fails if another import has moved
/// it. If another import moves it later, the transaction conflicts; see [`of_commit`].
pub(crate) fn confirm(
    transaction: &Transaction,
    bookmarks: &Keyspace,
    keyspace: &str,
    expected: Option<Bookmark>,
) -> Result<()> {
    let value = transaction.get(bookmarks, bookmark_key(keyspace))?;
    match value.map(|value| decode(&value)).transpose()? == expected {
        true => Ok(()),
        false => Err(Error::AnotherImport { keyspace: keyspace.to_owned() }),
    }
}

/// Converts the error of a failed commit.
pub(crate) fn of_commit(error: plimsoll::Error, keyspace: &str) -> Error {
    match error {
        // An import's transaction reads only the bookmark.
        plimsoll::Error::Conflict { .. } => Error::AnotherImport { keyspace: keyspace.to_owned() },
        error => error.into(),
    }
}

/// Writes the bookmark in the transaction of its commit.
pub(crate) fn write(
    transaction: &mut Transaction,
    bookmarks: &Keyspace,
    keyspace: &str,
    branch: &str,
    bookmark: Bookmark,
) -> Result<()> {
    let value = json!({
        "commit": bookmark.commit.as_str(),
        "branch": branch,
        "root": bookmark.root.as_str(),
    });
    Ok(transaction.put(bookmarks, &bookmark_key(keyspace), value.to_string().as_bytes())?)
}

/// Removes the bookmark of a dropped keyspace. Its history is gone, so the next import starts at
/// the beginning.
pub(crate) fn remove(db: &Db, keyspace: &str, expected: Bookmark) -> Result<()> {
    let bookmarks = db.keyspace(KEYSPACE)?;
    let mut transaction = db.begin();
    confirm(&transaction, &bookmarks, keyspace, Some(expected))?;
    transaction.delete(&bookmarks, bookmark_key(keyspace))?;
    transaction.commit().map(drop).map_err(|error| of_commit(error, keyspace))
}

/// Rejects a repository whose branch does not continue the imported history, so that a keyspace
/// never mixes two histories.
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

#[cfg(test)]
mod tests {
    use plimsoll::Options;

    use super::*;

    #[test]
    fn moved_bookmark_fails_the_commit() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("s"), Options::new().memory_bytes(16 << 20)).unwrap();
        let bookmarks = db.keyspace(KEYSPACE).unwrap();
        let at = |digit: &str| ObjectId::parse(digit.repeat(40).as_bytes()).unwrap();
        let bookmark = |digit| Bookmark { commit: at(digit), root: at("1") };
        let mut expected = None;
        for next in [bookmark("2"), bookmark("3")] {
            let [mut first, mut second] = [db.begin(), db.begin()];
            for transaction in [&mut first, &mut second] {
                confirm(transaction, &bookmarks, "k", expected).unwrap();
                write(transaction, &bookmarks, "k", "main", next).unwrap();
            }
            first.commit().unwrap();
            let error = of_commit(second.commit().unwrap_err(), "k");
            assert!(matches!(error, Error::AnotherImport { .. }), "{error}");
            let error = confirm(&db.begin(), &bookmarks, "k", expected).unwrap_err();
            assert!(matches!(error, Error::AnotherImport { .. }), "{error}");
            expected = Some(next);
        }
    }
}
