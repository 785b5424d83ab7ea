//! Integration tests of clusters: one binary, with one module per subject.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests and their helpers; they wait for the real clock and damage real files"
)]

mod conformance;
mod damage;
mod faults;
mod folder;
mod heal;
mod heal_refusals;
mod members;
mod memory_bucket;
mod moving;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
mod nats_servers;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
#[path = "../../../archive/tests/it/postgres_server.rs"]
mod postgres_server;
mod trim;
