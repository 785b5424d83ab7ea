//! Reads as of a moment.

pub(crate) mod lens;
pub(crate) mod moments;
pub(crate) mod own_records;
pub(crate) mod point;
pub(crate) mod reader;
pub(crate) mod resident;
pub(crate) mod span;
