//! Exchange of commits with other stores: ids of commits, clone, fetch, push and pull.
//!
//! A commit has the same id in every store ([`commit_id`]), but may have different GLSNs. A store
//! computes the ids of its commits on first use and keeps them in an internal keyspace ([`ids`]).
//! A transfer ([`transfer`]) finds the commits that the other store lacks ([`send`]) and commits
//! them there one by one, parents first ([`receive`]). Each of the two stores is a [`peer`]: open
//! in this process ([`local`]), or at the other end of a connection ([`wire`]). An import
//! ([`import`]) commits a history that no store has yet in the same way.
//!
//! Invariant: a received commit is committed only if the id computed from the received changes
//! equals the id that the sender announced.

pub(crate) mod address;
pub(crate) mod commit_id;
mod contents;
#[cfg(feature = "testing")]
pub mod forging;
mod ids;
pub(crate) mod import;
mod line;
mod local;
pub(crate) mod partial;
mod peer;
mod receive;
pub(crate) mod remote;
mod replace;
mod send;
pub(crate) mod transfer;
pub(crate) mod wire;
