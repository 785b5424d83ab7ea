//! The log: one durable, total order of entries. It is the source of truth of a store.
//!
//! Every entry has a dense global sequence number ([`glsn::Glsn`]) from 1. An atomic append is one
//! record of one or more entries; large bodies are in blob files that are synced before the record
//! that names them. The log knows payload bytes, never keys. [`file_log::FileLog`] is a log
//! in files. Tests run it over a disk in memory
//! (`plimsoll_disk::mem`, `plimsoll_disk::lying`).

pub mod blob;
pub mod draft;
pub mod durability;
pub mod entry;
pub mod error;
pub mod file_log;
pub mod format;
pub mod glsn;
pub mod members;
