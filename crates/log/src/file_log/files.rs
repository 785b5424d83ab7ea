//! The files of a log: names, open handles, and replacement.

pub(crate) mod aligned;
pub(crate) mod names;
pub(crate) mod open_files;
pub(crate) mod rewrite;
pub(crate) mod zeros;
