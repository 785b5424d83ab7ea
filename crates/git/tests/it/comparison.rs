//! Compares a store with git's output at many moments.

use std::collections::BTreeMap;

use plimsoll::{Db, Glsn, Moment, Options};

use crate::repository::{Files, Repository};

fn open(store: &str) -> Db {
    Db::open(store, Options::new().memory_bytes(32 << 20).read_only(true)).unwrap()
}

/// The GLSN of each imported commit.
pub(crate) fn glsns(store: &str) -> BTreeMap<String, u64> {
    let db = open(store);
    let log = db.log();
    let commit = |glsn: Glsn| {
        let metadata = log.commit(glsn).unwrap()?.metadata().unwrap().to_vec();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata).ok()?;
        Some((metadata["commit"].as_str()?.to_owned(), glsn.0))
    };
    (log.bounds().first.0..log.bounds().next.0).map(Glsn).filter_map(commit).collect()
}

/// The contents of a store at a moment.
fn stored(db: &Db, keyspace: &str, moment: Moment) -> Files {
    let snapshot = db.snapshot_at(moment).unwrap();
    let keyspace = db.keyspace(keyspace).unwrap();
    let pairs = snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap);
    pairs.map(|(key, value)| (key, value.into_vec())).collect()
}

/// Compares a store with git at the tip and at up to `moments` commits spread over the history.
#[track_caller]
pub(crate) fn assert_equal(
    repository: &Repository,
    branch: &str,
    store: &str,
    keyspace: &str,
    moments: usize,
) {
    let commits = repository.commits(branch);
    let glsns = glsns(store);
    let db = open(store);
    let mut known = BTreeMap::new();
    let tip = commits.last().unwrap();
    assert_files(&stored(&db, keyspace, Moment::Newest), &repository.files(tip, &mut known), tip);
    let step = (commits.len() / moments).max(1);
    for commit in commits.iter().step_by(step) {
        let expected = repository.files(commit, &mut known);
        assert_files(&stored(&db, keyspace, Moment::Glsn(Glsn(glsns[commit]))), &expected, commit);
    }
}

#[track_caller]
fn assert_files(stored: &Files, expected: &Files, commit: &str) {
    let keys = |files: &Files| {
        files.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(stored), keys(expected), "keys at {commit}");
    for (key, value) in expected {
        assert!(stored[key] == *value, "value of {:?} at {commit}", String::from_utf8_lossy(key));
    }
}
