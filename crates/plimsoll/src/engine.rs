//! The owner of an open store: opening and closing, keyspaces, retention, memory, and maintenance.

pub(crate) mod collect_stats;
pub(crate) mod cursor_commits;
pub(crate) mod cursors;
pub(crate) mod io_choice;
pub(crate) mod keyspace_commits;
pub(crate) mod maintenance;
pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod replay;
pub(crate) mod retention;
pub(crate) mod steps;
pub(crate) mod store;
pub(crate) mod trim;
