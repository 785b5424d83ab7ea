//! All tests of the log's public interface, in one program.
#![allow(clippy::unwrap_used, reason = "test code")]

mod append_and_read;
mod blocks;
mod chain;
mod common;
mod copies;
mod crash;
mod damaged_fragments;
mod keeping;
mod later_blobs;
mod laws;
mod log_time;
mod opening;
mod pains;
mod recover;
mod recovery;
mod rolling;
mod together;
