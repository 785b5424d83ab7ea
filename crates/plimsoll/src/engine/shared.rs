//! This process's part in a store that several processes have open.

pub(crate) mod joining;
pub(crate) mod membership;
mod memory_share;
pub(crate) mod requests;
