//! Decisions from numbers, mostly pure functions: which runs are merged, where tables end, how
//! large memtables and segments are beside the runs, and how long writers are delayed.

pub(crate) mod alignment;
pub(crate) mod debt;
pub(crate) mod overlap;
pub(crate) mod policy;
pub(crate) mod space;
pub(crate) mod superseding;
