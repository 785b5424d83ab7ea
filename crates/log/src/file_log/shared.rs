//! A log that several processes have open to write: its members ([`crate::members`]).
//!
//! - [`turn`]: the right to order the next record, one member at a time; what others have ordered is taken in before.
//! - [`catch_up`]: takes in what others have ordered, from the files.
//! - [`sync`]: one sync makes durable what all members have ordered.
//! - [`next_segment`]: begins a segment, durable at once.
//! - [`open`]: opens a log beside others.
//!
//! Laws:
//! 1. A record's bytes are in the file before the end behind it is published: whoever reads the end finds them there, also if the process that
//!    wrote them is killed.
//! 2. Bytes behind the published end are no one's. Who gets the turn from a member that ended in it writes zeros there, and removes a
//!    segment that was not published.
//! 3. After a sync that was begun and not ended, everything that is not known to be durable is written again before the next sync: the
//!    system may have told of a failure to the one that ended.

pub(crate) mod catch_up;
pub(crate) mod next_segment;
pub(crate) mod open;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
pub mod turn;

use crate::file_log::tail::order::{End, Order};
use crate::members::words;

/// The end of the log as it is published.
pub(crate) fn end_of(order: &Order) -> words::End {
    let End { offset, next, chain, timestamp } = order.end;
    words::End { segment: order.header.first, offset, next, chain, timestamp, epoch: order.epoch }
}
