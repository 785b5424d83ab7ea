//! THE TRUTH: one total order of entries, durable.
//!
//! Every entry has a dense global sequence number ([`glsn::Glsn`]) from 1. An atomic append is one record of one or
//! more entries; large bodies are in blob files that are synced before the record that names them. The log knows
//! payload bytes, never keys. [`log::Log`] is the interface; it has two implementations: a log in files ([`file_log`])
//! and, with the feature `testing`, a log in memory that fails on demand (`mem_log`).

pub mod blob;
pub mod draft;
pub mod entry;
pub mod error;
pub mod file_log;
pub mod format;
pub mod glsn;
pub mod log;
#[cfg(any(test, feature = "testing"))]
pub mod mem_log;
