//! Imports of generated repositories match git, and exports match their source.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests prepare files and repositories of their own, outside of the store"
)]

mod comparison;
mod continues;
mod export_again;
mod history;
mod holes;
mod repository;
mod round_trip;
mod run;
