//! The files of a log: their names, open handles, and how one is replaced.

pub(crate) mod aligned;
pub(crate) mod names;
pub(crate) mod open_files;
pub(crate) mod rewrite;
pub(crate) mod zeros;
