//! Runs an import to its end.

use std::path::Path;

use plimsoll::{Db, Options};
use plimsoll_git::{Counts, Import, Repository, Result};
use tempfile::TempDir;

/// A folder for one test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path inside the folder.
    pub(crate) fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A repository inside the folder.
    pub(crate) fn repository(&self, name: &str) -> crate::repository::Repository {
        crate::repository::Repository::init(&self.0.path().join(name))
    }
}

/// Imports `branch` into a keyspace; `None` if there was nothing to import.
pub(crate) fn import_into(
    path: &str,
    branch: &str,
    store: &str,
    keyspace: &str,
) -> Result<Option<Counts>> {
    let repository = Repository::open(Path::new(path), branch)?;
    let db = Db::open(store, Options::new().memory_bytes(32 << 20))?;
    let Some(mut import) = Import::open(&db, &repository, keyspace)? else { return Ok(None) };
    let expected = import.count_commits()?;
    while import.next_commit()? {}
    let counts = import.into_counts();
    if let Some(expected) = expected {
        assert_eq!(counts.transactions + counts.commits.count, expected);
    }
    db.close()?;
    Ok(Some(counts))
}

/// Imports `branch` into keyspace `default`; there must be something to import.
#[track_caller]
pub(crate) fn import(path: &str, branch: &str, store: &str) -> Counts {
    import_into(path, branch, store, "default").unwrap().expect("there are commits to import")
}
