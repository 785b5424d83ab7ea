//! Reads as of a moment.

pub(crate) mod lens;
pub(crate) mod open_moments;
pub(crate) mod point;
pub(crate) mod reader;
pub(crate) mod resident;
pub(crate) mod span;
pub(crate) mod system_records;
