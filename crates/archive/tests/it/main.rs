//! Integration tests of archives: one binary, with one module per subject.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests and their helpers; they wait for the real clock and damage real files"
)]

mod beside;
#[cfg(feature = "cloud")]
mod cloud;
mod damage;
mod moments;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_server;
mod refusals;
mod stops;
mod support;
