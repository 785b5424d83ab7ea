//! Borders that a run of the store crosses ([`plimsoll_disk::borders`]).

pub use plimsoll_disk::borders::*;
