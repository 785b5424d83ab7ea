//! The log: one durable, total order of entries. It is the source of truth of a store.
//!
//! Every entry has a dense global sequence number ([`glsn::Glsn`]) from 1. An atomic append is one
//! record of one or more entries; large bodies are in blob files that are synced before the record
//! that names them. The log knows payload bytes, never keys. [`log::Log`] is the interface, and
//! [`file_log`] implements it: a log in files. Tests run it over a disk in memory
//! (`plimsoll_disk::mem`, `plimsoll_disk::lying`).

pub mod blob;
pub mod draft;
pub mod entry;
pub mod error;
pub mod file_log;
pub mod format;
pub mod glsn;
pub mod log;
pub mod members;
