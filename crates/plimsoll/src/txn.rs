//! One transaction, and the order of all of them.

pub(crate) mod apply;
pub(crate) mod bulk_load;
pub(crate) mod commit;
pub(crate) mod committer;
pub(crate) mod durable_wakers;
pub(crate) mod own_gaps;
pub(crate) mod own_writes;
pub(crate) mod patience;
pub(crate) mod payload;
pub(crate) mod peers;
mod pops;
mod previous;
pub(crate) mod range;
pub(crate) mod read_set;
pub(crate) mod reads;
pub(crate) mod removals;
pub(crate) mod retry;
mod rows_ahead;
mod scout;
pub(crate) mod sequencer;
pub(crate) mod shared;
pub(crate) mod spill;
pub(crate) mod ticket;
pub(crate) mod transaction;
pub(crate) mod value_buffer;
pub(crate) mod write_set;
