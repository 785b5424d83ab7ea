//! Exchange of commits with other stores: ids of commits, clone, fetch, push and pull.
//!
//! Two stores give the same commit different GLSNs and the same id ([`commit_id`]). A store
//! computes the ids of its commits when they are first asked for, and keeps them in a keyspace of
//! its own ([`ids`]). A transfer finds the commits that the other store lacks ([`send`]) and
//! commits them there one by one ([`receive`]), parents first.
//!
//! Invariant: a commit is received only if its id, computed again from what arrived, is the one
//! that it was announced with.

pub(crate) mod commit_id;
mod contents;
mod ids;
mod lines;
mod receive;
pub(crate) mod remote;
mod send;
pub(crate) mod transfer;
