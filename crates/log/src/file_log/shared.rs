//! A log that several processes have open to write: its members ([`crate::members`]).
//!
//! - [`turn`]: the right to order the next record, one member at a time; what others have ordered is taken in before.
//! - [`catch_up`]: takes in what others have ordered, from the files.
//! - [`posting`]: one member orders the records of several, in one turn.
//! - [`leap`]: goes on behind a part that was trimmed before it was taken in.
//!
//! Beside these, `append::shared_segment` begins a segment, `durability::shared_sync` makes durable
//! what all have ordered, and `recovery::beside` opens a log that others have open.
//!
//! Laws:
//! 1. A record's bytes are in the file before the end behind it is published: whoever reads the end
//!    finds them there, also if the process that wrote them is killed.
//! 2. Bytes behind the published end belong to nothing. Whoever gets the turn from a member that
//!    ended in it writes zeros there, and removes a segment that was not published.

pub(crate) mod catch_up;
pub(crate) mod leap;
pub mod posting;
#[cfg(test)]
mod tests;
pub mod turn;
