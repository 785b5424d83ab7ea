//! Three-way merges of states: a branch is merged, a commit is reverted or applied to another
//! branch, a branch is reset to an earlier moment.
//!
//! A merge compares, key by key, a base state with two others, ours and theirs. A key that only one
//! side changed gets that side's value; for a key that both changed, the keyspace's [`MergeRule`]
//! decides. The result is one transaction.
//!
//! Invariant: nothing is written if there is a conflict, or if anything fails. The memory that a
//! merge holds does not depend on the number of keys, because conflicts are not collected but found
//! again when they are read.
//!
//! [`MergeRule`]: rule::MergeRule

mod bases;
pub(crate) mod branches;
mod choices;
pub(crate) mod driver;
pub(crate) mod graph;
mod json;
pub(crate) mod keys;
pub(crate) mod partial;
pub(crate) mod pick;
pub(crate) mod reset;
pub(crate) mod revert;
pub(crate) mod rule;
pub(crate) mod steps;
mod text;
