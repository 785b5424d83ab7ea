//! A log that several processes, its members, have open for writing ([`crate::members`]).
//!
//! - [`turn`]: the right to order the next record. One member holds it at a time, and first loads
//!   the records of the others.
//! - [`catch_up`]: loads the records that others have ordered, from the files.
//! - [`posting`]: one member orders the records of several, in one turn.
//! - [`leap`]: resumes after a part that was trimmed before it was loaded.
//!
//! Besides these, `append::shared_segment` begins a segment, `durability::shared_sync` makes the
//! records of all members durable, and `recovery::beside` opens a log that others have open.
//!
//! Invariants:
//! 1. A record's bytes are in the file before the new end of the log is published. A process that
//!    reads the published end finds the bytes, even if the process that wrote them was killed.
//! 2. Bytes after the published end belong to no record. If a member ends while it holds the turn,
//!    the next holder overwrites these bytes with zeros and removes a segment that was not
//!    published.

pub(crate) mod catch_up;
pub(crate) mod leap;
pub mod posting;
#[cfg(test)]
mod tests;
pub mod turn;
