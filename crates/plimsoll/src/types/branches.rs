//! Branches: lines of history that leave another branch at a moment, the fork.
//!
//! The line of versions of one branch is a chain. Chain 0 is main; the ids of the others rise and
//! are never reused. A chain that left main and its descendants are a group, whose id is the id of
//! that chain. The versions of all chains but main are in keyspace [`SIDE`], by group.
//!
//! A chain is a key (its id, big-endian) of an internal keyspace, so creating, renaming or deleting
//! a branch is an ordinary commit:
//!
//! ```text
//! u32      parent (little-endian, as all numbers here)
//! u32      group
//! 17 bytes the fork, encoded as the moment in the record of a tag (`tags`)
//! bytes    name; empty: the branch was deleted, but others descend from it or have merged it
//! ```
//!
//! The empty key holds the counter: u32 the next id, u64 the number of changes. Each change reads
//! and writes it, so that two changes are never based on the same state.
//!
//! A merge is a key without a value, written by the commit of the merge: u32 the chain that was
//! merged into, u32 the chain that was merged, complement of u64 the GLSN up to which it was merged
//! (all big-endian).
//!
//! [`SIDE`]: crate::types::keyspaces::SIDE

use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::MAX_NAME_BYTES;
use crate::types::tags::{Tagged, is_moment_name};

/// The name of the branch that always exists.
pub(crate) const MAIN: &str = "main";

/// The prefix of the names of the temporary branches of transfers. Users' branches have other
/// names.
pub(crate) const TEMPORARY: &str = "incoming/";

/// The id of the chain of main.
pub(crate) const MAIN_CHAIN: u32 = 0;

/// The most chains of a store.
pub(crate) const MAX_CHAINS: usize = 1_000_000;

/// A branch of a store.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// db.create_branch("draft", &db.main())?;
/// let branches = db.branches()?;
/// assert_eq!((&*branches[0].name, branches[0].parent.as_deref()), ("draft", Some("main")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// The branch that it left; `None` if that was deleted.
    pub parent: Option<String>,
    /// The moment at which it left its parent: right after the commit with this GLSN.
    pub fork: Glsn,
    /// The time of that commit; `None` for the empty store, or if the log no longer held the commit
    /// when the branch was created.
    pub fork_time: Option<SystemTime>,
}

impl BranchInfo {
    /// Whether a branch can have this name: see [`Db::create_branch`](crate::Db::create_branch).
    pub fn is_name(name: &str) -> bool {
        check_branch_name(name).is_ok()
    }
}

/// The line of versions of a branch that is not main.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// `None`: the branch was deleted, but others descend from it or have merged it.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) fork: Tagged,
}

impl Chain {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(32);
        record.extend_from_slice(&self.parent.to_le_bytes());
        record.extend_from_slice(&self.group.to_le_bytes());
        record.extend_from_slice(&self.fork.encode());
        record.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(record);
        let (parent, group) = (reader.u32()?, reader.u32()?);
        let (fork, name) = record[8..].split_at_checked(17)?;
        let name = std::str::from_utf8(name).ok()?;
        let fork = Tagged::decode(fork).ok()?;
        let name = Some(name).filter(|name| !name.is_empty()).map(Arc::from);
        Some(Self { name, parent, group, fork })
    }
}

/// The bytes of a chain's record without its name.
const UNNAMED_BYTES: usize = 25;

/// Whether a record of a chain is that of a branch which was not deleted.
pub(crate) fn is_of_branch(record: &[u8]) -> bool {
    record.len() > UNNAMED_BYTES
}

/// The key of a chain's record.
pub(crate) fn chain_key(id: u32) -> [u8; 4] {
    id.to_be_bytes()
}

/// The key that records that a commit on the chain `into` merged the chain `from` up to `at`. Among
/// the merges of one chain, the youngest state comes first.
pub(crate) fn merge_key(into: u32, from: u32, at: Glsn) -> Vec<u8> {
    [&merge_prefix(into, from)[..], &(!at.0).to_be_bytes()].concat()
}

/// The common prefix of the keys of all merges of one chain into another.
pub(crate) fn merge_prefix(into: u32, from: u32) -> [u8; 8] {
    (u64::from(into) << 32 | u64::from(from)).to_be_bytes()
}

/// Decodes the key of a merge: the chain merged into, the merged chain, and the GLSN up to which it
/// was merged; `None` for any other key.
pub(crate) fn decode_merge_key(key: &[u8]) -> Option<(u32, u32, Glsn)> {
    let (into, rest) = key.split_first_chunk()?;
    let (from, rest) = rest.split_first_chunk()?;
    let at = u64::from_be_bytes(rest.try_into().ok()?);
    Some((u32::from_be_bytes(*into), u32::from_be_bytes(*from), Glsn(!at)))
}

/// The key of the counter.
pub(crate) const COUNTER_KEY: &[u8] = b"";

/// The next id, and the number of changes of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) next: u32,
    pub(crate) changes: u64,
}

impl Default for Counter {
    fn default() -> Self {
        Self { next: MAIN_CHAIN + 1, changes: 0 }
    }
}

impl Counter {
    pub(crate) fn encode(self) -> [u8; 12] {
        let mut record = [0; 12];
        record[..4].copy_from_slice(&self.next.to_le_bytes());
        record[4..].copy_from_slice(&self.changes.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(record);
        match (reader.u32(), reader.u64(), reader.remaining()) {
            (Some(next), Some(changes), 0) => Ok(Self { next, changes }),
            _ => Err(damaged_branch()),
        }
    }
}

/// The error for a record of a branch that cannot be decoded.
pub(crate) fn damaged_branch() -> Error {
    Error::damaged("the record of a branch cannot be decoded")
}

/// The chains that a branch reads, and up to which GLSN it reads each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestry {
    /// The branch's own chain.
    pub(crate) chain: u32,
    pub(crate) group: u32,
    /// Its chain and those that it descends from, up to the one that left main; ids descending.
    /// Each has the newest GLSN that the branch sees of it; for its own chain, any GLSN.
    pub(crate) chains: Box<[(u32, Glsn)]>,
    /// The newest GLSN that the branch sees of main.
    pub(crate) main: Glsn,
}

impl Ancestry {
    /// The chains that the chain `id` reads; `None` if `chain` does not find all of them.
    pub(crate) fn new<'c>(id: u32, chain: impl Fn(u32) -> Option<&'c Chain>) -> Option<Self> {
        let own = chain(id)?;
        let (mut chains, mut limit) = (vec![(id, Glsn::MAX)], own.fork.at);
        let mut at = own;
        while at.parent != MAIN_CHAIN {
            chains.push((at.parent, limit));
            at = chain(at.parent)?;
            limit = limit.min(at.fork.at);
        }
        Some(Self { chain: id, group: own.group, chains: chains.into(), main: limit })
    }
}

/// As [`check_branch_name`], for a branch of a user.
pub(crate) fn check_users_name(name: &str) -> Result<()> {
    match name.starts_with(TEMPORARY) {
        true => Err(InvalidInput::TemporaryBranch { name: name.to_owned() }.into()),
        false => check_branch_name(name),
    }
}

/// Rejects names that are invalid for a branch, and those that a command could read as a moment or
/// a range.
pub(crate) fn check_branch_name(name: &str) -> Result<()> {
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.trim() == name
        && !name.starts_with('-')
        && !name.chars().any(|c| c.is_control() || c == ':')
        && !name.contains("..")
        && !name.contains("@{");
    match is_name && !is_moment_name(name) {
        true => Ok(()),
        false => {
            let limit_bytes = MAX_NAME_BYTES as u64;
            Err(InvalidInput::BranchName { name: name.to_owned(), limit_bytes }.into())
        }
    }
}
