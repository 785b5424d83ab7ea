//! A log that several processes have open to write: its members ([`crate::members`]).
//!
//! - [`turn`]: the right to order the next record, held by one member at a time, which first loads
//!   the records of the others.
//! - [`catch_up`]: loads the records that others have ordered, from the files.
//! - [`posting`]: one member orders the records of several, in one turn.
//! - [`leap`]: resumes after a part that was trimmed before it was loaded.
//!
//! Beside these, `append::shared_segment` begins a segment, `durability::shared_sync` makes the
//! records of all members durable, and `recovery::beside` opens a log that others have open.
//!
//! Laws:
//! 1. A record's bytes are in the file before the end behind it is published: a process that reads
//!    the end finds them there, even if the process that wrote them is killed.
//! 2. Bytes after the published end belong to no record. The next holder of the turn after a member
//!    that ended in it writes zeros there, and removes a segment that was not published.

pub(crate) mod catch_up;
pub(crate) mod leap;
pub mod posting;
#[cfg(test)]
mod tests;
pub mod turn;
