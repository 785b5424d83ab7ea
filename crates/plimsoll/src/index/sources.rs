//! The sources of versions: memtables and runs, how they are merged, and the view of all of them at
//! one moment.

pub(crate) mod merge;
pub(crate) mod source;
pub(crate) mod view;
