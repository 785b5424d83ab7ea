//! Tests of typed keyspaces: the laws of keys, values, and whole keyspaces beside a model.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

mod keys;
mod keyspaces;
mod samples;
mod values;
