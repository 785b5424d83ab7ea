//! Reading: one entry, or a scan over many.

pub(crate) mod point;
pub(crate) mod read_ahead;
pub mod scan;
