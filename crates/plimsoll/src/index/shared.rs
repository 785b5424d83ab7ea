//! The index of a process that follows the manifests of another process.

pub(crate) mod follow;
