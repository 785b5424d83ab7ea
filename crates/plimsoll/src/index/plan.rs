//! Decides from numbers, mostly in pure functions: which runs are merged, where tables end, how
//! large memtables and segments are beside the runs, and what writers owe.

pub(crate) mod alignment;
pub(crate) mod debt;
pub(crate) mod policy;
pub(crate) mod space;
pub(crate) mod superseding;
pub(crate) mod sweep;
