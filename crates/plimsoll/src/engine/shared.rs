//! This process's part in a store that several processes have open.

pub(crate) mod membership;
pub(crate) mod requests;
