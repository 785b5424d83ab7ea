//! Helpers shared by the tests of branches and merges.

use std::collections::BTreeMap;

use plimsoll::{
    Branch, Db, Error, Glsn, InvalidInput, Keyspace, MergeOutcome, Moment, Options, Result,
};

pub(crate) type State = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn open() -> (Db, Keyspace) {
    let db = Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    (db, keys)
}

pub(crate) fn branch(db: &Db, name: &str, parent: &Branch) -> Branch {
    db.create_branch(name, parent).unwrap()
}

pub(crate) fn state_at(branch: &Branch, keys: &Keyspace, at: Moment) -> State {
    let rows = branch.snapshot_at(at).unwrap().iter(keys).unwrap();
    rows.map(|row| row.unwrap()).map(|(key, value)| (key, value.to_vec())).collect()
}

pub(crate) fn state(branch: &Branch, keys: &Keyspace) -> State {
    state_at(branch, keys, Moment::Newest)
}

#[track_caller]
pub(crate) fn merged(outcome: Result<MergeOutcome>) -> Glsn {
    match outcome.unwrap() {
        MergeOutcome::Merged(glsn) => glsn,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn is_merged(outcome: Result<MergeOutcome>) -> bool {
    match outcome.unwrap() {
        MergeOutcome::Merged(_) => true,
        MergeOutcome::UpToDate => false,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn invalid<T: std::fmt::Debug>(outcome: Result<T>) -> InvalidInput {
    match outcome {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}
