//! Exchange of commits with other stores: ids of commits, clone, fetch, push and pull.
//!
//! A commit has the same id in every store ([`commit_id`]), but may have different GLSNs. A store
//! computes the ids of its commits on first use and keeps them in an internal keyspace ([`ids`]).
//! A transfer finds the commits that the other store lacks ([`send`]) and commits them there one by
//! one, parents first ([`receive`]). An import ([`import`]) does the same with commits that no
//! store has yet.
//!
//! Invariant: a received commit is committed only if the id computed from the received changes
//! equals the id that the sender announced.

pub(crate) mod commit_id;
mod contents;
#[cfg(feature = "testing")]
pub mod forging;
mod ids;
pub(crate) mod import;
mod receive;
pub(crate) mod remote;
mod send;
pub(crate) mod transfer;
