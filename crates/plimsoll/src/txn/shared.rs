//! Commits in a store that several processes have open.

pub(crate) mod blind;
pub(crate) mod blindness;
pub(crate) mod follower;
