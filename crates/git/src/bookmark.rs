//! The bookmark: which commit was imported last, kept in the store itself.

use plimsoll::{Db, Keyspace, Transaction};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::git::object_id::ObjectId;
use crate::git::repository::Repository;
use crate::imported::{KEYSPACE, bookmark_key};

/// How far the import into a keyspace has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bookmark {
    /// The last imported commit.
    pub(super) commit: ObjectId,
    /// The first one: what tells one repository from another.
    pub(super) root: ObjectId,
}

/// Reads the bookmark of a keyspace.
pub(super) fn read(db: &Db, keyspace: &str) -> Result<Option<Bookmark>, Failure> {
    if !db.keyspaces().iter().any(|known| known.name == KEYSPACE) {
        return Ok(None);
    }
    let Some(value) = db.snapshot().get(&db.keyspace(KEYSPACE)?, &bookmark_key(keyspace))? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&value).unwrap_or_default();
    let id = |name: &str| value[name].as_str().and_then(|id| ObjectId::parse(id.as_bytes()));
    match (id("commit"), id("root")) {
        (Some(commit), Some(root)) => Ok(Some(Bookmark { commit, root })),
        _ => Err(Failure::new(
            Exit::Corrupt,
            format!("the bookmark in keyspace {KEYSPACE} is not one that an import wrote"),
        )),
    }
}

/// Writes the bookmark in the transaction of the commit that it names.
pub(super) fn write(
    transaction: &mut Transaction,
    bookmarks: &Keyspace,
    keyspace: &str,
    branch: &str,
    bookmark: Bookmark,
) -> Result<(), Failure> {
    let value = json!({ "commit": bookmark.commit.as_str(), "branch": branch, "root": bookmark.root.as_str() });
    Ok(transaction.put(bookmarks, &bookmark_key(keyspace), value.to_string().as_bytes())?)
}

/// Refuses to go on where the branch does not: the store would mix two histories.
pub(super) fn check(bookmark: &Bookmark, repository: &Repository, branch: &str) -> Result<(), Failure> {
    let commit = bookmark.commit.short();
    let path = repository.path().display();
    if !repository.has_commit(&bookmark.root)? && !repository.has_commit(&bookmark.commit)? {
        return Err(Failure::usage(format!(
            "{path}: the store holds the history of another repository (up to commit {commit}, which is not here); \
             import this one into another store, or into another keyspace with --keyspace"
        )));
    }
    if !repository.has_commit(&bookmark.commit)? || !repository.is_behind_tip(&bookmark.commit)? {
        return Err(Failure::usage(format!(
            "{path}: the last imported commit {commit} is no ancestor of {branch}: the history was rewritten, or it is another \
             branch; import it into another store, or into another keyspace with --keyspace"
        )));
    }
    Ok(())
}
