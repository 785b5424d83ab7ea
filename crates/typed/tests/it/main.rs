//! Tests of typed keyspaces: the laws of keys, values, and whole keyspaces beside a model.

mod keys;
mod keyspaces;
mod samples;
mod values;
