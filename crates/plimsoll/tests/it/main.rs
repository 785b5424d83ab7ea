//! Integration tests of the store: one binary, one module a subject.

mod api;
mod bad_input;
mod large;
mod tidy;
