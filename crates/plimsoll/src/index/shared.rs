//! The index of a process that follows the manifests of another one.

pub(crate) mod follow;
